"""Where ONNX Runtime runs, and the arguments that its settings become."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from embedl_hub.core.device import EmbedlONNXRuntimeConfig, ONNXRuntimeConfig
from embedl_hub.toolchain.place import Here, OnBoard, local_config, scratch_folder
from embedl_hub.toolchain.runtime import Runtime

if TYPE_CHECKING:
    from collections.abc import Iterator

    from embedl_hub.core.context import HubContext
    from embedl_hub.toolchain.place import Place

RUNTIME = Runtime(
    title="ONNX Runtime",
    module="embedl_onnxruntime",
    command="embedl-onnxruntime",
    packages="numpy and onnxruntime",
    extra="onnxruntime",
    extra_of_program="onnxruntime",
    path_field="embedl_onnxruntime_path",
    board_config="EmbedlONNXRuntimeConfig",
    after_a_crash=("Another execution provider, a lower optimization_level or another version of onnxruntime may do."),
)


@contextlib.contextmanager
def this_machine(ctx: HubContext, device: str | None, component: type[object]) -> Iterator[Place[ONNXRuntimeConfig]]:
    """Yield this machine as a place; a device gives settings only."""
    config = local_config(ctx, device, ONNXRuntimeConfig, component)
    with scratch_folder() as scratch:
        yield Here(ctx, RUNTIME, config or ONNXRuntimeConfig(), scratch)


@contextlib.contextmanager
def on_board(ctx: HubContext, device: str | None, component: type[object]) -> Iterator[Place[ONNXRuntimeConfig]]:
    """Yield a board as a place."""
    found = ctx.find_device(device or "")
    config = found.get_provider_config(EmbedlONNXRuntimeConfig, component) or EmbedlONNXRuntimeConfig()
    with scratch_folder() as scratch:
        yield OnBoard(ctx, found, RUNTIME, config, scratch)


def settings(config: ONNXRuntimeConfig) -> list[str]:
    """Return the arguments that every command with a model takes."""
    words = [word for name in config.execution_providers for word in ("--execution-provider", name)]
    if config.allow_fallback:
        words.append("--allow-fallback")
    if config.threads is not None:
        words += ["--threads", str(config.threads)]
    if config.optimization_level != "all":
        words += ["--optimization-level", config.optimization_level]
    return words
