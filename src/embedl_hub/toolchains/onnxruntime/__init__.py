"""ONNX Runtime, here and on boards: one way to compile, profile and invoke.

The work is done by the device program (``embedl-onnxruntime``), driven through its command line on any runner, so that
numbers taken here and on a board mean the same. Needs the extra ``onnxruntime``, imported on use.
"""

from embedl_hub.core.device import LOCAL
from embedl_hub.core.toolchain import Toolchain
from embedl_hub.toolchains.onnxruntime.components import (
    ONNXRuntimeCompiledModel,
    ONNXRuntimeCompiler,
    ONNXRuntimeInvoker,
    ONNXRuntimePairedProfiler,
    ONNXRuntimeProfiler,
)
from embedl_hub.toolchains.onnxruntime.config import BOARD_KIND, TYPE, ONNXRuntimeConfig

__all__ = ["TOOLCHAIN"]

TOOLCHAIN = Toolchain(
    name="onnxruntime",
    title="ONNX Runtime",
    compiler=ONNXRuntimeCompiler,
    compiled_model=ONNXRuntimeCompiledModel,
    suffixes=(".onnx",),
    profiler=ONNXRuntimeProfiler,
    paired_profiler=ONNXRuntimePairedProfiler,
    invoker=ONNXRuntimeInvoker,
    providers=dict.fromkeys((LOCAL, TYPE), "embedl_hub.toolchains.onnxruntime.providers"),
    device_kinds=(BOARD_KIND,),
    local_config=ONNXRuntimeConfig,
    board_packages=("numpy", "onnxruntime"),
    driver="embedl_hub.toolchains.onnxruntime.runtime:DRIVER",
    memory_planner="embedl_hub.toolchains.onnxruntime.memory.file:plan_file",
    predictor="embedl_hub.toolchains.onnxruntime.predict:predict_on_device",
)
