"""Larger scales: the channel's weights are rounded from the real ones with a step at which no pair can saturate."""

from __future__ import annotations

import numpy as np

from embedl_kernels._layer import Fitted, Layer, Remedy
from embedl_kernels._pairs import PAIR_LIMIT, can_saturate, pair_sums, side_by_side

# How much wider the step gets when rounding pushed a pair over the limit.
_STEP = 1.003
_ROUNDS = 20


def safe_scale(layer: Layer) -> np.ndarray:
    """Return the smallest scales, per channel, at which no pair of rounded weights can saturate."""
    weight = layer.weight
    up, down = pair_sums(weight)
    scale = np.maximum(np.maximum(up, down).max(-1) / (PAIR_LIMIT + 1), np.abs(weight).max(-1) / 127)
    scale = np.where(scale > 0, scale, layer.scale)
    if layer.shared:
        scale = np.full_like(scale, scale.max())
    bad = np.ones(scale.shape, bool)
    for _ in range(_ROUNDS):
        bad[bad] = can_saturate(rounded(weight[bad], scale[bad])).any(-1)
        if not bad.any():
            break
        if layer.shared:
            bad[...] = True
        scale[bad] *= _STEP
    # What is left over, if anything, is clipped.
    return np.asarray(scale.astype(np.float32), np.float64)


def rounded(weight: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """Round to the nearest integer of 8 bits."""
    return np.asarray(np.clip(np.rint(weight / scale[..., None]), -127, 127), np.int8)


def project(codes: np.ndarray) -> np.ndarray:
    """Bring the few pairs that are over the limit under it, each member by half of what is too much."""
    paired = side_by_side(codes.astype(np.int32))
    for sign in (1, -1):
        part = np.maximum(paired * sign, 0)
        excess = np.maximum(part.sum(-1) - PAIR_LIMIT, 0)
        first = np.minimum(excess - excess // 2, part[..., 0])
        paired = paired - sign * np.stack([first, excess - first], -1)
    return np.asarray(paired.reshape(*codes.shape[:-1], -1)[..., : codes.shape[-1]], np.int8)


def fit(layer: Layer) -> Fitted:
    """Round with safe scales."""
    scale = safe_scale(layer)
    codes = project(rounded(layer.weight, scale))
    up, down = pair_sums(codes)
    assert max(up.max(), down.max()) <= PAIR_LIMIT  # noqa: S101 - what the whole package is about
    return Fitted(codes, scale)


REMEDY = Remedy("scaled", "larger scales, so that no pair of weights can saturate", fit)
