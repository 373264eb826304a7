"""Where ONNX Runtime runs, and the arguments that its settings become."""

from __future__ import annotations

from typing import TYPE_CHECKING

from embedl_hub.core.device import EmbedlONNXRuntimeConfig, ONNXRuntimeConfig
from embedl_hub.toolchain import place as toolchain
from embedl_hub.toolchain.runtime import Runtime

if TYPE_CHECKING:
    import contextlib

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


def place_of(
    ctx: HubContext, device: str | None, component: type[object]
) -> contextlib.AbstractContextManager[Place[ONNXRuntimeConfig]]:
    """Return the place of a step, entered with ``with``."""
    return toolchain.place_of(ctx, device, component, RUNTIME, (ONNXRuntimeConfig, EmbedlONNXRuntimeConfig))


def settings(config: ONNXRuntimeConfig) -> list[str]:
    """Return the arguments that every command with a model takes."""
    words = [word for name in config.execution_providers for word in ("--execution-provider", name)]
    if config.allow_fallback:
        words.append("--allow-fallback")
    if config.allow_saturation:
        words.append("--allow-saturation")
    if config.threads is not None:
        words += ["--threads", str(config.threads)]
    if config.optimization_level != "all":
        words += ["--optimization-level", config.optimization_level]
    return words
