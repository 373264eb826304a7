"""Models in turns: measured by the device program where they run, compared here."""

from __future__ import annotations

from typing import TYPE_CHECKING

from embedl_hub.core.profile import ProfileError
from embedl_hub.tflite.graph import read_graph
from embedl_hub.tflite.place import settings
from embedl_hub.toolchain.pairs import log_models, measure_in_turns
from embedl_hub.toolchain.profiles import data_arguments
from embedl_hub.toolchain.refusal import refusals_as

if TYPE_CHECKING:
    from collections.abc import Sequence

    from embedl_hub.core.compile import TFLiteCompiledModel
    from embedl_hub.core.context import HubContext
    from embedl_hub.core.device import LiteRTConfig
    from embedl_hub.core.profile import PairedResult
    from embedl_hub.toolchain.place import Place


def pair_models(
    ctx: HubContext, place: Place[LiteRTConfig], models: Sequence[TFLiteCompiledModel], *, samples: int
) -> PairedResult:
    """Measure models in turns on a place."""
    with refusals_as(ProfileError):
        log_models(ctx, models, "tflite")
        for model in models:
            data_arguments(place, read_graph(model.path.to_local(ctx).local()).inputs, None)
        files = [place.send(model.path) for model in models]
        return measure_in_turns(ctx, place, files, settings(place.config), samples)
