"""What a kernel has to do, from its shapes alone: products, bytes, rows. The same on the hub and on the board."""

from __future__ import annotations

import math
from typing import Any, Iterable, List, Mapping, NamedTuple, Sequence, Tuple

Typed = Tuple[str, Tuple[int, ...]]

_BYTES = {"float": 4, "double": 8, "float16": 2, "bfloat16": 2, "int64": 8, "uint64": 8, "int32": 4, "uint32": 4}
# Products per element of the output are counted for these; all others only read and write.
_PRODUCTS = ("Conv", "Gemm", "MatMul", "Attention")
TERMS = 7


class Work(NamedTuple):
    """What one node does."""

    kernel: str  # the operator, the numbers it reads and, where it matters, what kind: ``QLinearConv|uint8|depthwise``
    op: str  # the operator alone, as reasons name it
    # One for the call, products, bytes read, bytes written, bytes of weights, rows, and what a convolution copies
    # together before it multiplies; time is a sum of them
    terms: Tuple[float, ...]


def read_typed(shapes: Iterable[Any]) -> List[Typed]:
    """Return types and shapes as a profile of ONNX Runtime has them: ``[{"float": [1, 3, 8, 8]}, ...]``."""
    found: List[Typed] = []
    for shape in shapes:
        if not isinstance(shape, Mapping):
            continue
        for dtype, sizes in shape.items():
            found.append((str(dtype), tuple(int(size) for size in sizes)))
    return found


def work_of(op: str, inputs: Sequence[Typed], outputs: Sequence[Typed]) -> Work:
    """Return the work of a node."""
    dtype = _main_type(inputs)
    is_product = any(word in op for word in _PRODUCTS)
    written = _bytes(outputs)
    macs, kind, weights, rows, copied = 0.0, "", 0.0, 0.0, 0.0
    if "Conv" in op:
        macs, kind, weights, rows, copied = _convolution(op, inputs, outputs)
    elif is_product:
        macs, kind, weights = _product(inputs, outputs)
    elif op == "Transpose":
        kind = _turn_kind(inputs, outputs)
    elif len(inputs) > 1:
        kind = _spread_kind(inputs)
    if not is_product:
        largest = max((shape for _, shape in (*inputs[:1], *outputs)), key=math.prod, default=())
        rows = float(_pieces(inputs)) if kind == "spread" else float(math.prod(largest[:-1]))
    read = max(_bytes(inputs) - weights, 0.0)
    kernel = "|".join(word for word in (op, dtype, kind) if word)
    return Work(kernel, op, (1.0, macs, read, written, weights, rows, copied))


def works_of(nodes: Iterable[Mapping[str, Any]]) -> List[Work]:
    """Return the work of nodes as records have them: ``op``, ``inputs`` and ``outputs``."""
    return [work_of(str(node["op"]), read_typed(node["inputs"]), read_typed(node["outputs"])) for node in nodes]


def _main_type(inputs: Sequence[Typed]) -> str:
    return inputs[0][0] if inputs else ""


def _bytes(values: Sequence[Typed]) -> float:
    return float(sum(_BYTES.get(dtype, 1) * math.prod(shape) for dtype, shape in values))


def _of_rank(values: Sequence[Typed], least: int) -> List[Typed]:
    return [pair for pair in values if len(pair[1]) >= least]


def _convolution(op: str, inputs: Sequence[Typed], outputs: Sequence[Typed]) -> Tuple[float, str, float, float, float]:
    """Return products, kind, bytes of weights, groups and elements copied together.

    The layout of the data may be any, that of weights is one.
    """
    big = _of_rank(inputs, 3)
    if len(big) < 2 or not outputs:
        return 0.0, "", 0.0, 0.0, 0.0
    (_, data), weight, result = big[0], big[1], outputs[0][1]
    shape = weight[1]
    if "Transpose" in op:
        return float(math.prod(data[2:]) * math.prod(shape)), "", _bytes([weight]), 0.0, 0.0
    macs = float(math.prod(result) * math.prod(shape[1:]))
    groups, copied = 1.0, 0.0
    if shape[1] == 1 and shape[0] > 1 and shape[0] in (data[1], data[-1]) and 1 not in (data[1], data[-1]):
        kind = "depthwise"
    elif shape[1] not in (data[1], data[-1]) and 2 * shape[1] <= max(data[1], data[-1]):
        kind, groups = "grouped", float(max(data[1], data[-1]) // shape[1])
        copied = macs * groups / shape[0]
    else:
        kind = "pointwise" if math.prod(shape[2:]) == 1 else "spatial"
        copied = 0.0 if kind == "pointwise" else macs / shape[0]
    return macs, kind, _bytes([weight]), groups, copied


def _product(inputs: Sequence[Typed], outputs: Sequence[Typed]) -> Tuple[float, str, float]:
    matrices = _of_rank(inputs, 2)
    if len(matrices) < 2 or not outputs:
        return 0.0, "", _bytes(matrices[1:])
    left, right = matrices[0], matrices[1]
    # Gemm may turn its first input; the length of the sums is what both have in common and the output has not.
    length = left[1][-1] if left[1][-1] in right[1][-2:] else left[1][0]
    rows = math.prod(outputs[0][1]) // max(outputs[0][1][-1], 1) if outputs[0][1] else 1
    kind = "row" if rows == 1 else "weights" if len(right[1]) == 2 else "activations"
    return float(math.prod(outputs[0][1]) * length), kind, _bytes([right])


def _turn_kind(inputs: Sequence[Typed], outputs: Sequence[Typed]) -> str:
    """Return how far a transpose carries: whole rows, a matrix turned, or single elements over many axes."""
    if not inputs or not outputs or inputs[0][1][-1:] == outputs[0][1][-1:]:
        return "rows"
    before, after = ([size for size in side[0][1] if size > 1] for side in (inputs, outputs))
    for start in range(len(before)):
        rest = before[:start] + before[start + 1 :]
        if any([*rest[:end], before[start], *rest[end:]] == after for end in range(len(before))):
            return "turned"
    return "scattered"


def _pieces(inputs: Sequence[Typed]) -> int:
    """Return in how many pieces one operand is spread over another: each is one run through memory."""
    dtype = inputs[0][0]
    shapes = sorted((shape for kind, shape in inputs if kind == dtype), key=math.prod, reverse=True)[:2]
    large, small = shapes[0], (1,) * (len(shapes[0]) - len(shapes[1])) + shapes[1]
    run, is_equal = 1, None
    for wide, narrow in zip(reversed(large), reversed(small)):
        if wide > 1:
            now = wide == narrow
            if is_equal is not None and now != is_equal:
                break
            is_equal = now
        run *= wide
    return max(math.prod(large) // max(run, 1), 1)


def _spread_kind(inputs: Sequence[Typed]) -> str:
    """Return how two operands meet: one of them may be a single number, or be spread over the other."""
    dtype = inputs[0][0]
    sizes = sorted((math.prod(shape) for kind, shape in inputs if kind == dtype), reverse=True)
    # Scales are single floats and do not count beside integers; among floats a second operand does.
    real = [size for size in sizes if size > 1]
    if len(sizes) < 2:
        return ""
    if len(real) < 2:
        return "scalar"
    return "" if real[1] == real[0] else "spread"
