"""The providers of ExecuTorch: the same on this machine and on a board. Vendor packages are imported on use."""

from embedl_hub.core.device import LOCAL
from embedl_hub.machine.steps import provide, provide_measurements
from embedl_hub.toolchains.executorch.components import (
    ExecuTorchCompiler,
    ExecuTorchInvoker,
    ExecuTorchPairedProfiler,
    ExecuTorchProfiler,
)
from embedl_hub.toolchains.executorch.config import TYPE, EmbedlExecuTorchConfig, ExecuTorchConfig

_TYPES = (LOCAL, TYPE)
_TOOLS = ("edgeproof-device", "executorch", "torch", "onnx", "numpy")
_PACKAGE = "embedl_hub.toolchains.executorch"
_TITLE, _EXTRA = "ExecuTorch programs", "executorch"

# Compiled here for every device.
provide(_TYPES, {ExecuTorchCompiler: f"{_PACKAGE}.compile:compile_model"}, tools=_TOOLS, title=_TITLE, extra=_EXTRA)
_WORKS = {
    ExecuTorchProfiler: f"{_PACKAGE}.profile:profile_model",
    ExecuTorchPairedProfiler: f"{_PACKAGE}.profile:pair_models",
    ExecuTorchInvoker: f"{_PACKAGE}.profile:invoke_model",
}
provide(_TYPES, _WORKS, tools=_TOOLS, title=_TITLE, extra=_EXTRA, configs=(ExecuTorchConfig, EmbedlExecuTorchConfig))
provide_measurements(_TYPES, title=_TITLE, extra=_EXTRA)
