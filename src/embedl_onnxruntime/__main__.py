"""``python -m embedl_onnxruntime`` is the command line."""

import sys

from embedl_onnxruntime.cli import main

sys.exit(main())
