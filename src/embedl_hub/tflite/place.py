"""Where LiteRT runs, and the arguments that its settings become."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeGuard

from embedl_hub.core.device import EmbedlLiteRTConfig, LiteRTConfig
from embedl_hub.toolchain import place as toolchain
from embedl_hub.toolchain.runtime import Runtime

if TYPE_CHECKING:
    import contextlib

    from embedl_hub.core.context import HubContext
    from embedl_hub.toolchain.place import Place

RUNTIME = Runtime(
    title="LiteRT",
    module="embedl_litert",
    command="embedl-litert",
    packages="numpy and ai-edge-litert",
    extra="tflite",
    extra_of_program="litert",
    path_field="embedl_litert_path",
    board_config="EmbedlLiteRTConfig",
    after_a_crash="xnnpack=False in its config or another version of ai-edge-litert may do.",
)


def place_of(
    ctx: HubContext, device: str | None, component: type[object]
) -> contextlib.AbstractContextManager[Place[LiteRTConfig]]:
    """Return the place of a step, entered with ``with``."""
    return toolchain.place_of(ctx, device, component, RUNTIME, (LiteRTConfig, EmbedlLiteRTConfig))


def has_benchmark(place: Place[LiteRTConfig]) -> TypeGuard[Place[EmbedlLiteRTConfig]]:
    """Tell whether a place is a board that measures with Google's ``benchmark_model``."""
    config = place.config
    on_board = isinstance(place, toolchain.OnBoard)
    return on_board and isinstance(config, EmbedlLiteRTConfig) and config.benchmark_model_path is not None


def settings(config: LiteRTConfig) -> list[str]:
    """Return the arguments that every command with a model takes."""
    words = [] if config.threads is None else ["--threads", str(config.threads)]
    return words if config.xnnpack else [*words, "--no-xnnpack"]
