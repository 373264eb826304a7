"""OpenVINO, here and on boards: compile, profile and invoke on CPU, GPU and NPU.

The work is done by the device program (``embedl-openvino``), driven through its command line on any runner, so that
numbers taken here and on a board mean the same. Needs the extra ``openvino``, imported on use.
"""

from embedl_hub.core.device import LOCAL
from embedl_hub.core.toolchain import Toolchain
from embedl_hub.toolchains.openvino.components import (
    OpenVINOCompiledModel,
    OpenVINOCompiler,
    OpenVINOInvoker,
    OpenVINOPairedProfiler,
    OpenVINOProfiler,
)
from embedl_hub.toolchains.openvino.config import BOARD_KIND, TYPE, OpenVINOConfig, check_runtime

__all__ = ["TOOLCHAIN"]

TOOLCHAIN = Toolchain(
    "openvino", "OpenVINO", OpenVINOCompiler, OpenVINOCompiledModel, suffixes=(".xml",), profiler=OpenVINOProfiler,
    paired_profiler=OpenVINOPairedProfiler, invoker=OpenVINOInvoker, device_kinds=(BOARD_KIND,),
    local_config=OpenVINOConfig, doctor=check_runtime,
    driver="embedl_hub.toolchains.openvino.runtime:DRIVER",
    providers=dict.fromkeys((LOCAL, TYPE), "embedl_hub.toolchains.openvino.providers"),
)  # fmt: skip
