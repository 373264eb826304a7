"""ONNX operators as functions of torch, each in the form that XNNPACK's partitioner takes in."""

from __future__ import annotations

import math
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 - its usual name

from embedl_executorch.compiler.values import Call, Numbers, Quantized

Work = Callable[[Call], Any]
OPERATORS: Dict[str, Work] = {}
# ONNX's numbers for types.
_TYPES = {
    1: torch.float32, 2: torch.uint8, 3: torch.int8, 5: torch.int16, 6: torch.int32, 7: torch.int64, 9: torch.bool,
    10: torch.float16, 11: torch.float64, 16: torch.bfloat16,
}  # fmt: skip


def operator(*names: str) -> Callable[[Work], Work]:
    """Register the function of operators."""

    def add(work: Work) -> Work:
        OPERATORS.update(dict.fromkeys(names, work))
        return work

    return add


class _Simple:
    """An operator of one input that torch has too."""

    def __init__(self, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
        self._function = function

    def __call__(self, call: Call) -> torch.Tensor:
        return self._function(call.x())


class _Pairwise:
    """An operator of two inputs that torch has too."""

    def __init__(self, function: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> None:
        self._function = function

    def __call__(self, call: Call) -> torch.Tensor:
        return self._function(call.x(0), call.x(1))


def _simple(**functions: Callable[[torch.Tensor], torch.Tensor]) -> None:
    for name, function in functions.items():
        OPERATORS[name] = _Simple(function)


_simple(
    Abs=torch.abs, Ceil=torch.ceil, Cos=torch.cos, Erf=torch.erf, Exp=torch.exp, Floor=torch.floor,
    Identity=lambda x: x, Dropout=lambda x: x, Log=torch.log, Neg=torch.neg, Not=torch.logical_not,
    Reciprocal=torch.reciprocal, Relu=F.relu,
    Round=torch.round, Sigmoid=torch.sigmoid, Sign=torch.sign, Sin=torch.sin, Softplus=F.softplus, Softsign=F.softsign,
    Sqrt=torch.sqrt, Tanh=torch.tanh, HardSwish=F.hardswish, Mish=F.mish, IsNaN=torch.isnan, Atan=torch.atan,
)  # fmt: skip


def _pairwise(**functions: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> None:
    for name, function in functions.items():
        OPERATORS[name] = _Pairwise(function)


_pairwise(
    Add=torch.add, Sub=torch.sub, Mul=torch.mul, Equal=torch.eq, Greater=torch.gt, GreaterOrEqual=torch.ge,
    Less=torch.lt, LessOrEqual=torch.le, And=torch.logical_and, Or=torch.logical_or, Xor=torch.logical_xor,
)  # fmt: skip


@operator("Div")
def _div(call: Call) -> torch.Tensor:
    left, right = call.x(0), call.x(1)
    if not left.is_floating_point():
        return torch.div(left, right, rounding_mode="trunc")
    if call.is_known(1) and np.all(call.array(1)):
        # By a constant: a product, which has a kernel for integers too.
        return left * call.tensor("inverse", (1.0 / call.array(1)).astype(np.float32))
    return left / right


@operator("Mod")
def _mod(call: Call) -> torch.Tensor:
    function = torch.fmod if call.attributes.get("fmod") else torch.remainder
    return function(call.x(0), call.x(1))


@operator("Pow")
def _pow(call: Call) -> torch.Tensor:
    if call.is_known(1) and call.array(1).size == 1:
        power = float(call.array(1).reshape(-1)[0])
        if power == 0.5:
            return torch.sqrt(call.x(0))
        return torch.pow(call.x(0), int(power) if power.is_integer() else power)
    return torch.pow(call.x(0), call.x(1))


@operator("Min", "Max", "Sum", "Mean")
def _many(call: Call) -> torch.Tensor:
    functions = {"Min": torch.minimum, "Max": torch.maximum}
    function = functions.get(call.operator, torch.add)
    total = call.x(0)
    for at in range(1, call.count):
        total = function(total, call.x(at))
    return total / call.count if call.operator == "Mean" else total


@operator("Clip")
def _clip(call: Call) -> torch.Tensor:
    low, high = call.scalar("min", 1), call.scalar("max", 2)
    x = call.x()
    if low is not None and high is not None and x.is_floating_point():
        # The form that is fused into the convolution before it.
        return F.hardtanh(x, low, high)
    if low == 0 and high is None:
        return F.relu(x)
    return x if low is None and high is None else torch.clamp(x, low, high)


@operator("LeakyRelu")
def _leaky_relu(call: Call) -> torch.Tensor:
    return F.leaky_relu(call.x(), float(call.attributes.get("alpha", 0.01)))


@operator("PRelu")
def _prelu(call: Call) -> torch.Tensor:
    x = call.x()
    slope = call.array(1) if call.is_known(1) else None
    channels = x.shape[1] if x.dim() > 1 else 1
    if slope is None or slope.size not in (1, channels):
        return torch.where(x >= 0, x, x * call.x(1))
    return F.prelu(x, call.tensor("slope", slope.reshape(-1).astype(np.float32)))


@operator("Elu", "Celu", "Selu", "ThresholdedRelu")
def _elu(call: Call) -> torch.Tensor:
    alpha = float(call.attributes.get("alpha", 1.67326319 if call.operator == "Selu" else 1.0))
    x = call.x()
    if call.operator == "Celu":
        return F.celu(x, alpha)
    if call.operator == "ThresholdedRelu":
        return torch.where(x > alpha, x, torch.zeros_like(x))
    gamma = float(call.attributes.get("gamma", 1.05070098)) if call.operator == "Selu" else 1.0
    return gamma * F.elu(x, alpha) if gamma != 1.0 else F.elu(x, alpha)


@operator("HardSigmoid")
def _hard_sigmoid(call: Call) -> torch.Tensor:
    alpha, beta = float(call.attributes.get("alpha", 0.2)), float(call.attributes.get("beta", 0.5))
    # In three steps with constants of its own: torch takes its own operator apart into ones that no delegate has.
    slope, offset = (call.tensor(name, np.array([value], np.float32)) for name, value in (("a", alpha), ("b", beta)))
    return F.hardtanh(call.x() * slope + offset, 0.0, 1.0)


@operator("Gelu")
def _gelu(call: Call) -> torch.Tensor:
    return F.gelu(call.x(), approximate=call.text("approximate", "none"))


@operator("Swish")
def _swish(call: Call) -> torch.Tensor:
    x, alpha = call.x(), float(call.attributes.get("alpha", 1.0))
    return x * torch.sigmoid(x if alpha == 1.0 else x * alpha)


@operator("Softmax", "LogSoftmax")
def _softmax(call: Call) -> torch.Tensor:
    x = call.x()
    function = F.softmax if call.operator == "Softmax" else F.log_softmax
    if call.opset < 13:
        axis = int(call.attributes.get("axis", 1)) % x.dim()
        if axis != x.dim() - 1:
            flat = x.reshape(math.prod(x.shape[:axis]), -1)
            return function(flat, -1).reshape(x.shape)
    return function(x, int(call.attributes.get("axis", -1 if call.opset >= 13 else 1)))


@operator("Where")
def _where(call: Call) -> torch.Tensor:
    return torch.where(call.x(0).bool(), call.x(1), call.x(2))


@operator("Cast", "CastLike")
def _cast(call: Call) -> torch.Tensor:
    if call.operator == "CastLike":
        return call.x().to(call.x(1).dtype)
    number = int(call.attributes["to"])
    if number not in _TYPES:
        raise call.refuse("makes numbers of a type (ONNX {}) that torch does not have".format(number))
    x = call.x()
    return x if x.dtype == _TYPES[number] else x.to(_TYPES[number])


# Layers with weights.


@operator("Conv", "ConvTranspose")
def _conv(call: Call) -> torch.Tensor:
    x = call.x()
    spatial = x.dim() - 2
    if spatial not in (1, 2, 3):
        raise call.refuse("has {} spatial axes".format(spatial))
    strides = call.sizes("strides", spatial, 1)
    dilations = call.sizes("dilations", spatial, 1)
    weight, bias = call.x(1), call.bias(2)
    kernel = [int(size) for size in weight.shape[2:]]
    groups = int(call.attributes.get("group", 1))
    if call.operator == "Conv":
        begin, end = _pads(call, [int(size) for size in x.shape[2:]], kernel, strides, dilations)
        if begin != end:
            x, begin = F.pad(x, _flat(begin, end)), [0] * spatial
        straight: Any = (F.conv1d, F.conv2d, F.conv3d)[spatial - 1]
        done: torch.Tensor = straight(x, weight, bias, strides, begin, dilations, groups)
        return done
    extra = call.sizes("output_padding", spatial, 0)
    begin, end = _transposed_pads(call, x, kernel, strides, dilations, extra)
    function: Any = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)[spatial - 1]
    if begin == end:
        whole: torch.Tensor = function(x, weight, bias, strides, begin, extra, groups, dilations)
        return whole
    whole = function(x, weight, bias, strides, 0, extra, groups, dilations)
    for axis, (first, last) in enumerate(zip(begin, end), 2):
        whole = whole.narrow(axis, first, int(whole.shape[axis]) - first - last)
    return whole


def _flat(begin: Sequence[int], end: Sequence[int]) -> List[int]:
    """Return paddings as torch lists them: the last axis first."""
    return [size for pair in zip(reversed(begin), reversed(end)) for size in pair]


def _pads(
    call: Call, sizes: Sequence[int], kernel: Sequence[int], strides: Sequence[int], dilations: Sequence[int]
) -> Tuple[List[int], List[int]]:
    """Return what is added before and after each axis."""
    rule = call.text("auto_pad", "NOTSET")
    count = len(kernel)
    if rule in ("NOTSET", ""):
        pads = [int(pad) for pad in call.attributes.get("pads", [0] * (2 * count))]
        return pads[:count], pads[count:]
    if rule == "VALID":
        return [0] * count, [0] * count
    begin, end = [], []
    for size, taps, stride, dilation in zip(sizes, kernel, strides, dilations):
        total = max(0, (-(-size // stride) - 1) * stride + (taps - 1) * dilation + 1 - size)
        small, large = total // 2, total - total // 2
        begin.append(small if rule == "SAME_UPPER" else large)
        end.append(large if rule == "SAME_UPPER" else small)
    return begin, end


def _transposed_pads(
    call: Call, x: torch.Tensor, kernel: Sequence[int], strides: Sequence[int], dilations: Sequence[int],
    extra: Sequence[int],
) -> Tuple[List[int], List[int]]:  # fmt: skip
    count = len(kernel)
    wanted = call.attributes.get("output_shape")
    rule = call.text("auto_pad", "NOTSET")
    if wanted is None and rule not in ("SAME_UPPER", "SAME_LOWER"):
        pads = [int(pad) for pad in call.attributes.get("pads", [0] * (2 * count))]
        return pads[:count], pads[count:]
    begin, end = [], []
    for at in range(count):
        size = int(x.shape[2 + at])
        target = int(wanted[-count + at]) if wanted is not None else size * strides[at]
        total = max(0, strides[at] * (size - 1) + extra[at] + (kernel[at] - 1) * dilations[at] + 1 - target)
        small, large = total // 2, total - total // 2
        begin.append(large if rule == "SAME_LOWER" else small)
        end.append(small if rule == "SAME_LOWER" else large)
    return begin, end


@operator("Gemm")
def _gemm(call: Call) -> torch.Tensor:
    x = call.x(0)
    if call.attributes.get("transA"):
        x = x.t()
    alpha, beta = float(call.attributes.get("alpha", 1.0)), float(call.attributes.get("beta", 1.0))
    is_linear = call.is_known(1) and alpha == 1.0 and (not call.has(2) or (call.is_known(2) and beta == 1.0))
    if is_linear:
        weight = call.matrix(1, is_transposed=bool(call.attributes.get("transB")))
        bias = call.bias(2)
        if bias is None or (bias.dim() <= 1 or bias.shape[:-1].numel() == 1):
            return F.linear(call.rounded(x), weight, None if bias is None else call.row_bias(2, int(weight.shape[0])))
        return F.linear(call.rounded(x), weight) + bias
    right = call.x(1).t() if call.attributes.get("transB") else call.x(1)
    product = torch.mm(x, right)
    product = product if alpha == 1.0 else product * alpha
    if not call.has(2):
        return product
    bias = call.x(2)
    return product + (bias if beta == 1.0 else bias * beta)


def _product_of(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """Multiply stacks of matrices; as one stack each, where both have the same: that form is taken in by delegates."""
    stack = left.shape[:-2]
    if left.dim() < 3 or stack != right.shape[:-2]:
        return torch.matmul(left, right)
    count = math.prod(stack)
    flat = torch.bmm(
        left.reshape(count, *left.shape[-2:]).contiguous(), right.reshape(count, *right.shape[-2:]).contiguous()
    )
    return flat.reshape(*stack, left.shape[-2], right.shape[-1])


@operator("MatMul")
def _matmul(call: Call) -> torch.Tensor:
    """By a matrix of weights: a linear layer, with the bias that was added after it."""
    weight = call.known[1]
    shape = () if weight is None else (weight.integers if isinstance(weight, Quantized) else weight).shape
    if len(shape) == 2:
        bias = call.added if call.added is None else call.tensor("bias", call.added)
        return F.linear(call.rounded(call.x(0)), call.matrix(1, is_transposed=False), bias)
    product = _product_of(call.x(0), call.x(1))
    return product if call.added is None else product + call.tensor("bias", call.added)


@operator("BatchNormalization")
def _batch_norm(call: Call) -> torch.Tensor:
    if call.attributes.get("training_mode"):
        raise call.refuse("is in training mode; export the network after model.eval()")
    eps = float(call.attributes.get("epsilon", 1e-5))
    return F.batch_norm(call.x(0), call.x(3), call.x(4), call.x(1), call.x(2), False, 0.0, eps)


@operator("LayerNormalization")
def _layer_norm(call: Call) -> torch.Tensor:
    x = call.x()
    axis = int(call.attributes.get("axis", -1)) % x.dim()
    shape = [int(size) for size in x.shape[axis:]]
    weight = call.whole(1, shape)
    return F.layer_norm(x, shape, weight, call.whole(2, shape) if call.has(2) else None, _epsilon(call))


@operator("RMSNormalization", "SimplifiedLayerNormalization")
def _rms_norm(call: Call) -> torch.Tensor:
    x = call.x()
    axis = int(call.attributes.get("axis", -1)) % x.dim()
    axes = list(range(axis, x.dim()))
    return x * torch.rsqrt(torch.mean(x * x, axes, keepdim=True) + _epsilon(call)) * call.x(1)


@operator("InstanceNormalization")
def _instance_norm(call: Call) -> torch.Tensor:
    return F.instance_norm(call.x(0), weight=call.x(1), bias=call.x(2), eps=_epsilon(call))


@operator("GroupNormalization")
def _group_norm(call: Call) -> torch.Tensor:
    groups, weight, bias = int(call.attributes["num_groups"]), call.x(1), call.x(2)
    channels = int(call.x().shape[1])
    if int(weight.shape[0]) != channels:
        weight, bias = (value.repeat_interleave(channels // groups) for value in (weight, bias))
    return F.group_norm(call.x(), groups, weight, bias, _epsilon(call))


@operator("LpNormalization")
def _lp_norm(call: Call) -> torch.Tensor:
    return F.normalize(call.x(), float(call.attributes.get("p", 2)), int(call.attributes.get("axis", -1)))


def _epsilon(call: Call) -> float:
    return float(call.attributes.get("epsilon", 1e-5))


# Pools and reductions.


@operator("MaxPool", "AveragePool")
def _pool(call: Call) -> torch.Tensor:
    x = call.x()
    kernel = [int(size) for size in call.attributes["kernel_shape"]]
    count = len(kernel)
    if count not in (1, 2):
        raise call.refuse("pools over {} axes".format(count))
    strides, dilations = call.sizes("strides", count, 1), call.sizes("dilations", count, 1)
    ceil = bool(call.attributes.get("ceil_mode"))
    begin, end = _pads(call, [int(size) for size in x.shape[2:]], kernel, strides, dilations)
    is_max = call.operator == "MaxPool"
    if begin != end or any(2 * pad > taps for pad, taps in zip(begin, kernel)):
        if not is_max and not call.attributes.get("count_include_pad"):
            raise call.refuse("averages without its padding, which differs before and after")
        x, begin = F.pad(x, _flat(begin, end), value=-math.inf if is_max else 0.0), [0] * count
    if is_max:
        return (F.max_pool1d, F.max_pool2d)[count - 1](x, kernel, strides, begin, dilations, ceil)
    if any(dilation != 1 for dilation in dilations):
        raise call.refuse("has dilations")
    include = bool(call.attributes.get("count_include_pad")) and any(begin)
    return (F.avg_pool1d, F.avg_pool2d)[count - 1](x, kernel, strides, begin, ceil, include)


@operator("GlobalAveragePool")
def _global_average(call: Call) -> torch.Tensor:
    return torch.mean(call.x(), list(range(2, call.x().dim())), keepdim=True)


@operator("GlobalMaxPool")
def _global_max(call: Call) -> torch.Tensor:
    return torch.amax(call.x(), list(range(2, call.x().dim())), keepdim=True)


@operator("ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL2", "ReduceL1", "ReduceSumSquare")
def _reduce(call: Call) -> torch.Tensor:
    x = call.x()
    axes = call.listed("axes", 1)
    if not axes:
        if call.attributes.get("noop_with_empty_axes"):
            return x
        axes = list(range(x.dim()))
    axes = sorted(axis % x.dim() for axis in axes)
    done = _reductions[call.operator](x, axes)
    if call.attributes.get("keepdims", 1):
        return done
    return done.reshape([int(size) for axis, size in enumerate(x.shape) if axis not in axes])


def _product(x: torch.Tensor, axes: Sequence[int]) -> torch.Tensor:
    for axis in axes:
        x = torch.prod(x, axis, keepdim=True)
    return x


# The axes are kept first and dropped after: that form has kernels in delegates.
_reductions: Dict[str, Callable[[torch.Tensor, List[int]], torch.Tensor]] = {
    "ReduceMean": lambda x, axes: torch.mean(x, axes, keepdim=True),
    "ReduceSum": lambda x, axes: torch.sum(x, axes, keepdim=True),
    "ReduceMax": lambda x, axes: torch.amax(x, axes, keepdim=True),
    "ReduceMin": lambda x, axes: torch.amin(x, axes, keepdim=True),
    "ReduceProd": _product,
    "ReduceL1": lambda x, axes: torch.sum(torch.abs(x), axes, keepdim=True),
    "ReduceL2": lambda x, axes: torch.sqrt(torch.sum(x * x, axes, keepdim=True)),
    "ReduceSumSquare": lambda x, axes: torch.sum(x * x, axes, keepdim=True),
}


@operator("ArgMax", "ArgMin")
def _arg(call: Call) -> torch.Tensor:
    if call.attributes.get("select_last_index"):
        raise call.refuse("wants the last of equal numbers")
    function = torch.argmax if call.operator == "ArgMax" else torch.argmin
    keep = bool(call.attributes.get("keepdims", 1))
    return function(call.x(), int(call.attributes.get("axis", 0)), keepdim=keep)


@operator("TopK")
def _top_k(call: Call) -> Tuple[torch.Tensor, torch.Tensor]:
    count = int(call.attributes["k"]) if "k" in call.attributes else call.ints(1)[0]
    largest = bool(call.attributes.get("largest", 1))
    found = torch.topk(call.x(), count, int(call.attributes.get("axis", -1)), largest, sorted=True)
    return found[0], found[1]


@operator("CumSum")
def _cumsum(call: Call) -> torch.Tensor:
    if call.attributes.get("exclusive") or call.attributes.get("reverse"):
        raise call.refuse("is exclusive or runs backwards")
    return torch.cumsum(call.x(), call.ints(1)[0])


# What moves numbers.


@operator("Reshape")
def _reshape(call: Call) -> torch.Tensor:
    x = call.x()
    wanted = call.listed("shape", 1) or []
    if not call.attributes.get("allowzero"):
        wanted = [int(x.shape[at]) if size == 0 else size for at, size in enumerate(wanted)]
    return x.reshape(wanted)


@operator("Flatten")
def _flatten(call: Call) -> torch.Tensor:
    x = call.x()
    axis = int(call.attributes.get("axis", 1))
    axis = axis + x.dim() if axis < 0 else axis
    return x.reshape(math.prod(x.shape[:axis]), -1)


@operator("Transpose")
def _transpose(call: Call) -> torch.Tensor:
    x = call.x()
    return x.permute([int(axis) for axis in call.attributes.get("perm", range(x.dim() - 1, -1, -1))])


@operator("Squeeze", "Unsqueeze")
def _squeeze(call: Call) -> torch.Tensor:
    """As a reshape, which every backend has for every axis."""
    x = call.x()
    sizes = [int(size) for size in x.shape]
    axes = call.listed("axes", 1)
    if call.operator == "Unsqueeze":
        rank = len(sizes) + len(axes or ())
        taken = {axis % rank for axis in axes or ()}
        rest = iter(sizes)
        return x.reshape([1 if axis in taken else next(rest) for axis in range(rank)])
    gone = {axis % len(sizes) for axis in axes} if axes else {at for at, size in enumerate(sizes) if size == 1}
    return x.reshape([size for axis, size in enumerate(sizes) if axis not in gone])


@operator("Concat")
def _concat(call: Call) -> torch.Tensor:
    return torch.cat([call.x(at) for at in range(call.count)], int(call.attributes["axis"]))


@operator("Split")
def _split(call: Call) -> Tuple[torch.Tensor, ...]:
    x = call.x()
    axis = int(call.attributes.get("axis", 0))
    sizes = call.listed("split", 1)
    if sizes is None:
        count = int(call.attributes.get("num_outputs", call.outputs))
        part = -(-int(x.shape[axis]) // count)
        sizes = [min(part, int(x.shape[axis]) - part * at) for at in range(count)]
    starts = [sum(sizes[:at]) for at in range(len(sizes))]
    return tuple(x.narrow(axis, start, size) for start, size in zip(starts, sizes))


@operator("Slice")
def _slice(call: Call) -> torch.Tensor:
    x = call.x()
    starts, ends = call.listed("starts", 1) or [], call.listed("ends", 2) or []
    axes = call.listed("axes", 3) or list(range(len(starts)))
    steps = call.ints(4) if call.has(4) else [1] * len(starts)
    for start, end, axis, step in zip(starts, ends, axes, steps):
        size = int(x.shape[axis])
        if step < 0:
            positions = list(range(size))[slice(start, None if end < -size else end, step)]
            x = torch.index_select(x, axis, call.tensor("positions{}".format(axis), np.array(positions, np.int64)))
            continue
        first, last, _ = slice(start, end, step).indices(size)
        if (first, last, step) != (0, size, 1):
            x = torch.ops.aten.slice.Tensor(x, axis, first, last, step)
    return x


@operator("Gather")
def _gather(call: Call) -> torch.Tensor:
    axis = int(call.attributes.get("axis", 0))
    x = call.x(0)
    axis = axis % x.dim()
    if call.is_known(1):
        return _gather_known(call, x, axis)
    indices = call.x(1)
    # Negative ones count from the end.
    indices = torch.where(indices < 0, indices + int(x.shape[axis]), indices).long()
    if axis == 0 and x.dim() == 2:
        return F.embedding(indices, x)
    shape = [*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :]]
    return torch.index_select(x, axis, indices.reshape(-1)).reshape(shape)


def _gather_known(call: Call, x: torch.Tensor, axis: int) -> torch.Tensor:
    indices = call.array(1).astype(np.int64)
    indices = np.where(indices < 0, indices + int(x.shape[axis]), indices)
    shape = [int(size) for size in (*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :])]
    flat = indices.reshape(-1)
    if flat.size and np.array_equal(flat, np.arange(flat[0], flat[0] + flat.size)):
        part = x if flat.size == int(x.shape[axis]) else x.narrow(axis, int(flat[0]), int(flat.size))
        return part.reshape(shape)
    return torch.index_select(x, axis, call.tensor("indices", flat)).reshape(shape)


@operator("GatherElements")
def _gather_elements(call: Call) -> torch.Tensor:
    return torch.gather(call.x(0), int(call.attributes.get("axis", 0)), call.x(1).long())


@operator("Expand")
def _expand(call: Call) -> torch.Tensor:
    x, wanted = call.x(), call.ints(1)
    return x.expand(np.broadcast_shapes(tuple(int(size) for size in x.shape), tuple(wanted)))


@operator("Tile")
def _tile(call: Call) -> torch.Tensor:
    return call.x().repeat(call.ints(1))


@operator("Pad")
def _pad(call: Call) -> torch.Tensor:
    x = call.x()
    pads = call.listed("pads", 1) or []
    axes = call.ints(3) if call.has(3) else list(range(x.dim()))
    begin, end = [0] * x.dim(), [0] * x.dim()
    for at, axis in enumerate(axes):
        begin[axis], end[axis] = pads[at], pads[at + len(axes)]
    mode = call.text("mode", "constant")
    flat = _flat(begin, end)
    if mode == "constant":
        while len(flat) > 2 and flat[-2:] == [0, 0]:
            flat = flat[:-2]
        return F.pad(x, flat, value=call.scalar("value", 2) or 0.0)
    spatial = x.dim() - 2
    if mode not in ("reflect", "edge") or any(flat[2 * spatial :]):
        raise call.refuse("pads by {!r} along these axes".format(mode))
    return F.pad(x, flat[: 2 * spatial], mode="reflect" if mode == "reflect" else "replicate")


@operator("Resize", "Upsample")
def _resize(call: Call) -> torch.Tensor:
    x = call.x()
    sizes = call.ints(3) if call.has(3) and call.array(3).size else None
    at = 1 if call.operator == "Upsample" or call.opset < 11 else 2
    if sizes is None:
        scales = [float(scale) for scale in call.array(at).reshape(-1)] if call.has(at) else call.attributes["scales"]
        sizes = [math.floor(int(size) * scale) for size, scale in zip(x.shape, scales)]
    if list(sizes[:2]) != [int(size) for size in x.shape[:2]] or x.dim() not in (3, 4):
        raise call.refuse("resizes other axes than the spatial ones")
    mode = call.text("mode", "nearest")
    rule = call.text("coordinate_transformation_mode", "half_pixel" if call.opset >= 11 else "asymmetric")
    target = [int(size) for size in sizes[2:]]
    if mode == "nearest":
        whole = all(size % int(old) == 0 for size, old in zip(target, x.shape[2:]))
        usual = rule == "asymmetric" and call.text("nearest_mode", "floor" if call.opset < 11 else "") == "floor"
        if not whole and not usual:
            raise call.refuse("picks neighbors by {!r}, which torch has for whole factors alone".format(rule))
        return F.interpolate(x, size=target, mode="nearest")
    names = {"linear": "linear" if x.dim() == 3 else "bilinear", "cubic": "bicubic"}
    if mode not in names or rule not in ("half_pixel", "pytorch_half_pixel", "align_corners"):
        raise call.refuse("resizes by {!r} with {!r}".format(mode, rule))
    return F.interpolate(x, size=target, mode=names[mode], align_corners=rule == "align_corners")


@operator("DepthToSpace")
def _depth_to_space(call: Call) -> torch.Tensor:
    block = int(call.attributes["blocksize"])
    if call.text("mode", "DCR") == "CRD":
        return F.pixel_shuffle(call.x(), block)
    batch, channels, height, width = (int(size) for size in call.x().shape)
    parts = call.x().reshape(batch, block, block, channels // block**2, height, width)
    return parts.permute(0, 3, 4, 1, 5, 2).reshape(batch, channels // block**2, height * block, width * block)


@operator("SpaceToDepth")
def _space_to_depth(call: Call) -> torch.Tensor:
    block = int(call.attributes["blocksize"])
    batch, channels, height, width = (int(size) for size in call.x().shape)
    parts = call.x().reshape(batch, channels, height // block, block, width // block, block)
    return parts.permute(0, 3, 5, 1, 2, 4).reshape(batch, channels * block**2, height // block, width // block)


@operator("Trilu")
def _trilu(call: Call) -> torch.Tensor:
    shift = call.ints(1)[0] if call.has(1) else 0
    return torch.triu(call.x(), shift) if call.attributes.get("upper", 1) else torch.tril(call.x(), shift)


@operator("Einsum")
def _einsum(call: Call) -> torch.Tensor:
    return torch.einsum(call.text("equation", ""), *[call.x(at) for at in range(call.count)])


# Integers.


def numbers_of(call: Call) -> Numbers:
    """Return how Q or DQ have integers stand for numbers: uint8 as the int8 that stand for the same."""
    scale = np.asarray(call.array(1), np.float32).reshape(-1)
    # One scale that is repeated for every channel is one scale.
    scale = scale[:1] if scale.size and np.all(scale == scale[0]) else scale
    given = np.asarray(call.array(2)) if call.has(2) else np.zeros(scale.shape, np.uint8)
    kind = given.dtype
    zero_point = given.reshape(-1).astype(np.int64)
    if kind == np.uint8:
        kind, zero_point = np.dtype("int8"), zero_point - 128
    if kind.name not in ("int8", "int16", "int32"):
        raise call.refuse("makes integers of type {}, for which there is no kernel".format(kind))
    axis = int(call.attributes.get("axis", 1))
    return Numbers(scale, zero_point[:1] if scale.size == 1 else zero_point, kind, axis)


@operator("QuantizeLinear")
def _quantize(call: Call) -> torch.Tensor:
    return call.converted("quantize", call.x(), numbers_of(call))


@operator("DequantizeLinear")
def _dequantize(call: Call) -> torch.Tensor:
    return call.converted("dequantize", call.x(), numbers_of(call))


# Recurrent layers, unrolled: a program has fixed lengths anyway.


@operator("LSTM", "GRU")
def _recurrent(call: Call) -> Tuple[torch.Tensor, ...]:
    if call.has(4) or call.attributes.get("layout") or "activations" in call.attributes or "clip" in call.attributes:
        raise call.refuse("has lengths of its own, another layout, other activations or a clip")
    x, hidden = call.x(0), int(call.attributes["hidden_size"])
    directions = {"forward": (0,), "reverse": (0,), "bidirectional": (0, 1)}[call.text("direction", "forward")]
    states, ends, cells = [], [], []
    for number in directions:
        is_reverse = number == 1 or call.text("direction", "forward") == "reverse"
        series, state, cell = _unrolled(call, x, hidden, number, is_reverse=is_reverse)
        states.append(series)
        ends.append(state)
        cells.append(cell)
    output = torch.stack(states, 1)
    last = torch.stack(ends, 0)
    return (output, last, torch.stack(cells, 0)) if call.operator == "LSTM" else (output, last)


def _unrolled(
    call: Call, x: torch.Tensor, hidden: int, number: int, *, is_reverse: bool
) -> Tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    name = "d{}".format(number)
    weight, recurrent = (call.tensor(name + key, call.array(at)[number]) for key, at in (("w", 1), ("r", 2)))
    gates = (4 if call.operator == "LSTM" else 3) * hidden
    biases = call.array(3)[number] if call.has(3) else np.zeros(2 * gates, np.float32)
    own, other = call.tensor(name + "bw", biases[:gates]), call.tensor(name + "br", biases[gates:])
    empty = np.zeros((int(x.shape[1]), hidden), np.float32)
    state = call.x(5)[number] if call.has(5) else call.tensor(name + "h", empty)
    cell = call.x(6)[number] if call.operator == "LSTM" and call.has(6) else call.tensor(name + "c", empty)
    series: List[Optional[torch.Tensor]] = [None] * int(x.shape[0])
    # All steps of the input at once; what is left is one product per step.
    inner = F.linear(x, weight, own)
    for at in reversed(range(len(series))) if is_reverse else range(len(series)):
        if call.operator == "LSTM":
            total = inner[at] + F.linear(state, recurrent, other)
            enter, leave, forget, change = total.chunk(4, -1)
            cell = torch.sigmoid(forget) * cell + torch.sigmoid(enter) * torch.tanh(change)
            state = torch.sigmoid(leave) * torch.tanh(cell)
        else:
            state = _gru_step(call, inner[at], state, recurrent, other, hidden)
        series[at] = state
    return torch.stack([each for each in series if each is not None], 0), state, cell


def _gru_step(
    call: Call, inner: torch.Tensor, state: torch.Tensor, recurrent: torch.Tensor, bias: torch.Tensor, hidden: int
) -> torch.Tensor:
    update_in, reset_in, new_in = inner.chunk(3, -1)
    if call.attributes.get("linear_before_reset"):
        update, reset, new = F.linear(state, recurrent, bias).chunk(3, -1)
        reset = torch.sigmoid(reset_in + reset)
        candidate = torch.tanh(new_in + reset * new)
    else:
        update, reset = F.linear(state, recurrent[: 2 * hidden], bias[: 2 * hidden]).chunk(2, -1)
        reset = torch.sigmoid(reset_in + reset)
        candidate = torch.tanh(new_in + F.linear(reset * state, recurrent[2 * hidden :], bias[2 * hidden :]))
    update = torch.sigmoid(update_in + update)
    return (1 - update) * candidate + update * state
