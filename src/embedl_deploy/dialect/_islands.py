"""Layers with float weights between quantised neighbours, kept float.

ONNX Runtime rounds the float weight of a Conv, ConvTranspose or Gemm whose input comes from a DQ and whose result goes
to a Q: to int8, with one scale for the whole weight. It leaves the layer alone where the DQ has a scale per channel. A
DQ that says its one scale once per channel gives the same numbers.
"""

import onnx

from embedl_deploy.dialect._dialects import Dialect
from embedl_deploy.dialect._fuse import propagated
from embedl_deploy.dialect._model import Axis, Parts, attribute
from embedl_deploy.dialect._place import WEIGHTED, View


def keep_float(parts: Parts, dialect: Dialect) -> None:
    """Have every layer with float weights read its quantised input in a way that the runtime leaves alone."""
    parts.spread = {}
    if not dialect.rounds_float_weights:
        return
    view = View(parts)
    # The runtime carries a pair across what moves values before it rounds weights: there it must stand in the file.
    moved = propagated(parts)
    for node in parts.graph.node:
        boundary = moved.edges.get((node.name, 0))
        if boundary is None or node.op_type not in WEIGHTED or node.input[1] not in view.constants:
            continue
        along = _axis(view, node)
        if along is None:
            parts.notes.append(
                f"{node.input[1]}: float weights, and {dialect.name} may round them: no axis of {node.input[0]!r} is "
                "known to be longer than 1."
            )
            continue
        parts.edges[node.name, 0] = parts.boundary(node.input[0], moved.params[boundary])
        parts.spread[node.name, 0] = along


def _axis(view: View, node: onnx.NodeProto) -> Axis | None:
    """Return an axis of a layer's input that is longer than 1, and its size: channels, where that is cheap.

    The last axis is dear, since each number then has a scale of its own. The first is the batch, which others may
    change, so it comes last.
    """
    channels = _channels(node, tuple(view.constants[node.input[1]].dims))
    if node.op_type != "MatMul" and channels[1] > 1:
        return channels
    sizes = list(enumerate(view.shape(node.input[0]) or ()))
    found = [*sizes[1:-1], channels, *sizes[-1:], *sizes[:1]]
    return next((one for one in found if one[1] > 1), None)


def _channels(node: onnx.NodeProto, weight: tuple[int, ...]) -> Axis:
    """Return where the channels of a layer's input lie, and how many its weight has: 0 where it lacks that axis."""

    def along(axis: int) -> int:
        # A bad file's weight may have any rank; the runtime refuses such a layer, and it is not ours to crash on.
        return weight[axis] if axis < len(weight) else 0

    if node.op_type == "Conv":
        return 1, along(1) * int(attribute(node, "group", 1))
    if node.op_type == "ConvTranspose":
        return 1, along(0)
    if node.op_type == "Gemm":
        return 0 if attribute(node, "transA", 0) else 1, along(1 if attribute(node, "transB", 0) else 0)
    return -1, along(max(len(weight) - 2, 0))
