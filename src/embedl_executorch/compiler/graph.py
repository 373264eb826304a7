"""An ONNX graph as a module of torch that can be exported: what is known is folded, the rest is a call per node."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np
import onnx
import torch
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from embedl_device.errors import BoardError, first_words
from embedl_device.readers import UnreadableError, parse_json
from embedl_executorch.compiler.operators import OPERATORS, numbers_of
from embedl_executorch.compiler.values import Call, Known, Node, Numbers, Quantized

_DOMAINS = ("", "ai.onnx", "com.microsoft")
_CALL = "n"  # modules of nodes are called n0, n1 …


class Step(NamedTuple):
    """One call of the graph: its module, the tensors it takes and those it makes."""

    name: str
    takes: Tuple[Optional[str], ...]
    makes: Tuple[str, ...]


class Graph(torch.nn.Module):
    """The calls of a graph in their order."""

    def __init__(self, inputs: Sequence[str], outputs: Sequence[str]) -> None:
        super().__init__()
        self.input_names, self.output_names = list(inputs), list(outputs)
        self.steps: List[Step] = []
        self.sources: Dict[str, List[Node]] = {}  # the nodes that a call stands for

    def forward(self, *inputs: torch.Tensor) -> Tuple[torch.Tensor, ...]:
        """Run the graph."""
        values: Dict[str, Any] = dict(zip(self.input_names, inputs))
        for step in self.steps:
            values.update(self.run(step, values))
        return tuple(values[name] if name in values else getattr(self, _plain(name)) for name in self.output_names)

    def run(self, step: Step, values: Dict[str, Any]) -> Dict[str, Any]:
        """Return what one call makes."""
        made = getattr(self, step.name)(*[None if name is None else values[name] for name in step.takes])
        return dict(zip(step.makes, made if isinstance(made, tuple) else (made,)))


class Imported(NamedTuple):
    """A graph, and tensors to export it with."""

    graph: Graph
    examples: Tuple[torch.Tensor, ...]
    shapes: Dict[str, Tuple[int, ...]]


def import_onnx(path: Path) -> Imported:
    """Return an ONNX file as a module of torch."""
    try:
        model = onnx.load(str(path))
    except Exception as error:
        raise BoardError("{} is not an ONNX model: {}".format(path, first_words(error))) from error
    with torch.no_grad():
        return _Importer(model).imported()


class _Importer:
    def __init__(self, model: onnx.ModelProto) -> None:
        self._proto = model.graph
        self._opset = max([item.version for item in model.opset_import if item.domain in _DOMAINS[:2]] or [1])
        self._modules = _modules(model)
        self._known: Dict[str, Known] = {
            tensor.name: numpy_helper.to_array(tensor) for tensor in self._proto.initializer
        }
        self._values: Dict[str, torch.Tensor] = {}
        self._same: Dict[str, str] = {}  # tensors that hold what another does, by that one's name
        self._integers: Dict[str, Tuple[str, Numbers]] = {}  # what DQ makes: from which integers, and how
        self._calls: Dict[str, str] = {}  # the calls that make tensors
        self._floats: Dict[str, str] = {}  # what Q reads where a float operator makes it, by what Q makes
        self._readers: Dict[str, List[onnx.NodeProto]] = {}
        for node in self._proto.node:
            for name in node.input:
                self._readers.setdefault(name, []).append(node)
        self._ends = {value.name for value in self._proto.output}

    def imported(self) -> Imported:
        inputs = [value for value in self._proto.input if value.name not in self._known]
        graph = Graph([value.name for value in inputs], [value.name for value in self._proto.output])
        examples = tuple(_example(value) for value in inputs)
        self._values.update(zip(graph.input_names, examples))
        for node in self._proto.node:
            # What is known before a run comes first: a bias may stand behind the product that takes it in.
            if all(name in self._known for name in node.input if name) and node.op_type in (
                "Constant", "DequantizeLinear", "QuantizeLinear", "Identity", "Transpose", "Reshape",
            ):  # fmt: skip
                self._fold(node, self._described(node))
        for at, proto in enumerate(self._proto.node):
            if not all(name in self._known or name in self._same for name in proto.output if name):
                self._take(graph, proto, at)
        for name in graph.output_names:
            if name in self._known:
                value = self._known[name]
                numbers = value.numbers() if isinstance(value, Quantized) else value
                graph.register_buffer(_plain(name), torch.from_numpy(np.array(numbers)))
        return Imported(graph, examples, {name: tuple(value.shape) for name, value in self._values.items()})

    def _described(self, node: onnx.NodeProto) -> Node:
        attributes = {item.name: helper.get_attribute_value(item) for item in node.attribute}
        name = node.name or next((output for output in node.output if output), node.op_type)
        return Node(name, node.op_type, self._opset, attributes, len(node.output), self._modules.get(name, ""))

    def _take(self, graph: Graph, proto: onnx.NodeProto, at: int) -> None:
        node = self._described(proto)
        if proto.op_type in ("Shape", "Size") and proto.input[0] in self._values:
            self._known[proto.output[0]] = _shape(proto.op_type, self._values[proto.input[0]], node.attributes)
            return
        if all(name in self._known for name in proto.input if name):
            self._fold(proto, node)
            return
        if proto.domain not in _DOMAINS or proto.op_type not in OPERATORS:
            domain = "" if proto.domain in _DOMAINS[:2] else " of {!r}".format(proto.domain)
            raise node.refuse("is an operator{} that has no counterpart here".format(domain))
        call = Call(node, [self._known.get(name) for name in proto.input], OPERATORS[proto.op_type])
        if self._is_needless(proto, call) or self._stands_behind(proto, call):
            before = self._calls.get(self._same.get(proto.output[0], ""))
            if before is not None:
                graph.sources[before].append(node)
            return
        self._call(graph, proto, call, "{}{}".format(_CALL, at))

    def _call(self, graph: Graph, proto: onnx.NodeProto, call: Call, name: str) -> None:
        """Add a call to the graph, run once on the examples: what comes after may ask for its shape."""
        takes: List[Optional[str]] = [self._same.get(each, each) for each in proto.input]
        for index, each in enumerate(proto.input):
            if each in self._integers:
                takes[index], call.integers[index] = self._integers[each]
        call.is_integer = 0 in call.integers and self._ends_in_integers(proto)
        self._round_in_the_run(proto, call, takes)
        takes = [None if not each or each in self._known else each for each in takes]
        members, makes = [call.node], tuple(proto.output)
        added = self._bias_after(proto, call) if proto.op_type == "MatMul" else None
        if added is not None:
            members.append(self._described(added))
            self._same[added.output[0]] = added.output[0]
            makes = (added.output[0],)
        step = Step(name, tuple(takes), makes)
        setattr(graph, name, call)
        try:
            made = graph.run(step, self._values)
        except BoardError:
            raise
        except Exception as error:
            raise call.refuse("cannot be computed: {}".format(first_words(error))) from error
        if proto.op_type == "QuantizeLinear":
            maker = self._calls.get(str(takes[0]), "")
            if 0 not in call.integers and not (maker and getattr(graph, maker).is_integer):
                self._floats[proto.output[0]] = str(takes[0])
        graph.steps.append(step)
        graph.sources[name] = members
        self._values.update(made)
        self._calls.update(dict.fromkeys(made, name))

    def _is_needless(self, proto: onnx.NodeProto, call: Call) -> bool:
        """Tell whether a Relu or Clip cuts off what the Q behind it cuts off anyway; then it is passed over."""
        if proto.op_type not in ("Relu", "Clip") or proto.output[0] in self._ends:
            return False
        low = 0.0 if proto.op_type == "Relu" else call.scalar("min", 1)
        high = None if proto.op_type == "Relu" else call.scalar("max", 2)
        readers = self._readers.get(proto.output[0], [])
        if not readers or any(reader.op_type != "QuantizeLinear" for reader in readers):
            return False
        for reader in readers:
            known = [self._known.get(name) for name in reader.input]
            if known[1] is None or not numbers_of(Call(self._described(reader), known, call)).covers(low, high):
                return False
        name = proto.input[0]
        self._same[proto.output[0]] = self._same.get(name, name)
        return True

    def _stands_behind(self, proto: onnx.NodeProto, call: Call) -> bool:
        """Tell whether a node is a DQ of the run, which its readers do themselves."""
        if proto.op_type != "DequantizeLinear" or proto.output[0] in self._ends:
            return False
        name = self._same.get(proto.input[0], proto.input[0])
        self._integers[proto.output[0]] = (name, numbers_of(call))
        self._values[proto.output[0]] = self._values[name]
        return True

    def _round_in_the_run(self, proto: onnx.NodeProto, call: Call, takes: List[Optional[str]]) -> None:
        """Have a linear layer of integer weights without Q behind it round its input itself, and give float.

        What came in float up to the Q before it is then taken as it came: rounded once, row by row.
        """
        weight = call.known[1] if len(call.known) > 1 else None
        if proto.op_type not in ("MatMul", "Gemm") or call.is_integer or 0 not in call.integers:
            return
        if not isinstance(weight, Quantized) or not weight.is_plain() or weight.integers.ndim != 2:
            return
        turned = proto.op_type == "MatMul" or not call.attributes.get("transB")
        if weight.axis not in (None, 1 if turned else 0) or call.attributes.get("alpha", 1.0) != 1.0:
            return
        call.is_dynamic = True
        before = self._floats.get(str(takes[0]))
        if before is not None:
            takes[0] = before
            del call.integers[0]

    def _ends_in_integers(self, proto: onnx.NodeProto) -> bool:
        """Tell whether one Q reads what a node makes, after the bias and the activation that its kernel does too."""
        name = proto.output[0]
        for kinds in (("Add",) if proto.op_type == "MatMul" else (), ("Relu", "Clip")):
            readers = self._readers.get(name, [])
            if len(readers) == 1 and name not in self._ends and readers[0].op_type in kinds:
                is_bias = any(other in self._known for other in readers[0].input)
                name = readers[0].output[0] if readers[0].op_type != "Add" or is_bias else name
        readers = self._readers.get(name, [])
        return name not in self._ends and [reader.op_type for reader in readers] == ["QuantizeLinear"]

    def _bias_after(self, proto: onnx.NodeProto, call: Call) -> Optional[onnx.NodeProto]:
        """Return the addition of a bias after a product with weights; the call takes it in."""
        weight = call.known[1]
        readers = self._readers.get(proto.output[0], [])
        if weight is None or proto.output[0] in self._ends or [each.op_type for each in readers] != ["Add"]:
            return None
        other = next((name for name in readers[0].input if name != proto.output[0]), "")
        bias = self._known.get(other)
        numbers = bias.numbers() if isinstance(bias, Quantized) else bias
        matrix = weight.integers if isinstance(weight, Quantized) else weight
        if numbers is None or matrix.ndim != 2 or numbers.shape != (matrix.shape[1],):
            return None
        call.added = np.asarray(numbers, np.float32)
        return readers[0]

    def _fold(self, proto: onnx.NodeProto, node: Node) -> None:
        """Compute a node whose inputs are known; integers that stand for numbers stay integers where they can."""
        values = [self._known[name] if name else None for name in proto.input]
        if proto.op_type == "DequantizeLinear":
            found = _quantized(node, values)
            if found is not None:
                self._known[proto.output[0]] = found
                return
        first = values[0] if values else None
        if isinstance(first, Quantized) and proto.op_type == "Identity":
            self._known[proto.output[0]] = first
            return
        if isinstance(first, Quantized) and proto.op_type == "Transpose":
            order = node.attributes.get("perm") or range(first.integers.ndim - 1, -1, -1)
            self._known[proto.output[0]] = first.moved([int(axis) for axis in order])
            return
        arrays = [each.numbers() if isinstance(each, Quantized) else each for each in values]
        try:
            made = _evaluated(proto, arrays, self._opset)
        except Exception as error:
            raise node.refuse("cannot be computed: {}".format(first_words(error))) from error
        self._known.update({name: np.asarray(array) for name, array in zip(proto.output, made) if name})


def _modules(model: onnx.ModelProto) -> Dict[str, str]:
    """Return the user's modules by node, as the exporter told them; a remark that cannot be read is none."""
    told = {entry.key: entry.value for entry in model.metadata_props}.get("edgeproof.modules", "{}")
    try:
        found = parse_json(told)
        return {
            str(node): str(names[0] if isinstance(names, list) else names) for node, names in found.items() if names
        }
    except (UnreadableError, AttributeError):
        return {}


def _example(value: onnx.ValueInfoProto) -> torch.Tensor:
    kind = value.type.tensor_type
    sizes = [dim.dim_value for dim in kind.shape.dim]
    if not all(dim.HasField("dim_value") and dim.dim_value > 0 for dim in kind.shape.dim):
        raise BoardError("Input {!r} has no fixed shape, which a program needs; give input_shape.".format(value.name))
    dtype = np.dtype(helper.tensor_dtype_to_np_dtype(kind.elem_type))
    generator = np.random.RandomState(0)
    if dtype.kind == "f":
        return torch.from_numpy(np.asarray(generator.standard_normal(sizes), dtype))
    return torch.from_numpy(np.ones(sizes, dtype))


def _shape(operator: str, value: torch.Tensor, attributes: Dict[str, Any]) -> np.ndarray:
    sizes = np.array([int(size) for size in value.shape], np.int64)
    if operator == "Size":
        return np.array(sizes.prod(), np.int64)
    return sizes[slice(attributes.get("start", 0), attributes.get("end"))]


def _quantized(node: Node, values: Sequence[Any]) -> Optional[Quantized]:
    """Return constant integers behind a DQ; None where they are none that a kernel takes, such as blocks."""
    integers, scale = values[0], np.asarray(values[1], np.float32)
    if isinstance(integers, Quantized) or integers.dtype not in (np.int8, np.uint8, np.int32):
        return None
    zero_point = values[2] if len(values) > 2 and values[2] is not None else np.zeros(scale.shape, integers.dtype)
    zero_point = np.asarray(zero_point, np.int32).reshape(-1)
    if integers.dtype == np.uint8:
        # The int8 that stand for the same numbers.
        integers, zero_point = (integers.astype(np.int16) - 128).astype(np.int8), zero_point - 128
    if scale.size == 1:
        return Quantized(integers, scale.reshape(-1), zero_point[:1], None)
    axis = int(node.attributes.get("axis", 1))
    if scale.ndim != 1 or integers.ndim == 0:
        return None
    return Quantized(integers, scale, np.broadcast_to(zero_point, scale.shape), axis % integers.ndim)


def _evaluated(node: onnx.NodeProto, arrays: Sequence[Any], opset: int) -> Sequence[Any]:
    if node.op_type == "Constant":
        return list(ReferenceEvaluator(_alone(node, {}, opset)).run(None, {}))
    feeds = {name: array for name, array in zip(node.input, arrays) if name}
    return list(ReferenceEvaluator(_alone(node, feeds, opset)).run(None, feeds))


def _alone(node: onnx.NodeProto, feeds: Dict[str, np.ndarray], opset: int) -> onnx.ModelProto:
    inputs = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(np.asarray(array).dtype), None)
        for name, array in feeds.items()
    ]
    outputs = [helper.make_tensor_value_info(name, onnx.TensorProto.UNDEFINED, None) for name in node.output if name]
    graph = helper.make_graph([node], "alone", inputs, outputs)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])


def _plain(name: str) -> str:
    return "known_" + "".join(letter if letter.isalnum() else "_" for letter in name)
