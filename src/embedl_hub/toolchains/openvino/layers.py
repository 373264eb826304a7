"""Layers led back to the source: which nodes of the user's model each layer of OpenVINO stands for.

OpenVINO tells the layers of the model that each of its own was made of, by names that come from the nodes or from the
tensors they write. What it put there itself while it took an operator apart has a name of its own (``MVN_12204``): it
belongs to the node that leads to its neighbor.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from embedl_hub.models.onnx_file import nodes_of
from embedl_hub.models.source_nodes import Claims

if TYPE_CHECKING:
    import onnx

    from embedl_hub.core.document import LayerRow

_INTEGERS = frozenset({"u8", "i8", "u4", "i4"})
# Kernels that only move or convert data, and nodes that do: those tell nothing of what is computed in.
_MOVERS = frozenset({
    "Broadcast", "Concatenation", "Convert", "Gather", "GatherElements", "GatherND", "MemoryInput", "MemoryOutput",
    "Pad", "Reorder", "Reshape", "Scatter", "ShapeOf", "Slice", "Split", "StridedSlice", "Tile", "Transpose",
})  # fmt: skip
MOVING_NODES = frozenset({
    "Cast", "Concat", "DequantizeLinear", "Expand", "Flatten", "Gather", "GatherElements", "Identity", "MaxPool", "Pad",
    "QuantizeLinear", "Reshape", "Shape", "Slice", "Split", "Squeeze", "Tile", "Transpose", "Unsqueeze",
})  # fmt: skip
# Kernels that compute number by number: in floats, if they do not write integers as well.
_POINTWISE = frozenset({"Eltwise", "Math", "Subgraph"})
# What a layer of a kind was made of, whatever names it kept.
_MADE_OF = {"Convolution": {"Conv"}, "Deconvolution": {"ConvTranspose"}, "FullyConnected": {"Gemm", "MatMul"},
            "MatMul": {"Gemm", "MatMul"}}  # fmt: skip
# What a layer is part of that has no name of the source, whatever else its neighbor is made of.
_NORMALIZATIONS = {
    "GroupNormalization", "InstanceNormalization", "LayerNormalization", "RMSNormalization",
    "SimplifiedLayerNormalization",
}  # fmt: skip
_PART_OF = {"MVN": _NORMALIZATIONS, "RMS": _NORMALIZATIONS}
# What transformations and quantization put behind the name of a layer or a tensor.
_ENDING = re.compile(
    r"(/(WithoutBiases|Dequantization\w+|MatMulAddFusion|sink_port_\d+)|_(Quantize|Dequantize)Linear(_Output)?)$"
)


def led_back(rows: Sequence[LayerRow], source: onnx.ModelProto | None) -> tuple[LayerRow, ...]:
    """Return the layers with the nodes of the source that they stand for, where they ran and whether in integers.

    ``source`` is the model that was compiled, with a name on every node; None where it is not known.
    """
    found = [()] * len(rows) if source is None else _sources(rows, source)
    kinds = {} if source is None else {node.name: node.op_type for node in nodes_of(source.graph)}
    return tuple(
        replace(
            row,
            compute_unit=row.provider.split(".")[0] or "unknown",
            source_nodes=names,
            added_by_runtime=not names and (source is not None or not _original(row)),
            integer=_computes_in_integers(row, None if source is None else [kinds[name] for name in names]),
        )
        for row, names in zip(rows, found, strict=True)
    )


def _sources(rows: Sequence[LayerRow], source: onnx.ModelProto) -> list[tuple[str, ...]]:
    claims = Claims.of_model(source)
    known = claims.sources.keys() | claims.makers.keys()
    partly = []
    for index, row in enumerate(rows):
        nodes = [_node_of(name, claims) for name in _names(_original(row), known)]
        for node in filter(None, nodes):
            claims.claim(node, index)
        wanted = _MADE_OF.get(row.op_type)
        kinds = {claims.sources[node].op_type for node in nodes if node is not None}
        if wanted is not None and not wanted & kinds:
            claims.absorb_before(index, until=wanted)
        elif wanted is None and None in nodes:
            partly.append(index)
    readers = {name: index for index, row in enumerate(rows) for name in _reads(row)}
    for index in reversed(partly):
        claims.absorb_before(index, claims.nodes(index) or claims.nodes(readers.get(rows[index].name, index)))
    claims.join_neighbors(source)
    own = [tuple(claims.nodes(index)) for index in range(len(rows))]
    return [_of_reader(index, rows, own, readers, claims) for index in range(len(rows))]


def _node_of(name: str, claims: Claims) -> str | None:
    """Return the node that a name of OpenVINO's leads to: its own name, or that of a tensor it writes."""
    while name:
        if name in claims.sources:
            return name
        if name in claims.makers:
            return claims.makers[name]
        shorter = _ENDING.sub("", name)
        name = "" if shorter == name else shorter
    return None


def _names(text: str, known: Collection[str]) -> Iterator[str]:
    """Yield the names in a list with commas between them; some of those that are known may have commas too."""
    words = text.split(",")
    most = 1 + max((name.count(",") for name in known), default=0)
    at = 0
    while at < len(words):
        spans = range(min(most, len(words) - at), 0, -1)
        span = next((span for span in spans if ",".join(words[at : at + span]) in known), 1)
        if name := ",".join(words[at : at + span]):
            yield name
        at += span


def _of_reader(
    index: int, rows: Sequence[LayerRow], own: Sequence[tuple[str, ...]], readers: Mapping[str, int], claims: Claims
) -> tuple[str, ...]:
    """Return a layer's nodes; one with none that is part of an operator taken apart has those of who reads it."""
    kinds = None if own[index] else _PART_OF.get(rows[index].op_type)
    seen: set[int] = set()
    while not own[index] and _original(rows[index]) and index not in seen:
        seen.add(index)
        index = readers.get(rows[index].name, index)
    parts = tuple(name for name in own[index] if kinds and claims.sources[name].op_type in kinds)
    return parts or own[index]


def _original(row: LayerRow) -> str:
    value = row.extra.get("original")
    return value if isinstance(value, str) else ""


def _reads(row: LayerRow) -> list[str]:
    value = row.extra.get("reads")
    return [name for name in value if isinstance(name, str)] if isinstance(value, list) else []


def _computes_in_integers(row: LayerRow, kinds: Sequence[str] | None) -> bool | None:
    """Tell by the kinds of its nodes, where they are known; what stands for none only converts."""
    if row.op_type in _MOVERS or (kinds is not None and MOVING_NODES.issuperset(kinds)):
        return None
    written = row.extra.get("output_precision") if row.op_type in _POINTWISE else None
    # Of several results each has its own.
    ends = {row.extra.get("precision"), *(written.split(",") if isinstance(written, str) else [])}
    return ends <= _INTEGERS
