"""Types and shapes of every tensor of a model as ONNX Runtime optimized it.

The runtime writes none into the file, and ONNX knows nothing of its own operators. Most of those compute what a
standard one does: that is asked in their place. What is not known here has no shape, and then there is no prediction.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import onnx
from onnx import checker, defs, helper, numpy_helper, shape_inference

_NCHWC = "com.microsoft.nchwc"
_OWN = "com.microsoft"
_STANDARD = ("", "ai.onnx")
_OPSET = 17
# Constants up to so many elements are values that shapes may follow from.
_FEW = 1024


class TensorType(NamedTuple):
    """Element type as ONNX numbers it, and shape."""

    element: int
    shape: tuple[int, ...]

    @property
    def size_bytes(self) -> int:
        """What its elements take."""
        bits = 4 if self.element in _HALF_BYTES else 8 * helper.tensor_dtype_to_np_dtype(self.element).itemsize
        return -(-math.prod(self.shape) * bits // 8)


_HALF_BYTES = frozenset(
    code for name, code in onnx.TensorProto.DataType.items() if name in {"INT4", "UINT4", "FLOAT4E2M1"}
)
Types = dict[str, TensorType]
Shapes = Mapping[str, Sequence[int]]
_Rule = Callable[[onnx.NodeProto, Sequence[TensorType | None]], list[TensorType]]


def infer_types(model: onnx.ModelProto, shapes: Shapes | None = None) -> tuple[Types, list[str]]:
    """Return the types that are known, and the operators whose outputs are not; ``shapes`` are of open inputs."""
    graph = model.graph
    types = _given(graph, shapes or {})
    constants = {value.name: value for value in graph.initializer if math.prod(value.dims) <= _FEW}
    opsets = {entry.domain: entry.version for entry in model.opset_import}
    unknown: list[str] = []
    block = _block(graph, types)
    for node in graph.node:
        inputs = [types.get(name) for name in node.input]
        if (node.domain, node.op_type) == (_NCHWC, "ReorderInput") and inputs[0] is not None:
            found_types: Sequence[TensorType | None] = [_reordered(node, inputs[0], block)]
        else:
            found_types = _outputs(node, inputs, constants, opsets)
        for index, name in enumerate(node.output):
            if not name:
                continue
            if index < len(found_types) and (known := found_types[index]) is not None:
                types[name] = known
            else:
                unknown.append(f"{node.op_type} ({node.name or name})")
        if node.op_type == "Constant" and node.output[0] not in constants:
            _add_constant(node, constants)
        elif node.op_type in _FOLDED:
            _fold(node, types, constants)
    return types, unknown


def _given(graph: onnx.GraphProto, shapes: Shapes) -> Types:
    """Return the types of weights and inputs; PyTorch's exporters of old declare weights as inputs too."""
    types = {value.name: TensorType(value.data_type, tuple(value.dims)) for value in graph.initializer}
    for value in graph.input:
        found = _declared(value.type)
        if value.name in shapes and value.type.HasField("tensor_type"):
            found = TensorType(value.type.tensor_type.elem_type, tuple(shapes[value.name]))
        if found is not None:
            types.setdefault(value.name, found)
    return types


def _declared(value: onnx.TypeProto) -> TensorType | None:
    kind = value.tensor_type
    if not value.HasField("tensor_type") or not kind.HasField("shape"):
        return None
    dims = [dim.dim_value if dim.HasField("dim_value") else -1 for dim in kind.shape.dim]
    return None if any(size < 0 for size in dims) else TensorType(kind.elem_type, tuple(dims))


def _outputs(
    node: onnx.NodeProto,
    inputs: Sequence[TensorType | None],
    constants: Mapping[str, onnx.TensorProto],
    opsets: Mapping[str, int],
) -> Sequence[TensorType | None]:
    if node.domain in _STANDARD and defs.has(node.op_type, max_inclusive_version=opsets.get("", _OPSET)):
        return _ask(node, inputs, constants, opsets.get("", _OPSET))
    rule = _RULES.get((node.domain, node.op_type))
    if rule is not None and inputs and inputs[0] is not None:
        try:
            return rule(node, inputs)
        except (IndexError, AttributeError, TypeError):
            return []
    substitute = _SUBSTITUTES.get((node.domain, node.op_type))
    if substitute is not None:
        op_type, used, attributes = substitute
        kept = [attribute for attribute in node.attribute if attribute.name in attributes]
        names = [node.input[index] for index in used if index < len(node.input)]
        stand_in = helper.make_node(op_type, names, [node.output[0]])
        stand_in.attribute.extend(kept)
        return _ask(stand_in, [inputs[index] for index in used if index < len(inputs)], constants, _OPSET)
    return []


def _ask(
    node: onnx.NodeProto, inputs: Sequence[TensorType | None], constants: Mapping[str, onnx.TensorProto], opset: int
) -> list[TensorType | None]:
    """Ask ONNX about a standard operator."""
    schema = defs.get_schema(node.op_type, opset)
    known = {
        name: helper.make_tensor_type_proto(kind.element, kind.shape)
        for name, kind in zip(node.input, inputs, strict=True)
        if name and kind is not None
    }
    if len(known) != len({name for name in node.input if name}):
        return []
    values = {name: constants[name] for name in node.input if name in constants}
    entries = [helper.make_opsetid("", opset)]
    try:
        found = shape_inference.infer_node_outputs(schema, node, known, values, opset_imports=entries)
    except (shape_inference.InferenceError, checker.ValidationError, RuntimeError, ValueError):
        return []
    return [_declared(found[name]) if name in found else None for name in node.output]


_CONV = ("auto_pad", "dilations", "group", "kernel_shape", "pads", "strides")
_POOL = ("auto_pad", "ceil_mode", "count_include_pad", "dilations", "kernel_shape", "pads", "storage_order", "strides")
# Which standard operator has the same output shape, which inputs it reads, and which attributes it has.
_SUBSTITUTES: dict[tuple[str, str], tuple[str, tuple[int, ...], tuple[str, ...]]] = {
    (_NCHWC, "Conv"): ("Conv", (0, 1), _CONV),
    (_NCHWC, "MaxPool"): ("MaxPool", (0,), _POOL),
    (_NCHWC, "AveragePool"): ("AveragePool", (0,), _POOL),
    (_NCHWC, "GlobalAveragePool"): ("GlobalAveragePool", (0,), ()),
    (_NCHWC, "GlobalMaxPool"): ("GlobalMaxPool", (0,), ()),
    (_OWN, "FusedConv"): ("Conv", (0, 1), _CONV),
    (_OWN, "FusedGemm"): ("Gemm", (0, 1), ("transA", "transB")),
    (_OWN, "DynamicQuantizeMatMul"): ("MatMul", (0, 1), ()),
}


def _known(value: TensorType | None) -> TensorType:
    if value is None:
        raise TypeError
    return value


def _shape(value: TensorType | None) -> tuple[int, ...]:
    return _known(value).shape


def _same(node: onnx.NodeProto, inputs: Sequence[TensorType | None]) -> list[TensorType]:
    del node
    return [_known(inputs[0])]


def _broadcast(*shapes: tuple[int, ...]) -> tuple[int, ...]:
    rank = max(map(len, shapes))
    padded = [(1,) * (rank - len(shape)) + shape for shape in shapes]
    return tuple(0 if 0 in sizes else max(sizes) for sizes in zip(*padded, strict=True))


def _integer_binary(node: onnx.NodeProto, inputs: Sequence[TensorType | None]) -> list[TensorType]:
    """QLinearAdd and QLinearMul read A, its scale and zero point, then B."""
    del node
    return [TensorType(_element(inputs[0]), _broadcast(_shape(inputs[0]), _shape(inputs[3])))]


def _element(value: TensorType | None) -> int:
    return _known(value).element


def _attribute(node: onnx.NodeProto, name: str, default: int = 0) -> int:
    return next((attribute.i for attribute in node.attribute if attribute.name == name), default)


def _ints(node: onnx.NodeProto, name: str) -> list[int] | None:
    return next((list(attribute.ints) for attribute in node.attribute if attribute.name == name), None)


def _block(graph: onnx.GraphProto, types: Types) -> int:
    """Return how many channels a block has: 8 or 16 by the processor that the file was optimized on."""
    weights = [types.get(node.input[1]) for node in graph.node if (node.domain, node.op_type) == (_NCHWC, "Conv")]
    return 8 if any(kind is not None and kind.shape[0] % 16 for kind in weights) else 16


def _reordered(node: onnx.NodeProto, read: TensorType, block: int) -> TensorType:
    """ReorderInput pads channels to whole blocks."""
    batch, *rest = read.shape
    channels, spatial = (rest[-1], rest[:-1]) if _attribute(node, "channels_last") else (rest[0], rest[1:])
    return TensorType(read.element, (batch, -(-channels // block) * block, *spatial))


def _reorder_output(node: onnx.NodeProto, inputs: Sequence[TensorType | None]) -> list[TensorType]:
    batch, _, *spatial = _shape(inputs[0])
    channels = _attribute(node, "channels")
    ordered = (*spatial, channels) if _attribute(node, "channels_last") else (channels, *spatial)
    return [TensorType(_element(inputs[0]), (batch, *ordered))]


def _blocked_upsample(node: onnx.NodeProto, inputs: Sequence[TensorType | None]) -> list[TensorType]:
    scales = _ints(node, "scales") or [1] * len(_shape(inputs[0]))
    sizes = tuple(size * scale for size, scale in zip(_shape(inputs[0]), scales, strict=True))
    return [TensorType(_element(inputs[0]), sizes)]


def _integer_conv(node: onnx.NodeProto, inputs: Sequence[TensorType | None]) -> list[TensorType]:
    """QLinearConv of the runtime's own domain: the standard one, or with the channels last."""
    shape, weight = _shape(inputs[0]), _shape(inputs[3])
    last = bool(_attribute(node, "channels_last"))
    spatial = shape[1:-1] if last else shape[2:]
    kernel = _ints(node, "kernel_shape") or list(weight[2:])
    sizes = _window(node, spatial, kernel)
    ordered = (shape[0], *sizes, weight[0]) if last else (shape[0], weight[0], *sizes)
    return [TensorType(_element(inputs[7]) if len(inputs) > 7 and inputs[7] else _element(inputs[0]), ordered)]


def _integer_pool(node: onnx.NodeProto, inputs: Sequence[TensorType | None]) -> list[TensorType]:
    shape = _shape(inputs[0])
    last = bool(_attribute(node, "channels_last"))
    spatial = shape[1:-1] if last else shape[2:]
    sizes = _window(node, spatial, _ints(node, "kernel_shape") or [1] * len(spatial))
    return [TensorType(_element(inputs[0]), (shape[0], *sizes, shape[-1]) if last else (*shape[:2], *sizes))]


def _window(node: onnx.NodeProto, spatial: Sequence[int], kernel: Sequence[int]) -> tuple[int, ...]:
    strides = _ints(node, "strides") or [1] * len(spatial)
    dilations = _ints(node, "dilations") or [1] * len(spatial)
    pads = _ints(node, "pads") or [0] * 2 * len(spatial)
    auto = next((attribute.s for attribute in node.attribute if attribute.name == "auto_pad"), b"NOTSET")
    found = []
    for at, size in enumerate(spatial):
        if auto in (b"SAME_UPPER", b"SAME_LOWER"):
            found.append(-(-size // strides[at]))
            continue
        padded = size + (0 if auto == b"VALID" else pads[at] + pads[at + len(spatial)])
        room = padded - dilations[at] * (kernel[at] - 1) - 1
        found.append((-(-room // strides[at]) if _attribute(node, "ceil_mode") else room // strides[at]) + 1)
    return tuple(found)


def _global_pool(node: onnx.NodeProto, inputs: Sequence[TensorType | None]) -> list[TensorType]:
    shape = _shape(inputs[0])
    ones = (1,) * (len(shape) - 2)
    ordered = (shape[0], *ones, shape[-1]) if _attribute(node, "channels_last") else (*shape[:2], *ones)
    return [TensorType(_element(inputs[0]), ordered)]


def _integer_concat(node: onnx.NodeProto, inputs: Sequence[TensorType | None]) -> list[TensorType]:
    """QLinearConcat reads the scale and zero point of its output, then each tensor with its own."""
    parts = [_shape(value) for value in inputs[2::3]]
    axis = _attribute(node, "axis") % len(parts[0])
    joined = sum(shape[axis] for shape in parts)
    return [TensorType(_element(inputs[2]), (*parts[0][:axis], joined, *parts[0][axis + 1 :]))]


def _integer_matmul(node: onnx.NodeProto, inputs: Sequence[TensorType | None]) -> list[TensorType]:
    del node
    return [TensorType(_element(inputs[0]), _product(_shape(inputs[0]), _shape(inputs[3])))]


def _float_product(node: onnx.NodeProto, inputs: Sequence[TensorType | None]) -> list[TensorType]:
    del node
    return [TensorType(_element(inputs[2]), _product(_shape(inputs[0]), _shape(inputs[1])))]


def _integer_gemm(node: onnx.NodeProto, inputs: Sequence[TensorType | None]) -> list[TensorType]:
    """QGemm has integers where the scale of its output is given, else floats."""
    left, right = _shape(inputs[0]), _shape(inputs[3])
    rows = left[1] if _attribute(node, "transA") else left[0]
    columns = right[0] if _attribute(node, "transB") else right[1]
    is_integer = len(node.input) > 8 and bool(node.input[8])
    return [TensorType(_element(inputs[0]) if is_integer else _element(inputs[1]), (rows, columns))]


def _product(left: tuple[int, ...], right: tuple[int, ...]) -> tuple[int, ...]:
    if len(left) < 2 or len(right) < 2:
        raise TypeError
    return (
        (*_broadcast(left[:-2], right[:-2]), left[-2], right[-1]) if left[:-2] or right[:-2] else (left[-2], right[-1])
    )


def _fused_matmul(node: onnx.NodeProto, inputs: Sequence[TensorType | None]) -> list[TensorType]:
    left, right = _shape(inputs[0]), _shape(inputs[1])
    if _attribute(node, "transBatchA") or _attribute(node, "transBatchB"):
        raise TypeError
    if _attribute(node, "transA"):
        left = (*left[:-2], left[-1], left[-2])
    if _attribute(node, "transB"):
        right = (*right[:-2], right[-1], right[-2])
    return [TensorType(_element(inputs[0]), _product(left, right))]


def _nbits_matmul(node: onnx.NodeProto, inputs: Sequence[TensorType | None]) -> list[TensorType]:
    return [TensorType(_element(inputs[0]), (*_shape(inputs[0])[:-1], _attribute(node, "N")))]


def _skip_norm(node: onnx.NodeProto, inputs: Sequence[TensorType | None]) -> list[TensorType]:
    """The sum is the fourth output, where it is asked for; those between are for training."""
    del node
    own = _known(inputs[0])
    shape = (*own.shape[:-1], 1)
    return [own, TensorType(1, shape), TensorType(1, shape), own]


_RULES: dict[tuple[str, str], _Rule] = {
    (_NCHWC, "ReorderOutput"): _reorder_output,
    (_NCHWC, "Upsample"): _blocked_upsample,
    (_OWN, "QLinearConv"): _integer_conv,
    (_OWN, "QLinearAveragePool"): _integer_pool,
    (_OWN, "NhwcMaxPool"): lambda node, inputs: _integer_pool(_last(node), inputs),
    (_OWN, "QLinearGlobalAveragePool"): _global_pool,
    (_OWN, "QLinearConcat"): _integer_concat,
    (_OWN, "QLinearAdd"): _integer_binary,
    (_OWN, "QLinearMul"): _integer_binary,
    (_OWN, "QLinearMatMul"): _integer_matmul,
    (_OWN, "MatMulIntegerToFloat"): _float_product,
    (_OWN, "QGemm"): _integer_gemm,
    (_OWN, "FusedMatMul"): _fused_matmul,
    (_OWN, "MatMulNBits"): _nbits_matmul,
    (_OWN, "SkipLayerNormalization"): _skip_norm,
    (_OWN, "SkipSimplifiedLayerNormalization"): _skip_norm,
    **{
        (_OWN, op_type): _same
        for op_type in (
            "QLinearSigmoid", "QLinearLeakyRelu", "QLinearSoftmax", "Gelu", "BiasGelu", "FastGelu", "QuickGelu",
            "BiasSoftmax", "SimplifiedLayerNormalization", "LayerNormalization", "GatherND",
        )
    },
}  # fmt: skip


def _last(node: onnx.NodeProto) -> onnx.NodeProto:
    copy = onnx.NodeProto()
    copy.CopyFrom(node)
    copy.attribute.append(helper.make_attribute("channels_last", 1))
    return copy


_FOLDED = frozenset({"Shape", "Gather", "Concat", "Unsqueeze", "Squeeze", "Slice", "Cast", "Mul", "Add", "Sub", "Div"})


def _add_constant(node: onnx.NodeProto, constants: dict[str, onnx.TensorProto]) -> None:
    value = next((attribute.t for attribute in node.attribute if attribute.name == "value"), None)
    if value is not None and math.prod(value.dims) <= _FEW:
        constants[node.output[0]] = value


def _fold(node: onnx.NodeProto, types: Types, constants: dict[str, onnx.TensorProto]) -> None:
    """Compute shapes that a model computes: of files that the runtime has not optimized."""
    if node.op_type == "Shape" and node.input[0] in types and not node.attribute:
        dims = types[node.input[0]].shape
        constants[node.output[0]] = helper.make_tensor("", onnx.TensorProto.INT64, [len(dims)], dims)
        return
    known = [constants[name] for name in node.input if name in constants]
    # A file may make a shape of a shape without end.
    if len(known) != sum(bool(name) for name in node.input) or sum(math.prod(each.dims) for each in known) > _FEW:
        return
    from onnx.reference import ReferenceEvaluator  # noqa: PLC0415 - only for models that compute shapes

    values = {name: numpy_helper.to_array(constants[name]) for name in node.input if name}
    inputs = [helper.make_tensor_value_info(name, constants[name].data_type, constants[name].dims) for name in values]
    output = helper.make_tensor_value_info(node.output[0], onnx.TensorProto.UNDEFINED, None)
    graph = helper.make_graph([node], "one", inputs, [output])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", _OPSET)])
    try:
        found: Any = ReferenceEvaluator(model).run(None, values)
    except Exception:  # noqa: BLE001 - a shape that cannot be computed is not known, whatever stopped it
        return
    constants[node.output[0]] = numpy_helper.from_array(found[0])
