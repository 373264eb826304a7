"""``python -m embedl_executorch`` is the command line."""

import sys

from embedl_executorch.cli import main

sys.exit(main())
