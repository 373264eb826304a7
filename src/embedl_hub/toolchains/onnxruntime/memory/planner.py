"""Which buffer each tensor of a model lives in, and when it is given back: as ONNX Runtime plans a sequential run.

An output takes its input's buffer where the kernel says that it only gives it another shape, or may work in place and
nobody else reads it; else the buffer of a dead tensor of the same shape and element size; else its own. A buffer is
given back after the last node that reads any of the tensors that live in it, not between them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import onnx

    from embedl_hub.toolchains.onnxruntime.memory.shapes import TensorType, Types

_NCHWC = "com.microsoft.nchwc"
_ALIASES = frozenset({"Reshape", "Flatten", "Squeeze", "Unsqueeze", "Identity", "ExpandDims"})
# Kernels that may write over their first input; a convolution over the sum that it adds to.
_IN_PLACE = frozenset({
    "Relu", "Sigmoid", "Tanh", "LeakyRelu", "Elu", "Selu", "Celu", "HardSigmoid", "Softplus", "Softsign",
    "ThresholdedRelu", "ParametricSoftplus", "ScaledTanh", "Clip", "Softmax", "LogSoftmax", "Cast", "Scatter",
    "ScatterElements", "Trilu", "Shrink", "BitCast",
})  # fmt: skip
_SUMMING = {(_NCHWC, "Conv"): 3, ("com.microsoft", "FusedConv"): 3}


@dataclass(frozen=True)
class Step:
    """One node: what it takes for its outputs, and what is given back after it."""

    name: str
    op_type: str
    takes: tuple[str, ...]  # the buffers that it asks for, by the tensor they are first taken for
    returns: tuple[str, ...]  # the buffers that nothing after it reads
    scratch: tuple[int, ...] = ()  # what its kernel takes for itself while it runs


@dataclass(frozen=True)
class BufferPlan:
    """The steps in the order they run, and what each buffer takes."""

    steps: tuple[Step, ...]
    sizes: dict[str, int]
    outputs: frozenset[str]  # buffers of the model's outputs, which the caller gives back

    def with_scratch(self, scratch: Sequence[tuple[int, ...]]) -> BufferPlan:
        """Return the plan with what each kernel takes for itself."""
        steps = [replace(step, scratch=sizes) for step, sizes in zip(self.steps, scratch, strict=True)]
        return replace(self, steps=tuple(steps))


@dataclass
class _State:
    uses: dict[str, int] = field(default_factory=dict)
    buffers: dict[str, str] = field(default_factory=dict)
    free: list[str] = field(default_factory=list)


def run_order(nodes: Sequence[onnx.NodeProto]) -> list[onnx.NodeProto]:
    """Return the order in which the runtime runs the nodes of a file: from the last ones back, depth first."""
    writers = {name: number for number, node in enumerate(nodes) for name in node.output if name}
    before = [sorted({writers[name] for name in _read(node) if name in writers}) for node in nodes]
    is_read = {number for numbers in before for number in numbers}
    stack = [(number, False) for number in range(len(nodes)) if number not in is_read]
    seen: set[int] = set()
    order = []
    while stack:
        number, is_done = stack.pop()
        if is_done:
            order.append(nodes[number])
        elif number not in seen:
            seen.add(number)
            stack.append((number, True))
            stack += [(each, False) for each in before[number] if each not in seen]
    return order


def plan_buffers(nodes: Sequence[onnx.NodeProto], graph: onnx.GraphProto, types: Types) -> BufferPlan:
    """Plan a run of the nodes in their order."""
    given = {value.name for value in graph.input} | {value.name for value in graph.initializer}
    outputs = {value.name for value in graph.output}
    state = _State(uses=_uses(nodes, given, outputs))
    takes: list[list[str]] = []
    for node in nodes:
        taken: list[str] = []
        for index, name in enumerate(node.output):
            if not name:
                continue
            reused = None if name in outputs else _reused(node, index, types, given, state)
            if reused is None:
                state.buffers[name] = name
                taken.append(name)
            else:
                state.buffers[name] = reused
                state.uses[reused] += state.uses[name]
        takes.append(taken)
        for name in (*_read(node), *node.output):
            buffer = state.buffers.get(name, name)
            if not name:
                continue
            state.uses[buffer] -= 1
            if state.uses[buffer] == 0 and buffer not in given:
                state.free.insert(0, buffer)
    return _with_returns(nodes, takes, state, given | outputs, types, frozenset(outputs))


def _with_returns(
    nodes: Sequence[onnx.NodeProto],
    takes: Sequence[Sequence[str]],
    state: _State,
    kept: set[str],
    types: Types,
    outputs: frozenset[str],
) -> BufferPlan:
    last: dict[str, int] = {}
    for number, node in enumerate(nodes):
        for name in _read(node):
            buffer = state.buffers.get(name, name)
            if name and buffer not in kept and buffer in state.buffers:
                last[buffer] = number
    returns: list[list[str]] = [[] for _ in nodes]
    for buffer, number in last.items():
        returns[number].append(buffer)
    steps = tuple(
        Step(node.name or node.output[0], node.op_type, tuple(taken), tuple(back))
        for node, taken, back in zip(nodes, takes, returns, strict=True)
    )
    sizes = {name: types[name].size_bytes for taken in takes for name in taken}
    return BufferPlan(steps, sizes, outputs)


def _read(node: onnx.NodeProto) -> list[str]:
    inside = [name for attribute in node.attribute for name in _outer(attribute)]
    return [*node.input, *inside]


def _outer(attribute: onnx.AttributeProto) -> list[str]:
    """Return what the graphs within a node read from outside."""
    found = []
    for graph in [*attribute.graphs, *([attribute.g] if attribute.HasField("g") else [])]:
        own = {value.name for value in graph.input} | {value.name for value in graph.initializer}
        own |= {name for node in graph.node for name in node.output}
        found += [name for node in graph.node for name in _read(node) if name and name not in own]
    return list(dict.fromkeys(found))


def _uses(nodes: Sequence[onnx.NodeProto], given: set[str], outputs: set[str]) -> dict[str, int]:
    """Count the readers, the writer, and the caller who holds what is given and what comes out."""
    uses = dict.fromkeys(given, 1)
    for node in nodes:
        for name in (*_read(node), *node.output):
            if name:
                uses[name] = uses.get(name, 0) + 1
    for name in outputs:
        uses[name] = uses.get(name, 0) + 1
    return uses


def _reused(node: onnx.NodeProto, index: int, types: Types, given: set[str], state: _State) -> str | None:
    if index == 0 and node.op_type in _ALIASES and node.input:
        first = str(node.input[0])
        return state.buffers.get(first, first)
    own = types[node.output[index]]
    if index == 0:
        source = _in_place(node)
        if source is not None:
            buffer = state.buffers.get(source, source)
            if state.uses.get(buffer) == 1 and _is_same_size(types[source], own):
                return buffer
    if not own.shape or state.uses[node.output[index]] == 1:
        return None
    for candidate in state.free:
        if candidate not in given and _is_same_size(types[candidate], own):
            state.free.remove(candidate)
            return candidate
    return None


def _in_place(node: onnx.NodeProto) -> str | None:
    """Return the input that a kernel may write over."""
    at = _SUMMING.get((node.domain, node.op_type), 0 if node.op_type in _IN_PLACE else None)
    return str(node.input[at]) if at is not None and at < len(node.input) and node.input[at] else None


def _is_same_size(left: TensorType, right: TensorType) -> bool:
    """The runtime compares shapes, not bytes."""
    return left.shape == right.shape and _element_size(left) == _element_size(right)


def _element_size(kind: TensorType) -> float:
    count = math.prod(kind.shape)
    return kind.size_bytes / count if count else 0
