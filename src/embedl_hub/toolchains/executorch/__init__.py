"""ExecuTorch, here and on boards: make programs (.pte) with XNNPACK, profile and invoke them.

Its packages, torch among them, may be in the Python that runs the hub; if they are not, this package makes an
environment of its own for them. Everything is done by the device program ``embedl-executorch``, there and on boards.
"""

from embedl_hub.core.device import LOCAL
from embedl_hub.core.toolchain import Toolchain
from embedl_hub.toolchains.executorch.components import (
    ExecuTorchCompiledModel,
    ExecuTorchCompiler,
    ExecuTorchInvoker,
    ExecuTorchPairedProfiler,
    ExecuTorchProfiler,
)
from embedl_hub.toolchains.executorch.config import (
    BOARD_KIND,
    TYPE,
    ExecuTorchConfig,
    check_packages,
    install_packages,
)

__all__ = ["TOOLCHAIN"]

TOOLCHAIN = Toolchain(
    "executorch", "ExecuTorch", ExecuTorchCompiler, ExecuTorchCompiledModel, suffixes=(".pte",),
    profiler=ExecuTorchProfiler, paired_profiler=ExecuTorchPairedProfiler, invoker=ExecuTorchInvoker,
    device_kinds=(BOARD_KIND,), local_config=ExecuTorchConfig,
    providers=dict.fromkeys((LOCAL, TYPE), "embedl_hub.toolchains.executorch.providers"), doctor=check_packages,
    install=install_packages, driver="embedl_hub.toolchains.executorch.runtime:DRIVER",
    memory_planner="embedl_hub.toolchains.executorch.memory:plan_file",
)  # fmt: skip
