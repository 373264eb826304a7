"""The scales stay; the pairs that are over the limit are clipped. Pays where they are few."""

from __future__ import annotations

import numpy as np

from embedl_kernels._layer import Fitted, Layer, Remedy
from embedl_kernels.remedies.scaled import project


def fit(layer: Layer) -> Fitted:
    """Clip the pairs that can saturate."""
    return Fitted(project(np.maximum(layer.codes, -127)), layer.scale)


REMEDY = Remedy("clipped", "scales stay, pairs that can saturate are clipped", fit)
