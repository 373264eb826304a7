"""Invokers: what a compiled model answers on a device."""

from embedl_hub.core.invoke._compare import OutputDifference, Parity, compare_outputs, is_ruined
from embedl_hub.core.invoke._onnxruntime import ONNXRuntimeInvocationResult, ONNXRuntimeInvoker
from embedl_hub.core.invoke._result import InvocationResult
from embedl_hub.core.invoke._tensorrt import TensorRTInvocationResult, TensorRTInvoker
from embedl_hub.core.invoke._tflite import TFLiteInvocationResult, TFLiteInvoker
from embedl_hub.errors import InvokeError

__all__ = [
    "InvocationResult",
    "InvokeError",
    "ONNXRuntimeInvocationResult",
    "ONNXRuntimeInvoker",
    "OutputDifference",
    "Parity",
    "TFLiteInvocationResult",
    "TFLiteInvoker",
    "TensorRTInvocationResult",
    "TensorRTInvoker",
    "compare_outputs",
    "is_ruined",
]
