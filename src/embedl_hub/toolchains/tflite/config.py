"""Settings of the TFLite providers, and the check of what this machine needs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from embedl_device.interpreter import version_checks
from embedl_hub.core.device import CheckResult, DeviceKind, MeasuringConfig, check_args

if TYPE_CHECKING:
    from embedl_hub.core.device import Device

TYPE = "embedl_litert"


@dataclass(frozen=True)
class LiteRTConfig(MeasuringConfig):
    """How LiteRT is to run a TFLite model, here or on a board."""

    # Let the XNNPACK delegate take the operators it can; off, the runtime's own kernels run
    xnnpack: bool = field(default=True, kw_only=True)


@dataclass(frozen=True)
class EmbedlLiteRTConfig(LiteRTConfig):
    """A board that runs TFLite models: with the device program ``embedl-litert``, or with Google's benchmark alone."""

    embedl_litert_path: str = "embedl-litert"  # the program; when the board has none, the hub carries it there itself
    cli_args: tuple[str, ...] = ()  # further arguments for each of its commands
    # The Python on the board that runs a carried program; it needs numpy and ai-edge-litert
    python_path: str = field(default="python3", kw_only=True)
    # Google's ``benchmark_model`` on the board. Given: profiles are measured by it, nothing else is needed there, and
    # models cannot be invoked.
    benchmark_model_path: str | None = field(default=None, kw_only=True)
    # Further arguments for it, such as ``--use_gpu=true``
    benchmark_args: tuple[str, ...] = field(default=(), kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_args("cli_args", self.cli_args)
        check_args("benchmark_args", self.benchmark_args)


def _board_checks(device: Device) -> Mapping[str, Sequence[str]]:
    config = device.provider_config if isinstance(device.provider_config, EmbedlLiteRTConfig) else EmbedlLiteRTConfig()
    if config.benchmark_model_path is not None:
        return {"benchmark_model": ["test", "-x", config.benchmark_model_path]}
    return version_checks(config.python_path, "numpy", "ai-edge-litert")


BOARD_KIND = DeviceKind(
    TYPE, "A board with LiteRT, or with Google's benchmark_model.", EmbedlLiteRTConfig, checks=_board_checks
)


def check_converter() -> list[CheckResult]:
    """Tell whether the converter is there."""
    from embedl_hub.toolchains.tflite.environment import ENVIRONMENT  # noqa: PLC0415 - on use

    return ENVIRONMENT.checks()


def install_converter() -> None:
    """Make the environment and tell how it goes; ``embedl-hub doctor --install tflite`` calls it."""
    from embedl_hub.toolchains.tflite.environment import ENVIRONMENT  # noqa: PLC0415 - on use

    ENVIRONMENT.install_aloud()
