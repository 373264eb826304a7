"""Profilers: how fast a compiled model is on a device."""

from embedl_hub.core.profile._onnxruntime import (
    ONNXRuntimePairedProfiler,
    ONNXRuntimeProfiler,
    ONNXRuntimeProfilingResult,
)
from embedl_hub.core.profile._paired import PairedModel, PairedProfiler, PairedResult, paired_profiler
from embedl_hub.core.profile._result import ProfiledLayer, ProfilingResult
from embedl_hub.core.profile._tensorrt import TensorRTProfiler, TensorRTProfilingResult
from embedl_hub.core.profile._tflite import TFLitePairedProfiler, TFLiteProfiler, TFLiteProfilingResult
from embedl_hub.errors import ProfileError

__all__ = [
    "ONNXRuntimePairedProfiler",
    "ONNXRuntimeProfiler",
    "ONNXRuntimeProfilingResult",
    "PairedModel",
    "PairedProfiler",
    "PairedResult",
    "ProfileError",
    "ProfiledLayer",
    "ProfilingResult",
    "TFLitePairedProfiler",
    "TFLiteProfiler",
    "TFLiteProfilingResult",
    "TensorRTProfiler",
    "TensorRTProfilingResult",
    "paired_profiler",
]
