"""Settings of the TFLite providers: what the steps' published keywords have no room for."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from embedl_hub.core.device._kind import DeviceKind
from embedl_hub.core.device._measuring import MeasuringConfig, check_words

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from embedl_hub.core.device._device import Device


@dataclass(frozen=True)
class LiteRTConfig(MeasuringConfig):
    """How LiteRT is to run a TFLite model, here or on a board.

    Attributes:
        xnnpack: Let the XNNPACK delegate take the operators it can; off, the runtime's own kernels run.
    """

    xnnpack: bool = field(default=True, kw_only=True)


@dataclass(frozen=True)
class EmbedlLiteRTConfig(LiteRTConfig):
    """A board that runs TFLite models: with the device program ``embedl-litert``, or with Google's benchmark alone.

    Attributes:
        embedl_litert_path: The program; when the board has none, the hub carries it there itself.
        cli_args: Further arguments for each of its commands.
        python_path: The Python on the board that runs a carried program; it needs numpy and ai-edge-litert.
        benchmark_model_path: Google's ``benchmark_model`` on the board. Given: profiles are measured by it, nothing
            else is needed there, and models cannot be invoked.
        benchmark_args: Further arguments for it, such as ``--use_gpu=true``.
    """

    embedl_litert_path: str = "embedl-litert"
    cli_args: tuple[str, ...] = ()
    python_path: str = field(default="python3", kw_only=True)
    benchmark_model_path: str | None = field(default=None, kw_only=True)
    benchmark_args: tuple[str, ...] = field(default=(), kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_words("cli_args", self.cli_args)
        check_words("benchmark_args", self.benchmark_args)


def _board_checks(device: Device) -> Mapping[str, Sequence[str]]:
    config = device.provider_config if isinstance(device.provider_config, EmbedlLiteRTConfig) else EmbedlLiteRTConfig()
    if config.benchmark_model_path is not None:
        return {"benchmark_model": ["test", "-x", config.benchmark_model_path]}
    show = "import importlib.metadata as m; print(m.version('{}'))"
    return {
        "python": [config.python_path, "-c", "import platform; print(platform.python_version())"],
        "numpy": [config.python_path, "-c", show.format("numpy")],
        "ai-edge-litert": [config.python_path, "-c", show.format("ai-edge-litert")],
    }


BOARD_KIND = DeviceKind(
    "embedl_litert",
    "A board with LiteRT, or with Google's benchmark_model, over SSH.",
    EmbedlLiteRTConfig,
    reached_by=("ssh", "local"),
    checks=_board_checks,
)
