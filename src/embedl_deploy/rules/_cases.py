"""One-operator graphs to ask a runtime about: an operator, how it is quantized, and what stands around it.

A case names what differs from the plain one of its operator, in one line: ``Conv input=int8 after=Relu``. The space of
an operator is every combination of its settings; nobody runs all of them, `_learn` chooses.
"""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from random import Random
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from embedl_deploy.dialect._model import QdqModel, Weight, write
from embedl_deploy.dialect._numbers import LIMITS, Params, per_tensor
from embedl_deploy.errors import DialectError, quoted_list

CENTER = "center"
"""The name of the node that a case is about."""

_SCALE, _OTHER_SCALE, _CLIP_SCALE = 0.05, 0.031, 0.0235
_EIGHT_BITS = ("uint8", "int8")
_ACTIVATIONS = ("uint8", "int8", "float", "uint16", "int16")
_OPSETS = ("21", "13", "17", "18", "20", "22", "23")
_BEFORE = ("Transpose", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Slice", "Gather")
"""What may move an operand between its DQ and the operator."""
_AFTER = ("Transpose", "Reshape", "Slice", "Flatten", "Unsqueeze", "Gather")
COMMON: Mapping[str, tuple[str, ...]] = {
    "input": _ACTIVATIONS,
    "before": ("input", "Relu", *_BEFORE, "Conv", "Conv and Mul"),
    "zero": ("middle", "minimum"),
    "read by": ("one", "more"),
    "output": ("uint8", "float", "model", "int8", "float and Q", "two Q", "uint16", "int16"),
    "output zero": ("middle", "minimum"),
    "output read by": ("one", "more"),
    "scale": ("other", "same"),
    "goes to": ("output", "Conv", "GlobalAveragePool", "Mul", "Conv and Mul"),
    "after": ("nothing", "Relu", "Clip", "Sigmoid", "Add", *_AFTER),
    "sizes": ("fixed", "open"),
    "opset": _OPSETS,
}
"""What every operator is tried with, the plain value first."""

_AROUND = {"after", "before", "bias", "form", "output", "output read by", "output zero", "scale", "zero"}
_WEIGHTS = ("int8", "int8 per channel", "uint8", "float", "int16", "int4 per block")
_BIASES = ("none", "int32", "float", "int32 of another scale")
_SECOND = ("uint8", "int8", "float", "constant", "weight uint8", "weight int8", "int16", "uint16", "itself")

_SECOND_READ_BY = {"second read by": ("one", "more"), "second before": ("input", "Conv")}


@dataclass(frozen=True)
class _Operator:
    """How an operator is written, and what it is tried with beyond what all are."""

    shape: tuple[int, ...] = (1, 4, 6, 6)  # of its first input
    space: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    attributes: Mapping[str, Any] = field(default_factory=dict)
    constants: tuple[Any, ...] = ()  # further inputs that are no data: shapes, axes
    least_opset: int = 13
    kind: str = "unary"  # ``unary``, ``binary``, ``weighted``
    keeps_values: bool = False  # whether its plain case has one scale for input and output


def _int64(*values: int) -> np.ndarray:
    return np.asarray(values, np.int64)


_OPERATORS: dict[str, _Operator] = {
    "Conv": _Operator(
        kind="weighted",
        space={"weight": _WEIGHTS, "bias": _BIASES, "kernel": ("3x3", "depthwise", "1x1", "1-d", "3-d", "strided")},
    ),
    "ConvTranspose": _Operator(kind="weighted", space={"weight": _WEIGHTS, "bias": _BIASES, "kernel": ("3x3",)}),
    "Gemm": _Operator(
        (8, 16), kind="weighted",
        space={"weight": _WEIGHTS, "bias": _BIASES, "form": ("plain", "transB", "transA", "alpha", "beta")},
    ),
    "MatMul": _Operator(
        (8, 16), kind="weighted",
        space={
            "weight": (*_WEIGHTS, "activation uint8", "activation int8", "activation float"),
            "bias": _BIASES, "form": ("2-d", "3-d", "4-d"),
        },
    ),
    **{
        name: _Operator(
            kind="binary",
            space={
                "second": _SECOND, "shapes": ("equal", "broadcast", "scalar"), "order": ("first", "swapped"),
                **_SECOND_READ_BY,
            },
        )
        for name in ("Add", "Mul", "Sub", "Div")
    },
    "Concat": _Operator(
        kind="binary", attributes={"axis": 1}, keeps_values=True,
        space={"second": (*_SECOND[:-1], "none"), "shapes": ("equal",), "axis": ("1", "-1", "2"), **_SECOND_READ_BY},
    ),
    "Pow": _Operator(constants=(np.float32(2.0),)),
    "Where": _Operator(constants=(np.zeros((1, 4, 6, 6), bool),)),
    **{
        name: _Operator(space=space, attributes=attributes, least_opset=opset)
        for name, space, attributes, opset in (
            ("GlobalAveragePool", {}, {}, 13), ("LeakyRelu", {}, {"alpha": 0.1}, 13), ("Sigmoid", {}, {}, 13),
            ("Tanh", {}, {}, 13), ("HardSigmoid", {}, {}, 13), ("HardSwish", {}, {}, 14), ("Elu", {}, {}, 13),
            ("Exp", {}, {}, 13), ("Erf", {}, {}, 13), ("Sqrt", {}, {}, 13), ("Abs", {}, {}, 13), ("Neg", {}, {}, 13),
            ("Relu", {}, {}, 13), ("Gelu", {}, {}, 20), ("Softplus", {}, {}, 13), ("GlobalMaxPool", {}, {}, 13),
            ("Softmax", {"axis": ("-1", "1", "3")}, {"axis": -1}, 13),
            ("LogSoftmax", {"axis": ("-1", "1")}, {"axis": -1}, 13),
        )
    },
    "Clip": _Operator(constants=(np.float32(0.0), np.float32(6.0))),
    "AveragePool": _Operator(
        attributes={"kernel_shape": [2, 2], "strides": [2, 2]}, space={"form": ("plain", "ceil", "padded", "counted")}
    ),
    "MaxPool": _Operator(
        attributes={"kernel_shape": [2, 2], "strides": [2, 2]}, space={"form": ("plain", "ceil", "padded")},
        keeps_values=True,
    ),
    "Pad": _Operator(constants=(_int64(0, 0, 1, 1, 0, 0, 1, 1),), space={"mode": ("constant", "reflect", "edge")}),
    "Resize": _Operator(
        constants=(None, np.asarray([1, 1, 2, 2], np.float32)), space={"mode": ("nearest", "linear", "cubic")},
        keeps_values=True,
    ),
    "ReduceMean": _Operator(attributes={"keepdims": 1}, space={"axes": ("hw", "last")}),
    "ReduceMax": _Operator(attributes={"keepdims": 1}, space={"axes": ("hw", "last")}, keeps_values=True),
    "ReduceMin": _Operator(attributes={"keepdims": 1}, space={"axes": ("hw", "last")}, keeps_values=True),
    "ReduceSum": _Operator(attributes={"keepdims": 1}, constants=(_int64(2, 3),)),
    "InstanceNormalization": _Operator(constants=(np.ones(4, np.float32), np.zeros(4, np.float32))),
    "LayerNormalization": _Operator(
        constants=(np.ones(6, np.float32), np.zeros(6, np.float32)), attributes={"axis": -1}, least_opset=17
    ),
    "BatchNormalization": _Operator(
        constants=tuple(np.asarray(each, np.float32) for each in ([1] * 4, [0] * 4, [0] * 4, [1] * 4))
    ),
    "PRelu": _Operator(constants=(np.full((4, 1, 1), 0.1, np.float32),)),
}  # fmt: skip


@cache
def space_of(operator: str) -> Mapping[str, tuple[str, ...]]:
    """Return what an operator is tried with, the plain value of each setting first.

    Raises:
        DialectError: There are no graphs of this operator.
    """
    if operator not in _OPERATORS:
        raise DialectError(f"There are no graphs of {operator!r}; known are {quoted_list(_OPERATORS)}.")
    known = _OPERATORS[operator]
    space = {**COMMON, **known.space}
    if known.keeps_values:
        space["scale"] = ("same", "other")
    space["opset"] = tuple(each for each in _OPSETS if int(each) >= known.least_opset)
    return space


def operators() -> tuple[str, ...]:
    """Return the operators that there are graphs of."""
    return tuple(_OPERATORS)


@dataclass(frozen=True, order=True)
class Case:
    """An operator and the settings in which it differs from its plain case, in the order of the space."""

    operator: str
    settings: tuple[tuple[str, str], ...] = ()

    @classmethod
    def of(cls, operator: str, settings: Mapping[str, str]) -> "Case":
        """Return the case with these settings; the plain ones among them are left out.

        Raises:
            DialectError: The operator has no such setting or value.
        """
        space = space_of(operator)
        for name, value in settings.items():
            if value not in space.get(name, ()):
                raise DialectError(f"{operator} is not tried with {name}={value!r}; known are {dict(space)}.")
        return cls(operator, tuple((name, settings[name]) for name in space if settings.get(name, space[name][0])
                                   != space[name][0]))  # fmt: skip

    @classmethod
    def parse(cls, text: str) -> "Case":
        """Read a case as `str` writes it."""
        operator, *parts = text.split("; ")
        return cls.of(operator, dict(part.split("=", 1) for part in parts))

    def __str__(self) -> str:
        return "; ".join((self.operator, *(f"{name}={value}" for name, value in self.settings)))

    def value(self, name: str) -> str:
        """Return a setting, the plain one where the case does not name it."""
        return dict(self.settings).get(name, space_of(self.operator).get(name, ("",))[0])

    def with_setting(self, name: str, value: str) -> "Case":
        """Return the case with another value of a setting."""
        return Case.of(self.operator, {**dict(self.settings), name: value})


def plain_with(operator: str, kind: str) -> Case:
    """Return an operator's plain case with activations of a type."""
    second = {"second": kind} if kind in space_of(operator).get("second", ()) else {}
    return Case.of(operator, {"input": kind, "output": kind, **second})


def plain_cases(operator: str) -> list[Case]:
    """Return an operator's plain case, and those that differ from it in one setting."""
    plain = Case(operator)
    others = [plain.with_setting(name, value) for name, values in space_of(operator).items() for value in values[1:]]
    return [plain, *others, Case.of(operator, {"input": "float", "output": "float"}), plain_with(operator, "int8")]


def twin_cases(operator: str) -> list[Case]:
    """Return the cases that differ in one setting from the operator's twins: all signed, 16 bits, and in float."""
    space = space_of(operator)
    floats = {name: "float" for name in ("input", "second") if name in space}
    if "activation float" in space.get("weight", ()):
        floats["weight"] = "activation float"
    # Versions of the operators are drawn at random: few rules change with them, and they are many.
    settings = _settings(operator)
    twins = [dict(plain_with(operator, kind).settings) for kind in ("int8", "uint16")]
    found = [{**twin, name: value} for twin in twins for name, value in settings]
    # What stands around an operator that reads floats must not be mistaken for the reason that another is integer.
    found += [{name: value, **floats} for name, value in settings if name in _AROUND]
    # How many read each of its tensors decides together which of them x86 turns into uint8.
    counted = [name for name in ("read by", "second read by", "output read by") if name in space]
    for some in (some for size in (2, 3) for some in itertools.combinations(counted, size)):
        found += [{**twin, **dict.fromkeys(some, "more")} for twin in ({}, twins[0])]
    if "order" in space:
        # A constant operand has no readers of its own to be counted.
        held = [{**twins[0], "second": "weight int8"}, {"second": "weight uint8"}]
        found += [{**twin, name: value} for twin in held for name, value in settings if name != "second"]
        found += [{**twin, "order": "swapped", name: "more"} for twin in held for name in counted]
    if "none" in space.get("second", ()):
        found += [{**twin, "second": "none", name: "more"} for twin in ({}, twins[0]) for name in counted]
    return [Case.of(operator, each) for each in found]


def few_twin_cases(operator: str, *, beyond: bool) -> list[Case]:
    """Return what a runtime that takes seconds for a file is asked instead: all signed, and between integer kernels."""
    twins = [dict(plain_with(operator, "int8").settings)]
    if beyond:
        second = {"second before": "Conv"} if "second before" in space_of(operator) else {}
        twins += [{"before": "Conv", "goes to": "Conv"}, {"before": "Conv", "goes to": "Conv", **second},
                  {"before": "Conv and Mul", "input": "float", "goes to": "Conv"}]  # fmt: skip
    return [Case.of(operator, {**twin, name: value}) for twin in twins for name, value in _settings(operator)]


def _settings(operator: str) -> list[tuple[str, str]]:
    space = space_of(operator)
    return [(name, value) for name, values in space.items() if name != "opset" for value in values[1:]]


def random_case(operator: str, random: Random) -> Case:
    """Draw a case that differs from the plain one in two to five settings."""
    space = [name for name, values in space_of(operator).items() if len(values) > 1]
    names = random.sample(space, min(len(space), random.randint(2, 5)))
    chosen = {name: random.choice(space_of(operator)[name][1:]) for name in names}
    # Most networks have one sign throughout.
    if chosen.get("input") in ("int8", "int16", "uint16") and random.random() < 0.6:
        chosen["output"] = chosen["input"]
    return Case.of(operator, chosen)


class NoSuchGraphError(Exception):
    """A combination of settings that no valid graph has."""


def build(case: Case) -> onnx.ModelProto:
    """Return the graph of a case; the node it is about is named ``center``.

    Raises:
        NoSuchGraphError: There is none.
    """
    model = write(_Builder(case).run())
    try:
        inferred = onnx.shape_inference.infer_shapes(model, check_type=True, strict_mode=True)
    except (onnx.shape_inference.InferenceError, onnx.checker.ValidationError) as exc:
        raise NoSuchGraphError(str(exc)) from exc
    known = {value.name: value for value in inferred.graph.output}
    for value in model.graph.output:
        value.CopyFrom(known[value.name])
    return model


class _Builder:
    """Puts one graph together: a float graph first, its quantization beside it."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.operator = _OPERATORS[case.operator]
        self.nodes: list[onnx.NodeProto] = []
        self.inputs: list[onnx.ValueInfoProto] = []
        self.outputs: list[onnx.ValueInfoProto] = []
        self.constants: list[onnx.TensorProto] = []
        self.edges: dict[tuple[str, int], tuple[str, Params]] = {}
        self.weights: dict[str, Weight] = {}
        self.opset = int(case.value("opset"))

    @cached_property
    def random(self) -> np.random.Generator:
        """What weights are drawn from; to make one takes as long as a small graph."""
        return np.random.default_rng(7)

    def run(self) -> QdqModel:
        case = self.case
        first = self._input("x", self._shape(), case.value("input"), CENTER)
        arguments, attributes = self._rest(first)
        self.nodes.append(helper.make_node(case.operator, arguments, ["y"], name=CENTER, **attributes))
        self._end(self._after(self._bias_addition("y")))
        graph = helper.make_graph(self.nodes, "case", self.inputs, self.outputs, self.constants)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", self.opset)], ir_version=8)
        if self.opset >= 21:
            model.ir_version = 10
        qdq = QdqModel(model, weights=self.weights)
        for edge, (tensor, params) in self.edges.items():
            qdq.edges[edge] = qdq.boundary(tensor, params)
        self._check_types()
        return qdq

    def _check_types(self) -> None:
        kinds = {params.type for _, params in self.edges.values()} | {
            each.params.type for each in self.weights.values()
        }
        if self.opset < 21 and kinds & {"int16", "uint16", "int4", "uint4"}:
            raise NoSuchGraphError

    def _shape(self) -> tuple[int, ...]:
        shapes: dict[tuple[str, str], tuple[int, ...]] = {
            ("kernel", "1-d"): (1, 4, 12), ("kernel", "3-d"): (1, 4, 5, 5, 5), ("form", "3-d"): (2, 8, 16),
            ("form", "4-d"): (2, 3, 8, 16), ("form", "transA"): (16, 8),
        }  # fmt: skip
        return next((shapes[each] for each in self.case.settings if each in shapes), self.operator.shape)

    def _declare(self, name: str, shape: Sequence[int]) -> None:
        sizes: list[Any] = list(shape)
        if sizes and self.case.value("sizes") == "open":
            sizes[0] = "batch"
        self.inputs.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, sizes))

    def _params(self, kind: str, *, zero: str = "middle", scale: float = _SCALE) -> Params:
        least, most = LIMITS[kind]
        middle = (least + most + 1) // 2
        return per_tensor(scale, least if zero == "minimum" else middle, kind)

    def _input(self, name: str, shape: Sequence[int], kind: str, reader: str, index: int = 0) -> str:
        """Declare an input of the model and what stands between it and its reader; return what the reader reads."""
        before = self.case.value("before" if index == 0 else "second before")
        is_moved = before in _BEFORE
        if not is_moved:
            self._declare(name, shape)
        if before in ("Conv", "Conv and Mul"):
            name = self._between(name, shape)
        if before == "Conv and Mul":
            half = self._constant(f"{name}/half", np.float32(0.5))
            self.nodes.append(helper.make_node("Mul", [name, half], [f"{name}/mul"], name=f"{name}/mul"))
            self.edges[f"{name}/mul", 0] = name, self._params("uint8")
            name = f"{name}/mul"
        if before == "Relu":
            self.nodes.append(helper.make_node("Relu", [name], [f"{name}/relu"], name=f"{name}/relu"))
            name = f"{name}/relu"
        if is_moved:
            name = self._moved(name, tuple(shape), before, kind)
        else:
            self._read(reader, index, name, kind)
        if self.case.value("read by" if index == 0 else "second read by") == "more":
            self.nodes.append(helper.make_node("Neg", [name], [f"{name}/also"], name=f"{name}/also"))
            self._read(f"{name}/also", 0, name, "float" if is_moved else kind)
            self._output(f"{name}/also")
        return name

    def _between(self, name: str, shape: Sequence[int]) -> str:
        """Put an integer kernel behind a tensor that keeps its shape; return its result."""
        result = f"{name}/made"
        self._weigh(name, result, shape)
        return result

    def _weigh(self, name: str, result: str, shape: Sequence[int]) -> None:
        """Read a tensor by a convolution with quantized weights, or by a product where it is no image."""
        self.weights[f"{result}/w"] = self._ones(shape)
        kind = "Conv" if len(shape) == 4 else "MatMul"
        self.nodes.append(helper.make_node(kind, [name, f"{result}/w"], [result], name=result))
        self.edges[result, 0] = name, self._params("uint8")

    def _ones(self, shape: Sequence[int]) -> Weight:
        if not shape:
            raise NoSuchGraphError  # a number has no channels
        size = int(shape[1] if len(shape) == 4 else shape[-1])
        params = per_tensor(0.01, 0, "int8")
        values = np.eye(size, dtype=np.float32)
        return Weight(params.quantize(values[:, :, None, None] if len(shape) == 4 else values), params)

    def _moved(self, name: str, shape: tuple[int, ...], mover: str, kind: str) -> str:
        """Declare an input and move it into a shape behind its DQ; return what is read."""
        attributes: dict[str, Any] = {}
        constants: list[np.ndarray] = []
        if mover == "Transpose":
            attributes["perm"] = [*range(len(shape))[:-2], len(shape) - 1, len(shape) - 2]
            start = (*shape[:-2], shape[-1], shape[-2])
        elif mover == "Reshape":
            start = (shape[0], int(np.prod(shape[1:]))) if len(shape) > 2 else (shape[0], shape[1] // 2, 2)
            constants = [_int64(-1, *shape[1:])]
        elif mover == "Flatten" and len(shape) == 2:
            start, attributes = (shape[0], shape[1] // 2, 2), {"axis": 1}
        elif mover == "Squeeze":
            start, constants = (*shape, 1), [_int64(len(shape))]
        elif mover == "Unsqueeze" and 1 in shape[:1] and self.case.value("sizes") == "fixed":
            start, constants = shape[1:], [_int64(0)]
        elif mover == "Slice":
            start, constants = (shape[0], shape[1] + 2, *shape[2:]), [_int64(0), _int64(shape[1]), _int64(1)]
        elif mover == "Gather":
            start, constants, attributes = shape, [np.arange(shape[1])[::-1].astype(np.int64)], {"axis": 1}
        else:
            raise NoSuchGraphError
        self._declare(name, start)
        moved = f"{name}/moved"
        names = [self._constant(f"{moved}{index}", value) for index, value in enumerate(constants)]
        self.nodes.append(helper.make_node(mover, [name, *names], [moved], name=moved, **attributes))
        self._read(moved, 0, name, kind)
        return moved

    def _read(self, node: str, index: int, tensor: str, kind: str) -> None:
        if kind != "float":
            self.edges[node, index] = tensor, self._params(kind, zero=self.case.value("zero"))

    def _output(self, name: str) -> None:
        self.outputs.append(helper.make_empty_tensor_value_info(name))
        self.outputs[-1].type.tensor_type.elem_type = TensorProto.FLOAT

    def _constant(self, name: str, value: Any) -> str:
        self.constants.append(numpy_helper.from_array(np.asarray(value), name))
        return name

    def _rest(self, first: str) -> tuple[list[str], dict[str, Any]]:
        """Return the center's inputs and settings."""
        operator, case = self.operator, self.case
        if self.opset < operator.least_opset:
            raise NoSuchGraphError
        attributes = dict(operator.attributes)
        axis = case.value("axis")
        if axis:
            attributes["axis"] = int(axis)
        names = [first]
        if operator.kind == "weighted":
            names += self._weighted(attributes)
        elif operator.kind == "binary":
            names += [] if case.value("second") == "none" else [self._second(first)]
        elif case.operator == "Where":
            names = [self._constant("condition", operator.constants[0]), first, self._constant("else", np.float32(0))]
            kind = case.value("input")
            if kind != "float":  # its data is its second input
                self.edges.pop((CENTER, 0), None)
                if case.value("before") not in _BEFORE:
                    self._read(CENTER, 1, first, kind)
        else:
            names += ["" if value is None else self._constant(f"constant{index}", value)
                      for index, value in enumerate(operator.constants)]  # fmt: skip
        self._settings(attributes, names)
        if case.value("order") == "swapped":
            self._swap(names)
        return names, attributes

    def _swap(self, names: list[str]) -> None:
        """Let the center read its two operands in the other order."""
        names.reverse()
        held = {index: self.edges.pop((CENTER, index), None) for index in range(2)}
        for index, edge in held.items():
            if edge is not None:
                self.edges[CENTER, 1 - index] = edge

    def _settings(self, attributes: dict[str, Any], names: list[str]) -> None:
        case = self.case
        pads: dict[str, dict[str, Any]] = {"ceil": {"ceil_mode": 1}, "padded": {"pads": [1, 1, 1, 1]},
                "counted": {"pads": [1, 1, 1, 1], "count_include_pad": 1}}  # fmt: skip
        if case.operator in ("AveragePool", "MaxPool"):
            attributes |= pads.get(case.value("form"), {})
        if case.operator in ("Pad", "Resize"):
            attributes["mode"] = case.value("mode")
        if case.operator.startswith("Reduce") and case.operator != "ReduceSum":
            axes = [2, 3] if case.value("axes") == "hw" else [-1]
            if self.opset >= 18:
                names.append(self._constant("axes", np.asarray(axes, np.int64)))
            else:
                attributes["axes"] = axes

    def _weighted(self, attributes: dict[str, Any]) -> list[str]:
        """Add weight and bias of a convolution or product; return the further inputs."""
        case, kernel = self.case, self.case.value("kernel")
        shape, axis = self._weight_shape(attributes, kernel)
        weight, kind = "w", case.value("weight")
        if kind.startswith("activation"):
            self._declare(weight, shape)
            self._read(CENTER, 1, weight, kind.removeprefix("activation "))
            scale = np.asarray(_SCALE, np.float32)
        else:
            scale = self._weight(weight, shape, axis, kind)
        bias = case.value("bias")
        if case.operator == "MatMul" or bias == "none":
            self.bias_scale = scale
            return [weight]
        channels = shape[axis] * (attributes.get("group", 1) if case.operator == "ConvTranspose" else 1)
        return [weight, self._bias("b", channels, scale)]

    def _weight_shape(self, attributes: dict[str, Any], kernel: str) -> tuple[tuple[int, ...], int]:
        case = self.case
        if case.operator == "Gemm":
            form = case.value("form")
            values: dict[str, Any] = {"alpha": 0.5, "beta": 0.5, "transA": 1}
            if form in values:
                attributes[form] = values[form]
            if form == "transB":
                attributes["transB"] = 1
                return (8, 16), 0
            return (16, 8), 1
        if case.operator == "MatMul":
            is_batched = case.value("weight").startswith("activation") and case.value("form") != "2-d"
            lead = self._shape()[:-2] if is_batched else ()
            return (*lead, 16, 8), len(lead) + 1
        sizes = {"1-d": (3,), "3-d": (3, 3, 3), "1x1": (1, 1)}.get(kernel, (3, 3))
        attributes["kernel_shape"] = list(sizes)
        if kernel == "strided":
            attributes |= {"strides": [2, 2], "pads": [1, 1, 1, 1]}
        if kernel == "depthwise":
            attributes["group"] = 4
            return (4, 1, *sizes), 0
        return ((8, 4, *sizes), 0) if case.operator == "Conv" else ((4, 8, *sizes), 1)

    def _weight(self, name: str, shape: tuple[int, ...], axis: int, kind: str) -> np.ndarray:
        real = self.random.normal(0, 0.1, shape).astype(np.float32)
        if kind == "float":
            self._constant(name, real)
            return np.asarray(0.001, np.float32)
        number, _, how = kind.partition(" ")
        least, most = LIMITS[number]
        middle = (least + most + 1) // 2
        if how == "per block":
            if len(shape) != 2:
                raise NoSuchGraphError  # blocks of convolutions are read by nobody
            scales = np.full((shape[0] // 4, shape[1]), 0.01, np.float32)
            params = Params(scales, np.zeros(scales.shape, np.int64), number, 0, 4)
        elif how == "per channel":
            scales = np.linspace(0.001, 0.002, shape[axis], dtype=np.float32)
            params = Params(scales, np.full(shape[axis], middle), number, axis)
        else:
            params = per_tensor(0.001, middle, number)
        self.weights[name] = Weight(params.quantize(real), params)
        return params.scale

    def _bias(self, name: str, channels: int, scale: np.ndarray) -> str:
        kind = self.case.value("bias")
        values = np.linspace(-0.1, 0.1, channels, dtype=np.float32)
        if kind == "float":
            return self._constant(name, values)
        wanted = np.asarray(_SCALE, np.float32) * scale
        if kind == "int32 of another scale":
            wanted = wanted * np.float32(2)
        axis = 0 if wanted.ndim else None
        if wanted.ndim > 1:
            raise NoSuchGraphError
        params = Params(wanted.astype(np.float32), np.zeros(wanted.shape, np.int64), "int32", axis)
        self.weights[name] = Weight(params.quantize(values), params)
        return name

    def _second(self, first: str) -> str:
        """Add the second operand of an addition, a product or a concatenation."""
        kind, shapes = self.case.value("second"), self.case.value("shapes")
        shape = {"broadcast": (1, 4, 1, 1), "scalar": ()}.get(shapes, self.operator.shape)
        if kind == "itself":
            self._read(
                CENTER, 1, first, self.case.value("input") if self.case.value("before") not in _BEFORE else "float"
            )
            return first
        if kind == "constant":
            return self._constant("second", self.random.normal(1, 0.1, shape).astype(np.float32))
        if kind.startswith("weight"):
            params = self._params(kind.removeprefix("weight "))
            values = params.quantize(self.random.normal(1, 0.1, shape).astype(np.float32))
            self.weights["second"] = Weight(values, params)
            return "second"
        return self._input("second", shape, kind, CENTER, 1)

    def _bias_addition(self, tensor: str) -> str:
        """Add the bias of a matrix product, which stands in an addition of its own."""
        if self.case.operator != "MatMul" or self.case.value("bias") == "none":
            return tensor
        bias = self._bias("b", 8, self.bias_scale)
        self.nodes.append(helper.make_node("Add", [tensor, bias], [f"{tensor}/bias"], name=f"{tensor}/bias"))
        return f"{tensor}/bias"

    def _after(self, tensor: str) -> str:
        after = self.case.value("after")
        if after == "nothing":
            return tensor
        end, arguments = f"{tensor}/after", [tensor]
        if after == "Clip":
            arguments += [self._constant("low", np.float32(0)), self._constant("high", np.float32(6))]
        elif after == "Reshape":
            arguments.append(self._constant("shape", _int64(1, -1)))
        elif after in ("Unsqueeze", "Gather"):
            arguments.append(self._constant("places", _int64(0)))
        elif after == "Slice":
            arguments += [self._constant(f"slice{index}", _int64(each)) for index, each in enumerate((0, 1, 0))]
        elif after == "Add":
            arguments.append(self._constant("addend", np.full((), 0.5, np.float32)))
        self.nodes.append(helper.make_node(after, arguments, [end], name=end))
        return end

    def _end(self, tensor: str) -> None:
        """Let a tensor be read as the case says."""
        kind = self.case.value("output")
        if kind == "model":
            self._output(tensor)
            return
        if kind in ("float", "float and Q"):
            node = helper.make_node("Neg", [tensor], [f"{tensor}/float"], name=f"{tensor}/float")
            self.nodes.append(node)
            self._output(node.output[0])
        if kind == "float":
            return
        number = self.case.value("input") if kind in ("float and Q", "two Q") else kind
        number = "uint8" if number == "float" else number
        self._read_out(tensor, f"{tensor}/out", number, _SCALE if self.case.value("scale") == "same" else None)
        if kind == "two Q":
            self._read_out(tensor, f"{tensor}/second", number, 0.07)

    def _reader(self, tensor: str, name: str) -> onnx.NodeProto:
        """Add the node that reads what was made, behind its Q and DQ, and makes an output of the model."""
        kind = self.case.value("goes to").removesuffix(" and Mul")
        if kind == "Conv":
            self._weigh(tensor, name, self._shape_of(tensor))
            self.nodes[-1].name = f"output/{name}"
            self.edges.pop((name, 0))
        elif kind == "Mul":
            two = self._constant(f"{name}/two", np.float32(2))
            self.nodes.append(helper.make_node("Mul", [tensor, two], [name], name=f"output/{name}"))
        else:
            kind = "Identity" if kind == "output" else kind
            self.nodes.append(helper.make_node(kind, [tensor], [name], name=f"output/{name}"))
        self._output(name)
        return self.nodes[-1]

    def _shape_of(self, tensor: str) -> tuple[int, ...]:
        """Infer the shape of what was made so far."""
        weights = [helper.make_tensor_value_info(name, TensorProto.FLOAT, weight.values.shape)
                   for name, weight in self.weights.items()]  # fmt: skip
        end = helper.make_empty_tensor_value_info(tensor)
        end.type.tensor_type.elem_type = TensorProto.FLOAT
        graph = helper.make_graph(self.nodes, "part", [*self.inputs, *weights], [end], self.constants)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", self.opset)], ir_version=8)
        try:
            found = onnx.shape_inference.infer_shapes(model, strict_mode=True).graph.output[0].type.tensor_type
        except onnx.shape_inference.InferenceError as exc:
            raise NoSuchGraphError(str(exc)) from exc
        sizes = tuple(each.dim_value for each in found.shape.dim)
        if len(sizes) < 2 or 0 in sizes[1:]:
            raise NoSuchGraphError
        return sizes

    def _read_out(self, tensor: str, name: str, kind: str, scale: float | None) -> None:
        """Let a Q and DQ end in an output of the model."""
        node = self._reader(tensor, name)
        zero = self.case.value("output zero")
        if scale == _SCALE:
            zero = self.case.value("zero")
        elif scale is None and zero == "minimum" and self.case.value("after") == "Clip" and kind in _EIGHT_BITS:
            scale = _CLIP_SCALE  # which ends where the Clip does
        params = self._params(kind, zero=zero, scale=_OTHER_SCALE if scale is None else scale)
        self.edges[node.name, 0] = tensor, params
        if self.case.value("goes to") == "Conv and Mul":
            also = helper.make_node("Mul", [tensor, self._constant(f"{name}/two", np.float32(2))], [f"{name}/twice"],
                                    name=f"{name}/twice")  # fmt: skip
            self.nodes.append(also)
            self._output(also.output[0])
            self.edges[also.name, 0] = tensor, params
        if self.case.value("output read by") == "more":
            for number in range(2):
                also = helper.make_node("Neg", [tensor], [f"{name}/also{number}"], name=f"{name}/also{number}")
                self.nodes.append(also)
                self._output(also.output[0])
                self.edges[also.name, 0] = tensor, params
