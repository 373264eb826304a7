"""``python -m embedl_openvino`` is the command line."""

import sys

from embedl_openvino.cli import main

sys.exit(main())
