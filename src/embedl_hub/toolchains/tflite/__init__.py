"""TFLite, here and on boards: convert, quantize, profile and invoke.

The converter's pins clash with everything else, so it lives in an environment of its own that this package makes and
remembers. Models run in LiteRT, driven by the device program ``embedl-litert`` through its command line on any runner.
"""

from embedl_hub.core.device import LOCAL
from embedl_hub.core.toolchain import Toolchain
from embedl_hub.toolchains.tflite.components import (
    TFLiteCompiledModel,
    TFLiteCompiler,
    TFLiteInvoker,
    TFLitePairedProfiler,
    TFLiteProfiler,
)
from embedl_hub.toolchains.tflite.config import BOARD_KIND, TYPE, LiteRTConfig, check_converter, install_converter

__all__ = ["TOOLCHAIN"]

TOOLCHAIN = Toolchain(
    "tflite", "TFLite", TFLiteCompiler, TFLiteCompiledModel, suffixes=(".tflite",), profiler=TFLiteProfiler,
    paired_profiler=TFLitePairedProfiler, invoker=TFLiteInvoker, device_kinds=(BOARD_KIND,), local_config=LiteRTConfig,
    providers=dict.fromkeys((LOCAL, TYPE), "embedl_hub.toolchains.tflite.providers"), doctor=check_converter,
    install=install_converter, driver="embedl_hub.toolchains.tflite.profile:DRIVER",
    memory_planner="embedl_hub.toolchains.tflite.memory.predict:plan_file",
)  # fmt: skip
