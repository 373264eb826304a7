"""Profilers: how fast a compiled model is on a device."""

from embedl_hub.core.profile._modules import ModuleTime, ModuleTimes, module_times
from embedl_hub.core.profile._onnxruntime import ONNXRuntimeProfiler, ONNXRuntimeProfilingResult
from embedl_hub.core.profile._result import ProfiledLayer, ProfilingResult
from embedl_hub.core.profile._tensorrt import TensorRTProfiler, TensorRTProfilingResult
from embedl_hub.core.profile._tflite import TFLiteProfiler, TFLiteProfilingResult
from embedl_hub.errors import ProfileError

__all__ = [
    "ModuleTime",
    "ModuleTimes",
    "ONNXRuntimeProfiler",
    "ONNXRuntimeProfilingResult",
    "ProfileError",
    "ProfiledLayer",
    "ProfilingResult",
    "TFLiteProfiler",
    "TFLiteProfilingResult",
    "TensorRTProfiler",
    "TensorRTProfilingResult",
    "module_times",
]
