"""Settings of the ONNX Runtime providers: what the steps' published keywords have no room for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from embedl_device.interpreter import python_argv
from embedl_hub.core.device import DeviceKind, MeasuringConfig, check_args
from embedl_hub.errors import ConfigError

if TYPE_CHECKING:
    from embedl_hub.core.device import Device

TYPE = "embedl_onnxruntime"
_LEVELS = ("disable", "basic", "extended", "all")


@dataclass(frozen=True)
class ONNXRuntimeConfig(MeasuringConfig):
    """How ONNX Runtime is to run a model, here or on a board."""

    execution_providers: tuple[str, ...] = field(default=(), kw_only=True)  # in order of preference; the CPU when empty
    allow_fallback: bool = field(default=False, kw_only=True)  # go on when one of them cannot be used at all
    optimization_level: str = field(default="all", kw_only=True)  # ``disable``, ``basic``, ``extended`` or ``all``
    # Go on, with a warning, when the model needs exact integer kernels and the processor has none
    allow_saturation: bool = field(default=False, kw_only=True)
    # Say what INT8 will gain before it is made; the first time this measures the device for seconds
    prediction: bool = field(default=True, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.optimization_level not in _LEVELS:
            raise ConfigError(f"optimization_level is one of {', '.join(_LEVELS)}, not {self.optimization_level!r}.")
        check_args("execution_providers", self.execution_providers)


@dataclass(frozen=True)
class EmbedlONNXRuntimeConfig(ONNXRuntimeConfig):
    """The device program ``embedl-onnxruntime`` on a board."""

    # The program; when the board has none, the hub carries it there itself
    embedl_onnxruntime_path: str = "embedl-onnxruntime"
    cli_args: tuple[str, ...] = ()  # further arguments for each of its commands
    # The Python on the board that runs a carried program; it needs numpy and onnxruntime
    python_path: str = field(default="python3", kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_args("cli_args", self.cli_args)


def _board_checks(device: Device) -> Mapping[str, Sequence[str]]:
    config = device.provider_config
    python = config.python_path if isinstance(config, EmbedlONNXRuntimeConfig) else "python3"
    show = "import {0}; print({0}.__version__)"
    return {
        "python": python_argv(python, code="import platform; print(platform.python_version())"),
        "numpy": python_argv(python, code=show.format("numpy")),
        "onnxruntime": python_argv(python, code=show.format("onnxruntime")),
    }


BOARD_KIND = DeviceKind(TYPE, "A board with ONNX Runtime.", EmbedlONNXRuntimeConfig, checks=_board_checks)
