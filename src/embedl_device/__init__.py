"""What the programs on a board share: measuring, judging, the board's state, arrays in files, the command line's shape.

Knows no runtime: numpy and the standard library, Python 3.8 and newer.
"""

from embedl_device._version import __version__

__all__ = ["__version__"]
