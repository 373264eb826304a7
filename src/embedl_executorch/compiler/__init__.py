"""Makes ExecuTorch programs (.pte): from an exported program (.pt2), or from an ONNX file by way of one.

Needs torch, executorch and, for ONNX, onnx: the environment of the hub's toolchain has them, a board needs none.
"""
