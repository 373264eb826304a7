"""Weights and biases in a dialect's number format."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import onnx
from onnx import numpy_helper

from embedl_deploy.dialect._dialects import Dialect
from embedl_deploy.dialect._model import Parts, Weight, attribute
from embedl_deploy.dialect._numbers import LIMITS, Params, counterpart, for_range, resign
from embedl_deploy.dialect._place import CONVOLUTIONS, WEIGHTED, View, can_hold

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


def layers(parts: Parts) -> list[Layer]:
    """List the weighted operators whose input and weight are both quantised, each with its bias (or '')."""
    view = View(parts)
    found = []
    for node in parts.graph.node:
        if node.op_type not in WEIGHTED or len(node.input) < 2 or (node.name, 0) not in parts.edges:
            continue
        weight = parts.weights.get(node.input[1])
        if weight is None:
            continue
        bias_node, index = _bias_place(view, node)
        bias = bias_node.input[index] if index >= 0 else ""
        found.append(
            Layer(node, parts.params[parts.edges[node.name, 0]], node.input[1], _out_axis(node, weight.values.ndim),
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
    """Return the axis of a weight that holds output channels."""
    if node.op_type == "Conv":
        return 0
    if node.op_type == "ConvTranspose":
        return 1
    if node.op_type == "Gemm":
        return 0 if attribute(node, "transB", 0) else 1
    return rank - 1


def convert_weights(parts: Parts, dialect: Dialect) -> None:
    """Bring the weights into the dialect's format; those it cannot read become float, with a note."""
    readers = View(parts).readers
    for name, weight in list(parts.weights.items()):
        if weight.params.type == "int32":
            _to_float(parts, name)  # a bias: float in the canonical form
            continue
        used_in_float = all(node.op_type not in dialect.integers for node, _ in readers.get(name, []))
        lacking = _lacks(weight, dialect, readers.get(name, []))
        if used_in_float or lacking:
            _to_float(parts, name)
            parts.notes.append(f"{name}: {lacking or 'its operator runs in float'} in {dialect.name}; kept in float.")
            continue
        parts.weights[name] = _converted(parts, name, weight, dialect)


def _lacks(weight: Weight, dialect: Dialect, readers: Sequence[tuple[onnx.NodeProto, int]]) -> str:
    """Say what a dialect lacks for a weight, or nothing."""
    kind = weight.params.type
    if kind not in dialect.types and counterpart(kind, signed=True) not in dialect.types:
        return f"no {kind} weights"
    if kind in dialect.no_conv_types and any(node.op_type in CONVOLUTIONS for node, _ in readers):
        return f"no {kind} weights in convolutions"
    return "no weights in blocks" if weight.params.block and not dialect.weight_blocks else ""


def lacking(parts: Parts, dialect: Dialect) -> dict[str, str]:
    """Return everything a dialect cannot express, by tensor."""
    found = {
        parts.tensor_of[name]: f"{params.type} activations"
        for name, params in parts.params.items()
        if not can_hold(dialect, params)
    }
    readers = View(parts).readers
    for name, weight in parts.weights.items():
        lack = "" if weight.params.type == "int32" else _lacks(weight, dialect, readers.get(name, []))
        if lack:
            found[name] = lack.removeprefix("no ")
    return found


def free_layers(parts: Parts, dialect: Dialect) -> None:
    """Take Q/DQ away before layers whose weight the dialect lacks: they run in float, and it would only cost."""
    readers = View(parts).readers
    lost = {node.name for name in lacking(parts, dialect) for node, _ in readers.get(name, []) if name in parts.weights}
    # Formats that the dialect lacks too are dropped later, with a note of their own.
    parts.edges = {
        edge: name
        for edge, name in parts.edges.items()
        if edge[0] not in lost or not can_hold(dialect, parts.params[name])
    }
    parts.prune()


def _to_float(parts: Parts, name: str) -> None:
    parts.graph.initializer.append(numpy_helper.from_array(parts.weights.pop(name).real, name))


def _converted(parts: Parts, name: str, weight: Weight, dialect: Dialect) -> Weight:
    params = weight.params
    if params.type not in LIMITS:
        return weight
    if params.type == "uint8" or (params.type not in dialect.types):
        signed = resign(params, counterpart(params.type, signed=True))
        shift = LIMITS[signed.type][0] - LIMITS[params.type][0]
        weight = Weight((weight.values.astype(np.int64) + shift).astype(signed.type), signed)
    if np.any(weight.params.zero_point) and not dialect.weight_zero_point:
        parts.notes.append(f"{name}: rounded again, because {dialect.name} has no zero point in weights.")
        weight = symmetric(weight)
    if dialect.narrow_weights and weight.params.type == "int8" and np.any(weight.values == -128):
        parts.notes.append(f"{name}: -128 became -127, because {dialect.name} keeps weights within -127..127.")
        weight = replace(weight, values=np.maximum(weight.values, -127))
    return weight


def symmetric(weight: Weight) -> Weight:
    """Round a weight again without zero point, over the range it has."""
    real, params = weight.real, weight.params
    if params.axis is None:
        found = for_range(float(real.min()), float(real.max()), params.type, zero_point=False)
        return Weight(found.quantize(real), found)
    rest = tuple(axis for axis in range(real.ndim) if axis != params.axis)
    if params.block:
        return weight
    most = np.max(np.abs(real), axis=rest)
    scale = np.where(most > 0, most / LIMITS[params.type][1], 1).astype(np.float32)
    found = Params(scale, np.zeros_like(params.zero_point), params.type, params.axis)
    return Weight(found.quantize(real), found)


def integer_biases(parts: Parts) -> None:
    """Make the biases of integer layers int32 with scale input × weight."""
    constants = parts.constants()
    shared = {name for name, readers in View(parts).readers.items() if len(readers) > 1}
    for layer in layers(parts):
        if layer.bias not in constants:
            continue
        real = numpy_helper.to_array(constants[layer.bias])
        weight = parts.weights[layer.weight]
        channels = weight.params.axis in (None, layer.weight_axis)
        if weight.params.type != "int8" or layer.input.type not in ("int8", "uint8") or not channels or real.ndim != 1:
            continue
        if not np.isfinite(real).all():
            continue  # No integer says infinity; in float the file stays as wrong as it was.
        # Kernels add the bias before they multiply by alpha, so they take it with alpha 1 alone.
        if weight.params.block or any(attribute(layer.node, name, 1.0) != 1.0 for name in ("alpha", "beta")):
            continue
        weight = _room_for_bias(parts, layer, weight, real)
        scale = np.asarray(layer.input.scale * weight.params.scale, np.float32)
        axis = None if scale.ndim == 0 else 0
        zero = np.zeros(scale.shape, np.int64)
        params = Params(scale, zero, "int32", axis)
        name = layer.bias
        if name in shared or name in parts.weights:
            name = f"{layer.bias}/{layer.node.name}"
            layer.bias_node.input[layer.bias_index] = name
        parts.weights[name] = Weight(params.quantize(real), params)
    _drop_unread(parts)


def _room_for_bias(parts: Parts, layer: Layer, weight: Weight, real: np.ndarray) -> Weight:
    """Widen the scale of channels whose bias would not fit into int32; dead channels have such scales."""
    scale = weight.params.scale.astype(np.float64)
    least = np.abs(real).astype(np.float64) / _BIAS_LIMIT / float(layer.input.scale)
    least = least if scale.ndim else np.asarray(np.max(least))
    wanted = np.maximum(scale, least)
    if np.array_equal(wanted, scale):
        return weight
    params = replace(weight.params, scale=wanted.astype(np.float32))
    parts.notes.append(f"{layer.weight}: channels with a scale too small for their bias in int32 got a larger one.")
    parts.weights[layer.weight] = Weight(params.quantize(weight.real), params)
    return parts.weights[layer.weight]


def _drop_unread(parts: Parts) -> None:
    used = {name for node in parts.graph.node for name in node.input} - set(parts.weights)
    used |= {value.name for value in parts.graph.output}
    kept = [value for value in parts.graph.initializer if value.name in used]
    del parts.graph.initializer[:]
    parts.graph.initializer.extend(kept)
