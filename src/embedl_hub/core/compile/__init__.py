"""Compilers: from an ONNX model to what a runtime on a device takes."""

from embedl_hub.core.compile._onnxruntime import CalibrationData, ONNXRuntimeCompiledModel, ONNXRuntimeCompiler
from embedl_hub.core.compile._tensorrt import TensorRTCompiledModel, TensorRTCompiler
from embedl_hub.core.compile._tflite import TFLiteCompiledModel, TFLiteCompiler
from embedl_hub.errors import CompileError

__all__ = [
    "CalibrationData",
    "CompileError",
    "ONNXRuntimeCompiledModel",
    "ONNXRuntimeCompiler",
    "TFLiteCompiledModel",
    "TFLiteCompiler",
    "TensorRTCompiledModel",
    "TensorRTCompiler",
]
