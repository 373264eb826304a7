"""Models in turns: measured by the device program where they run, compared here."""

from __future__ import annotations

from typing import TYPE_CHECKING

from embedl_hub.core.profile import ProfileError
from embedl_hub.onnxruntime.place import settings
from embedl_hub.paths import RemotePath
from embedl_hub.toolchain.model import inputs_of, model_file, read_graph
from embedl_hub.toolchain.pairs import log_models, measure_in_turns
from embedl_hub.toolchain.profiles import data_arguments
from embedl_hub.toolchain.refusal import refusals_as

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    import numpy as np

    from embedl_hub.core.compile import ONNXRuntimeCompiledModel
    from embedl_hub.core.context import HubContext
    from embedl_hub.core.device import AnyPath, ONNXRuntimeConfig
    from embedl_hub.core.profile import PairedResult
    from embedl_hub.toolchain.place import Place


def pair_models(
    ctx: HubContext,
    place: Place[ONNXRuntimeConfig],
    models: Sequence[ONNXRuntimeCompiledModel],
    *,
    samples: int,
    require_provider: str | None,
    input_data: Mapping[str, np.ndarray] | None,
) -> PairedResult:
    """Measure models in turns on a place."""
    with refusals_as(ProfileError):
        log_models(ctx, models, "onnx")
        words: list[AnyPath] = []
        for model in models:
            # The same data for all; that each can take it is checked before any of them is sent.
            words = [*data_arguments(place, inputs_of(read_graph(_here(ctx, model))), input_data)]
        if require_provider is not None:
            words += ["--require-provider", require_provider]
        files = [_sent(ctx, place, model) for model in models]
        return measure_in_turns(ctx, place, files, [*words, *settings(place.config)], samples)


def _here(ctx: HubContext, model: ONNXRuntimeCompiledModel) -> Path:
    return model.path.to_local(ctx).local()


def _sent(ctx: HubContext, place: Place[ONNXRuntimeConfig], model: ONNXRuntimeCompiledModel) -> AnyPath:
    entry, local = RemotePath(place.send(model.path)), _here(ctx, model)
    return str(entry / model_file(local).name if local.is_dir() else entry)
