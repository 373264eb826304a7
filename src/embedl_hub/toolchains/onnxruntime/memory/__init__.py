"""The memory of a model in ONNX Runtime: predicted from its file, and as the runtime told it."""
