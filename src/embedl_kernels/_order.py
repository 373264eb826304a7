"""The order in which kernels run through a weight, and samples of what they multiply it by, in that order.

K runs over the positions of a convolution's kernel and then over the channels of a group, channels innermost; in a
product of matrices over the rows of the weight. Neighbours along K are the pairs that kernels without VNNI add.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any, List, Sequence, Tuple

import numpy as np


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
        at = [start + step * dilation for start, step, dilation in zip(starts, position, window.dilations)]
        index: Tuple[Any, ...] = (batch, slice(None), *at)
        pieces.append(padded[index].reshape(count, window.groups, -1))
    return np.stack(pieces, 2).transpose(1, 0, 2, 3).reshape(window.groups, count, -1)
