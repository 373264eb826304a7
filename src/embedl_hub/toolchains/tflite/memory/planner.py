"""Where LiteRT puts each tensor in its arena: by size, the largest first, each in the smallest gap that is free for it.

Tensors that live through the whole run come first. Offsets are multiples of 64 bytes. An element-wise operator writes
over an input that nobody else reads; one that only gives another shape shares its input's place. Kernels of the runtime
itself have temporary tensors in the arena, for as long as they run.
"""

from __future__ import annotations

import math
from bisect import insort
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from embedl_hub.toolchains.tflite.memory.layout import Layout, Node, Value

ALIGNMENT = 64
_FOREVER = 1 << 30
_SCALAR_BYTES = 4
_SHAPE_ONLY = frozenset({"RESHAPE", "SQUEEZE", "EXPAND_DIMS", "BITCAST"})
_IN_PLACE = {
    "ADD": 2, "MUL": 2, "SUB": 2, "DIV": 2, "LOGISTIC": 0, "DYNAMIC_UPDATE_SLICE": 1, "SOFTMAX": 0,
}  # fmt: skip
_REDUCERS = frozenset({"MEAN", "SUM", "REDUCE_MAX", "REDUCE_MIN", "REDUCE_PROD", "REDUCE_ANY", "REDUCE_ALL"})
# What keeps more than tensors in the arena, or sizes it while it runs.
_UNKNOWN = frozenset({
    "WHILE", "IF", "CALL_ONCE", "LSTM", "UNIDIRECTIONAL_SEQUENCE_LSTM", "BIDIRECTIONAL_SEQUENCE_LSTM", "SVDF", "RNN",
    "CONV_3D", "CONV_3D_TRANSPOSE", "WHERE", "UNIQUE", "NON_MAX_SUPPRESSION_V4", "NON_MAX_SUPPRESSION_V5", "CUSTOM",
})  # fmt: skip


@dataclass(frozen=True)
class Placed:
    """A tensor in the arena, from its first use to its last."""

    name: str
    offset: int
    size: int
    first: int
    last: int
    node: int  # the operator that writes it; -1 for an input


@dataclass(frozen=True)
class Use:
    """A tensor that wants a place, from the operator that writes it to the last that reads it."""

    name: str
    size: int
    index: int
    first: int
    last: int
    node: int


@dataclass(frozen=True)
class ArenaPlan:
    """The arena: what lies where, and how far it reaches; ``persistent`` is a second one that nothing in it leaves."""

    placed: tuple[Placed, ...]
    size: int
    persistent: int
    temporaries: tuple[Use, ...] = ()  # of kernels, in the order of their operators


def unknown_operators(layout: Layout) -> list[str]:
    """Return the operators whose memory does not follow from the file."""
    return sorted({node.op_type for node in layout.nodes if node.op_type in _UNKNOWN})


def plan_arena(layout: Layout) -> ArenaPlan:
    """Plan the arena of a file whose operators are run by the runtime's own kernels."""
    owners = _owners(layout)
    uses = _uses(layout, owners)
    own: list[Use] = []
    persistent: list[Use] = []
    for at, node in enumerate(layout.nodes):
        for name, size, stays in _temporaries(node, layout.values):
            use = Use(f"{name} of {node.op_type}:{at}", size, len(layout.values) + len(own), at, at, at)
            own.append(use)
            (persistent if stays else uses).append(use)
    placed = place(uses)
    size = max((each.offset + each.size for each in placed), default=0)
    return ArenaPlan(placed, size, _stacked(persistent), tuple(own))


def place(uses: list[Use]) -> tuple[Placed, ...]:
    """Give each its offset."""
    order = sorted(uses, key=lambda use: (0, use.index, 0) if _is_whole(use) else (1, -use.size, use.first))
    active: list[tuple[int, int, int, int]] = []
    found = []
    for use in order:
        if use.size == 0:
            continue
        best, best_fit, current = None, math.inf, 0
        for offset, size, first, last in active:
            if last < use.first or first > use.last:
                continue
            aligned = -(-current // ALIGNMENT) * ALIGNMENT
            if aligned + use.size <= offset and offset - aligned < best_fit:
                best, best_fit = aligned, offset - current
            current = max(current, offset + size)
            if best_fit == 0:
                break
        offset = -(-current // ALIGNMENT) * ALIGNMENT if best is None else best
        insort(active, (offset, use.size, use.first, use.last), key=lambda item: item[0])
        found.append(Placed(use.name, offset, use.size, use.first, use.last, use.node))
    return tuple(found)


def _is_whole(use: Use) -> bool:
    return use.first == 0 and use.last == _FOREVER


def _stacked(uses: list[Use]) -> int:
    end = 0
    for use in uses:
        end = -(-end // ALIGNMENT) * ALIGNMENT + use.size
    return end


def _owners(layout: Layout) -> dict[int, int]:
    """Return the tensors that share another's place."""
    readers = [0] * len(layout.values)
    for index in (*layout.outputs, *layout.inputs):
        readers[index] += 1
    for index, value in enumerate(layout.values):
        readers[index] += value.is_variable
    for node in layout.nodes:
        for index in node.inputs:
            if index >= 0:
                readers[index] += 1
    ends, owners = {*layout.inputs}, dict[int, int]()
    for node in layout.nodes:
        source = _shared_input(node, layout, readers, ends)
        if source is None:
            continue
        owner = owners.get(source, source)
        if node.op_type in _SHAPE_ONLY or readers[owner] <= 1:
            owners[node.outputs[0]] = owner
    return owners


def _shared_input(node: Node, layout: Layout, readers: list[int], ends: set[int]) -> int | None:
    only_shape = node.op_type in _SHAPE_ONLY
    count = 1 if only_shape else _IN_PLACE.get(node.op_type, 0)
    if not count or not node.outputs or node.outputs[0] in layout.outputs:
        return None
    own = layout.values[node.outputs[0]]
    for index in node.inputs[:count]:
        if index < 0 or index in ends or layout.values[index].is_constant or layout.values[index].is_variable:
            continue
        size = layout.values[index].size_bytes
        if only_shape or (size == own.size_bytes and size > _SCALAR_BYTES and readers[index] <= 1):
            return index
    return None


def _uses(layout: Layout, owners: dict[int, int]) -> list[Use]:
    """Return the tensors with a place of their own, from the operator that writes each to the last that reads it."""
    kept = {*layout.outputs, *layout.inputs}
    kept |= {index for index, value in enumerate(layout.values) if value.is_variable}
    writer = {index: -1 for index in kept if index not in layout.outputs or index in layout.inputs}
    for at, node in enumerate(layout.nodes):
        for index in node.outputs:
            writer.setdefault(index, at)
    last = {owners.get(index, index): at for at, node in enumerate(layout.nodes) for index in node.inputs if index >= 0}
    found = []
    for index, at in writer.items():
        value = layout.values[index]
        if index not in owners and not value.is_constant:
            end = _FOREVER if index in kept else last.get(index, _FOREVER)
            found.append(Use(value.name, value.size_bytes, index, max(at, 0), end, at))
    return found


def _temporaries(node: Node, values: tuple[Value, ...]) -> list[tuple[str, int, bool]]:
    """Return what the runtime's own kernel takes besides its tensors, and whether that stays."""
    inputs = [values[index] for index in node.inputs if index >= 0]
    if node.op_type == "CONV_2D":
        weight, own = inputs[1], values[node.outputs[0]]
        if node.moves or weight.shape[1] != 1 or weight.shape[2] != 1:
            unfolded = math.prod(own.shape[:3]) * math.prod(weight.shape[1:])
            return [("unfolded input", math.ceil(unfolded * inputs[0].element_bytes), False)]
    if node.op_type in _REDUCERS:
        own = values[node.outputs[0]]
        wide = max(inputs[0].element_bytes, 4)
        axes = max(math.prod(inputs[1].shape), 1) if len(inputs) > 1 else 1
        sums = math.ceil(math.prod(own.shape) * wide)
        return [("index", 4 * len(inputs[0].shape), False), ("axes", 4 * axes, False), ("sums", sums, False)]
    if node.op_type == "BATCH_MATMUL":
        return [
            ("left, transposed", inputs[0].size_bytes, False),
            ("right, transposed", inputs[1].size_bytes, inputs[1].is_constant),
        ]
    if node.op_type == "TRANSPOSE_CONV":
        weight, data, own = inputs[1], inputs[2], values[node.outputs[0]]
        columns = math.prod(data.shape[1:3]) * weight.shape[0] * weight.shape[1] * weight.shape[2] * 4
        # Given by the system and kept, not by the arena.
        found = [("columns", columns, True), ("weights, transposed", weight.size_bytes, True)]
        return found if data.dtype == "float32" else [*found, ("sums", 4 * math.prod(own.shape), True)]
    return []
