"""What a remedy is given and what it returns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Callable, Optional

import numpy as np

_TINY = 1e-300
# Rows that a remedy is judged on; it is fitted on all.
_JUDGED = 256


@dataclass(frozen=True)
class Layer:
    """A weighted layer whose kernel adds products in pairs; the last axis runs as the kernel does."""

    weight: np.ndarray  # real weights, (groups, channels, K): before rounding where they are known
    codes: np.ndarray  # the 8-bit integers it has
    scale: np.ndarray  # their scales, (groups, channels)
    # Real inputs of calibration samples, (groups, rows, K), as they are after rounding; None for no data
    inputs: Optional[np.ndarray] = None
    step: float = 0.0  # the step of the input's format
    clippable: bool = False  # whether a Clip can stand before the input is rounded without breaking a kernel apart
    shared: bool = False  # whether all channels must have one scale
    rounded: bool = False  # whether the weights were rounded to the codes before, and nobody knows from what

    def noise(self, real: np.ndarray, levels: int = 255) -> float:
        """Return the power of what a rounded weight and rounded inputs add to the output, per row and channel."""
        error = real - self.weight
        if self.inputs is None:
            weights = float(np.sum(error**2))
        else:
            weights = float(sum(_power(x, e) for x, e in zip(self.inputs, error)))
        step = self.step * 255 / levels
        return (weights + step**2 / 12 * float(np.sum(self.weight**2))) / max(1, real[..., 0].size)

    @property
    def signal(self) -> float:
        """The power of the output, per row and channel."""
        if self.inputs is None:
            return float(np.sum(self.weight**2)) / max(1, self.weight[..., 0].size)
        power = sum(_power(x, w) for x, w in zip(self.inputs, self.weight))
        return float(power) / max(1, self.weight[..., 0].size)

    @property
    def noise_now(self) -> float:
        """The noise with the 8-bit weights it has."""
        found = self.noise(self.codes * self.scale[..., None])
        if not self.rounded:
            return found
        # What was lost in the first rounding is not in the weights any more; on the average it is this.
        size = self.weight.shape[-1]
        power = 1.0 if self.inputs is None else float(np.mean(np.square(self.inputs, dtype=np.float64)))
        return float(found + np.mean(self.scale**2) / 12 * size * power)


@dataclass(frozen=True)
class Fitted:
    """A layer's weights by one remedy."""

    codes: Optional[np.ndarray]  # the integers, (groups, channels, K); None for a layer in float
    scale: np.ndarray  # their scales, (groups, channels)
    zero_point: int = 0
    kind: str = "int8"  # ``int8``, ``uint8`` or ``float``
    levels: int = 255  # the largest integer an input may have: 255, or less behind a Clip

    @property
    def real(self) -> np.ndarray:
        """The weights as real numbers."""
        assert self.codes is not None  # noqa: S101 - a float layer is not asked
        return np.asarray((self.codes.astype(np.float64) - self.zero_point) * self.scale[..., None])


@dataclass(frozen=True)
class Remedy:
    """A way to weights that no input can saturate."""

    name: str  # one word, for the report
    title: str  # what it does, for people
    fit: Callable[[Layer], Optional[Fitted]]  # returns the layer's weights, or None where it does not apply
    # How many times longer the layer takes than with full-speed kernels, on the family that it hurts most
    slowdown: float = 1.0


def _power(inputs: np.ndarray, weight: np.ndarray) -> float:
    """Return the mean power of a product; float32 does for that, and takes half the time."""
    some = inputs[:_JUDGED].astype(np.float32)
    made = some @ weight.T.astype(np.float32)
    return float(np.vdot(made, made)) / max(1, len(some))


def decibels(noise: float, reference: float) -> float:
    """Return by how many decibels noise is above a reference."""
    return float(10 * np.log10(max(noise, _TINY) / max(reference, _TINY)))
