"""The providers of TFLite: the same on this machine and on a board. Vendor packages are imported on use."""

from embedl_hub.core.device import LOCAL
from embedl_hub.machine.steps import provide, provide_measurements
from embedl_hub.toolchains.tflite.components import TFLiteCompiler, TFLiteInvoker, TFLitePairedProfiler, TFLiteProfiler
from embedl_hub.toolchains.tflite.config import TYPE, EmbedlLiteRTConfig, LiteRTConfig

_TYPES = (LOCAL, TYPE)
_TOOLS = ("edgeproof-device", "ai-edge-litert", "onnx", "numpy")
_PACKAGE = "embedl_hub.toolchains.tflite"
_TITLE, _EXTRA = "TFLite models", "tflite"

# Compiled here for every device.
provide(_TYPES, {TFLiteCompiler: f"{_PACKAGE}.compile:compile_model"}, tools=_TOOLS, title=_TITLE, extra=_EXTRA)
_WORKS = {
    TFLiteProfiler: f"{_PACKAGE}.benchmark:profile_model",
    TFLitePairedProfiler: f"{_PACKAGE}.profile:pair_models",
    TFLiteInvoker: f"{_PACKAGE}.profile:invoke_model",
}
provide(_TYPES, _WORKS, tools=_TOOLS, title=_TITLE, extra=_EXTRA, configs=(LiteRTConfig, EmbedlLiteRTConfig))
provide_measurements(_TYPES, title=_TITLE, extra=_EXTRA)
