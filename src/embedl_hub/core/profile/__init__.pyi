# Written by tools/stubs.py: the face's own names, and those of the toolchains and services that ship.
from embedl_hub.core.profile._profiler import ModuleTime as ModuleTime
from embedl_hub.core.profile._profiler import ModuleTimes as ModuleTimes
from embedl_hub.core.profile._profiler import PairedModel as PairedModel
from embedl_hub.core.profile._profiler import PairedProfiler as PairedProfiler
from embedl_hub.core.profile._profiler import PairedResult as PairedResult
from embedl_hub.core.profile._profiler import Profiler as Profiler
from embedl_hub.core.profile._profiler import ProfilingResult as ProfilingResult
from embedl_hub.core.profile._profiler import module_times as module_times
from embedl_hub.errors import ProfileError as ProfileError
from embedl_hub.toolchains.onnxruntime.components import ONNXRuntimePairedProfiler as ONNXRuntimePairedProfiler
from embedl_hub.toolchains.onnxruntime.components import ONNXRuntimeProfiler as ONNXRuntimeProfiler
from embedl_hub.toolchains.onnxruntime.components import ONNXRuntimeProfilingResult as ONNXRuntimeProfilingResult
from embedl_hub.toolchains.tflite.components import TFLitePairedProfiler as TFLitePairedProfiler
from embedl_hub.toolchains.tflite.components import TFLiteProfiler as TFLiteProfiler
from embedl_hub.toolchains.tflite.components import TFLiteProfilingResult as TFLiteProfilingResult
from embedl_hub.toolchains.tensorrt.components import TensorRTProfiler as TensorRTProfiler
from embedl_hub.toolchains.tensorrt.components import TensorRTProfilingResult as TensorRTProfilingResult
