"""ONNX files, read for their graph alone: no weights, and no onnx package."""

from __future__ import annotations

import math
import re
from typing import Any, Dict, Iterator, List, Mapping, NamedTuple, Optional, Tuple

from embedl_device.readers import PathLike, UnreadableError, open_plain, parse_json, size_of, telling
from embedl_graph._model import Coloring, GraphError, ModelGraph, Node, Size, Tensor
from embedl_graph._modules import SCOPED_NAMES, module_of_name, title_of
from embedl_graph._protobuf import BYTES, Message, MessageFile, floats, numbers, signed, text

MOST_NODES = 20_000
LONGEST_NAME = 1000
_LONGEST_ATTRIBUTE = 200
_MOST_ITEMS = 16
_MOST_TENSORS = 1_000_000
_MOST_NOTE = 32_000_000
_FORMAT = "1"
_TYPES = {
    1: "float32", 2: "uint8", 3: "int8", 4: "uint16", 5: "int16", 6: "int32", 7: "int64", 8: "string", 9: "bool",
    10: "float16", 11: "float64", 12: "uint32", 13: "uint64", 14: "complex64", 15: "complex128", 16: "bfloat16",
    17: "float8e4m3fn", 18: "float8e4m3fnuz", 19: "float8e5m2", 20: "float8e5m2fnuz", 21: "uint4", 22: "int4",
    23: "float4e2m1", 24: "float8e8m0", 25: "uint2", 26: "int2", 27: "float6e2m3", 28: "float6e3m2",
}  # fmt: skip
# What the dynamo exporter of torch writes on a node: the modules around it, from the outermost on, and its own name.
_TORCH_SCOPES = "pkg.torch.onnx.name_scopes"
_QUOTED = re.compile(r"'((?:[^'\\]|\\.)*)'")
# Operators that work on integers, ONNX's own and those of ONNX Runtime's optimizer.
_INTEGER_OPS = ("QLinear", "QGemm", "QAttention", "MatMulInteger", "ConvInteger", "DynamicQuantizeMatMul")
_CONVERSIONS = frozenset({"QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear"})
# Operators whose result has another type than their first input.
_RESULTS = {"Shape": "int64", "Size": "int64", "ArgMax": "int64", "ArgMin": "int64", "NonZero": "int64",
            "Equal": "bool", "Less": "bool", "Greater": "bool", "Not": "bool", "And": "bool", "Or": "bool",
            "LessOrEqual": "bool", "GreaterOrEqual": "bool", "IsNaN": "bool"}  # fmt: skip


class _Raw(NamedTuple):
    """A node as the file has it."""

    name: str
    op_type: str
    inputs: Tuple[str, ...]
    outputs: Tuple[str, ...]
    attributes: Tuple[Tuple[str, str], ...]
    scopes: str
    to: int  # the type that a Cast makes


class _File(NamedTuple):
    """What is read of a file."""

    nodes: List[_Raw]
    tensors: Dict[str, Tensor]
    inputs: List[str]
    outputs: List[str]
    notes: Dict[str, str]


def read_onnx(path: PathLike) -> ModelGraph:
    """Return the graph of an ONNX file; weights beside it are not needed."""
    found = _File([], {}, [], [], {})
    try:
        with open_plain(path) as file, telling():
            _read(MessageFile(file, size_of(file)), found)
    except UnreadableError as error:
        raise GraphError("{} is not an ONNX model: {}.".format(path, error)) from error
    if not found.nodes:
        raise GraphError("{} is not an ONNX model: it holds no graph.".format(path))
    return _graph(title_of(path), found)


def _read(model: MessageFile, into: _File) -> None:
    for number, form, size in model:
        if form != BYTES:
            continue
        if number == 7:
            _read_graph(model.inner(size), into)
        elif number == 14 and size <= _MOST_NOTE:
            key, value = _entry(model.take(size))
            if key.startswith("edgeproof."):
                into.notes[key] = value


def _read_graph(graph: MessageFile, into: _File) -> None:
    for number, form, size in graph:
        if form != BYTES:
            continue
        if number == 1:
            if len(into.nodes) == MOST_NODES:
                raise UnreadableError("it has more than {} nodes, which is the most that is shown".format(MOST_NODES))
            into.nodes.append(_node(graph.take(size)))
        elif number in (11, 12, 13):
            value = _value(graph.take(size))
            _keep(into, value)
            if number != 13:
                (into.inputs if number == 11 else into.outputs).append(value.name)
        elif number == 5:
            _keep(into, _initializer(graph.inner(size)))
        elif number == 15:
            _read_sparse(graph.inner(size), into)


def _read_sparse(weight: MessageFile, into: _File) -> None:
    """Keep a sparse weight: its values are a tensor with the name."""
    for number, form, size in weight:
        if (number, form) == (1, BYTES):
            _keep(into, _initializer(weight.inner(size)))


def _keep(into: _File, value: Tensor) -> None:
    before = into.tensors.get(value.name)
    # A weight may be declared as an input too; that it is a weight stays known.
    if before is None or (value.is_constant and not before.is_constant):
        into.tensors[value.name] = value
    if len(into.tensors) > _MOST_TENSORS:
        raise UnreadableError("it has more than {} tensors".format(_MOST_TENSORS))


def _entry(content: bytes) -> Tuple[str, str]:
    parts = {number: value for number, form, _, value in Message(content) if form == BYTES}
    return text(parts.get(1, b""), LONGEST_NAME), text(parts.get(2, b""))


def _initializer(tensor: MessageFile) -> Tensor:
    name, dtype, sizes = "", "", []  # type: str, str, List[Size]
    for number, form, value in tensor:
        if number == 1:
            sizes += numbers(form, value, tensor.take(value) if form == BYTES else b"")
        elif number == 2 and form != BYTES:
            dtype = _type(value)
        elif number == 8 and form == BYTES:
            name = text(tensor.take(value), LONGEST_NAME)
    return Tensor(name, dtype, tuple(sizes), is_constant=True)


def _value(content: bytes) -> Tensor:
    name, dtype, shape = "", "", None  # type: str, str, Optional[Tuple[Size, ...]]
    for number, form, _, value in Message(content):
        if (number, form) == (1, BYTES):
            name = text(value, LONGEST_NAME)
        elif (number, form) == (2, BYTES):
            for kind, inner_form, _, declared in Message(value):
                if (kind, inner_form) == (1, BYTES):
                    dtype, shape = _declared(declared)
    return Tensor(name, dtype, shape)


def _declared(content: bytes) -> Tuple[str, Optional[Tuple[Size, ...]]]:
    dtype, shape = "", None  # type: str, Optional[Tuple[Size, ...]]
    for number, form, value, inner in Message(content):
        if number == 1 and form != BYTES:
            dtype = _type(value)
        elif (number, form) == (2, BYTES):
            shape = tuple(_size(size) for part, kind, _, size in Message(inner) if (part, kind) == (1, BYTES))
    return dtype, shape


def _size(content: bytes) -> Size:
    found = None  # type: Size
    for number, form, value, inner in Message(content):
        if number == 1 and form != BYTES:
            found = signed(value)
        elif (number, form) == (2, BYTES):
            found = text(inner, 60) or None
    return found


def _type(code: int) -> str:
    return _TYPES.get(code, "type {}".format(code) if code else "")


def _node(content: bytes) -> _Raw:
    inputs, outputs, attributes = [], [], []  # type: List[str], List[str], List[Tuple[str, str]]
    texts = {3: "", 4: "", 7: ""}
    scopes, to = "", 0
    for number, form, _, value in Message(content):
        if form != BYTES:
            continue
        if number == 1:
            inputs.append(text(value, LONGEST_NAME))
        elif number == 2:
            outputs.append(text(value, LONGEST_NAME))
        elif number in texts:
            texts[number] = text(value, LONGEST_NAME)
        elif number == 5:
            name, said, whole = _attribute(value)
            attributes.append((name, said))
            to = whole if name == "to" else to
        elif number == 9:
            key, said = _entry(value)
            scopes = said[:10_000] if key == _TORCH_SCOPES else scopes
    op_type = texts[4] if texts[7] in ("", "ai.onnx") else "{}.{}".format(texts[7], texts[4])
    return _Raw(texts[3], op_type, tuple(inputs), tuple(outputs), tuple(attributes), scopes, to)


def _attribute(content: bytes) -> Tuple[str, str, int]:
    """Return an attribute's name, its value in few words, and its value if it is one whole number."""
    name, values, words, whole = "", [], "", 0  # type: str, List[str], str, int
    for number, form, value, inner in Message(content):
        if (number, form) == (1, BYTES):
            name = text(inner, LONGEST_NAME)
        elif number in (2, 7):
            values += ["{:.6g}".format(one) for one in floats(form, value, inner)[: _MOST_ITEMS + 1]]
        elif number in (3, 8):
            found = numbers(form, value, inner[:2000])
            whole = found[0] if found else 0
            values += [str(one) for one in found[: _MOST_ITEMS + 1]]
        elif number in (4, 9) and form == BYTES:
            values.append(text(inner, _LONGEST_ATTRIBUTE))
        elif number == 5 and form == BYTES:
            words = str(_tensor_facts(inner))
        elif number in (6, 11) and form == BYTES:
            nodes = sum(1 for part, kind, _, _ in Message(inner) if (part, kind) == (1, BYTES))
            words = "a graph of {} nodes".format(nodes)
    return name, _short(", ".join(_listed(values))) or words, whole


def _tensor_facts(content: bytes) -> Tensor:
    dtype, sizes = "", []  # type: str, List[Size]
    for number, form, value, inner in Message(content):
        if number == 1:
            sizes += numbers(form, value, inner)
        elif number == 2 and form != BYTES:
            dtype = _type(value)
    return Tensor("", dtype, tuple(sizes[:32]))


def _listed(values: List[str]) -> List[str]:
    return values if len(values) <= _MOST_ITEMS else [*values[:_MOST_ITEMS], "…"]


def _short(said: str) -> str:
    return said if len(said) <= _LONGEST_ATTRIBUTE else said[: _LONGEST_ATTRIBUTE - 1] + "…"


def _graph(title: str, found: _File) -> ModelGraph:
    """Return the graph of what a file has: constants told apart, modules, precisions and sensitivities."""
    tensors = dict(found.tensors)
    constants = {name for name, value in tensors.items() if value.is_constant}
    modules, sensitivity, notes = _notes(found.notes)
    of_name, names = _modules_by_name(found.nodes, modules)
    if of_name and not modules:
        notes.append("Modules are taken from the names that the exporter gave the nodes.")
    types = {name: value.dtype for name, value in tensors.items() if value.dtype}
    made_by = {output: raw for raw in found.nodes for output in raw.outputs if output}
    nodes = []
    for raw, name in zip(found.nodes, names):
        if raw.op_type == "Constant":
            constants.update(raw.outputs)
            for output in raw.outputs:
                tensors[output] = Tensor(output, dict(raw.attributes).get("value", ""), None, is_constant=True)
            continue
        is_constant = bool(raw.inputs) and all(each in constants for each in raw.inputs if each)
        constants.update(raw.outputs if is_constant else ())
        dtype = _result_type(raw, types)
        for output in raw.outputs:
            if dtype:
                types.setdefault(output, dtype)
            tensors.setdefault(output, Tensor(output, types.get(output, "")))
        nodes.append(
            Node(name, raw.op_type, raw.inputs, raw.outputs, of_name.get(name, ""), _precision(raw, types, made_by),
                 raw.attributes, is_constant)
        )  # fmt: skip
    if not nodes:
        raise GraphError("{} holds nothing but constants.".format(title))
    inputs = tuple(name for name in found.inputs if name not in constants)
    graph = ModelGraph(title, "ONNX", tuple(nodes), tensors, inputs, tuple(found.outputs), (), tuple(notes))
    colorings = () if sensitivity is None else tuple(_sensitivity_coloring(graph, sensitivity))
    return ModelGraph(title, "ONNX", graph.nodes, tensors, inputs, graph.outputs, colorings, graph.notes)


def _modules_by_name(nodes: List[_Raw], told: Mapping[str, str]) -> Tuple[Dict[str, str], List[str]]:
    """Return the module of each node by its name, and the names, with one for each node that has none."""
    names, of_name = [], {}  # type: List[str], Dict[str, str]
    has_scopes = sum(1 for raw in nodes if SCOPED_NAMES.match(raw.name)) * 2 > len(nodes)
    taken = {}  # type: Dict[str, int]
    for raw in nodes:
        # As the hub names nodes that have none or another's, so that the layers of a profile lead here.
        base = raw.name or next((output for output in raw.outputs if output), raw.op_type)
        name, number = base, taken.get(base, 1)
        while name in taken:
            name, number = "{}#{}".format(base, number), number + 1
        taken[base], taken[name] = number, 1
        names.append(name)
        scopes = [scope.replace("\\'", "'") for scope in _QUOTED.findall(raw.scopes)]
        if told:
            module = told.get(name, "")
        elif len(scopes) > 1:
            module = scopes[-2]
        else:
            module = module_of_name(name) if has_scopes else ""
        if module:
            of_name[name] = module[:LONGEST_NAME]
    return of_name, names


def _result_type(raw: _Raw, types: Mapping[str, str]) -> str:
    if raw.op_type == "Cast":
        return _type(raw.to)
    if raw.op_type == "QuantizeLinear":
        return types.get(raw.inputs[2], "uint8") if len(raw.inputs) > 2 else "uint8"
    if raw.op_type == "DequantizeLinear":
        return types.get(raw.inputs[1], "float32") if len(raw.inputs) > 1 else "float32"
    if raw.op_type in _RESULTS:
        return _RESULTS[raw.op_type]
    return next((types[name] for name in raw.inputs if name in types), "")


def _precision(raw: _Raw, types: Mapping[str, str], made_by: Mapping[str, _Raw]) -> str:
    """Return the number format that a node computes in, as the file asks for it."""
    kind = raw.op_type.rpartition(".")[2]
    if kind in _CONVERSIONS:
        return "conversion"
    if kind.startswith(_INTEGER_OPS):
        return "int8"
    sources = [made_by[name] for name in raw.inputs if name in made_by]
    if sources and sources[0].op_type == "DequantizeLinear" and sources[0].inputs:
        dtype = types.get(sources[0].inputs[0], "")
        return "int8" if dtype == "uint8" else dtype or "int8"
    output = next((name for name in raw.outputs if name), "")
    return types.get(output, "")


def _notes(told: Mapping[str, str]) -> Tuple[Dict[str, str], Optional[Mapping[str, Any]], List[str]]:
    """Return what the file's metadata says: the main module of each node, the sensitivity, what is not understood."""
    notes = []  # type: List[str]
    if "edgeproof.modules" not in told:
        return {}, None, notes
    if told.get("edgeproof.format", _FORMAT) != _FORMAT:
        return {}, None, ["The file's names of modules have another format than {!r}.".format(_FORMAT)]
    modules: Dict[str, str] = {}
    sensitivity: Optional[Mapping[str, Any]] = None
    try:
        modules = dict(_main_modules(parse_json(told["edgeproof.modules"])))
        if "edgeproof.sensitivity" in told:
            sensitivity = _checked(parse_json(told["edgeproof.sensitivity"]))
    except (UnreadableError, AttributeError, LookupError, TypeError, ValueError):
        notes.append("What the file says of its modules cannot be read.")
    return modules, sensitivity, notes


def _main_modules(said: Any) -> Iterator[Tuple[str, str]]:
    for node, names in said.items():
        first = names if isinstance(names, str) else names[0]
        if not isinstance(first, str):
            raise TypeError(first)
        yield node[:LONGEST_NAME], first[:LONGEST_NAME]


def _checked(said: Any) -> Mapping[str, Any]:
    costs = {str(name): float(cost) for name, cost in said["modules"].items()}
    if not all(math.isfinite(cost) and cost >= 0 for cost in costs.values()):
        raise ValueError("a cost is no number from 0 on")
    return {"modules": costs, "unit": str(said.get("unit", ""))[:60], "method": str(said.get("method", ""))[:300]}


def _sensitivity_coloring(graph: ModelGraph, said: Mapping[str, Any]) -> Iterator[Coloring]:
    costs = said["modules"]
    values = {
        number: costs[node.module]
        for number, node in enumerate(graph.nodes)
        if node.module in costs and not node.is_constant and node.precision != "conversion"
    }
    if values:
        yield Coloring("sensitivity", "Sensitivity", values, said["unit"], said["method"])
