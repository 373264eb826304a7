"""What the programs on a board share: measuring, statistics, the board's state, arrays, the command line's shape.

Knows no runtime: numpy and the standard library, Python 3.8 and newer.
"""

import os

from embedl_device._version import __version__

# ONNX Runtime notes names of models and machines, and sends them to its makers, unless it is told not to before it is
# imported. Every package of ours imports this one first.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

# Of the documents that the programs write and the hub keeps; changes when a reader would have to.
DOCUMENT_FORMAT = 1

__all__ = ["DOCUMENT_FORMAT", "__version__"]
