"""Boards with Python and ONNX Runtime: ``embedl-onnxruntime <command> --model M …`` over the device's runner."""

from embedl_hub.core.component import ProviderType
from embedl_hub.onnxruntime import provider

provider.register(ProviderType.EMBEDL_ONNXRUNTIME)
