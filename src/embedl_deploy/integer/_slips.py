"""By how much the sums of a processor's kernels are off: pairs that saturate, products that wrap around.

x86 with AVX2 and without VNNI: uint8 times int8 in pairs of neighbours along K, cut off at 16 bits; a depthwise
convolution is exact. ARM without dot products: pairs eight apart, which wrap around where both products are -128 times
-128; ARM of every kind: the taps of a depthwise convolution likewise. Everything else adds up exactly.
"""

import itertools
from collections.abc import Iterator

import numpy as np

from embedl_deploy.dialect._numbers import LIMITS, Params
from embedl_kernels import Family, Window, can_saturate, conv_to_matrix, is_depthwise, saturation, wrapped


def product(family: Family, first: np.ndarray, a: Params, second: np.ndarray, b: Params) -> np.ndarray | int:
    """Return what a family's kernel adds to first (…, rows, K) times second (K, columns)."""
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
    for at in np.ndindex(*shape):
        result[at] = _change(family, left[at], a, np.ascontiguousarray(right[at].T), b)
    return result


def _change(family: Family, rows: np.ndarray, a: Params, codes: np.ndarray, b: Params) -> np.ndarray | int:
    if family.saturates and (a.type, b.type) == ("uint8", "int8") and can_saturate(codes).any():
        return saturation(lambda at: rows[:, at], len(rows), codes)
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
    """Return what a family's kernel adds to a convolution."""
    depthwise = is_depthwise(weight.shape, window.groups)
    if w.type != "int8" or (x.type, w.type) not in (("uint8", "int8"), ("int8", "int8")):
        return 0
    if depthwise:
        wraps = family.wraps and np.any(weight == -128) and not np.any(w.zero_point) and weight.shape[0] % 8 == 0
        return _depthwise(values, x, weight, window) if wraps else 0
    if family.saturates:
        return _paired(values, x, weight, window) if x.type == "uint8" else 0
    packed = x.type == "int8" and not np.any(w.zero_point)
    if family.wraps == "all" and not packed and np.any(weight == -128):
        return _unfolded(values, x, weight, window)
    return 0


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
    values: np.ndarray, x: Params, weight: np.ndarray, window: Window
) -> Iterator[tuple[np.ndarray, np.ndarray, tuple[int, ...]]]:
    """Yield for every group its inputs (K, rows) and weights (channels, K), kernel positions first, and their shape."""
    inner, outer = weight.shape[1], weight.shape[0] // window.groups
    taps = list(_taps(_padded(values, x, window), window))
    shape = (taps[0].shape[0], *taps[0].shape[2:])
    for group in range(window.groups):
        part = [np.moveaxis(tap[:, group * inner : (group + 1) * inner], 1, 0).reshape(inner, -1) for tap in taps]
        codes = np.moveaxis(weight[group * outer : (group + 1) * outer], 1, -1).reshape(outer, -1)
        yield np.concatenate(part), codes, shape


def _paired(values: np.ndarray, x: Params, weight: np.ndarray, window: Window) -> np.ndarray | int:
    """Sums in pairs along K that were cut off."""
    if not can_saturate(conv_to_matrix(weight, window.groups)).any():
        return 0
    found = []
    for columns, codes, shape in _by_group(values, x, weight, window):
        change = saturation(columns.__getitem__, columns.shape[1], codes)
        found.append(np.moveaxis(change.reshape(*shape, -1), -1, 1))
    return np.concatenate(found, 1)


def _unfolded(values: np.ndarray, x: Params, weight: np.ndarray, window: Window) -> np.ndarray:
    """Sums of blocks along K that wrapped around."""
    found = []
    for columns, codes, shape in _by_group(values, x, weight, window):
        change = wrapped(_signed(columns.T, x), codes)
        found.append(np.moveaxis(change.reshape(*shape, -1), -1, 1))
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
    """Return which taps a depthwise kernel for ARM adds in 16 bits: neighbours, but for nine taps of many channels."""
    if count == 9 and channels % 16 == 0:
        return [(0, 2), (1, 3), (4, 6), (5, 7)]
    return [(at, at + 1) for at in range(0, count - 1, 2)]
