"""An ONNX model taken apart: float graph here, quantization beside it.

`read` takes every Q/DQ out of a graph and notes on which edges it stood; `write` puts them back. What lies between may
change placement and number formats without touching the graph.
"""

import base64
import json
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any, TypedDict

import numpy as np
import onnx
from onnx import helper, numpy_helper

from embedl_deploy.dialect._numbers import DTYPES, LIMITS, Params
from embedl_deploy.errors import ModelFileError
from embedl_device.readers import UnreadableError, parse_json

RANGES = "edgeproof.ranges"
MODULES = "edgeproof.modules"
PRECISIONS = "edgeproof.precisions"
SENSITIVITY = "edgeproof.sensitivity"
FORMAT = "edgeproof.format"
LABELS = "edgeproof.labels"
ORIGIN = "edgeproof.origin"
NOTES = "edgeproof.notes"
DIALECT = "edgeproof.dialect"
REMEDIES = "edgeproof.remedies"
REMAINDERS = "edgeproof.remainders"
PLACED = "edgeproof.placed"

# Weights whose remainders are kept; each is a byte, and four characters of text stand for three.
_MOST_REMAINDERS = 40_000_000

Edge = tuple[str, int]
Axis = tuple[int, int]  # An axis and its size.
_TYPE_NAMES: dict[int, str] = {onnx.TensorProto.DataType.Value(name.upper()): name for name in DTYPES}


@dataclass(frozen=True)
class Weight:
    """A constant in integers, as it lies in the file."""

    values: np.ndarray
    params: Params

    @property
    def real(self) -> np.ndarray:
        return self.params.dequantize(self.values)


@dataclass
class QdqModel:
    """A float graph and its quantization beside it; the graph in `model` has no Q/DQ that belongs to a boundary.

    A boundary is a tensor in a format: a tensor with two formats has two boundaries. An edge (a node's input) that has
    no boundary reads the float value.
    """

    model: onnx.ModelProto  # Every node has a name.
    tensor_of: dict[str, str] = field(default_factory=dict)  # By boundary.
    params: dict[str, Params] = field(default_factory=dict)  # By boundary.
    edges: dict[Edge, str] = field(default_factory=dict)
    # Edges whose DQ repeats the one scale along an axis: the numbers are the same, and ONNX Runtime lets the reader be.
    spread: dict[Edge, Axis] = field(default_factory=dict)
    weights: dict[str, Weight] = field(default_factory=dict)  # By the name the graph reads them under.
    integers: dict[str, str] = field(default_factory=dict)  # The tensor of a boundary's integers in the file read.
    doubled: set[str] = field(default_factory=set)  # Boundaries that have more than one Q in the file read.
    exact: dict[str, np.ndarray] = field(default_factory=dict)  # Weights before rounding, where they are known.
    ranges: dict[str, tuple[float, float]] = field(default_factory=dict)  # Observed, by tensor.
    notes: list[str] = field(default_factory=list)  # What was given up.

    @property
    def graph(self) -> onnx.GraphProto:
        return self.model.graph

    @property
    def opset(self) -> int:
        return opset_of(self.model)

    def boundary(self, tensor: str, params: Params) -> str:
        """Return the boundary that holds a tensor in a format; make it if there is none."""
        for name, held in self.tensor_of.items():
            if held == tensor and self.params[name].same(params):
                return name
        name, number = tensor, 2
        while name in self.tensor_of:
            name, number = f"{tensor}#{number}", number + 1
        self.tensor_of[name] = tensor
        self.params[name] = params
        return name

    def constants(self) -> dict[str, onnx.TensorProto]:
        return {value.name: value for value in self.graph.initializer}

    def rename_boundaries(self) -> None:
        """Name the boundaries as reading the written file would: after their tensors."""
        named = QdqModel(self.model)
        new = {name: named.boundary(tensor, self.params[name]) for name, tensor in self.tensor_of.items()}
        self.tensor_of, self.params = named.tensor_of, named.params
        self.edges = {edge: new[name] for edge, name in self.edges.items()}

    def prune(self) -> None:
        used = set(self.edges.values())
        for name in [name for name in self.tensor_of if name not in used]:
            del self.tensor_of[name], self.params[name]


def integer_type_name(number: int) -> str:
    """Return the name of a quantized type, ONNX's own for others."""
    return _TYPE_NAMES.get(number) or str(onnx.TensorProto.DataType.Name(number)).lower()


def opset_of(model: onnx.ModelProto) -> int:
    """Return the version of the standard operators, 0 for none."""
    return max((entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx")), default=0)


def metadata(model: onnx.ModelProto) -> dict[str, str]:
    return {entry.key: entry.value for entry in model.metadata_props}


def set_metadata(model: onnx.ModelProto, values: dict[str, str]) -> None:
    """Replace entries; an empty text removes one."""
    kept = {**metadata(model), **values}
    del model.metadata_props[:]
    helper.set_model_props(model, {key: value for key, value in kept.items() if value})


def read_entry(model: onnx.ModelProto, key: str, default: str) -> Any:
    """Return an entry of the metadata that is JSON, of the kind that the default is."""
    try:
        found = parse_json(metadata(model).get(key, default))
    except UnreadableError as exc:
        raise ModelFileError(f"The metadata {key!r} is not JSON ({exc}). Remove it to go on.") from exc
    if not isinstance(found, type(json.loads(default))):
        raise ModelFileError(f"The metadata {key!r} is not JSON of the form {default}. Remove it to go on without.")
    return found


def attribute(node: onnx.NodeProto, name: str, default: Any = None) -> Any:
    for entry in node.attribute:
        if entry.name == name:
            return helper.get_attribute_value(entry)
    return default


def consumers(graph: onnx.GraphProto) -> dict[str, list[tuple[onnx.NodeProto, int]]]:
    """Return who reads each tensor, and as which input."""
    found: dict[str, list[tuple[onnx.NodeProto, int]]] = {}
    for node in graph.node:
        for index, name in enumerate(node.input):
            found.setdefault(name, []).append((node, index))
    return found


def producers(graph: onnx.GraphProto) -> dict[str, onnx.NodeProto]:
    return {name: node for node in graph.node for name in node.output if name}


def unused_name(base: str, taken: set[str]) -> str:
    """Return a name, with a number behind it where it is taken already, and note it as taken."""
    name, number = base, 2
    while name in taken:
        name, number = f"{base}_{number}", number + 1
    taken.add(name)
    return name


def name_nodes(graph: onnx.GraphProto) -> None:
    """Give every node a name of its own; edges are known by it."""
    taken: set[str] = set()
    for number, node in enumerate(graph.node):
        node.name = unused_name(node.name or f"{node.op_type}_{number}", taken)


def read(model: onnx.ModelProto) -> QdqModel:
    """Take a Q/DQ model apart; the model given is not changed."""
    own = copy_model(model)
    _constants_to_initializers(own.graph)
    name_nodes(own.graph)
    qdq = QdqModel(own, ranges=_read_ranges(own))
    _Reader(qdq).run()
    _read_remainders(qdq)
    _fold_weight_transposes(qdq)
    return qdq


def _read_ranges(model: onnx.ModelProto) -> dict[str, tuple[float, float]]:
    """Read the observed ranges; a range that is no pair of finite numbers is no range."""
    try:
        pairs = {str(name): (float(low), float(high)) for name, (low, high) in read_entry(model, RANGES, "{}").items()}
    except (ValueError, TypeError, AttributeError) as exc:
        raise ModelFileError(f"The metadata {RANGES!r} is not JSON of the form {{tensor: [min, max]}}: {exc}") from exc
    return {name: pair for name, pair in pairs.items() if np.all(np.isfinite(pair)) and pair[0] <= pair[1]}


def note_remainders(model: onnx.ModelProto, exact: dict[str, np.ndarray]) -> None:
    """Keep what rounding took from the weights of a model, in 256ths of a step, so that they can be rounded again."""
    if sum(real.size for real in exact.values()) > _MOST_REMAINDERS:
        return  # as text they would be more than a reader of strangers' files takes
    weights = read(model).weights
    found = {}
    for name, real in exact.items():
        weight = weights.get(name)
        if weight is None or weight.params.type != "int8" or weight.params.block or weight.values.shape != real.shape:
            continue
        scale, _ = weight.params.spread(real.shape)
        rest = np.clip(np.rint((real - weight.real) / scale * 256), -128, 127)
        found[name] = base64.b64encode(rest.astype(np.int8).tobytes()).decode("ascii")
    set_metadata(model, {REMAINDERS: json.dumps(found, separators=(",", ":")) if found else ""})


def _read_remainders(qdq: QdqModel) -> None:
    """Add up integers and remainders to the weights before rounding."""
    try:
        for name, data in read_entry(qdq.model, REMAINDERS, "{}").items():
            weight = qdq.weights[name]
            rest = np.frombuffer(base64.b64decode(data), np.int8).reshape(weight.values.shape)
            scale, _ = weight.params.spread(weight.values.shape)
            qdq.exact[name] = weight.real.astype(np.float64) + rest * (scale.astype(np.float64) / 256)
    except (ValueError, KeyError, TypeError, AttributeError) as exc:
        raise ModelFileError(
            f"The metadata {REMAINDERS!r} does not fit the weights ({type(exc).__name__}: {exc}). "
            "Remove it to go on from the integers alone."
        ) from exc


def _constants_to_initializers(graph: onnx.GraphProto) -> None:
    """Turn Constant nodes into initializers: exporters differ, the meaning does not."""
    values = [attribute(node, "value") if node.op_type == "Constant" else None for node in graph.node]
    kept = []
    for node, value in zip(graph.node, values, strict=True):
        if value is None:
            kept.append(node)
        else:
            graph.initializer.append(value)
            graph.initializer[-1].name = node.output[0]
    replace_all(graph.node, kept)


def copy_model(model: onnx.ModelProto) -> onnx.ModelProto:
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    return copy


def replace_all(field: Any, values: Iterable[Any]) -> None:
    """Set a repeated field of a message; the values may be its own."""
    kept = list(values)
    del field[:]
    field.extend(kept)


def rename_tensor(nodes: Iterable[onnx.NodeProto], old: str, new: str) -> None:
    for node in nodes:
        for names in (node.input, node.output):
            for index, name in enumerate(names):
                if name == old:
                    names[index] = new


class _Reader:
    """Takes the Q/DQ out of one graph."""

    def __init__(self, qdq: QdqModel) -> None:
        self.qdq = qdq
        self.graph = qdq.graph
        self.constants = qdq.constants()
        self.maker = producers(self.graph)
        self.readers = consumers(self.graph)
        self.outputs = {value.name for value in self.graph.output}
        self.gone: set[str] = set()
        self.swapped: dict[str, onnx.NodeProto] = {}
        # The name that replaces a DQ's output, and the boundary it stands for (None for a constant).
        self.replacement_of: dict[str, tuple[str, str | None]] = {}
        # DQs that repeat one scale along an axis, by output.
        self.spread: dict[str, Axis] = {}

    def run(self) -> None:
        for node in self.graph.node:
            if node.op_type == "DequantizeLinear":
                self._take(node)
        # A graph output that a DQ made gets an Identity: the name stays, and so does the edge.
        for name in sorted(self.outputs & set(self.replacement_of)):
            self.graph.node.append(helper.make_node("Identity", [name], [name], name=f"output/{name}"))
        self._rewire()
        self._drop_constants()

    def _take(self, node: onnx.NodeProto) -> None:
        """Take one DQ and the Q before it, if they are a pair on a value or a constant."""
        if node.input[0] in self.constants:
            self._take_constant(node, numpy_helper.to_array(self.constants[node.input[0]]))
            return
        maker = self.maker.get(node.input[0])
        params = self._pair_params(maker, node)
        if maker is None or params is None:
            return
        if maker.input[0] in self.constants:
            values = numpy_helper.to_array(self.constants[maker.input[0]])
            self._take_constant(node, params.quantize(values), maker.input[0])
            self.qdq.exact[self.replacement_of[node.output[0]][0]] = values.astype(np.float64)
            return
        inner = all(reader.op_type == "DequantizeLinear" for reader, _ in self.readers[maker.output[0]])
        if params.axis is None and inner and maker.output[0] not in self.outputs:
            self.gone |= {node.name, maker.name}
            self.replacement_of[node.output[0]] = self._source(maker, params)

    def _pair_params(self, maker: onnx.NodeProto | None, node: onnx.NodeProto) -> Params | None:
        """Return the format of a Q and the DQ after it, None if they are not two halves of one."""
        if maker is None or maker.op_type != "QuantizeLinear":
            return None
        params, other = self._params(node), self._params(maker)
        if params is None or other is None:
            return None
        if params.repeats(other):
            self.spread[node.output[0]] = (int(attribute(node, "axis", 1)), params.scale.size)
            return other
        return params if params.same(other) else None

    def _source(self, maker: onnx.NodeProto, params: Params) -> tuple[str, str]:
        """Return tensor and boundary of a pair; an equal one before it is the same, else an Identity parts them."""
        tensor = maker.input[0]
        below = self.replacement_of.get(tensor)
        if below is None or below[1] is None:
            boundary = self.qdq.boundary(tensor, params)
            if self.qdq.integers.setdefault(boundary, maker.output[0]) != maker.output[0]:
                self.qdq.doubled.add(boundary)
            return tensor, boundary
        if self.qdq.params[below[1]].same(params):
            return below[0], below[1]
        again = f"{tensor}/again"
        self.swapped[maker.name] = helper.make_node("Identity", [tensor], [again], name=f"requantize/{maker.name}")
        return again, self.qdq.boundary(again, params)

    def _take_constant(self, node: onnx.NodeProto, values: np.ndarray, name: str = "") -> None:
        params = self._params(node)
        if params is None:
            return
        name = name or node.input[0]
        _check_fit(name, values.shape, params)
        held = self.qdq.weights.get(name)
        if held is not None and not held.params.same(params):
            # One constant under two formats: the second gets a name of its own.
            name = node.output[0]
        self.qdq.weights[name] = Weight(values, params)
        self.gone.add(node.name)
        maker = self.maker.get(node.input[0])
        if maker is not None:
            self.gone.add(maker.name)
        self.replacement_of[node.output[0]] = (name, None)

    def _params(self, node: onnx.NodeProto) -> Params | None:
        """Read scale and zero point; None when they are computed in the graph."""
        scale = self._value(node.input[1])
        if scale is None:
            return None
        # A channel of zeros may have a scale of 0; a whole tensor may not.
        if not np.all(np.isfinite(scale)) or np.any(scale < 0) or not np.any(scale):
            raise ModelFileError(f"The scale {node.input[1]!r} of {node.name!r} is 0, negative or not finite.")
        kind = self._integer_type(node)
        zero = self._value(node.input[2]) if len(node.input) > 2 and node.input[2] else None
        if len(node.input) > 2 and node.input[2] and zero is None:
            return None
        if zero is None or kind not in LIMITS:
            zero = np.zeros(scale.shape, np.int64)
        if zero.size != scale.size:
            raise ModelFileError(f"{node.name!r} has {scale.size} scales and {zero.size} zero points.")
        scale, zero = scale.astype(np.float32), zero.astype(np.int64)
        block = int(attribute(node, "block_size", 0) or 0)
        if scale.size == 1 and not block:
            return Params(scale.reshape(()), zero.reshape(()), kind)
        axis, constant = int(attribute(node, "axis", 1)), self.constants.get(node.input[0])
        if axis < 0:
            axis += len(constant.dims) if constant is not None else scale.ndim
        return Params(scale, zero.reshape(scale.shape), kind, axis, block)

    def _integer_type(self, node: onnx.NodeProto) -> str:
        number = int(attribute(node, "output_dtype", 0) or 0) if node.op_type == "QuantizeLinear" else 0
        names = [node.input[0]] if node.op_type == "DequantizeLinear" else []
        names += [node.input[2]] if len(node.input) > 2 and node.input[2] else []
        for name in names:
            kind = self.constants[name].data_type if name in self.constants else number
            if number and kind != number:
                raise ModelFileError(f"{node.name!r} has integers of one type and a zero point of another.")
            number = kind
        if not number and node.op_type == "DequantizeLinear":
            maker = self.maker.get(node.input[0])
            if maker is not None and maker.op_type == "QuantizeLinear":
                return self._integer_type(maker)
        number = number or onnx.TensorProto.UINT8
        if number not in _TYPE_NAMES:
            raise ModelFileError(
                f"{node.name!r} quantizes to {onnx.TensorProto.DataType.Name(number)}; "
                f"known are {', '.join(sorted(DTYPES))}."
            )
        return _TYPE_NAMES[number]

    def _value(self, name: str) -> np.ndarray | None:
        tensor = self.constants.get(name)
        if tensor is not None:
            return numpy_helper.to_array(tensor)
        maker = self.maker.get(name)
        if maker is not None and maker.op_type == "Identity":
            return self._value(maker.input[0])
        return None

    def _rewire(self) -> None:
        kept = []
        for old in self.graph.node:
            node = self.swapped.get(old.name, old)
            if node.name in self.gone:
                continue
            kept.append(node)
            for index, name in enumerate(node.input):
                if name not in self.replacement_of:
                    continue
                node.input[index], boundary = self.replacement_of[name]
                if boundary is not None:
                    self.qdq.edges[node.name, index] = boundary
                    if name in self.spread:
                        self.qdq.spread[node.name, index] = self.spread[name]
        replace_all(self.graph.node, kept)

    def _drop_constants(self) -> None:
        used = {name for node in self.graph.node for name in node.input} | self.outputs
        used |= {name for node in self.graph.node for name in captured_names(node)}
        kept = [value for value in self.graph.initializer if value.name in used and value.name not in self.qdq.weights]
        gone = {value.name for value in self.graph.initializer} - {value.name for value in kept}
        replace_all(self.graph.initializer, kept)
        replace_all(self.graph.input, [value for value in self.graph.input if value.name not in gone])
        self.qdq.prune()


def _check_fit(name: str, shape: tuple[int, ...], params: Params) -> None:
    if params.axis is None or params.block:
        return
    if params.axis >= len(shape) or shape[params.axis] != params.scale.size:
        raise ModelFileError(
            f"{name!r} has the shape {list(shape)} and {params.scale.size} scales along axis {params.axis}."
        )


def captured_names(node: onnx.NodeProto) -> Iterable[str]:
    """Yield the names that a node's inner graphs read from outside."""
    for entry in node.attribute:
        for graph in (*entry.graphs, entry.g) if entry.type in (entry.GRAPH, entry.GRAPHS) else ():
            for inner in graph.node:
                yield from inner.input
                yield from captured_names(inner)


def _fold_weight_transposes(qdq: QdqModel) -> None:
    """Transpose a quantized weight in the file: runtimes fuse a DQ with the operator that reads it, and no further."""
    readers = consumers(qdq.graph)
    kept = []
    for node in qdq.graph.node:
        weight = qdq.weights.get(node.input[0]) if node.op_type == "Transpose" else None
        if weight is None or weight.params.block:
            kept.append(node)
            continue
        order = list(attribute(node, "perm") or range(weight.values.ndim)[::-1])
        params = weight.params
        if params.axis is not None:
            params = replace(params, axis=order.index(params.axis))
        qdq.weights[node.output[0]] = Weight(np.ascontiguousarray(weight.values.transpose(order)), params)
        if node.input[0] in qdq.exact:
            qdq.exact[node.output[0]] = qdq.exact[node.input[0]].transpose(order)
        if all(reader.op_type == "Transpose" for reader, _ in readers[node.input[0]]):
            readers[node.input[0]] = []
    if len(kept) == len(qdq.graph.node):
        return
    replace_all(qdq.graph.node, kept)
    used = {name for node in qdq.graph.node for name in node.input}
    for name in [name for name in qdq.weights if name not in used]:
        del qdq.weights[name]


def write(qdq: QdqModel) -> onnx.ModelProto:
    model = copy_model(qdq.model)
    _Writer(qdq, model).run()
    return model


class _Writer:
    """Puts Q/DQ into one graph."""

    def __init__(self, qdq: QdqModel, model: onnx.ModelProto) -> None:
        self.qdq = qdq
        self.graph = model.graph
        self.taken = {name for node in self.graph.node for name in (*node.input, *node.output)}
        self.taken |= {value.name for value in (*self.graph.initializer, *self.graph.input)} | set(qdq.weights)
        self.weights: dict[str, str] = {}
        # A boundary is read with its scale said once (None), or repeated along an axis.
        self.read_as: dict[tuple[str, Axis | None], str] = {}
        self.readings: dict[str, dict[Axis | None, None]] = {}
        for edge, boundary in qdq.edges.items():
            self.readings.setdefault(boundary, {})[qdq.spread.get(edge)] = None

    def run(self) -> None:
        before: dict[str, list[onnx.NodeProto]] = {}
        nodes = [node for name in self.qdq.weights for node in self._weight(name)]
        for boundary, tensor in self.qdq.tensor_of.items():
            before.setdefault(tensor, []).extend(self._pair(boundary, tensor))
        for value in self.graph.input:
            nodes += before.get(value.name, [])
        for node in self.graph.node:
            for index, name in enumerate(node.input):
                held = self.qdq.edges.get((node.name, index))
                if held is not None:
                    node.input[index] = self.read_as[held, self.qdq.spread.get((node.name, index))]
                elif name in self.qdq.weights:
                    node.input[index] = self.weights[name]
            nodes.append(node)
            for name in node.output:
                nodes += before.get(name, [])
        replace_all(self.graph.node, self._without_output_identities(nodes))
        _drop_stale_types(self.graph)

    def _without_output_identities(self, nodes: list[onnx.NodeProto]) -> list[onnx.NodeProto]:
        """Let a DQ write a graph output itself where an Identity stands only for the name."""
        outputs = {value.name for value in self.graph.output}
        kept, renamed = [], {}
        for node in nodes:
            stands_in = node.op_type == "Identity" and node.name == f"output/{node.output[0]}"
            if stands_in and node.output[0] in outputs and node.input[0] not in renamed:
                renamed[node.input[0]] = node.output[0]
            else:
                kept.append(node)
        makers = {name: node for node in kept for name in node.output}
        for old, new in renamed.items():
            if old not in makers:
                kept.append(helper.make_node("Identity", [old], [new], name=f"output/{new}"))
                continue
            rename_tensor(kept, old, new)
        return kept

    def _pair(self, boundary: str, tensor: str) -> list[onnx.NodeProto]:
        """Return a Q, and a DQ for each way it is read."""
        params = self.qdq.params[boundary]
        scale, zero = self._parameters(boundary, params)
        quantized = self._fresh(f"{boundary}/q")
        nodes = [helper.make_node("QuantizeLinear", [tensor, scale, zero], [quantized], name=quantized)]
        for along in self.readings[boundary]:
            real = self.read_as[boundary, along] = self._fresh(f"{boundary}/dq")
            if along is None:
                nodes.append(helper.make_node("DequantizeLinear", [quantized, scale, zero], [real], name=real))
                continue
            axis, size = along
            names = self._parameters(f"{boundary}/repeated", params.repeated(size))
            nodes.append(helper.make_node("DequantizeLinear", [quantized, *names], [real], name=real, axis=axis))
        return nodes

    def _weight(self, name: str) -> list[onnx.NodeProto]:
        weight = self.qdq.weights[name]
        self.graph.initializer.append(to_tensor(name, weight.values, weight.params.type))
        scale, zero = self._parameters(name, weight.params)
        real = self.weights[name] = self._fresh(f"{name}/dq")
        axis, block = weight.params.axis, weight.params.block or None
        # A setting that is None is left out.
        return [
            helper.make_node("DequantizeLinear", [name, scale, zero], [real], name=real, axis=axis, block_size=block)
        ]

    def _parameters(self, name: str, params: Params) -> tuple[str, str]:
        scale, zero = self._fresh(f"{name}/scale"), self._fresh(f"{name}/zero_point")
        self.graph.initializer.append(numpy_helper.from_array(np.asarray(params.scale, np.float32), scale))
        self.graph.initializer.append(to_tensor(zero, params.zero_point, params.type))
        return scale, zero

    def _fresh(self, name: str) -> str:
        return unused_name(name, self.taken)


def _drop_stale_types(graph: onnx.GraphProto) -> None:
    """Forget noted types of constants and of tensors that are gone: a bias may be int32 now, a weight float."""
    made = {name for node in graph.node for name in node.output}
    replace_all(graph.value_info, [value for value in graph.value_info if value.name in made])


def to_tensor(name: str, values: np.ndarray, kind: str) -> onnx.TensorProto:
    return numpy_helper.from_array(np.asarray(values).astype(DTYPES[kind]), name)


def infer_shapes(qdq: QdqModel) -> dict[str, tuple[int, ...]]:
    """Infer the shapes of the float graph, -1 for sizes that are open."""
    model = copy_model(qdq.model)
    _drop_stale_types(model.graph)
    for name, weight in qdq.weights.items():
        model.graph.input.append(helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, weight.values.shape))
    # Values of large constants play no part in shapes.
    inferred = onnx.shape_inference.infer_shapes(model).graph
    return {
        value.name: tuple(
            size.dim_value if size.HasField("dim_value") else -1 for size in value.type.tensor_type.shape.dim
        )
        for value in (*inferred.value_info, *inferred.input, *inferred.output)
        if value.type.tensor_type.HasField("shape")
    }


class PackedArray(TypedDict):
    """An array as JSON-able data."""

    type: str
    shape: list[int]
    data: str


def pack(values: np.ndarray) -> PackedArray:
    """Write an array as JSON-able data, exact to the bit."""
    return {
        "type": str(values.dtype),
        "shape": list(values.shape),
        "data": base64.b64encode(np.ascontiguousarray(values).tobytes()).decode("ascii"),
    }


def unpack(data: PackedArray) -> np.ndarray:
    kind = DTYPES.get(data["type"]) or np.dtype(data["type"])
    return np.frombuffer(base64.b64decode(data["data"]), kind).reshape(data["shape"]).copy()
