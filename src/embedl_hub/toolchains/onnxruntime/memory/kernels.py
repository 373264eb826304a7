"""What kernels of ONNX Runtime take for themselves: weights packed at load time, and scratch memory while they run.

A packed weight stays in the arena and the original is let go, unless another node reads it. Float matrices are packed
in columns of 16; integers in rows of 4 besides, with a sum for each column. Convolutions of integers have a kernel of
their own where the weights are symmetric and the channels fit; else they compute a matrix of 32-bit sums first.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from onnx import numpy_helper

if TYPE_CHECKING:
    import onnx

    from embedl_hub.toolchains.onnxruntime.memory.shapes import TensorType, Types

_ALIGNMENT = 64
_COLUMNS = 16
_INTEGER_ROWS = 4
_WORD = 4  # bytes of a float and of a 32-bit sum
_POINTER = 8
_FLOAT, _INT8 = 1, 3
# What a thread of a float convolution that is not blocked unfolds into, in floats.
_UNFOLDED_PER_THREAD = 128 * 128
# Where the weight is that a kernel packs.
_FLOAT_MATRICES = {"Gemm": 1, "FusedGemm": 1, "MatMul": 1, "FusedMatMul": 1}
_INTEGER_MATRICES = {
    "QGemm": 3, "QLinearMatMul": 3, "MatMulInteger": 1, "MatMulIntegerToFloat": 1, "DynamicQuantizeMatMul": 1,
}  # fmt: skip
_RECURRENT = frozenset({"LSTM", "GRU"})
_STANDARD = ("", "ai.onnx")
_OWN = "com.microsoft"


@dataclass(frozen=True)
class Weights:
    """What weights take: ``reserved`` and ``taken`` are packed and in the arena, ``kept`` are as the file has them."""

    reserved: int
    taken: tuple[int, ...]
    kept: int


def weights_of(nodes: Sequence[onnx.NodeProto], graph: onnx.GraphProto, types: Types) -> Weights:
    """Return what the weights of a model take once it is loaded."""
    weights = {value.name: value for value in graph.initializer}
    readers = Counter(name for node in nodes for name in node.input)
    reserved, taken, gone = 0, [], set()
    for node in nodes:
        for name, size, is_reserved in _packed(node, weights, types):
            if is_reserved:
                reserved += size
            else:
                taken.append(size)
            readers[name] -= 1
            if readers[name] == 0:
                gone.add(name)
    return Weights(reserved, tuple(taken), sum(types[name].size_bytes for name in weights if name not in gone))


def _packed(node: onnx.NodeProto, weights: Mapping[str, onnx.TensorProto], types: Types) -> list[tuple[str, int, bool]]:
    """Return the weights that a kernel packs, with their sizes and whether they are reserved beside the regions."""
    found: list[tuple[str, int, bool]] = []
    for table, size_of in ((_FLOAT_MATRICES, _float_matrix), (_INTEGER_MATRICES, _integer_matrix)):
        at = table.get(node.op_type)
        if at is not None and at < len(node.input) and node.input[at] in weights:
            size = size_of(node, types[node.input[at]])
            if size:
                found.append((node.input[at], size, True))
    if node.op_type == "QLinearConv" and node.input[3] in weights:
        direct = _symmetric_bytes(node, weights, types)
        found.append((node.input[3], direct or _integer_convolution(node, types[node.input[3]]), not direct))
    if node.op_type == "ConvTranspose" and node.input[1] in weights and types[node.input[1]].element == _FLOAT:
        found.append((node.input[1], types[node.input[1]].size_bytes, False))
    if node.op_type in _RECURRENT:
        found += [(name, _recurrent(types[name]), True) for name in node.input[1:3] if name in weights]
    return found


def _recurrent(kind: TensorType) -> int:
    directions, rows, columns = kind.shape
    return directions * _aligned(_up(rows, _COLUMNS) * columns * _WORD)


def _float_matrix(node: onnx.NodeProto, kind: TensorType) -> int:
    if kind.element != _FLOAT or len(kind.shape) != 2:
        return 0
    rows, columns = reversed(kind.shape) if _integer(node, "transB") else kind.shape
    return _aligned(_up(columns, _COLUMNS) * rows * _WORD)


def _integer_matrix(node: onnx.NodeProto, kind: TensorType) -> int:
    if len(kind.shape) < 2:
        return 0
    rows, columns = kind.shape[-2:]
    if _integer(node, "transB"):
        rows, columns = columns, rows
    return math.prod(kind.shape[:-2]) * _integers(rows, columns)


def _integer_convolution(node: onnx.NodeProto, kind: TensorType) -> int:
    group = max(_integer(node, "group", 1), 1)
    outputs, inputs = kind.shape[0] // group, kind.shape[1]
    if inputs == 1 and outputs == 1:
        # A depthwise one is reordered, not packed.
        return math.prod(kind.shape)
    return group * _integers(inputs * math.prod(kind.shape[2:]), outputs)


def _symmetric_bytes(node: onnx.NodeProto, weights: Mapping[str, onnx.TensorProto], types: Types) -> int:
    """Return what the kernel for symmetric weights packs them into; 0 where it does not apply."""
    kind = types[node.input[3]]
    zero, bias = node.input[5], node.input[8] if len(node.input) > 8 else ""
    if kind.element != _INT8 or zero not in weights or (bias and bias not in weights):
        return 0
    if numpy_helper.to_array(weights[zero]).any():
        return 0
    group = max(_integer(node, "group", 1), 1)
    outputs, inputs, window = kind.shape[0] // group, kind.shape[1], math.prod(kind.shape[2:])
    if group > 1:
        return group * window if inputs == 1 and outputs == 1 and group % _COLUMNS == 0 else 0
    if outputs < _COLUMNS or inputs % 4 or outputs % 4:
        return 0
    return _up(outputs, _COLUMNS) * window * inputs


def scratch_of(
    node: onnx.NodeProto, weights: Mapping[str, onnx.TensorProto], types: Types, threads: int
) -> tuple[int, ...]:
    """Return what a kernel takes while it runs, after its outputs and in this order."""
    if node.op_type == "QLinearConv":
        return _integer_scratch(node, weights, types)
    own = types.get(node.output[0]) if node.output else None
    rule = _SCRATCH.get(node.op_type)
    if own is None or rule is None or node.domain not in {*_STANDARD, _OWN}:
        return ()
    size = rule(node, types, own, threads)
    return (size,) if size else ()


def _columns(node: onnx.NodeProto, types: Types, own: TensorType, threads: int) -> int:  # noqa: ARG001 - a rule's signature
    shape, kernel = types[node.input[0]].shape, types[node.input[1]].shape
    return math.prod(kernel[1:]) * math.prod(shape[2:]) * _WORD


def _sums(node: onnx.NodeProto, types: Types, own: TensorType, threads: int) -> int:  # noqa: ARG001 - likewise
    return math.prod(own.shape) * _WORD


def _copy(node: onnx.NodeProto, types: Types, own: TensorType, threads: int) -> int:  # noqa: ARG001 - likewise
    return own.size_bytes


def _floats(node: onnx.NodeProto, types: Types, own: TensorType, threads: int) -> int:  # noqa: ARG001 - likewise
    return math.prod(types[node.input[0]].shape) * _WORD


def _bytes(node: onnx.NodeProto, types: Types, own: TensorType, threads: int) -> int:  # noqa: ARG001 - likewise
    return math.prod(types[node.input[0]].shape)


def _integer_scratch(node: onnx.NodeProto, weights: Mapping[str, onnx.TensorProto], types: Types) -> tuple[int, ...]:
    kind, own, read = types[node.input[3]], types[node.output[0]], types[node.input[0]]
    last = bool(_integer(node, "channels_last"))
    pixels = math.prod(own.shape[1:-1] if last else own.shape[2:])
    group = max(_integer(node, "group", 1), 1)
    inputs, window = kind.shape[1], math.prod(kind.shape[2:])
    is_depthwise = inputs == 1 and kind.shape[0] == group
    is_symmetric = bool(node.input[3] in weights and _symmetric_bytes(node, weights, types))
    found = []
    if not is_symmetric:
        found.append(_WORD * kind.shape[0] * pixels)
    if not last:
        found += [math.prod(read.shape[1:]), math.prod(own.shape[1:])]
    if is_depthwise or (is_symmetric and (window != 1 or _moves(node))):
        found.append(_POINTER * window * pixels)
    elif window != 1 or _moves(node):
        found.append(inputs * window * pixels * (group if len(kind.shape) > 4 else 1))
    return tuple(found)


def _moves(node: onnx.NodeProto) -> bool:
    """Say whether a convolution strides or pads."""
    values = {attribute.name: list(attribute.ints) for attribute in node.attribute}
    return any(size != 1 for size in values.get("strides", ())) or any(values.get("pads", ()))


def _unfolded(node: onnx.NodeProto, types: Types, own: TensorType, threads: int) -> int:
    """Return what a float convolution unfolds its input into."""
    kind = types[node.input[1]]
    group = max(_integer(node, "group", 1), 1)
    outputs, window = kind.shape[0] // group, math.prod(kind.shape[2:])
    pixels, depth = math.prod(own.shape[2:]), kind.shape[1] * window
    if window == 1 and not _moves(node):
        return 0
    if outputs > pixels:
        return pixels * depth * _WORD
    if own.shape[0] * group > 1:
        used = min(threads, own.shape[0] * group)
    else:
        # So many multiplications make another thread worth it.
        used = min(int(outputs * pixels * depth / (64 * 1024)) + 1, threads)
    return used * _UNFOLDED_PER_THREAD * _WORD


_SCRATCH: Mapping[str, Callable[[onnx.NodeProto, Types, TensorType, int], int]] = {
    "Conv": _unfolded, "FusedConv": _unfolded, "ConvTranspose": _columns, "QGemm": _sums, "QLinearMatMul": _sums,
    "BiasGelu": _copy, "QLinearAveragePool": _floats, "DynamicQuantizeMatMul": _bytes,
}  # fmt: skip


def _integers(rows: int, columns: int) -> int:
    wide = _up(columns, _COLUMNS)
    return _aligned(wide * _WORD + wide * _up(rows, _INTEGER_ROWS))


def _integer(node: onnx.NodeProto, name: str, default: int = 0) -> int:
    return next((attribute.i for attribute in node.attribute if attribute.name == name), default)


def _up(count: int, unit: int) -> int:
    return -(-count // unit) * unit


def _aligned(size: int) -> int:
    return _up(size, _ALIGNMENT)
