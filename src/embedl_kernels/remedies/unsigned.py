"""Unsigned weights: u8 × u8 kernels widen before they add, so nothing saturates; they are slower."""

from __future__ import annotations

import numpy as np

from embedl_kernels._layer import Fitted, Layer, Remedy


def fit(layer: Layer) -> Fitted:
    """Shift the weights by 128; the numbers stay."""
    return Fitted(np.asarray(layer.codes.astype(np.int16) + 128, np.uint8), layer.scale, 128, "uint8")


# 1.40x against 1.91x of float on AVX2, 0.86x against 2.83x with VNNI (ResNet-50).
REMEDY = Remedy("unsigned", "uint8 weights, whose kernels are exact and slower", fit, slowdown=3.3)
