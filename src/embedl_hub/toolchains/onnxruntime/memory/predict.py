"""The memory of a model in ONNX Runtime on a CPU, from its file: which buffers, when, and what the arena makes of it.

The file should be what the runtime itself optimized, as compiling writes it: what is fused decides what is kept.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from embedl_hub.core.document import LayerMemory, MemoryPart, MemoryProfile
from embedl_hub.toolchains.onnxruntime.memory.arena import Arena
from embedl_hub.toolchains.onnxruntime.memory.kernels import Weights, scratch_of, weights_of
from embedl_hub.toolchains.onnxruntime.memory.planner import BufferPlan, plan_buffers, run_order
from embedl_hub.toolchains.onnxruntime.memory.shapes import Shapes, Types, infer_types

if TYPE_CHECKING:
    import onnx

METHOD = "predicted from the file by ONNX Runtime's rules for buffers and its CPU arena"
# The program with a model of one operator, on x86-64: Python, numpy and the runtime.
OWN_BYTES = 64_000_000
# Planned memory is in units of so many bytes.
_UNIT = 256


@dataclass(frozen=True)
class _Moment:
    """The arena while one layer runs."""

    live: tuple[str, ...]
    requested: int
    in_use: int
    peak: int


def predict_memory(model: onnx.ModelProto, threads: int | None = None, shapes: Shapes | None = None) -> MemoryProfile:
    """Predict what a model takes; without numbers, and with the reason, where it cannot be known.

    ``shapes`` are those of inputs that the model leaves open.
    """
    types, unknown = infer_types(model, shapes)
    if unknown:
        some = ", ".join(unknown[:3]) + (f" and {len(unknown) - 3} more" if len(unknown) > 3 else "")
        return MemoryProfile(METHOD, problem=f"the shapes of these are not known: {some}")
    nodes, plan = plan_graph(model, types, threads)
    weights = weights_of(nodes, model.graph, types)
    arena = _loaded(weights)
    packed = arena.in_use
    moments = _run(arena, plan)
    held_first = arena.held
    _run_in_one_block(arena, plan)
    at = max(range(len(moments)), key=lambda index: moments[index].peak, default=None)
    rows = tuple(
        LayerMemory(step.name, step.op_type, moment.in_use, moment.peak - moment.in_use)
        for step, moment in zip(plan.steps, moments, strict=True)
    )
    parts = () if at is None else tuple(_parts(plan, moments[at], packed, arena.held))
    facts = {"first_run_arena_bytes": held_first, "packed_weights_bytes": packed}
    peak_layer = None if at is None else plan.steps[at].name
    return MemoryProfile(
        METHOD, arena.held, weights.kept, peak_layer, rows, parts, runtime_bytes=OWN_BYTES, facts=facts
    )


def plan_graph(model: onnx.ModelProto, types: Types, threads: int | None) -> tuple[list[onnx.NodeProto], BufferPlan]:
    """Return the nodes in the order they run, and their buffers with the scratch memory of their kernels."""
    nodes = run_order(model.graph.node)
    initializers = {value.name: value for value in model.graph.initializer}
    plan = plan_buffers(nodes, model.graph, types)
    return nodes, plan.with_scratch([scratch_of(node, initializers, types, threads or 1) for node in nodes])


def _loaded(weights: Weights) -> Arena:
    arena = Arena()
    arena.reserve(weights.reserved)
    for size in weights.taken:
        arena.take(size)
    return arena


def _run(arena: Arena, plan: BufferPlan) -> list[_Moment]:
    """Take and give back as the first run does, one buffer at a time."""
    live = {}
    moments = []
    for step in plan.steps:
        for name in step.takes:
            live[name] = arena.take(plan.sizes[name])
        chunks, peak = [], arena.in_use
        for size in step.scratch:
            chunks.append(arena.take(size))
            peak = max(peak, arena.in_use)
        for chunk in chunks:
            arena.give(chunk)
        moments.append(_Moment(tuple(live), arena.requested, arena.in_use, peak))
        for name in step.returns:
            arena.give(live.pop(name))
    for chunk in live.values():
        arena.give(chunk)
    return moments


def _run_in_one_block(arena: Arena, plan: BufferPlan) -> None:
    """Take one block for all buffers, as later runs do once the sizes are known; outputs are taken as before."""
    block = arena.take(_block_bytes(plan))
    held = []
    for step in plan.steps:
        held += [arena.take(plan.sizes[name]) for name in step.takes if name in plan.outputs]
        for chunk in [arena.take(size) for size in step.scratch]:
            arena.give(chunk)
    for chunk in (block, *held):
        arena.give(chunk)


def _block_bytes(plan: BufferPlan) -> int:
    """Return how far the buffers reach when each is put into the smallest gap between those that are alive."""
    blocks: list[tuple[int, int, str]] = []
    end = 0
    for step in plan.steps:
        for name in step.takes:
            size = -(-plan.sizes[name] // _UNIT) * _UNIT
            if name in plan.outputs or not size:
                continue
            offset = _gap(blocks, size, end)
            end = max(end, offset + size)
            blocks.append((offset, size, name))
            blocks.sort()
        blocks = [block for block in blocks if block[2] not in step.returns]
    return end


def _gap(blocks: Sequence[tuple[int, int, str]], size: int, end: int) -> int:
    current, best, waste = 0, None, math.inf
    for offset, length, _ in blocks:
        gap = offset - current
        if gap >= size and gap - size < waste:
            best, waste = current, gap - size
        current = max(current, offset + length)
    if end - current >= size and end - current - size < waste:
        best = current
    return current if best is None else best


def _parts(plan: BufferPlan, moment: _Moment, packed: int, held: int) -> list[MemoryPart]:
    """Return what the arena is made of while a layer runs: weights, the tensors of each layer, the rest by name."""
    makers = {name: step.name for step in plan.steps for name in step.takes}
    by_layer: dict[str, int] = {}
    for name in moment.live:
        by_layer[makers[name]] = by_layer.get(makers[name], 0) + plan.sizes[name]
    return arena_parts(packed, by_layer, moment.in_use - packed, moment.peak, held)


def arena_parts(packed: int, tensors: Mapping[str, int], in_use: int, peak: int, held: int) -> list[MemoryPart]:
    """Return the parts of an arena: ``in_use`` is what tensors take with their rounding, ``peak`` with all else."""
    found = [MemoryPart("packed weights", packed)]
    found += [MemoryPart(f"tensors of {name}", size) for name, size in tensors.items()]
    found.append(MemoryPart("rounding and chunks that are not split", in_use - sum(tensors.values())))
    found.append(MemoryPart("scratch memory of the layer", peak - packed - in_use))
    found.append(MemoryPart("free in the arena", held - peak))
    return [part for part in found if part.size_bytes]
