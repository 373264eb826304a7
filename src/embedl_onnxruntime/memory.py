"""The arena as ONNX Runtime's profile tells it: every node says what was in use and held after it ran.

The first profiled run takes memory for each tensor when its node runs. Later runs take one block for all of them before
the first node, so only the first run says what each layer needs; what the arena holds is said by the last.
"""

from __future__ import annotations

import re
from typing import Any, Dict, List, NamedTuple, Optional, Sequence

CPU = "CPUExecutionProvider"
METHOD = "ONNX Runtime's own figures of its CPU arena; by layer from the first profiled run"
_NAMES = ("mem_bytes_requested_in_use", "mem_bytes_in_use", "mem_in_use_peak", "mem_arena_held",
          "mem_requested_in_use_delta", "mem_in_use_delta")  # fmt: skip
_NUMBERS = [re.compile(rb'"' + name.encode() + rb'" ?: ?"?(-?\d{1,18})"?') for name in _NAMES]


class ArenaState(NamedTuple):
    """The arena after a node: bytes asked for, in use with rounding, the most in use so far, held from the system."""

    requested: int
    in_use: int
    peak: int
    held: int
    requested_delta: int
    in_use_delta: int


def arena_state(args: bytes) -> Optional[ArenaState]:
    """Read the arena's figures of one event; None where there are none."""
    found = [pattern.search(args) for pattern in _NUMBERS]
    values = [int(each[1]) for each in found if each is not None]
    return ArenaState(*values) if len(values) == len(_NUMBERS) else None


class LayerArena(NamedTuple):
    """A node of the first run with the arena after it."""

    name: str
    op_type: str
    provider: str
    state: ArenaState


def memory_of(
    layers: Sequence[LayerArena], held: int, runtime_version: str, providers: Sequence[str]
) -> Dict[str, Any]:
    """Return the document's part on memory."""
    elsewhere = sorted({name for name in providers if name != CPU})
    if elsewhere:
        return missing("nodes run on {}, whose memory is not in the CPU's arena".format(", ".join(elsewhere)))
    if not layers:
        return missing("not told by ONNX Runtime {}: its profile has no figures of the arena".format(runtime_version))
    first = layers[0].state
    base = first.in_use - first.in_use_delta
    at = _peak_at(layers)
    rows: List[Dict[str, Any]] = []
    for layer in layers:
        state = layer.state
        rows.append({
            "name": layer.name, "op_type": layer.op_type, "in_use_bytes": state.in_use,
            "requested_bytes": state.requested, "taken_bytes": state.in_use_delta,
        })  # fmt: skip
    peak = layers[at].state
    rows[at]["scratch_bytes"] = peak.peak - peak.in_use
    return {
        "method": METHOD,
        "arena_bytes": held,
        "first_run_arena_bytes": max(layer.state.held for layer in layers),
        "peak_bytes": peak.peak,
        "peak_layer": layers[at].name,
        "packed_weights_bytes": base,
        "packed_weights_requested_bytes": first.requested - first.requested_delta,
        "rows": rows,
        "missing_because": None,
    }


def _peak_at(layers: Sequence[LayerArena]) -> int:
    """Return the layer at which the most was in use: the first after which the peak rose no more.

    Loading a model may have had a higher one, for weights that were being packed; then it is the fullest layer.
    """
    last = layers[-1].state.peak
    before = layers[0].state.in_use - layers[0].state.in_use_delta
    at = next(number for number, layer in enumerate(layers) if layer.state.peak == last)
    fullest = max(range(len(layers)), key=lambda number: layers[number].state.in_use)
    return fullest if at == 0 and last > layers[fullest].state.in_use > before else at


def missing(reason: str) -> Dict[str, Any]:
    """Return the part of a document that has no figures, with the reason."""
    return {"method": METHOD, "arena_bytes": None, "peak_layer": None, "rows": [], "missing_because": reason}
