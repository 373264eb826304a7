"""Constant factors behind a rounding, kept out of the converter's reach.

onnx2tf multiplies weights by the factors behind them, also through a Relu. Where the file rounds between the two,
neither the tensor that it rounds nor the weights that it holds would be left. So such factors are inputs of the model
while it is converted, and constants again afterwards.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING

import numpy as np
import onnx
from onnx import numpy_helper

from .flat import Flat
from .matching import MOVING_OPERATORS
from .qdq import readers_of

if TYPE_CHECKING:
    from pathlib import Path

    from .qdq import Edge, QdqFile

_FACTOR = "factor_behind_rounding_"
_GELU_STEPS = 3  # from Erf to the end


class Apart:
    """A file's float model whose factors behind roundings are inputs."""

    def __init__(self, file: QdqFile) -> None:
        inferred = onnx.shape_inference.infer_shapes(file.model).graph
        self._ranks = {
            value.name: len(value.type.tensor_type.shape.dim)
            for value in (*inferred.value_info, *inferred.input, *inferred.output)
            if value.type.tensor_type.HasField("shape")
        }
        self._rounded = {edge for edge, chain in file.edges.items() if chain}
        self._constants = {value.name: numpy_helper.to_array(value) for value in file.model.graph.initializer}
        self._readers = readers_of(file.model)
        self._gelus = _nodes_of_gelus(file.model.graph.node, self._readers)
        self._values: dict[str, np.ndarray] = {}
        self.model = onnx.ModelProto()
        self.model.CopyFrom(file.model)
        nodes = [each for node in self.model.graph.node for each in self._apart(node)]
        del self.model.graph.node[:]
        self.model.graph.node.extend(nodes)

    def _apart(self, node: onnx.NodeProto) -> Iterator[onnx.NodeProto]:
        """Yield a node as it is, or what does its work with the factor as an input."""
        constant = [at for at, name in enumerate(node.input) if name in self._constants]
        rank = max((self._ranks.get(name, 0) for name in node.input), default=0)
        if node.op_type == "BatchNormalization" and (node.name, 0) in self._rounded and len(constant) == 4 and rank > 1:
            yield from self._normalization(node, rank)
            return
        # The converter knows x times its HardSigmoid.
        is_gate = node.op_type == "HardSigmoid" and len(self._readers[node.input[0]]) == 1
        if is_gate and (node.name, 0) in self._rounded:
            yield from self._hard_sigmoid(node)
            return
        if node.op_type not in ("Div", "Mul") or len(constant) != 1 or node.name in self._gelus:
            yield node
            return
        at = constant[0]
        factor = _factor(node, self._constants[node.input[at]], at)
        name = self._input(factor, rank) if (node.name, 1 - at) in self._rounded and factor is not None else ""
        yield onnx.helper.make_node("Mul", [node.input[1 - at], name], node.output, node.name) if name else node

    def _hard_sigmoid(self, node: onnx.NodeProto) -> Iterator[onnx.NodeProto]:
        held = {item.name: item.f for item in node.attribute}
        scaled, shifted = f"{node.output[0]}/scaled", f"{node.output[0]}/shifted"
        factor = self._input(np.full(1, held.get("alpha", 0.2), np.float32), 0)
        yield onnx.helper.make_node("Mul", [node.input[0], factor], [scaled], scaled)
        yield onnx.helper.make_node("Add", [scaled, self._term(shifted, held.get("beta", 0.5))], [shifted], shifted)
        bounds = [self._term(f"{node.output[0]}/{bound}", float(bound)) for bound in (0, 1)]
        yield onnx.helper.make_node("Clip", [shifted, *bounds], node.output, node.name)

    def _term(self, name: str, value: float | np.ndarray) -> str:
        self.model.graph.initializer.append(numpy_helper.from_array(np.asarray(value, np.float32), f"{name}/constant"))
        return f"{name}/constant"

    def _normalization(self, node: onnx.NodeProto, rank: int) -> Iterator[onnx.NodeProto]:
        scale, shift, mean, variance = (self._constants[name] for name in node.input[1:5])
        epsilon = next((item.f for item in node.attribute if item.name == "epsilon"), 1e-5)
        factor = scale / np.sqrt(variance + np.float32(epsilon))
        shape = (1, -1, *[1] * (rank - 2))
        scaled = f"{node.output[0]}/scaled"
        yield onnx.helper.make_node("Mul", [node.input[0], self._input(factor.reshape(shape), rank)], [scaled], scaled)
        term = self._term(node.output[0], (shift - mean * factor).reshape(shape))
        yield onnx.helper.make_node("Add", [scaled, term], node.output[:1], node.name)

    def _input(self, values: np.ndarray, rank: int) -> str:
        """Return an input for a factor; nothing for one whose numbers are ordered by the layout."""
        shape = _shape_for(values.shape, rank)
        if shape is None or values.dtype != np.float32:
            return ""
        name = f"{_FACTOR}{len(self._values)}"
        self._values[name] = values
        self.model.graph.input.append(onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape))
        return name

    def write(self, path: Path) -> Path:
        """Write the model."""
        onnx.save(self.model, path)
        return path

    def join(self, path: Path) -> None:
        """Make constants of the inputs that the converted model has for the factors."""
        if not self._values:
            return
        flat = Flat(path)
        held = {index: self._values[flat.name(index)] for index in flat.inputs if flat.name(index) in self._values}
        flat.graph.inputs = [index for index in flat.inputs if index not in held]
        for signature in flat.model.signatureDefs or []:
            signature.inputs = [entry for entry in signature.inputs if int(entry.tensorIndex) not in held]
        kept = []
        for operator in flat.operators:
            source = int(operator.inputs[0])
            if source in held and flat.op_type(operator) in MOVING_OPERATORS:  # of numbers along one axis
                held[int(operator.outputs[0])] = held[source]
            else:
                kept.append(operator)
        flat.graph.operators = kept
        for index, values in held.items():
            flat.hold(index, values)
        flat.write(path)


def _factor(node: onnx.NodeProto, values: np.ndarray, at: int) -> np.ndarray | None:
    """Return what a node multiplies by; None for a division of a constant, or by 0."""
    if node.op_type == "Mul":
        return values
    return None if at == 0 or not values.all() else np.asarray(1 / values, values.dtype)


def _shape_for(shape: tuple[int, ...], rank: int) -> list[int] | None:
    """Return the shape of a factor that a converter takes as it is; None where there is none.

    Numbers along the last axis stay there in every layout; those along another one have as many axes as the data.
    """
    long = [axis for axis, size in enumerate(shape) if size > 1]
    if not long:
        return [1]
    if len(long) > 1 or len(shape) > rank:
        return None
    if long[0] == len(shape) - 1:
        return [shape[-1]]
    return [1] * (rank - len(shape)) + list(shape)


def _nodes_of_gelus(nodes: Collection[onnx.NodeProto], readers: Mapping[str, list[Edge]]) -> set[str]:
    """Return the nodes around every Erf, which the converter knows as one operator."""
    by_name = {node.name: node for node in nodes}
    makers = {name: node for node in nodes for name in node.output if name}
    found: set[str] = set()
    for erf in (node for node in nodes if node.op_type == "Erf"):
        before = makers.get(erf.input[0])
        for name in before.input if before is not None else ():
            found |= {reader for reader, _ in readers.get(name, ())}
        ends = [erf]
        for _ in range(_GELU_STEPS):
            ends = [by_name[reader] for node in ends for name in node.output for reader, _ in readers.get(name, ())]
            found |= {node.name for node in ends}
    return found
