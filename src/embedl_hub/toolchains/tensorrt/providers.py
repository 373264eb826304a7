"""The providers of TensorRT, imported on use: trtexec on this machine and on boards, and TensorRT-RTX.

TensorRT-RTX compiles without a GPU; measuring and running need one, and are refused.
"""

from embedl_hub.core.device import LOCAL
from embedl_hub.machine.steps import provide
from embedl_hub.toolchains.tensorrt.components import TensorRTCompiler, TensorRTInvoker, TensorRTProfiler
from embedl_hub.toolchains.tensorrt.config import TENSORRT_RTX, TRTEXEC, TrtexecConfig

_PACKAGE = "embedl_hub.toolchains.tensorrt"
_STEPS = (TensorRTCompiler, TensorRTProfiler, TensorRTInvoker)

trtexec = ("compile:compile_model", "profile:profile_model", "profile:invoke_model")
provide(
    (LOCAL, TRTEXEC), {step: f"{_PACKAGE}.{work}" for step, work in zip(_STEPS, trtexec, strict=True)},
    tools=("onnx", "numpy"), title="TensorRT models", extra="trtexec", configs=(TrtexecConfig,),
)  # fmt: skip
rtx = ("rtx:compile_model", "rtx:refuse_profile", "rtx:refuse_invoke")
provide(
    (TENSORRT_RTX,), {step: f"{_PACKAGE}.{work}" for step, work in zip(_STEPS, rtx, strict=True)},
    tools=("onnx", "tensorrt-rtx"), title="TensorRT models", extra="tensorrt-rtx",
)  # fmt: skip
