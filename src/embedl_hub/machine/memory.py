"""Whether a model has room on a machine, said before anything is sent there."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from embedl_hub.core.answer import Form, check_form
from embedl_hub.core.document import Fit, MemoryProfile, ProfileDocument, fit_of
from embedl_hub.refusal import RefusedError

if TYPE_CHECKING:
    from embedl_hub.core.context import HubContext
    from embedl_hub.core.device import MeasuringConfig
    from embedl_hub.machine.machine import Machine

_LOG = logging.getLogger("embedl_hub")

# What is read of a device program's word on memory: a board may be in other hands than ours.
_MEMORY: Form = {
    "method": str,
    "arena_bytes?": int,
    "weights_bytes?": int,
    "peak_bytes?": int,
    "peak_layer?": str,
    "packed_weights_bytes?": int,
    "packed_weights_requested_bytes?": int,
    "missing_because?": str,
    "persistent_bytes?": int,
    "allocated_bytes?": int,
    "tensors?": [{"name": str, "start": int, "size": int, "first": int, "last": int}],
    "temporaries?": [{"start?": int, "size": int}],
    "parts?": [{"what": str, "bytes": int}],
    "rows": [{"name": str, "op_type": str, "in_use_bytes": int, "requested_bytes?": int, "scratch_bytes?": int}],
}
_LARGEST = 1 << 60


Plan = Callable[[], MemoryProfile]
_ALL_THE_SAME = (
    "Compile a smaller one (INT8, a smaller input), or try it all the same: allow_out_of_memory=True in the device's "
    "config (on the command line --set allow_out_of_memory=true)."
)


def foresee_memory(ctx: HubContext, machine: Machine[MeasuringConfig], plan: Plan) -> MemoryProfile:
    """Predict what a model takes on a machine, record it, and refuse one that has no room there."""
    predicted, fit = _predict(ctx, machine, plan)
    if fit.fits is False:
        _refuse(machine, f"The model {fit.text} on {machine.title}.")
    return predicted


def note_memory(ctx: HubContext, machine: Machine[MeasuringConfig], plan: Plan) -> None:
    """Predict and record what a model takes that is made already; warn of one that has no room."""
    _, fit = _predict(ctx, machine, plan)
    if fit.fits is False:
        _LOG.warning("The model %s on %s.", fit.text, machine.title)


def check_weights(machine: Machine[MeasuringConfig], size_bytes: int, runtime_bytes: int) -> None:
    """Refuse a model whose weights alone have no room."""
    least = MemoryProfile("the weights of the file", 0, size_bytes, runtime_bytes=runtime_bytes)
    fit = fit_of(least, machine.memory_bytes)
    if fit.fits is False:
        _refuse(machine, f"The weights of the model alone: {fit.text} on {machine.title}.")


def _refuse(machine: Machine[MeasuringConfig], sentence: str) -> None:
    if not machine.config.allow_out_of_memory:
        raise RefusedError(f"{sentence} {_ALL_THE_SAME}")
    _LOG.warning("%s It is tried all the same (allow_out_of_memory).", sentence)


def _predict(ctx: HubContext, machine: Machine[MeasuringConfig], plan: Plan) -> tuple[MemoryProfile, Fit]:
    """Predict and record; a prediction that fails stops nobody, and says that it is not known."""
    try:
        predicted = plan()
    except Exception as error:  # noqa: BLE001 - a prediction is a service, and a measurement does without
        _LOG.debug("The memory is not predicted: %s", error, exc_info=True)
        predicted = MemoryProfile("predicted from the file", problem=f"it cannot be predicted ({error})")
    fit = fit_of(predicted, machine.memory_bytes)
    ctx.client.log_param("memory_fit", fit.text)
    if predicted.total_bytes is not None:
        ctx.client.log_metric("predicted_memory_mb", predicted.total_bytes / 1e6)
    if predicted.peak_layer is not None:
        ctx.client.log_param("predicted_peak_layer", predicted.peak_layer)
    if fit.fits is None:
        _LOG.info("Memory: %s.", fit.text)
    return predicted, fit


def told_memory(answer: Mapping[str, Any], machine: Machine[MeasuringConfig]) -> Mapping[str, Any]:
    """Return what a device program told of memory, checked; one without a word on it says so."""
    told = answer.get("memory")
    if told is None:
        return {"method": "", "rows": [], "missing_because": f"the device program on {machine.title} is an older one"}
    try:
        check_form(told, _MEMORY, "the answer.memory")
        _check_sizes(told)
    except ValueError as error:
        raise RefusedError(
            f"The device program on {machine.title} told memory as it never does: {error}. "
            "Install the same version of edgeproof-device there."
        ) from error
    return dict(told)


def _check_sizes(told: Mapping[str, Any]) -> None:
    sizes = [(key, value) for key, value in told.items() if key.endswith("_bytes")]
    sizes += [(key, value) for row in told["rows"] for key, value in row.items() if key.endswith("_bytes")]
    for key, value in sizes:
        if isinstance(value, int) and not 0 <= value <= _LARGEST and key != "taken_bytes":
            raise ValueError(f"{key} is {value}, no number of bytes")


def with_memory(document: ProfileDocument, measured: MemoryProfile, predicted: MemoryProfile) -> ProfileDocument:
    """Return a document with what memory was measured and what was predicted."""
    numbers = {
        "arena_peak_mb": None if measured.arena_bytes is None else measured.arena_bytes / 1e6,
        "predicted_memory_mb": None if predicted.total_bytes is None else predicted.total_bytes / 1e6,
    }
    known = {name: value for name, value in numbers.items() if value is not None}
    told = document.with_facts(memory=measured.as_json(), predicted_memory=predicted.as_json())
    return replace(told, numbers={**document.numbers, **known})
