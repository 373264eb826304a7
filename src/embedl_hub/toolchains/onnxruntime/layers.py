"""Layers led back to the source: which nodes of the user's model each layer of the runtime stands for.

The runtime fuses, renames and inserts nodes. A layer is anchored in the source by its node's name or by the tensor it
writes (``r0_nchwc`` is the convolution whose last fused node writes ``r0``); nodes in between join their neighbors.
What has no anchor was added by the runtime or by quantization and is shown as such.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from embedl_hub.models.onnx_file import nodes_of
from embedl_hub.models.source_nodes import Claims

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


def map_layers(rows: Sequence[LayerRow], compiled: onnx.ModelProto, source: onnx.ModelProto) -> list[tuple[str, ...]]:
    """Return the source nodes of each layer, in the order they ran; an empty tuple where the runtime added one.

    ``compiled`` is the model that ran, ``source`` what it was compiled from, with a name on every node.
    """
    claims = Claims.of_model(source)
    makers = claims.makers
    written = {node.name: list(node.output) for node in nodes_of(compiled.graph)}
    for index, row in enumerate(rows):
        if short := next(filter(claims.sources.__contains__, _stripped(row.name, _NODE_ENDINGS)), None):
            claims.claim(short, index)
    for index, row in enumerate(rows):
        for name in _by_tensor(row, written, makers, claims.sources):
            claims.claim(name, index)
    for index, row in enumerate(rows):
        _absorb_before(index, row.op_type, claims)
    claims.join_neighbors(source)
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


def _absorb_before(index: int, op_type: str, claims: Claims) -> None:
    """A layer that was anchored at the end of what it fused takes in what leads there."""
    own = claims.nodes(index)
    if own and _undressed(op_type) not in {claims.sources[name].op_type for name in own}:
        claims.absorb_before(index)
