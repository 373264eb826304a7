"""The program on the board: optimise, profile and run ONNX models with ONNX Runtime.

Small on purpose: numpy, onnxruntime and the standard library, Python 3.8 and newer.
"""

__version__ = "0.1.0"
