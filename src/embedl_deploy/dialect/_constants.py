"""Weights and biases in a dialect's number format."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import onnx
from onnx import numpy_helper

from embedl_deploy.dialect._dialects import CONVOLUTIONS, WEIGHTED, Dialect
from embedl_deploy.dialect._fuse import propagated
from embedl_deploy.dialect._model import Axis, QdqModel, Weight, attribute, replace_all
from embedl_deploy.dialect._numbers import LIMITS, Params, change_sign, counterpart, for_range
from embedl_deploy.dialect._qdq_placement import View, can_hold

# An int32 accumulator holds the products too: a bias may use half of it.
_BIAS_LIMIT = 2.0**30


@dataclass(frozen=True)
class Layer:
    """A weighted operator that reads integers: its input format, its weight and where its bias stands."""

    node: onnx.NodeProto
    input: Params
    weight: str
    weight_axis: int
    bias: str
    bias_node: onnx.NodeProto
    bias_index: int


def layers(qdq: QdqModel) -> list[Layer]:
    """List the weighted operators whose input and weight are both quantized, each with its bias (or '')."""
    view = View(qdq)
    found = []
    for node in qdq.graph.node:
        if node.op_type not in WEIGHTED or len(node.input) < 2 or (node.name, 0) not in qdq.edges:
            continue
        weight = qdq.weights.get(node.input[1])
        if weight is None:
            continue
        bias_node, index = _bias_place(view, node)
        bias = bias_node.input[index] if index >= 0 else ""
        found.append(
            Layer(node, qdq.params[qdq.edges[node.name, 0]], node.input[1], _out_axis(node, weight.values.ndim),
                  bias, bias_node, index)
        )  # fmt: skip
    return found


def _bias_place(view: View, node: onnx.NodeProto) -> tuple[onnx.NodeProto, int]:
    if node.op_type == "MatMul":
        after = view.bias_tail(node)
        constant = [index for index, name in enumerate(after.input) if view.is_constant(name)]
        return (after, constant[0]) if after is not node else (node, -1)
    has_bias = len(node.input) > 2 and bool(node.input[2]) and view.is_constant(node.input[2])
    return node, 2 if has_bias else -1


def _out_axis(node: onnx.NodeProto, rank: int) -> int:
    gemm = 0 if attribute(node, "transB", 0) else 1
    return {"Conv": 0, "ConvTranspose": 1, "Gemm": gemm}.get(node.op_type, rank - 1)


def convert_weights(qdq: QdqModel, dialect: Dialect) -> None:
    """Bring the weights into the dialect's format; those it cannot read become float, with a note."""
    readers = View(qdq).readers
    for name, weight in list(qdq.weights.items()):
        if weight.params.type == "int32":
            _to_float(qdq, name)  # a bias: float in the canonical form
            continue
        used_in_float = all(node.op_type not in dialect.integers for node, _ in readers.get(name, []))
        lacking = _lacks(weight, dialect, readers.get(name, []))
        if used_in_float or lacking:
            _to_float(qdq, name)
            qdq.notes.append(f"{name}: {lacking or 'its operator runs in float'} in {dialect.name}; kept in float.")
            continue
        if any(node.op_type in WEIGHTED and index > 0 for node, index in readers.get(name, [])):
            qdq.weights[name] = _converted(qdq, name, weight, dialect)
        elif weight.params.type in LIMITS:
            qdq.weights[name] = _as_activation(weight, dialect)


def _lacks(weight: Weight, dialect: Dialect, readers: Sequence[tuple[onnx.NodeProto, int]]) -> str:
    kind = weight.params.type
    if kind not in dialect.types and counterpart(kind, signed=True) not in dialect.types:
        return f"no {kind} weights"
    if kind in dialect.no_conv_types and any(node.op_type in CONVOLUTIONS for node, _ in readers):
        return f"no {kind} weights in convolutions"
    return "no weights in blocks" if weight.params.block and not dialect.weight_blocks else ""


def lacking(qdq: QdqModel, dialect: Dialect) -> dict[str, str]:
    found = {
        qdq.tensor_of[name]: f"{params.type} activations"
        for name, params in qdq.params.items()
        if not can_hold(dialect, params)
    }
    readers = View(qdq).readers
    for name, weight in qdq.weights.items():
        lack = "" if weight.params.type == "int32" else _lacks(weight, dialect, readers.get(name, []))
        if lack:
            found[name] = lack.removeprefix("no ")
    return found


def unquantize_unsupported_layers(qdq: QdqModel, dialect: Dialect) -> None:
    """Take Q/DQ away before layers whose weight the dialect lacks: they run in float, and it would only cost."""
    readers = View(qdq).readers
    lost = {node.name for name in lacking(qdq, dialect) for node, _ in readers.get(name, []) if name in qdq.weights}
    # Formats that the dialect lacks too are dropped later, with a note of their own.
    qdq.edges = {
        edge: name for edge, name in qdq.edges.items() if edge[0] not in lost or not can_hold(dialect, qdq.params[name])
    }
    qdq.prune()


def _to_float(qdq: QdqModel, name: str) -> None:
    qdq.graph.initializer.append(numpy_helper.from_array(qdq.weights.pop(name).real, name))


def _as_activation(weight: Weight, dialect: Dialect) -> Weight:
    """Give a constant that is no layer's weight, a class token of a concat say, the type of activations."""
    params = change_sign(weight.params, counterpart(weight.params.type, signed=dialect.activation == "int8"))
    shift = LIMITS[params.type][0] - LIMITS[weight.params.type][0]
    return Weight((weight.values.astype(np.int64) + shift).astype(params.type), params)


def _converted(qdq: QdqModel, name: str, weight: Weight, dialect: Dialect) -> Weight:
    params = weight.params
    if params.type not in LIMITS:
        return weight
    if params.type == "uint8" or (params.type not in dialect.types):
        signed = change_sign(params, counterpart(params.type, signed=True))
        shift = LIMITS[signed.type][0] - LIMITS[params.type][0]
        weight = Weight((weight.values.astype(np.int64) + shift).astype(signed.type), signed)
    if np.any(weight.params.zero_point) and not dialect.weight_zero_point:
        qdq.notes.append(f"{name}: rounded again, because {dialect.name} has no zero point in weights.")
        weight = symmetric(weight)
    if dialect.narrow_weights and weight.params.type == "int8" and np.any(weight.values == -128):
        qdq.notes.append(f"{name}: -128 became -127, because {dialect.name} keeps weights within -127..127.")
        weight = replace(weight, values=np.maximum(weight.values, -127))
    return weight


def symmetric(weight: Weight) -> Weight:
    """Round a weight again without zero point, over the range it has."""
    real, params = weight.real, weight.params
    if params.axis is None:
        found = for_range(float(real.min()), float(real.max()), params.type, zero_point=False)
        return Weight(found.quantize(real), found)
    return weight if params.block else by_channel(weight, params.axis)


def by_channel(weight: Weight, axis: int) -> Weight:
    """Round a weight again without zero point, with a scale for each place along an axis."""
    real, kind = weight.real, weight.params.type
    most = np.abs(real).max(tuple(other for other in range(real.ndim) if other != axis))
    scale = np.where(most > 0, most / LIMITS[kind][1], 1).astype(np.float32)
    params = Params(scale, np.zeros(scale.shape, np.int64), kind, axis)
    return Weight(params.quantize(real), params)


def integer_biases(qdq: QdqModel) -> None:
    """Make the biases of integer layers int32 with scale input × weight."""
    constants = qdq.constants()
    shared = {name for name, readers in View(qdq).readers.items() if len(readers) > 1}
    for layer in layers(qdq):
        if layer.bias not in constants:
            continue
        real = numpy_helper.to_array(constants[layer.bias])
        weight = qdq.weights[layer.weight]
        channels = weight.params.axis in (None, layer.weight_axis)
        eight_bits = {weight.params.type, layer.input.type} <= {"int8", "uint8"}
        # No integer says infinity; in float the file stays as wrong as it was.
        if not eight_bits or not channels or real.ndim != 1 or not np.isfinite(real).all():
            continue
        # Kernels add the bias before they multiply by alpha, so they take it with alpha 1 alone.
        if weight.params.block or any(attribute(layer.node, name, 1.0) != 1.0 for name in ("alpha", "beta")):
            continue
        weight = _room_for_bias(qdq, layer, weight, real)
        scale = np.asarray(layer.input.scale * weight.params.scale, np.float32)
        params = Params(scale, np.zeros(scale.shape, np.int64), "int32", 0 if scale.ndim else None)
        name = layer.bias
        if name in shared or name in qdq.weights:
            name = f"{layer.bias}/{layer.node.name}"
            layer.bias_node.input[layer.bias_index] = name
        qdq.weights[name] = Weight(params.quantize(real), params)
    used = {name for node in qdq.graph.node for name in node.input} - set(qdq.weights)
    used |= {value.name for value in qdq.graph.output}
    replace_all(qdq.graph.initializer, [value for value in qdq.graph.initializer if value.name in used])


def _room_for_bias(qdq: QdqModel, layer: Layer, weight: Weight, real: np.ndarray) -> Weight:
    """Widen the scale of channels whose bias would not fit into int32; dead channels have such scales."""
    scale = weight.params.scale.astype(np.float64)
    least = np.abs(real).astype(np.float64) / _BIAS_LIMIT / float(layer.input.scale)
    least = least if scale.ndim else np.asarray(np.max(least))
    wanted = np.maximum(scale, least)
    if np.array_equal(wanted, scale):
        return weight
    params = replace(weight.params, scale=wanted.astype(np.float32))
    qdq.notes.append(f"{layer.weight}: channels with a scale too small for their bias in int32 got a larger one.")
    qdq.weights[layer.weight] = Weight(params.quantize(weight.real), params)
    return qdq.weights[layer.weight]


def keep_float_weights(qdq: QdqModel, dialect: Dialect) -> None:
    """Have every layer with float weights read its quantized input in a way that the runtime leaves alone.

    ONNX Runtime rounds the float weight of a Conv, ConvTranspose or Gemm whose input comes from a DQ and whose result
    goes to a Q: to int8, with one scale. It leaves the layer alone where the DQ has a scale per channel, and a DQ that
    repeats its one scale for every channel gives the same numbers.
    """
    qdq.spread = {}
    if not dialect.rounds_float_weights:
        return
    view = View(qdq)
    # The runtime carries a pair across what moves values before it rounds weights: there it must stand in the file.
    moved = propagated(qdq)
    for node in qdq.graph.node:
        boundary = moved.edges.get((node.name, 0))
        if boundary is None or node.op_type not in WEIGHTED or node.input[1] not in view.constants:
            continue
        along = _axis(view, node)
        if along is None:
            qdq.notes.append(
                f"{node.input[1]}: float weights, and {dialect.name} may round them: no axis of {node.input[0]!r} is "
                "known to be longer than 1."
            )
            continue
        qdq.edges[node.name, 0] = qdq.boundary(node.input[0], moved.params[boundary])
        qdq.spread[node.name, 0] = along


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
    return next((candidate for candidate in found if candidate[1] > 1), None)


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
