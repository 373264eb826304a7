"""Settings of the ONNX Runtime providers: what the steps' published keywords have no room for."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from embedl_hub.core.device._config import ProviderConfig
from embedl_hub.core.device._kind import DeviceKind
from embedl_hub.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from embedl_hub.core.device._device import Device

_LEVELS = ("disable", "basic", "extended", "all")


def _check_words(name: str, value: object) -> None:
    if isinstance(value, str) or not all(isinstance(word, str) for word in value):  # type: ignore[attr-defined]
        raise ConfigError(f"{name} is a tuple of words, not {value!r}.")


@dataclass(frozen=True)
class ONNXRuntimeConfig(ProviderConfig):
    """How ONNX Runtime is to run a model, here or on a board.

    Attributes:
        execution_providers: In order of preference; the CPU when empty.
        allow_fallback: Go on when one of them cannot be used at all.
        threads: Threads within one operator; None leaves it to the runtime.
        optimization_level: ``disable``, ``basic``, ``extended`` or ``all``.
        iterations: A profile takes at least so many samples,
        min_seconds: and measures at least so long,
        max_seconds: but never longer than this.
        max_warmup_seconds: The warm-up ends here even if the times still change.
        layer_runs: Profiled runs for the layers, after the measurement; 0 leaves the layers out.
        timeout_s: The device program is stopped after this long; None takes the runner's own limit.
    """

    execution_providers: tuple[str, ...] = field(default=(), kw_only=True)
    allow_fallback: bool = field(default=False, kw_only=True)
    threads: int | None = field(default=None, kw_only=True)
    optimization_level: str = field(default="all", kw_only=True)
    iterations: int = field(default=100, kw_only=True)
    min_seconds: float = field(default=1.0, kw_only=True)
    max_seconds: float = field(default=30.0, kw_only=True)
    max_warmup_seconds: float = field(default=5.0, kw_only=True)
    layer_runs: int = field(default=10, kw_only=True)
    timeout_s: float | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        if self.optimization_level not in _LEVELS:
            raise ConfigError(f"optimization_level is one of {', '.join(_LEVELS)}, not {self.optimization_level!r}.")
        _check_words("execution_providers", self.execution_providers)
        for name, least in (("threads", 1), ("iterations", 1), ("layer_runs", 0), ("max_seconds", 0)):
            value = getattr(self, name)
            if value is not None and (isinstance(value, str) or value < least):
                raise ConfigError(f"{name} must be at least {least}, not {value!r}.")


@dataclass(frozen=True)
class EmbedlONNXRuntimeConfig(ONNXRuntimeConfig):
    """The device program ``embedl-onnxruntime`` on a board.

    Attributes:
        embedl_onnxruntime_path: The program; when the board has none, the hub carries it there itself.
        cli_args: Further arguments for each of its commands.
        python_path: The Python on the board that runs a carried program; it needs numpy and onnxruntime.
    """

    embedl_onnxruntime_path: str = "embedl-onnxruntime"
    cli_args: tuple[str, ...] = ()
    python_path: str = field(default="python3", kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_words("cli_args", self.cli_args)


def _board_checks(device: Device) -> Mapping[str, Sequence[str]]:
    config = device.provider_config
    python = config.python_path if isinstance(config, EmbedlONNXRuntimeConfig) else "python3"
    show = "import {0}; print({0}.__version__)"
    return {
        "python": [python, "-c", "import platform; print(platform.python_version())"],
        "numpy": [python, "-c", show.format("numpy")],
        "onnxruntime": [python, "-c", show.format("onnxruntime")],
    }


LOCAL_KIND = DeviceKind("local", "This machine.", ONNXRuntimeConfig, reached_by=("local", "none"))
BOARD_KIND = DeviceKind(
    "embedl_onnxruntime",
    "A board with ONNX Runtime, over SSH.",
    EmbedlONNXRuntimeConfig,
    reached_by=("ssh", "local"),
    checks=_board_checks,
)
