"""The program on the board: profile and run TFLite models with LiteRT.

Small on purpose: numpy, ai-edge-litert and the standard library, Python 3.8 and newer.
"""

from embedl_device import __version__

__all__ = ["__version__"]
