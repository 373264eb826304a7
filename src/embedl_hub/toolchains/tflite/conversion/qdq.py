"""A Q/DQ file taken apart: a float model without Q/DQ, and the number format of every edge, weight and bias."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import onnx
from onnx import numpy_helper

Q, DQ = "QuantizeLinear", "DequantizeLinear"
PAIR = frozenset({Q, DQ})
_SHIFT = {"int8": 0, "uint8": 128}  # TFLite's integers are signed: unsigned ones are the same numbers, shifted


class Format(NamedTuple):
    """The number format of an int8 activation."""

    scale: float
    zero_point: int


# Every rounding on the way from a tensor to its reader, one after the other; empty for a reader of floats.
Chain = tuple[Format, ...]
Edge = tuple[str, int]  # a node's name and the number of its input


class IntegerEndError(Exception):
    """The file's inputs or outputs are integers themselves; the text is for the user."""


class Refused(NamedTuple):
    """What was not carried over, and why."""

    node: str
    op_type: str
    reason: str


@dataclass(frozen=True)
class Constant:
    """Integers of the file behind a DQ: a weight, a bias or another operand."""

    name: str
    codes: np.ndarray  # int8 or int32, in the file's layout
    scale: np.ndarray  # float32, one or one per channel
    axis: int | None
    zero_point: int = 0

    @property
    def values(self) -> np.ndarray:
        """The floats that they stand for."""
        counts = self.codes.astype(np.int32) - self.zero_point
        return np.asarray(counts.astype(np.float32) * self._along(self.scale), np.float32)

    @property
    def format(self) -> Format | None:
        """The format that it shares with an activation; None for one with a scale per channel."""
        return Format(float(self.scale[0]), self.zero_point) if self.scale.size == 1 else None

    def _along(self, scale: np.ndarray) -> np.ndarray:
        if self.axis is None:
            return scale.reshape(())
        return scale.reshape([-1 if axis == self.axis else 1 for axis in range(self.codes.ndim)])


@dataclass
class QdqFile:
    """What a Q/DQ file says."""

    model: onnx.ModelProto  # without Q/DQ
    edges: dict[Edge, Chain] = field(default_factory=dict)
    outputs: dict[str, Chain] = field(default_factory=dict)  # how outputs of the graph were rounded
    constants: dict[str, Constant] = field(default_factory=dict)  # by the tensors of the float model that hold them
    refused: list[Refused] = field(default_factory=list)


class _Value(NamedTuple):
    """What a tensor of the file is in the float model: the same values but for roundings."""

    tensor: str
    chain: Chain


def has_qdq(model: onnx.ModelProto) -> bool:
    """Tell whether a model is quantized by Q/DQ."""
    return any(node.op_type in PAIR for node in model.graph.node)


def take_apart(model: onnx.ModelProto) -> QdqFile:
    """Return a file's numbers apart from its operators; the model given is not changed.

    Raises:
        IntegerEndError: An input is read by DQ, or an output is made by Q.
    """
    inputs = {value.name for value in model.graph.input} - {value.name for value in model.graph.initializer}
    outputs = {value.name for value in model.graph.output}
    for node in model.graph.node:
        if (node.op_type == DQ and node.input[0] in inputs) or (node.op_type == Q and node.output[0] in outputs):
            end = node.input[0] if node.op_type == DQ else node.output[0]
            raise IntegerEndError(
                f"{end!r} is integers in the file (node {node.name!r}). Let it be float there, behind Q and DQ, "
                "and compile with quantize_io for integers in TFLite."
            )
    return _Reader(model).read()


class _Reader:
    def __init__(self, model: onnx.ModelProto) -> None:
        self._model = onnx.ModelProto()
        self._model.CopyFrom(model)
        graph = self._model.graph
        self._held = {value.name: numpy_helper.to_array(value) for value in graph.initializer}
        for node in graph.node:
            if node.op_type == "Constant" and node.attribute and node.attribute[0].name == "value":
                self._held[node.output[0]] = numpy_helper.to_array(node.attribute[0].t)
        self._values: dict[str, _Value] = {}
        self._integers: set[str] = set()  # what Q gives, moved or not
        self._file = QdqFile(self._model)

    def read(self) -> QdqFile:
        graph = self._model.graph
        _name_nodes(graph.node)
        kept = [node for node in graph.node if not self._is_taken(node)]
        for node in kept:
            for index, name in enumerate(node.input):
                value = self._value(name)
                if value.chain:
                    self._file.edges[node.name, index] = value.chain
                node.input[index] = value.tensor
        _replace(graph.node, kept)
        self._keep_output_names()
        self._drop_unread()
        return self._file

    def _value(self, name: str) -> _Value:
        return self._values.get(name, _Value(name, ()))

    def _is_taken(self, node: onnx.NodeProto) -> bool:
        """Take Q, DQ and Identity out, and remember what stood there."""
        if node.op_type == "Identity" and node.input[0] not in self._held:
            self._values[node.output[0]] = self._value(node.input[0])
            return True
        if node.op_type not in PAIR:
            # What moves integers between Q and DQ moves floats now.
            source = self._value(node.input[0]) if node.input and node.input[0] else None
            if source is not None and source.chain and node.input[0] in self._integers:
                self._values |= {name: _Value(name, source.chain) for name in node.output}
                self._integers.update(node.output)
            return False
        if node.op_type == DQ and node.input[0] in self._held:
            return self._is_constant(node)
        source, found = self._value(node.input[0]), self._format(node)
        if isinstance(found, str):
            self._file.refused.append(Refused(node.name, node.op_type, found))
            self._values[node.output[0]] = source
        elif node.op_type == DQ:
            self._values[node.output[0]] = source
        else:
            same = source.chain[-1:] == (found,)
            self._values[node.output[0]] = _Value(source.tensor, source.chain if same else (*source.chain, found))
            self._integers.add(node.output[0])
        return True

    def _format(self, node: onnx.NodeProto) -> Format | str:
        """Return a Q's or DQ's format, or why TFLite has none like it."""
        scale, zero = self._numbers(node)
        if scale is None or zero is None:
            return "its scale or zero point is computed"
        if scale.size != 1:
            return "it has one scale per channel, and TFLite's activations have one in all"
        shift = _SHIFT.get(zero.dtype.name)
        if shift is None:
            return f"{zero.dtype.name} activations are not carried over"
        return Format(float(np.float32(scale.reshape(-1)[0])), int(zero.reshape(-1)[0]) - shift)

    def _numbers(self, node: onnx.NodeProto) -> tuple[np.ndarray | None, np.ndarray | None]:
        scale = self._held.get(node.input[1])
        if len(node.input) > 2 and node.input[2]:
            return scale, self._held.get(node.input[2])
        if node.op_type == DQ and node.input[0] in self._held:
            return scale, np.zeros((), self._held[node.input[0]].dtype)
        return scale, np.zeros((), np.uint8)

    def _is_constant(self, node: onnx.NodeProto) -> bool:
        """Put floats in the place of a constant behind DQ."""
        codes, (scale, zero) = self._held[node.input[0]], self._numbers(node)
        if scale is None or zero is None or np.dtype(scale.dtype) != np.float32:
            return False
        axis = next((item.i for item in node.attribute if item.name == "axis"), 1) % max(codes.ndim, 1)
        is_blocked = any(item.name == "block_size" and item.i for item in node.attribute)
        shift = _SHIFT.get(codes.dtype.name, 0)
        signed, zeros = codes.astype(np.int32) - shift, zero.astype(np.int32).reshape(-1) - shift
        is_one = scale.size == 1 and codes.dtype.name in _SHIFT
        if is_blocked or (np.any(zeros) and not is_one) or codes.dtype.name not in (*_SHIFT, "int32"):
            # Another way to spell floats, as far as TFLite is concerned.
            why = "weights in blocks" if is_blocked else f"{codes.dtype.name} with zero point {zero.reshape(-1)[:1]}"
            self._file.refused.append(Refused(node.name, node.op_type, f"{why} are not carried over: left in float"))
            return False
        kind = np.dtype(np.int32 if codes.dtype == np.int32 else np.int8)
        name = node.output[0]
        at = None if scale.size == 1 else axis
        constant = Constant(name, signed.astype(kind), scale.reshape(-1), at, int(zeros[0]) if is_one else 0)
        self._file.constants[name] = constant
        self._model.graph.initializer.append(numpy_helper.from_array(constant.values, name))
        return True

    def _keep_output_names(self) -> None:
        """Let the graph's outputs keep their names, though what made them is gone."""
        made = {name for node in self._model.graph.node for name in node.output}
        ends = {value.name for value in self._model.graph.output}
        for output in self._model.graph.output:
            value = self._value(output.name)
            if value.chain:
                self._file.outputs[output.name] = value.chain
            if value.tensor == output.name:
                continue
            if value.tensor in made and value.tensor not in ends:
                _rename(self._model.graph.node, value.tensor, output.name)
                self._values = {
                    name: _Value(output.name if held.tensor == value.tensor else held.tensor, held.chain)
                    for name, held in self._values.items()
                }
                made = (made - {value.tensor}) | {output.name}
            else:
                node = onnx.helper.make_node("Identity", [value.tensor], [output.name], name=f"output/{output.name}")
                self._model.graph.node.append(node)
                if value.chain:
                    self._file.edges[node.name, 0] = value.chain

    def _drop_unread(self) -> None:
        graph = self._model.graph
        read = {name for node in graph.node for name in node.input} | {value.name for value in graph.output}
        _replace(graph.initializer, [value for value in graph.initializer if value.name in read])
        del graph.value_info[:]


def _name_nodes(nodes: Iterable[onnx.NodeProto]) -> None:
    """Give every node a name of its own, as they are told apart by it."""
    seen: set[str] = set()
    for number, node in enumerate(nodes):
        if not node.name or node.name in seen:
            node.name = f"{node.op_type}_{number}"
        seen.add(node.name)


def _rename(nodes: Iterable[onnx.NodeProto], old: str, new: str) -> None:
    for node in nodes:
        for names in (node.input, node.output):
            for index, name in enumerate(names):
                if name == old:
                    names[index] = new


def _replace(field_: object, items: list[object] | list[onnx.NodeProto] | list[onnx.TensorProto]) -> None:
    kept = list(items)
    del field_[:]  # type: ignore[attr-defined]
    field_.extend(kept)  # type: ignore[attr-defined]


def readers_of(model: onnx.ModelProto) -> Mapping[str, list[Edge]]:
    """Return the edges that read each tensor."""
    found: dict[str, list[Edge]] = {}
    for node in model.graph.node:
        for index, name in enumerate(node.input):
            if name:
                found.setdefault(name, []).append((node.name, index))
    return found
