"""Layers led back to the source: which nodes of the user's model each layer of the runtime stands for.

The runtime fuses, renames and inserts nodes. A layer is anchored in the source by its node's name or by the tensor it
writes (``r0_nchwc`` is the convolution whose last fused node writes ``r0``); nodes in between join their neighbors.
What has no anchor was added by the runtime or by quantization and is shown as such.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from embedl_hub.models.onnx_file import nodes_of

if TYPE_CHECKING:
    import onnx

    from embedl_hub.core.document import LayerRow

# Endings that the optimizers put on names of nodes, and quantization on names of tensors.
_NODE_ENDINGS = re.compile(r"(_nchwc|_token_\d+|/\w*Fusion\w*|_\w*Fusion\w*|_quant)$")
_TENSOR_ENDINGS = re.compile(r"(_QuantizeLinear_Output|_DequantizeLinear_Output|_quantized|_QuantizeInput)(_\d+)?$")
# Prefixes and endings of kernels that do the same work in another number format or fused.
_OP_DRESS = re.compile(r"^(QLinear|Fused|DynamicQuantize|NhwcFused|Q(?=Gemm|Attention))|(Integer|IntegerToFloat)$")
# Kernels that only move or convert data: never anchored by the tensor they write, only by their own name.
_MOVERS = {"QuantizeLinear", "DequantizeLinear", "ReorderInput", "ReorderOutput", "Transpose", "Cast", "Reshape",
           "Identity", "MemcpyToHost", "MemcpyFromHost", "Unsqueeze", "Squeeze"}  # fmt: skip
_WITHOUT_WORK = {"Constant", "Identity", "Dropout"}


@dataclass
class _Claims:
    """Who stands for which source node; the first claim holds."""

    sources: dict[str, onnx.NodeProto]
    of: dict[str, int] = field(default_factory=dict)

    def claim(self, name: str, row: int) -> None:
        self.of.setdefault(name, row)

    def nodes(self, row: int) -> list[str]:
        return [name for name in self.sources if self.of.get(name) == row]


def map_layers(rows: Sequence[LayerRow], compiled: onnx.ModelProto, source: onnx.ModelProto) -> list[tuple[str, ...]]:
    """Return the source nodes of each layer, in the order they ran; an empty tuple where the runtime added one.

    ``compiled`` is the model that ran, ``source`` what it was compiled from, with a name on every node.
    """
    nodes = list(nodes_of(source.graph))
    claims = _Claims({node.name: node for node in nodes})
    makers = {output: node.name for node in nodes for output in node.output if output}
    written = {node.name: list(node.output) for node in nodes_of(compiled.graph)}
    for index, row in enumerate(rows):
        if short := next(filter(claims.sources.__contains__, _stripped(row.name, _NODE_ENDINGS)), None):
            claims.claim(short, index)
    for index, row in enumerate(rows):
        for name in _by_tensor(row, written, makers, claims.sources):
            claims.claim(name, index)
    readers = _readers(nodes)
    for index, row in enumerate(rows):
        _absorb_before(index, row.op_type, claims, makers)
    working = _working(nodes, {value.name for value in source.graph.initializer})
    _join_producers(working, claims, makers)
    _join_readers(working, claims, readers)
    return [tuple(claims.nodes(index)) for index in range(len(rows))]


def _stripped(name: str, endings: re.Pattern[str]) -> Iterator[str]:
    """Yield a name and what remains of it, ending by ending."""
    yield name
    while (match := endings.search(name)) is not None and match.start() > 0:
        name = name[: match.start()]
        yield name


def _by_tensor(
    row: LayerRow,
    written: Mapping[str, Sequence[str]],
    makers: Mapping[str, str],
    sources: Mapping[str, onnx.NodeProto],
) -> list[str]:
    name, op_type = row.name, _undressed(row.op_type)
    found = []
    for tensor in (*written.get(name, ()), name):
        # A layout pass names its nodes after the tensor the original wrote.
        short = next(_shorts(tensor, makers), None)
        if short is not None and (op_type not in _MOVERS or sources[makers[short]].op_type == op_type):
            found.append(makers[short])
    return found


def _shorts(tensor: str, makers: Mapping[str, str]) -> Iterator[str]:
    for name in _stripped(tensor, _NODE_ENDINGS):
        for short in _stripped(name, _TENSOR_ENDINGS):
            if short in makers:
                yield short


def _undressed(op_type: str) -> str:
    return _OP_DRESS.sub("", op_type)


def _absorb_before(index: int, op_type: str, claims: _Claims, makers: Mapping[str, str]) -> None:
    """A layer that was anchored at the end of what it fused takes in what leads there."""
    own = claims.nodes(index)
    if not own or _undressed(op_type) in {claims.sources[name].op_type for name in own}:
        return
    waiting = list(own)
    while waiting:
        for tensor in claims.sources[waiting.pop()].input:
            before = makers.get(tensor)
            if before is not None and before not in claims.of:
                claims.claim(before, index)
                waiting.append(before)


def _working(nodes: Sequence[onnx.NodeProto], constants: set[str]) -> list[onnx.NodeProto]:
    """Return the nodes that cost time at run time: not what is computed once at load time, nor what does nothing."""
    constant = set(constants)
    working = []
    for node in nodes:
        if all(name in constant for name in node.input if name):
            constant.update(node.output)
        elif node.op_type not in _WITHOUT_WORK:
            working.append(node)
    return working


def _join_producers(nodes: Sequence[onnx.NodeProto], claims: _Claims, makers: Mapping[str, str]) -> None:
    """What is left between two layers was fused into the one before it: an activation, an addition, a folded norm."""
    for node in nodes:
        before = [claims.of[maker] for name in node.input if (maker := makers.get(name)) in claims.of and maker]
        if node.name not in claims.of and before:
            claims.claim(node.name, max(before))


def _join_readers(nodes: Sequence[onnx.NodeProto], claims: _Claims, readers: Mapping[str, list[str]]) -> None:
    """What stands before every layer joins the first that reads it."""
    for node in reversed(nodes):
        after = [claims.of[name] for output in node.output for name in readers.get(output, ()) if name in claims.of]
        if node.name not in claims.of and after:
            claims.claim(node.name, min(after))


def _readers(nodes: Sequence[onnx.NodeProto]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for node in nodes:
        for name in node.input:
            found.setdefault(name, []).append(node.name)
    return found
