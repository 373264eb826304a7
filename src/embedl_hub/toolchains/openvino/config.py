"""Settings of the OpenVINO providers, and the check of what this machine needs."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from embedl_device.interpreter import version_checks
from embedl_hub.core.device import CheckResult, DeviceKind, MeasuringConfig, check_args
from embedl_hub.errors import ConfigError

if TYPE_CHECKING:
    from embedl_hub.core.device import Device

TYPE = "embedl_openvino"
_PRECISIONS = ("f32", "f16", "bf16")


@dataclass(frozen=True)
class OpenVINOConfig(MeasuringConfig):
    """How OpenVINO is to run a model, here or on a board."""

    # A device as OpenVINO names it: ``CPU``, ``GPU``, ``GPU.1``, ``NPU``, ``AUTO``, ``HETERO:GPU,CPU``
    openvino_device: str = field(default="CPU", kw_only=True)
    # What floats are computed in: ``f32``, ``f16`` or ``bf16``; f32 where the device can when not given. OpenVINO left
    # alone takes bf16 or f16 wherever that is faster.
    inference_precision: str | None = field(default=None, kw_only=True)
    # Keep what the device compiled in a folder there, so that the next load is quicker
    model_cache: bool = field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.openvino_device:
            raise ConfigError(f"openvino_device is a name such as CPU or GPU, not {self.openvino_device!r}.")
        if self.inference_precision not in (None, *_PRECISIONS):
            raise ConfigError(
                f"inference_precision is one of {', '.join(_PRECISIONS)}, not {self.inference_precision!r}."
            )


@dataclass(frozen=True)
class EmbedlOpenVINOConfig(OpenVINOConfig):
    """The device program ``embedl-openvino`` on a board."""

    # The program; when the board has none, the hub carries it there itself
    embedl_openvino_path: str = "embedl-openvino"
    cli_args: tuple[str, ...] = ()  # further arguments for each of its commands
    # The Python on the board that runs a carried program; it needs numpy and openvino
    python_path: str = field(default="python3", kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_args("cli_args", self.cli_args)


def _board_checks(device: Device) -> Mapping[str, Sequence[str]]:
    config = device.provider_config
    python = config.python_path if isinstance(config, EmbedlOpenVINOConfig) else "python3"
    return version_checks(python, "numpy", "openvino")


BOARD_KIND = DeviceKind(TYPE, "A board with OpenVINO.", EmbedlOpenVINOConfig, checks=_board_checks)


def check_runtime() -> list[CheckResult]:
    """Tell whether this machine has OpenVINO."""
    try:
        version = importlib.metadata.version("openvino")
    except importlib.metadata.PackageNotFoundError:
        advice = "pip install 'edgeproof-hub[openvino]'"
        return [CheckResult("openvino", is_ok=None, message="not installed", advice=advice)]
    return [CheckResult("openvino", is_ok=True, message=version)]
