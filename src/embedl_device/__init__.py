"""What the programs on a board share: measuring, statistics, the board's state, arrays, the command line's shape.

Knows no runtime: numpy and the standard library, Python 3.8 and newer.
"""

from embedl_device._version import __version__

# Of the documents that the programs write and the hub keeps; changes when a reader would have to.
DOCUMENT_FORMAT = 1

__all__ = ["DOCUMENT_FORMAT", "__version__"]
