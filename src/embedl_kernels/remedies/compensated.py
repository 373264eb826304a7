"""Larger scales, and what one weight's rounding costs is made good by those after it, on calibration data.

The step-by-step rounding with error feedback that is known as optimal brain quantization: with H the second moments of
the inputs, the error of a rounded column is spread over the columns that are still real so that the output changes
least. Columns are treated in blocks, between which errors are not passed on: the cost is then linear in K.
"""

from __future__ import annotations

from typing import Optional

import numpy as np

from embedl_kernels._layer import Fitted, Layer, Remedy
from embedl_kernels._pairs import PAIR_LIMIT
from embedl_kernels.remedies.scaled import safe_scale

_BLOCK = 512
# Columns after which errors are passed on at once, as one product of matrices.
_STRIDE = 32
# Share of the mean second moment that is added to each: inputs that are always zero must not blow up.
_DAMPING = 0.01


def fit(layer: Layer) -> Optional[Fitted]:
    """Round with safe scales and feedback."""
    if layer.inputs is None or layer.weight.shape[-1] < 2:
        return None
    scale = safe_scale(layer)
    codes = np.empty(layer.weight.shape, np.int8)
    for group, (weight, inputs) in enumerate(zip(layer.weight, layer.inputs)):
        for start in range(0, weight.shape[1], _BLOCK):
            part = slice(start, start + _BLOCK)
            codes[group][:, part] = _block(weight[:, part], inputs[:, part], scale[group])
    return Fitted(codes, scale)


def _block(weight: np.ndarray, inputs: np.ndarray, scale: np.ndarray) -> np.ndarray:
    size = weight.shape[1]
    moments = (inputs.T @ inputs).astype(np.float64) / max(1, len(inputs))
    moments[np.diag_indices(size)] += _DAMPING * max(float(np.trace(moments)) / size, 1e-12)
    # The upper factor of the inverse holds, row by row, how an error is best spread over what comes after.
    spread = np.linalg.cholesky(np.linalg.inv(moments)).T
    # In steps of the scale, so that limits are whole numbers; columns as rows, so that each is contiguous.
    left = np.ascontiguousarray((weight / scale[:, None]).T)
    codes = np.zeros(left.shape, np.float64)
    for start in range(0, size, _STRIDE):
        end = min(start + _STRIDE, size)
        errors = np.empty((end - start, left.shape[1]))
        for column in range(start, end):
            codes[column] = _limited(np.rint(left[column]), codes[column - 1] if column % 2 else None)
            errors[column - start] = (left[column] - codes[column]) / spread[column, column]
            left[column + 1 : end] -= spread[column, column + 1 : end, None] * errors[column - start]
        left[end:] -= spread[start:end, end:].T @ errors
    return np.asarray(codes.T, np.int8)


def _limited(wanted: np.ndarray, before: Optional[np.ndarray]) -> np.ndarray:
    """Keep integers where neither they nor the pair that they close can saturate."""
    if before is None:
        return np.asarray(np.clip(wanted, -127, 127))
    high = np.minimum(127, PAIR_LIMIT - np.maximum(before, 0))
    low = np.maximum(-127, np.maximum(-before, 0) - PAIR_LIMIT)
    return np.asarray(np.clip(wanted, low, high))


REMEDY = Remedy("compensated", "larger scales, and rounding errors made good by the weights that follow", fit)
