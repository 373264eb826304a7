"""This machine as the target."""

import embedl_hub.providers.local.onnxruntime
import embedl_hub.providers.local.tensorrt
import embedl_hub.providers.local.tflite  # noqa: F401 - all register their providers
from embedl_hub.tflite.environment import doctor

__all__ = ["doctor"]
