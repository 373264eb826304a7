"""Fewer levels of the input: 127 × (127 + 127) fits into 16 bits, so the weights keep all of theirs.

The input must not be able to exceed its levels, so a Clip stands before it is rounded: only where a float operator
makes it, since a Clip would break an integer kernel apart.
"""

from __future__ import annotations

from typing import Optional

from embedl_kernels._layer import Fitted, Layer, Remedy
from embedl_kernels._pairs import can_saturate

LEVELS = (223, 191, 159, 127)


def fit(layer: Layer) -> Optional[Fitted]:
    """Keep the weights and take the most levels at which none of their pairs can saturate."""
    if not layer.clippable:
        return None
    for levels in LEVELS:
        if not can_saturate(layer.codes, levels).any():
            return Fitted(layer.codes, layer.scale, levels=levels)
    return None


# The Clip is one more pass over the input.
REMEDY = Remedy("reduced-inputs", "7-bit inputs behind a Clip, all bits of the weights", fit, slowdown=1.05)
