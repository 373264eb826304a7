"""INT8 from a float ONNX file and data, for every toolchain that reads Q/DQ files. Needs onnx and onnxruntime."""
