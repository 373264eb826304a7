"""Where LiteRT runs, and the arguments that its settings become."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from embedl_hub.core.device import EmbedlLiteRTConfig, LiteRTConfig
from embedl_hub.toolchain.place import Here, OnBoard, local_config, scratch_folder
from embedl_hub.toolchain.runtime import Runtime

if TYPE_CHECKING:
    from collections.abc import Iterator

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


@contextlib.contextmanager
def this_machine(ctx: HubContext, device: str | None, component: type[object]) -> Iterator[Place[LiteRTConfig]]:
    """Yield this machine as a place; a device gives settings only."""
    config = local_config(ctx, device, LiteRTConfig, component)
    with scratch_folder() as scratch:
        yield Here(ctx, RUNTIME, config or LiteRTConfig(), scratch)


@contextlib.contextmanager
def on_board(ctx: HubContext, device: str | None, component: type[object]) -> Iterator[Place[EmbedlLiteRTConfig]]:
    """Yield a board as a place."""
    found = ctx.find_device(device or "")
    config = found.get_provider_config(EmbedlLiteRTConfig, component) or EmbedlLiteRTConfig()
    with scratch_folder() as scratch:
        yield OnBoard(ctx, found, RUNTIME, config, scratch)


def settings(config: LiteRTConfig) -> list[str]:
    """Return the arguments that every command with a model takes."""
    words = [] if config.threads is None else ["--threads", str(config.threads)]
    return words if config.xnnpack else [*words, "--no-xnnpack"]
