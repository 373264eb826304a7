"""The arithmetic of pairs: what a saturating kernel adds up, and which weights no input can saturate."""

from __future__ import annotations

from typing import Tuple

import numpy as np

PAIR_LIMIT = 128
"""Largest sum of a pair's positive (or negative) weights: 255 × 128 = 32,640 still fits into 16 bits, 255 × 129 not."""
_LOW, _HIGH = -32768, 32767
# Products of one step; a whole layer at once would need gigabytes.
_CHUNK = 1 << 22


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

    The sums of pairs that cannot saturate are left to one exact product of matrices; the others are looked at one by
    one. The result holds integers in float64.
    """
    left, right = values.astype(np.float64), codes.astype(np.float64)
    total = left @ right.T
    risky = np.flatnonzero(can_saturate(codes).any(0))
    step = max(1, _CHUNK // max(1, len(values) * len(codes)))
    x, w = _paired(values.astype(np.int32)), _paired(codes.astype(np.int32))
    for start in range(0, len(risky), step):
        some = risky[start : start + step]
        sums = np.einsum("rpt,cpt->prc", x[:, some], w[:, some])
        total += (np.clip(sums, _LOW, _HIGH) - sums).sum(0)
    return np.asarray(total)


def _paired(codes: np.ndarray) -> np.ndarray:
    """Return neighbours side by side; an odd one is alone."""
    if codes.shape[-1] % 2:
        codes = np.concatenate([codes, np.zeros_like(codes[..., :1])], -1)
    return codes.reshape(*codes.shape[:-1], -1, 2)
