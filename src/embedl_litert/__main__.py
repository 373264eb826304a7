"""``python -m embedl_litert`` is the command line."""

import sys

from embedl_litert.cli import main

sys.exit(main())
