"""The arithmetic of pairs: what a saturating kernel adds up, and which weights no input can saturate."""

from __future__ import annotations

from typing import Callable, Tuple

import numpy as np

PAIR_LIMIT = 128
"""Largest sum of a pair's positive (or negative) weights: 255 × 128 = 32,640 still fits into 16 bits, 255 × 129 not."""
_LOW, _HIGH = -32768, 32767
_HARMLESS = 255


def pair_sums(codes: np.ndarray) -> Tuple[np.ndarray, np.ndarray]:
    """Return the sums of the positive and of the negative parts of neighbours along the last axis, both as positive."""
    paired = _paired(codes.astype(np.int32))
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
    return np.asarray(total + saturation(lambda at: values[:, at], len(values), codes))


def saturation(column: Callable[[int], np.ndarray], rows: int, codes: np.ndarray) -> np.ndarray:
    """Return what cutting off at 16 bits changes in sums of products, (rows, channels).

    Args:
        column: Returns the uint8 inputs at one place of K, one per row.
        rows: How many rows there are.
        codes: The weights, (channels, K).
    """
    change = np.zeros((rows, len(codes)), np.int64)
    risky = can_saturate(codes)
    paired = _paired(codes.astype(np.int32))
    for at in np.flatnonzero(risky.any(0)).tolist():
        if 2 * at + 1 >= codes.shape[1]:
            continue
        first, second = column(2 * at).astype(np.int32), column(2 * at + 1).astype(np.int32)
        # Below this sum no two weights of 8 bits get out of 16.
        some = np.flatnonzero(first + second > _HARMLESS)
        if not len(some):
            continue
        channels = np.flatnonzero(risky[:, at])
        sums = np.outer(first[some], paired[channels, at, 0]) + np.outer(second[some], paired[channels, at, 1])
        change[np.ix_(some, channels)] += np.clip(sums, _LOW, _HIGH) - sums
    return change


def wrapped(values: np.ndarray, codes: np.ndarray, distance: int = 8) -> np.ndarray:
    """Return what wrapping around at 16 bits changes where two products of -128 and -128 are added, (rows, channels).

    Kernels for ARM processors without dot products add neighbours `distance` apart in blocks of twice that length.
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


def _paired(codes: np.ndarray) -> np.ndarray:
    """Return neighbours side by side; an odd one is alone."""
    if codes.shape[-1] % 2:
        codes = np.concatenate([codes, np.zeros_like(codes[..., :1])], -1)
    return codes.reshape(*codes.shape[:-1], -1, 2)
