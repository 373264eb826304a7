"""The memory of a TFLite model in LiteRT, from its file, and what the runtime itself told of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from embedl_hub.core.document import LayerMemory, MemoryPart, MemoryProfile
from embedl_hub.toolchains.tflite.config import LiteRTConfig
from embedl_hub.toolchains.tflite.memory.layout import Layout, read_layout
from embedl_hub.toolchains.tflite.memory.planner import ALIGNMENT, ArenaPlan, Placed, plan_arena, unknown_operators

if TYPE_CHECKING:
    from embedl_hub.core.device import ProviderConfig

METHOD = "predicted from the file by LiteRT's rules for its arena"
# The program with a model of a few operators, on x86-64: Python, numpy and the runtime.
_OWN_BYTES = 48_000_000
_MOST_NODES = 4000
_DELEGATED = (
    "the XNNPACK delegate runs it, and its memory is its own; without it (xnnpack=False) it is predicted: "
    "embedl-hub memory FILE --set xnnpack=false"
)


def plan_file(path: Path, config: ProviderConfig | None = None) -> MemoryProfile:
    """Predict what a file takes in LiteRT."""
    settings = config if isinstance(config, LiteRTConfig) else LiteRTConfig()
    layout = read_layout(path)
    if settings.xnnpack:
        return MemoryProfile(METHOD, weights_bytes=_constants(layout), problem=_DELEGATED)
    if layout.graphs > 1 or (unknown := unknown_operators(layout)):
        why = "it has several graphs" if layout.graphs > 1 else f"it has {', '.join(unknown)}"
        return MemoryProfile(METHOD, problem=f"{why}, whose memory does not follow from the file")
    if len(layout.nodes) > _MOST_NODES:
        return MemoryProfile(METHOD, problem=f"it has {len(layout.nodes)} operators, more than are planned here")
    return _profile(layout, plan_arena(layout), METHOD)


def measured_memory(told: Mapping[str, Any], path: Path) -> MemoryProfile:
    """Return what a device program told, with the temporary tensors of kernels by the operator that has them."""
    method, arena = str(told["method"]), told.get("arena_bytes")
    facts = {name: told[name] for name in ("allocated_bytes", "persistent_bytes") if told.get(name) is not None}
    layout = read_layout(path)
    rows = tuple(LayerMemory(row["name"], row["op_type"], row["in_use_bytes"]) for row in told["rows"])
    if arena is None or told.get("missing_because") or len(layout.nodes) > _MOST_NODES:
        problem = told.get("missing_because") or "the runtime told nothing"
        return MemoryProfile(method, arena, _constants(layout), None, rows, problem=problem, facts=facts)
    placed = _told_places(told, layout)
    persistent = told.get("persistent_bytes") or 0
    plan = ArenaPlan(placed, arena - persistent, persistent)
    found = _profile(layout, plan, method)
    return replace(found, arena_bytes=arena, facts=facts)


def _told_places(told: Mapping[str, Any], layout: Layout) -> tuple[Placed, ...]:
    """Return the tensors where the runtime put them; temporary ones are numbered in the order of their operators."""
    placed = [
        Placed(str(each["name"]), each["start"], each["size"], each["first"], each["last"], each["first"])
        for each in told.get("tensors") or ()
    ]
    owners = [use for use in plan_arena(layout).temporaries if use.size]
    seen = told.get("temporaries") or ()
    if [each["size"] for each in seen] == [use.size for use in owners]:
        placed += [
            Placed(use.name, each["start"], use.size, use.node, use.node, use.node)
            for each, use in zip(seen, owners, strict=True)
            if each["start"] is not None
        ]
    return tuple(placed)


def _constants(layout: Layout) -> int:
    return sum(value.size_bytes for value in layout.values if value.is_constant)


def _profile(layout: Layout, plan: ArenaPlan, method: str) -> MemoryProfile:
    alive = [_alive(plan.placed, number) for number in range(len(layout.nodes))]
    titles = [f"{node.op_type}:{number}" for number, node in enumerate(layout.nodes)]
    rows = tuple(
        LayerMemory(title, node.op_type, sum(each.size for each in places) + plan.persistent)
        for title, node, places in zip(titles, layout.nodes, alive, strict=True)
    )
    if not rows:
        return MemoryProfile(method, problem="it has no operators")
    at = max(range(len(rows)), key=lambda number: rows[number].in_use_bytes)
    parts = _parts(alive[at], plan)
    total = plan.size + plan.persistent
    return MemoryProfile(method, total, _constants(layout), titles[at], rows, parts, runtime_bytes=_OWN_BYTES)


def _alive(placed: Sequence[Placed], number: int) -> list[Placed]:
    """Return what lies in the arena while an operator runs, by place; tensors that share one count once."""
    found: dict[int, Placed] = {}
    for each in placed:
        if each.first <= number <= each.last and each.size > (found[each.offset].size if each.offset in found else 0):
            found[each.offset] = each
    return [found[offset] for offset in sorted(found)]


def _parts(alive: Sequence[Placed], plan: ArenaPlan) -> tuple[MemoryPart, ...]:
    """Walk through the arena from its start: tensors, the bytes up to the next multiple of 64, and what is free."""
    found, at, aligned, free = [], 0, 0, 0
    for each in alive:
        gap = each.offset - at
        if gap < ALIGNMENT:
            aligned += gap
        else:
            free += gap
        found.append(MemoryPart(each.name, each.size))
        at = each.offset + each.size
    free += plan.size - at
    found += [MemoryPart("alignment", aligned), MemoryPart("free while this layer runs", free)]
    found.append(MemoryPart("tensors that stay for good", plan.persistent))
    return tuple(part for part in found if part.size_bytes)
