"""The program on the board: optimize, profile and run ONNX models with ONNX Runtime.

Small on purpose: numpy, onnxruntime and the standard library, Python 3.8 and newer.
"""

from embedl_device import __version__

__all__ = ["__version__"]
