"""Settings of the ExecuTorch providers, and the check of what this machine needs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from embedl_device.interpreter import version_checks
from embedl_hub.core.device import CheckResult, DeviceKind, MeasuringConfig, check_args

if TYPE_CHECKING:
    from embedl_hub.core.device import Device

TYPE = "embedl_executorch"


@dataclass(frozen=True)
class ExecuTorchConfig(MeasuringConfig):
    """How ExecuTorch is to run a model, here or on a board."""

    # A Python of this machine that has executorch; not given: the one that runs the hub, else an environment of its own
    executorch_python: str | None = field(default=None, kw_only=True)


@dataclass(frozen=True)
class EmbedlExecuTorchConfig(ExecuTorchConfig):
    """A board that runs ExecuTorch programs with the device program ``embedl-executorch``."""

    # The program; when the board has none, the hub carries it there itself
    embedl_executorch_path: str = "embedl-executorch"
    cli_args: tuple[str, ...] = ()  # further arguments for each of its commands
    # The Python on the board that runs a carried program; it needs numpy, torch and executorch
    python_path: str = field(default="python3", kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_args("cli_args", self.cli_args)


def _board_checks(device: Device) -> Mapping[str, Sequence[str]]:
    config = device.provider_config
    python = config.python_path if isinstance(config, EmbedlExecuTorchConfig) else "python3"
    return version_checks(python, "numpy", "torch", "executorch")


BOARD_KIND = DeviceKind(TYPE, "A board with ExecuTorch.", EmbedlExecuTorchConfig, checks=_board_checks)


def check_packages() -> list[CheckResult]:
    """Tell whether ExecuTorch is there: in this Python, or in an environment of its own."""
    from embedl_hub.toolchains.executorch.environment import ENVIRONMENT, own_version  # noqa: PLC0415 - on use

    version = own_version()
    if version is None:
        return ENVIRONMENT.checks()
    return [CheckResult(f"{ENVIRONMENT.name} converter", is_ok=True, message=f"executorch {version} in this Python")]


def install_packages() -> None:
    """Make the environment and tell how it goes; ``embedl-hub doctor --install executorch`` calls it."""
    from embedl_hub.toolchains.executorch.environment import ENVIRONMENT  # noqa: PLC0415 - on use

    ENVIRONMENT.install_aloud()
