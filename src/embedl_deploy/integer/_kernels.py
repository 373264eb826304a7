"""The arithmetic of ONNX Runtime's CPU kernels, one function each.

    conv, gemm, matmul   sum in int32; times (x scale × w scale / y scale) in float32; round half to even; add the zero
                         point; saturate
    add                  a·(sa/sc) + (b·(sb/sc) + fixed part) in float32 with fused multiply-add; round; saturate.
                         Without that instruction every step is rounded; on ARM in fixed point
    softmax              float32 table of exponentials, summed in order; times floor(1/sy) / sum; round; saturate
    mul                  (a-za)(b-zb) exact; times (sa·sb/sc), plus zc, in float32; round; saturate
    global average       sum in int32; times (sx / (sy · size)); as conv
    average pool         sum of dequantized float32, in order; divided; as quantizing

Sums are exact here because they are done in float64, which holds every int32 and every partial sum.
"""

import itertools
import math
from collections.abc import Callable, Iterator

import numpy as np
import torch

from embedl_deploy.dialect._numbers import LIMITS, Params
from embedl_kernels import Family, Window, can_saturate, conv_to_matrix, is_depthwise, saturation, wrapped

# Ratios of scales beyond which ARM's addition leaves fixed point.
_LEAST_RATIO, _MOST_RATIO = 2.0**-14, 2.0**8
_FLOAT_MAX = np.finfo(np.float32).max


def requantize(total: np.ndarray, scale: np.ndarray, output: Params) -> np.ndarray:
    """Bring int32 sums into a format; `scale` is float32 and broadcasts."""
    real = total.astype(np.float32) * scale
    return saturate(np.rint(real).astype(np.float64) + int(output.zero_point), output)


def saturate(values: np.ndarray, output: Params) -> np.ndarray:
    low, high = LIMITS[output.type]
    return np.asarray(np.clip(values, low, high), output.type)


def combined_scale(first: Params, second: Params, output: Params | None) -> np.ndarray:
    """Multiply the scales of two operands and divide by the output's, each step in float32."""
    scale = np.asarray(first.scale * second.scale, np.float32)
    return scale if output is None else np.asarray(scale / output.scale, np.float32)


def centered(values: np.ndarray, params: Params) -> np.ndarray:
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
    """Add two quantized tensors, as processors with fused multiply-add do, in steps, or in fixed point."""
    ratio_a = np.asarray(a.scale / output.scale, np.float32)
    ratio_b = np.asarray(b.scale / output.scale, np.float32)
    if way == "fixed" and min(ratio_a, ratio_b) >= _LEAST_RATIO and max(ratio_a, ratio_b) < _MOST_RATIO:
        return _add_in_fixed_point(first, a, second, b, output)
    if way == "fixed":
        real = a.scale * centered(first, a).astype(np.float32) + b.scale * centered(second, b).astype(np.float32)
        level = np.asarray(real / output.scale, np.float32) + np.float32(output.zero_point)
    elif way == "steps":
        level = _add_in_steps(first, a, second, b, output)
    else:
        # The runtime's compiler fuses the first product with the sum; doing it the other way round is off by one step
        # in a few values of a million.
        zeros = _fused(np.float64(a.zero_point), ratio_a, np.float32(ratio_b * np.float32(b.zero_point)))
        inner = _fused(second.astype(np.float64), ratio_b, np.float32(np.float32(output.zero_point) - zeros))
        level = _fused(first.astype(np.float64), ratio_a, inner)
    return saturate(np.rint(level).astype(np.float64), output)


def _add_in_steps(first: np.ndarray, a: Params, second: np.ndarray, b: Params, output: Params) -> np.ndarray:
    """Add with every step rounded to float32."""
    ratio_a, ratio_b = np.float32(a.scale / output.scale), np.float32(b.scale / output.scale)
    zeros = np.float32(ratio_a * np.float32(a.zero_point)) + np.float32(ratio_b * np.float32(b.zero_point))
    fixed = np.float32(np.float32(output.zero_point) - np.float32(zeros))
    inner = np.asarray(first.astype(np.float32) * ratio_a + fixed, np.float32)
    return np.asarray(inner + np.asarray(second.astype(np.float32) * ratio_b, np.float32), np.float32)


def _add_in_fixed_point(first: np.ndarray, a: Params, second: np.ndarray, b: Params, output: Params) -> np.ndarray:
    """Add with multipliers of 22 bits; halves are rounded away from zero."""
    ratio_a, ratio_b = np.float32(a.scale / output.scale), np.float32(b.scale / output.scale)
    shift = 21 - (math.frexp(max(ratio_a, ratio_b))[1] - 1)
    times_a, times_b = (int(np.rint(float(ratio) * 2.0**shift)) for ratio in (ratio_a, ratio_b))
    total = times_a * centered(first, a).astype(np.int64) + times_b * centered(second, b).astype(np.int64)
    total = (total - (total < 0) + (1 << (shift - 1))) >> shift
    return saturate(np.clip(total, -32768, 32767).astype(np.float64) + int(output.zero_point), output)


def softmax(values: np.ndarray, params: Params, output: Params, axis: int) -> np.ndarray:
    """Normalize exponentials by a table of float32; the largest value of a row stands at the table's end."""
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


def _fused(factor: np.ndarray | np.float64, scale: np.ndarray, addend: np.ndarray | np.float32) -> np.ndarray:
    """Multiply and add with one rounding; the product of 8 and 24 bits and the sum fit into float64."""
    return np.asarray(factor * scale.astype(np.float64) + np.asarray(addend, np.float64), np.float32)


def multiply(first: np.ndarray, a: Params, second: np.ndarray, b: Params, output: Params) -> np.ndarray:
    product = (centered(first, a) * centered(second, b)).astype(np.float32)
    ratio = np.asarray(np.float32(a.scale * b.scale) / output.scale, np.float32)
    real = np.asarray(product * ratio, np.float32) + np.float32(output.zero_point)
    return saturate(np.rint(real).astype(np.float64), output)


def global_average(values: np.ndarray, params: Params, output: Params) -> np.ndarray:
    axes = tuple(range(2, values.ndim))
    size = math.prod(values.shape[2:])
    scale = np.asarray(params.scale / np.float32(output.scale * np.float32(size)), np.float32)
    return requantize(centered(values, params).sum(axes, keepdims=True), scale, output)


def average(
    values: np.ndarray, params: Params, output: Params, *, kernel: list[int], strides: list[int], pads: list[int],
    include_pad: bool,
) -> np.ndarray:  # fmt: skip
    real = np.asarray(params.scale * centered(values, params).astype(np.float32), np.float32)
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


def product(family: Family, first: np.ndarray, a: Params, second: np.ndarray, b: Params) -> np.ndarray | int:
    """Return what a family's kernel adds to first (…, rows, K) times second (K, columns).

    x86 with AVX2 and without VNNI cuts pairs of neighbors along K off at 16 bits. ARM without dot products adds pairs
    eight apart, which wrap around where both products are -128 times -128; ARM of every kind does so with the taps of a
    depthwise convolution. Everything else adds up exactly.
    """
    if second.ndim != 2:
        # Several matrices at once: each is a product of its own.
        if family.saturates and (a.type, b.type) == ("uint8", "int8"):
            return _stacked(family, first, a, second, b)
        return 0
    rows = first.reshape(-1, first.shape[-1])
    codes = np.ascontiguousarray(second.T)
    change = _change(family, rows, a, codes, b)
    return change if isinstance(change, int) else change.reshape(*first.shape[:-1], -1)


def _stacked(family: Family, first: np.ndarray, a: Params, second: np.ndarray, b: Params) -> np.ndarray:
    shape = np.broadcast_shapes(first.shape[:-2], second.shape[:-2])
    left = np.broadcast_to(first, (*shape, *first.shape[-2:]))
    right = np.broadcast_to(second, (*shape, *second.shape[-2:]))
    result = np.zeros((*shape, first.shape[-2], second.shape[-1]), np.int64)
    for index in np.ndindex(*shape):
        result[index] = _change(family, left[index], a, np.ascontiguousarray(right[index].T), b)
    return result


def _change(family: Family, rows: np.ndarray, a: Params, codes: np.ndarray, b: Params) -> np.ndarray | int:
    if family.saturates and (a.type, b.type) == ("uint8", "int8") and can_saturate(codes).any():
        return saturation(lambda index: rows[:, index], len(rows), codes)
    if family.wraps == "all" and b.type == "int8" and np.any(codes == -128):
        return wrapped(_signed(rows, a), codes)
    return 0


def _signed(values: np.ndarray, params: Params) -> np.ndarray:
    """Return values as the signed kernels see them."""
    shift = LIMITS[params.type][0] + 128
    return np.asarray(values.astype(np.int16) - shift)


def convolution(
    family: Family, values: np.ndarray, x: Params, weight: np.ndarray, w: Params, window: Window
) -> np.ndarray | int:
    depthwise = is_depthwise(weight.shape, window.groups)
    if w.type != "int8" or (x.type, w.type) not in (("uint8", "int8"), ("int8", "int8")):
        return 0
    if depthwise:
        wraps = family.wraps and np.any(weight == -128) and not np.any(w.zero_point) and weight.shape[0] % 8 == 0
        return _depthwise(values, x, weight, window) if wraps else 0
    if family.saturates:
        risky = x.type == "uint8" and can_saturate(conv_to_matrix(weight, window.groups)).any()
        return _by_group(values, x, weight, window, _cut_off) if risky else 0
    packed = x.type == "int8" and not np.any(w.zero_point)
    if family.wraps == "all" and not packed and np.any(weight == -128):
        return _by_group(values, x, weight, window, lambda columns, codes: wrapped(_signed(columns.T, x), codes))
    return 0


def _cut_off(columns: np.ndarray, codes: np.ndarray) -> np.ndarray:
    return saturation(columns.__getitem__, columns.shape[1], codes)


def _padded(values: np.ndarray, x: Params, window: Window) -> np.ndarray:
    """Pad with the zero point: padded places take part in the sums."""
    rank = len(window.kernel)
    sides = [(0, 0), (0, 0), *((window.pads[axis], window.pads[axis + rank]) for axis in range(rank))]
    return np.pad(values, sides, constant_values=int(x.zero_point))


def _taps(padded: np.ndarray, window: Window) -> Iterator[np.ndarray]:
    """Yield the input under each position of the kernel, (batch, channels, places …)."""
    sizes = [
        (size - (length - 1) * dilation - 1) // stride + 1
        for size, length, dilation, stride in zip(
            padded.shape[2:], window.kernel, window.dilations, window.strides, strict=True
        )
    ]
    for position in itertools.product(*(range(length) for length in window.kernel)):
        cut = tuple(
            slice(step * dilation, step * dilation + (count - 1) * stride + 1, stride)
            for step, dilation, count, stride in zip(position, window.dilations, sizes, window.strides, strict=True)
        )
        yield padded[(slice(None), slice(None), *cut)]


def _by_group(
    values: np.ndarray, x: Params, weight: np.ndarray, window: Window, change: Callable[..., np.ndarray]
) -> np.ndarray:
    """Return what changes in the sums of every group, by its inputs (K, rows) and weights (channels, K)."""
    found = []
    inner, outer = weight.shape[1], weight.shape[0] // window.groups
    taps = list(_taps(_padded(values, x, window), window))
    shape = (taps[0].shape[0], *taps[0].shape[2:])
    for group in range(window.groups):
        part = [np.moveaxis(tap[:, group * inner : (group + 1) * inner], 1, 0).reshape(inner, -1) for tap in taps]
        codes = np.moveaxis(weight[group * outer : (group + 1) * outer], 1, -1).reshape(outer, -1)
        found.append(np.moveaxis(change(np.concatenate(part), codes).reshape(*shape, -1), -1, 1))
    return np.concatenate(found, 1)


def _depthwise(values: np.ndarray, x: Params, weight: np.ndarray, window: Window) -> np.ndarray:
    """Sums of pairs of taps that wrapped around."""
    taps = [_signed(tap, x) == -128 for tap in _taps(_padded(values, x, window), window)]
    codes = weight.reshape(weight.shape[0], -1) == -128
    change = np.zeros(taps[0].shape, np.int64)
    for one, other in _tap_pairs(len(taps), weight.shape[0]):
        both = (codes[:, one] & codes[:, other]).reshape(1, -1, *[1] * (change.ndim - 2))
        change -= 65536 * (taps[one] & taps[other] & both)
    return change


def _tap_pairs(count: int, channels: int) -> list[tuple[int, int]]:
    """Return which taps a depthwise kernel for ARM adds in 16 bits: neighbors, but for nine taps of many channels."""
    if count == 9 and channels % 16 == 0:
        return [(0, 2), (1, 3), (4, 6), (5, 7)]
    return [(index, index + 1) for index in range(0, count - 1, 2)]
