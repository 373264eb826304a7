"""Devices in Qualcomm's cloud, through the vendor's own client (extra ``qai-hub``)."""

from embedl_hub.clouds.qai_hub.config import TYPE
from embedl_hub.core.component import Component
from embedl_hub.machine.steps import provide
from embedl_hub.toolchains.onnxruntime.components import ONNXRuntimeCompiler, ONNXRuntimeInvoker, ONNXRuntimeProfiler
from embedl_hub.toolchains.tflite.components import TFLiteCompiler, TFLiteInvoker, TFLiteProfiler

_FUNCTIONS = ("compile_model", "profile_model", "invoke_model")
_ONNXRUNTIME: tuple[type[Component], ...] = (ONNXRuntimeCompiler, ONNXRuntimeProfiler, ONNXRuntimeInvoker)
_TFLITE: tuple[type[Component], ...] = (TFLiteCompiler, TFLiteProfiler, TFLiteInvoker)

for title, extra, steps in (("ONNX Runtime models", "onnxruntime", _ONNXRUNTIME), ("TFLite models", "tflite", _TFLITE)):
    module = f"embedl_hub.clouds.qai_hub.{extra}"
    works = {step: f"{module}:{name}" for step, name in zip(steps, _FUNCTIONS, strict=True)}
    provide((TYPE,), works, tools=("qai-hub", "onnx", "numpy"), title=title, extra=extra)
