"""The arithmetic of pairs: what a saturating kernel adds up, and which weights no input can saturate.

K runs over the positions of a convolution's kernel and then over the channels of a group, channels innermost; in a
product of matrices over the rows of the weight. Neighbors along K are the pairs that kernels without VNNI add.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any, Callable, List, Sequence, Tuple

import numpy as np

PAIR_LIMIT = 128
"""Largest sum of a pair's positive (or negative) weights: 255 × 128 = 32,640 still fits into 16 bits, 255 × 129 not."""
_LOW, _HIGH = -32768, 32767
_HARMLESS = 255


def pair_sums(codes: np.ndarray) -> Tuple[np.ndarray, np.ndarray]:
    """Return the sums of the positive and of the negative parts of neighbors along the last axis, both as positive."""
    paired = side_by_side(codes.astype(np.int32) if codes.dtype.kind in "iu" else codes)
    return np.maximum(paired, 0).sum(-1), np.maximum(-paired, 0).sum(-1)


def can_saturate(codes: np.ndarray, levels: int = 255) -> np.ndarray:
    """Tell for every pair along the last axis whether some input of 0 to `levels` makes its sum leave 16 bits."""
    up, down = pair_sums(codes)
    return np.asarray((up * levels > _HIGH) | (down * levels > -_LOW))


def saturated_sums(values: np.ndarray, codes: np.ndarray) -> np.ndarray:
    """Return values (rows, K; uint8) times codes (channels, K; int8), each pair of products cut off at 16 bits.

    The result holds integers in float64.
    """
    total = values.astype(np.float64) @ codes.astype(np.float64).T
    return np.asarray(total + saturation(lambda pair: values[:, pair], len(values), codes))


def saturation(column: Callable[[int], np.ndarray], rows: int, codes: np.ndarray) -> np.ndarray:
    """Return what cutting off at 16 bits changes in sums of products, (rows, channels).

    Args:
        column: Returns the uint8 inputs at one place of K, one per row.
        rows: How many rows there are.
        codes: The weights, (channels, K).
    """
    change = np.zeros((rows, len(codes)), np.int64)
    risky = can_saturate(codes)
    paired = side_by_side(codes.astype(np.int32))
    for pair in np.flatnonzero(risky.any(0)).tolist():
        if 2 * pair + 1 >= codes.shape[1]:
            continue
        first, second = column(2 * pair).astype(np.int32), column(2 * pair + 1).astype(np.int32)
        # Below this sum no two weights of 8 bits get out of 16.
        some = np.flatnonzero(first + second > _HARMLESS)
        if not len(some):
            continue
        channels = np.flatnonzero(risky[:, pair])
        sums = np.outer(first[some], paired[channels, pair, 0]) + np.outer(second[some], paired[channels, pair, 1])
        change[np.ix_(some, channels)] += np.clip(sums, _LOW, _HIGH) - sums
    return change


def wrapped(values: np.ndarray, codes: np.ndarray, distance: int = 8) -> np.ndarray:
    """Return what wrapping around at 16 bits changes where two products of -128 and -128 are added, (rows, channels).

    Kernels for ARM processors without dot products add neighbors `distance` apart in blocks of twice that length.
    """
    one, other = _meet(values == -128, distance), _meet(codes == -128, distance)
    return np.asarray(-65536 * (one.astype(np.int64) @ other.T.astype(np.int64)))


def _meet(low: np.ndarray, distance: int) -> np.ndarray:
    """Tell for every pair that is added whether both are the lowest number."""
    length = -(-low.shape[1] // (2 * distance)) * 2 * distance
    padded = np.zeros((len(low), length), bool)
    padded[:, : low.shape[1]] = low
    blocks = padded.reshape(len(low), -1, 2, distance)
    return (blocks[:, :, 0] & blocks[:, :, 1]).reshape(len(low), -1)


def side_by_side(codes: np.ndarray) -> np.ndarray:
    """Return neighbors side by side; an odd one is alone."""
    if codes.shape[-1] % 2:
        codes = np.concatenate([codes, np.zeros_like(codes[..., :1])], -1)
    return codes.reshape(*codes.shape[:-1], -1, 2)


@dataclass(frozen=True)
class Window:
    """How a convolution walks over its input; `pads` has all that come before, then all that come after."""

    kernel: Tuple[int, ...]
    strides: Sequence[int]
    pads: Sequence[int]
    dilations: Sequence[int]
    groups: int


def is_depthwise(shape: Sequence[int], groups: int) -> bool:
    """Tell whether a convolution has one input and one output channel a group: its kernels widen every product."""
    return shape[1] == 1 and shape[0] == groups


def conv_to_matrix(weight: np.ndarray, groups: int, *, whole: bool = False) -> np.ndarray:
    """Return a convolution's weight as (groups, channels, K).

    With `whole`, an odd number of channels is filled up with a zero at every position: some kernels begin a new pair
    there.
    """
    last = np.moveaxis(weight, 1, -1)
    if whole and last.shape[-1] % 2:
        last = np.concatenate([last, np.zeros_like(last[..., :1])], -1)
    return last.reshape(groups, weight.shape[0] // groups, -1)


def matrix_to_conv(matrix: np.ndarray, shape: Sequence[int]) -> np.ndarray:
    """Undo `conv_to_matrix`; channels that were filled up are left behind."""
    found = matrix.reshape(shape[0], *shape[2:], -1)[..., : shape[1]]
    return np.ascontiguousarray(np.moveaxis(found, -1, 1))


def product_to_matrix(weight: np.ndarray, *, transposed: bool = False) -> np.ndarray:
    """Return the weight of a product of matrices, or of several at once, as (matrices, columns, K)."""
    if weight.ndim < 2:
        return weight.reshape(1, 1, -1)
    turned = weight if transposed else np.swapaxes(weight, -1, -2)
    return turned.reshape(-1, *turned.shape[-2:])


def matrix_to_product(matrix: np.ndarray, shape: Sequence[int], *, transposed: bool = False) -> np.ndarray:
    """Undo `product_to_matrix`."""
    if len(shape) < 2 or transposed:
        return matrix.reshape(shape)
    return np.ascontiguousarray(np.swapaxes(matrix.reshape(*shape[:-2], shape[-1], shape[-2]), -1, -2))


def window_pads(
    auto_pad: str, pads: Sequence[int], sizes: Sequence[int], kernel: Sequence[int], strides: Sequence[int],
    dilations: Sequence[int],
) -> List[int]:  # fmt: skip
    """Return the padding of a window operator, before and after each axis, whichever way the file says it."""
    if auto_pad not in ("SAME_UPPER", "SAME_LOWER"):
        return [0] * (2 * len(kernel)) if auto_pad == "VALID" or not pads else list(pads)
    before, after = [], []
    for size, length, stride, dilation in zip(sizes, kernel, strides, dilations):
        total = max((-(-size // stride) - 1) * stride + (length - 1) * dilation + 1 - size, 0)
        small, large = total // 2, total - total // 2
        before.append(small if auto_pad == "SAME_UPPER" else large)
        after.append(large if auto_pad == "SAME_UPPER" else small)
    return before + after


def sample_rows(value: np.ndarray, count: int, random: np.random.Generator) -> np.ndarray:
    """Draw some of the rows that a product of matrices reads, (1, rows, K)."""
    flat = value.reshape(-1, value.shape[-1])
    return flat[random.permutation(len(flat))[:count]][None]


def sample_patches(value: np.ndarray, window: Window, count: int, random: np.random.Generator) -> np.ndarray:
    """Draw what a convolution reads at some places, (groups, rows, K)."""
    rank = len(window.kernel)
    sides = [(window.pads[axis], window.pads[axis + rank]) for axis in range(rank)]
    padded = np.pad(value, [(0, 0), (0, 0), *sides])
    places = [
        max(1, (size - (length - 1) * dilation - 1) // stride + 1)
        for size, length, dilation, stride in zip(padded.shape[2:], window.kernel, window.dilations, window.strides)
    ]
    count = min(count, len(value) * int(np.prod(places)))
    batch = random.integers(0, len(value), count)
    starts = [random.integers(0, size, count) * stride for size, stride in zip(places, window.strides)]
    pieces = []
    for position in itertools.product(*(range(length) for length in window.kernel)):
        corner = [start + step * dilation for start, step, dilation in zip(starts, position, window.dilations)]
        index: Tuple[Any, ...] = (batch, slice(None), *corner)
        pieces.append(padded[index].reshape(count, window.groups, -1))
    return np.stack(pieces, 2).transpose(1, 0, 2, 3).reshape(window.groups, count, -1)
