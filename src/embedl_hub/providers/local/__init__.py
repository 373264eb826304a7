"""This machine as the target."""

from embedl_hub.core.component import ProviderType
from embedl_hub.onnxruntime import provider as onnxruntime
from embedl_hub.tensorrt import provider as tensorrt
from embedl_hub.tflite import provider as tflite
from embedl_hub.tflite.environment import doctor

__all__ = ["doctor"]

for _toolchain in (onnxruntime, tensorrt, tflite):
    _toolchain.register(ProviderType.LOCAL)
