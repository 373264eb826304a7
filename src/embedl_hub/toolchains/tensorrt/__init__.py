"""TensorRT, here and on boards: engines built, measured and run by NVIDIA's ``trtexec``, or built by TensorRT-RTX.

The work is done by those programs in processes of their own; what is here writes their options and reads their files.
Needs the extra ``trtexec`` or ``tensorrt-rtx``, imported on use.
"""

from embedl_hub.core.device import LOCAL
from embedl_hub.core.toolchain import Toolchain
from embedl_hub.toolchains.tensorrt.components import (
    TensorRTCompiledModel,
    TensorRTCompiler,
    TensorRTInvoker,
    TensorRTProfiler,
)
from embedl_hub.toolchains.tensorrt.config import TENSORRT_RTX, TENSORRT_RTX_KIND, TRTEXEC, TRTEXEC_KIND

__all__ = ["TOOLCHAIN"]

TOOLCHAIN = Toolchain(
    "tensorrt", "TensorRT", TensorRTCompiler, TensorRTCompiledModel, suffixes=(".engine", ".plan"),
    profiler=TensorRTProfiler, invoker=TensorRTInvoker, device_kinds=(TRTEXEC_KIND, TENSORRT_RTX_KIND),
    providers=dict.fromkeys((LOCAL, TRTEXEC, TENSORRT_RTX), "embedl_hub.toolchains.tensorrt.providers"),
)  # fmt: skip
