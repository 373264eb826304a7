"""Boards with Python and ONNX Runtime: ``embedl-onnxruntime <command> --model M …`` over the device's runner."""

import embedl_hub.providers.embedl_onnxruntime.onnxruntime  # noqa: F401 - registers its providers
