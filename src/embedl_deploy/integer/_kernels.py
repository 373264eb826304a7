"""The arithmetic of ONNX Runtime's CPU kernels, one function each.

    conv, gemm, matmul   sum in int32; times (x scale × w scale / y scale) in float32; round half to even; add the zero
                         point; saturate
    add                  a·(sa/sc) + (b·(sb/sc) + fixed part) in float32 with fused multiply-add; round; saturate.
                         Without that instruction every step is rounded; on ARM in fixed point
    softmax              float32 table of exponentials, summed in order; times floor(1/sy) / sum; round; saturate
    mul                  (a-za)(b-zb) exact; times (sa·sb/sc), plus zc, in float32; round; saturate
    global average       sum in int32; times (sx / (sy · size)); as conv
    average pool         sum of dequantised float32, in order; divided; as quantising

Sums are exact here because they are done in float64, which holds every int32 and every partial sum.
"""

import math

import numpy as np
import torch

from embedl_deploy.dialect._numbers import LIMITS, Params

# Ratios of scales beyond which ARM's addition leaves fixed point.
_LEAST_RATIO, _MOST_RATIO = 2.0**-14, 2.0**8
_FLOAT_MAX = np.finfo(np.float32).max


def requantize(total: np.ndarray, scale: np.ndarray, output: Params) -> np.ndarray:
    """Bring int32 sums into a format; `scale` is float32 and broadcasts."""
    real = total.astype(np.float32) * scale
    return saturate(np.rint(real).astype(np.float64) + int(output.zero_point), output)


def saturate(values: np.ndarray, output: Params) -> np.ndarray:
    """Cut off what a type cannot hold."""
    low, high = LIMITS[output.type]
    return np.asarray(np.clip(values, low, high), output.type)


def combined_scale(first: Params, second: Params, output: Params | None) -> np.ndarray:
    """Multiply the scales of two operands and divide by the output's, each step in float32."""
    scale = np.asarray(first.scale * second.scale, np.float32)
    return scale if output is None else np.asarray(scale / output.scale, np.float32)


def centred(values: np.ndarray, params: Params) -> np.ndarray:
    """Take the zero point away, in float64."""
    _, zero = params.spread(values.shape)
    return np.asarray(values.astype(np.float64) - zero, np.float64)


def convolve(
    values: np.ndarray, weight: np.ndarray, *, strides: list[int], pads: list[int], dilations: list[int], group: int
) -> np.ndarray:
    """Sum the products of a convolution, exactly; both operands have no zero point any more."""
    rank = weight.ndim - 2
    padding = [side for axis in reversed(range(rank)) for side in (pads[axis], pads[axis + rank])]
    tensor = torch.nn.functional.pad(torch.from_numpy(np.ascontiguousarray(values)), padding)
    function = {1: torch.nn.functional.conv1d, 2: torch.nn.functional.conv2d, 3: torch.nn.functional.conv3d}[rank]
    kernel = torch.from_numpy(np.ascontiguousarray(weight))
    return np.asarray(function(tensor, kernel, None, strides, 0, dilations, group).numpy())


def add(first: np.ndarray, a: Params, second: np.ndarray, b: Params, output: Params, way: str = "fused") -> np.ndarray:
    """Add two quantised tensors, as processors with fused multiply-add do, in steps, or in fixed point."""
    ratio_a = np.asarray(a.scale / output.scale, np.float32)
    ratio_b = np.asarray(b.scale / output.scale, np.float32)
    if way == "steps":
        return _add_in_steps(first, a, second, b, output)
    if way == "fixed" and min(ratio_a, ratio_b) >= _LEAST_RATIO and max(ratio_a, ratio_b) < _MOST_RATIO:
        return _add_in_fixed_point(first, a, second, b, output)
    if way == "fixed":
        real = a.scale * centred(first, a).astype(np.float32) + b.scale * centred(second, b).astype(np.float32)
        level = np.asarray(real / output.scale, np.float32) + np.float32(output.zero_point)
        return saturate(np.rint(level).astype(np.float64), output)
    fixed = _fixed_part(ratio_a, ratio_b, a, b, output)
    inner = _fused(second.astype(np.float64), ratio_b, fixed)
    return saturate(np.rint(_fused(first.astype(np.float64), ratio_a, inner)).astype(np.float64), output)


def _add_in_steps(first: np.ndarray, a: Params, second: np.ndarray, b: Params, output: Params) -> np.ndarray:
    """Add with every step rounded to float32."""
    ratio_a, ratio_b = np.float32(a.scale / output.scale), np.float32(b.scale / output.scale)
    zeros = np.float32(ratio_a * np.float32(a.zero_point)) + np.float32(ratio_b * np.float32(b.zero_point))
    fixed = np.float32(np.float32(output.zero_point) - np.float32(zeros))
    inner = np.asarray(first.astype(np.float32) * ratio_a + fixed, np.float32)
    level = np.asarray(inner + np.asarray(second.astype(np.float32) * ratio_b, np.float32), np.float32)
    return saturate(np.rint(level).astype(np.float64), output)


def _add_in_fixed_point(first: np.ndarray, a: Params, second: np.ndarray, b: Params, output: Params) -> np.ndarray:
    """Add with multipliers of 22 bits; halves are rounded away from zero."""
    ratio_a, ratio_b = np.float32(a.scale / output.scale), np.float32(b.scale / output.scale)
    shift = 21 - (math.frexp(max(ratio_a, ratio_b))[1] - 1)
    times_a, times_b = (int(np.rint(float(one) * 2.0**shift)) for one in (ratio_a, ratio_b))
    total = times_a * centred(first, a).astype(np.int64) + times_b * centred(second, b).astype(np.int64)
    total = (total - (total < 0) + (1 << (shift - 1))) >> shift
    return saturate(np.clip(total, -32768, 32767).astype(np.float64) + int(output.zero_point), output)


def softmax(values: np.ndarray, params: Params, output: Params, axis: int) -> np.ndarray:
    """Normalise exponentials by a table of float32; the largest value of a row stands at the table's end."""
    moved = np.moveaxis(values.astype(np.int64) - LIMITS[params.type][0], axis, -1)
    length = moved.shape[-1]
    scale = float(params.scale)
    room = max(0.0, math.log(float(np.float32(_FLOAT_MAX) / np.float32(length))) - 5) / scale
    table = np.exp((np.arange(256, dtype=np.float64) - 255 + room) * scale).astype(np.float32)
    found = table[moved + 255 - moved.max(-1, keepdims=True)]
    # One after the other, as the kernel does: the order decides the last bit.
    total = np.cumsum(found, axis=-1, dtype=np.float32)[..., -1:]
    factor = np.float32(np.floor(np.float32(1) / np.float32(output.scale)))
    level = np.rint(np.asarray(np.asarray(found * factor, np.float32) / total, np.float32))
    return np.moveaxis(saturate(level.astype(np.float64) + int(output.zero_point), output), -1, axis)


def _fixed_part(ratio_a: np.ndarray, ratio_b: np.ndarray, a: Params, b: Params, output: Params) -> np.ndarray:
    """Gather the zero points of an addition into one float32."""
    # The runtime's compiler fuses the first product with the sum; doing it the other way round is off by one step in a
    # few values of a million.
    part_b = np.float32(ratio_b * np.float32(b.zero_point))
    both = _fused(np.float64(a.zero_point), ratio_a, part_b)
    return np.asarray(np.float32(np.float32(output.zero_point) - both), np.float32)


def _fused(factor: np.ndarray | np.float64, scale: np.ndarray, addend: np.ndarray | np.float32) -> np.ndarray:
    """Multiply and add with one rounding; the product of 8 and 24 bits and the sum fit into float64."""
    return np.asarray(factor * scale.astype(np.float64) + np.asarray(addend, np.float64), np.float32)


def multiply(first: np.ndarray, a: Params, second: np.ndarray, b: Params, output: Params) -> np.ndarray:
    """Multiply two quantised tensors."""
    product = (centred(first, a) * centred(second, b)).astype(np.float32)
    ratio = np.asarray(np.float32(a.scale * b.scale) / output.scale, np.float32)
    real = np.asarray(product * ratio, np.float32) + np.float32(output.zero_point)
    return saturate(np.rint(real).astype(np.float64), output)


def global_average(values: np.ndarray, params: Params, output: Params) -> np.ndarray:
    """Average over everything behind batch and channel."""
    axes = tuple(range(2, values.ndim))
    size = math.prod(values.shape[2:])
    scale = np.asarray(params.scale / np.float32(output.scale * np.float32(size)), np.float32)
    return requantize(centred(values, params).sum(axes, keepdims=True), scale, output)


def average(
    values: np.ndarray, params: Params, output: Params, *, kernel: list[int], strides: list[int], pads: list[int],
    include_pad: bool,
) -> np.ndarray:  # fmt: skip
    """Average over windows of a picture."""
    real = np.asarray(params.scale * centred(values, params).astype(np.float32), np.float32)
    height, width = values.shape[2:]
    rows = (height + pads[0] + pads[2] - kernel[0]) // strides[0] + 1
    columns = (width + pads[1] + pads[3] - kernel[1]) // strides[1] + 1
    result = np.zeros((*values.shape[:2], rows, columns), np.float32)
    for row in range(rows):
        top = row * strides[0] - pads[0]
        down = range(max(top, 0), min(top + kernel[0], height))
        for column in range(columns):
            left = column * strides[1] - pads[1]
            across = range(max(left, 0), min(left + kernel[1], width))
            total = np.zeros(values.shape[:2], np.float32)
            for y in down:
                for x in across:
                    total = total + real[:, :, y, x]
            count = kernel[0] * kernel[1] if include_pad else len(down) * len(across)
            result[:, :, row, column] = total / np.float32(count)
    level = np.asarray(result / output.scale, np.float32) + np.float32(output.zero_point)
    return saturate(np.rint(level).astype(np.float64), output)
