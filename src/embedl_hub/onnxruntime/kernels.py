"""What the integer kernels of a place do to a model's answers, recorded with the run and said aloud."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from embedl_hub.onnxruntime.portable import requires_of, saturating_layers
from embedl_hub.toolchain.model import read_graph, read_model
from embedl_hub.toolchain.program import log_kernels
from embedl_kernels import get_family

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from embedl_hub.core.context import HubContext
    from embedl_hub.core.device import ONNXRuntimeConfig
    from embedl_hub.toolchain.place import Place
    from embedl_kernels import Family

_CPU = "CPUExecutionProvider"
_SENTENCE = (
    "{count} of the model can answer otherwise on {place} than the file's integers say ({first!r} is the first): "
    "{cause}. Make the portable file of it: embedl-deploy relower FILE PORTABLE --dialect onnxruntime-x86"
)


def tell_kernels(ctx: HubContext, place: Place[ONNXRuntimeConfig], answer: Mapping[str, Any], model: Path) -> None:
    """Record the family that a device program's answer names, and warn of a model that it breaks."""
    log_kernels(ctx, answer, _warnings(place, answer, model))


def _warnings(place: Place[ONNXRuntimeConfig], answer: Mapping[str, Any], model: Path) -> list[str]:
    family = _family(answer)
    if family is None or not family.saturates or place.config.execution_providers[:1] not in ((), (_CPU,)):
        return []
    # What says that it needs exact kernels was refused there, or allowed and warned of.
    if requires_of(read_graph(model)):
        return []
    layers = saturating_layers(read_model(model))
    if not layers:
        return []
    count = "1 layer" if len(layers) == 1 else f"{len(layers)} layers"
    return [_SENTENCE.format(count=count, place=place.title, first=layers[0], cause=family.cause)]


def _family(answer: Mapping[str, Any]) -> Family | None:
    name = (answer.get("kernels") or {}).get("family")
    # A program that is newer than this hub may know families that it does not.
    with contextlib.suppress(KeyError):
        return get_family(str(name))
    return None
