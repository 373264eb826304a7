"""The device program's runtime and settings."""

from __future__ import annotations

from typing import TYPE_CHECKING

from embedl_hub.machine.driver import Driver
from embedl_hub.machine.machine import Runtime
from embedl_hub.toolchains.executorch.config import EmbedlExecuTorchConfig, ExecuTorchConfig
from embedl_hub.toolchains.executorch.environment import interpreter

if TYPE_CHECKING:
    from pathlib import Path

    from embedl_hub.models.onnx_file import Tensor

RUNTIME = Runtime(
    "ExecuTorch", "executorch", module="embedl_executorch", packages="numpy, torch and executorch", extra="executorch",
    extra_of_program="executorch", board_config="EmbedlExecuTorchConfig",
    after_a_crash="Another version of executorch, or backend='portable' in the compiler, may do.",
    interpreter=interpreter,
)  # fmt: skip


def settings(config: ExecuTorchConfig) -> list[str]:
    """Return the arguments that every command with a model takes."""
    return [] if config.threads is None else ["--threads", str(config.threads)]


def _no_inputs(_: Path) -> tuple[Tensor, ...]:
    """Return none: the device program reads a program's inputs where the runtime is, and refuses what does not fit."""
    return ()


DRIVER = Driver(
    RUNTIME, (ExecuTorchConfig, EmbedlExecuTorchConfig), lambda machine: settings(machine.config), _no_inputs
)
