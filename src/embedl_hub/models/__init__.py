"""Models on disk: ONNX files, calibration data, and the names of the modules that nodes came from."""
