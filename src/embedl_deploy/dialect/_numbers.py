"""Number formats: what integers a type has, and the same real numbers in another type.

``real = (integer - zero_point) * scale``. Going from int8 to uint8 shifts integers and zero point by 128 and leaves the
scale alone, bit for bit; only a zero point that the target cannot have costs a new scale.
"""

from dataclasses import dataclass, replace
from typing import Any

import ml_dtypes
import numpy as np

LIMITS = {f"int{bits}": (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) for bits in (4, 8, 16, 32)}
LIMITS |= {f"uint{bits}": (0, 2**bits - 1) for bits in (4, 8, 16)}
FP8_MAX = 448.0
DTYPES: dict[str, np.dtype[Any]] = {name: np.dtype(getattr(ml_dtypes, name, name)) for name in LIMITS}
DTYPES["float8e4m3fn"] = np.dtype(ml_dtypes.float8_e4m3fn)
_SIGNED = {"uint8": "int8", "uint16": "int16", "uint4": "int4"}
_UNSIGNED = {signed: unsigned for unsigned, signed in _SIGNED.items()}


@dataclass(frozen=True)
class Params:
    """How a tensor is quantized."""

    scale: np.ndarray  # float32; no dimension, one per channel, or one per block.
    zero_point: np.ndarray  # Of the scale's shape; zeros for float8.
    type: str  # Name of the integer type, or float8e4m3fn.
    axis: int | None = None  # Where channels or blocks lie, None for one scale.
    block: int = 0  # Length of a block, 0 for none.

    def same(self, other: "Params") -> bool:
        """Tell whether two quantize alike, bit for bit."""
        return (
            (self.type, self.axis, self.block) == (other.type, other.axis, other.block)
            and np.array_equal(self.scale, other.scale)
            and np.array_equal(self.zero_point, other.zero_point)
        )

    def repeats(self, other: "Params") -> bool:
        """Tell whether this has a scale per channel, each of them the other's one scale."""
        by_channel = self.axis is not None and not self.block and other.axis is None
        alike = np.all(self.scale == other.scale) and np.all(self.zero_point == other.zero_point)
        return by_channel and self.type == other.type and bool(alike)

    def repeated(self, size: int) -> "Params":
        return replace(self, scale=np.full(size, self.scale), zero_point=np.full(size, self.zero_point), axis=0)

    @property
    def bounds(self) -> tuple[float, float]:
        """The smallest and largest real number that a per-tensor format can tell."""
        scale, zero = float(self.scale), int(self.zero_point)
        if self.type not in LIMITS:
            return -FP8_MAX * scale, FP8_MAX * scale
        low, high = LIMITS[self.type]
        return (low - zero) * scale, (high - zero) * scale

    def spread(self, shape: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
        """Return scale and zero point in a shape that broadcasts over a tensor of the given shape."""
        if self.axis is None:
            return self.scale, self.zero_point
        if self.block:
            scale = np.repeat(self.scale, self.block, self.axis)
            zero = np.repeat(self.zero_point, self.block, self.axis)
            cut = tuple(slice(0, size) for size in shape)
            return scale[cut], zero[cut]
        places = [-1 if axis == self.axis else 1 for axis in range(len(shape))]
        return self.scale.reshape(places), self.zero_point.reshape(places)

    def quantize(self, values: np.ndarray) -> np.ndarray:
        """Round real numbers, half to even."""
        scale, zero = self.spread(values.shape)
        safe = np.where(scale == 0, np.float32(1), scale)
        ratio = values.astype(np.float32) / safe
        if self.type not in LIMITS:
            return np.asarray(np.clip(ratio, -FP8_MAX, FP8_MAX), DTYPES[self.type])
        low, high = LIMITS[self.type]
        whole = np.clip(np.rint(ratio).astype(np.float64) + zero, low, high)
        return np.asarray(whole, DTYPES[self.type])

    def dequantize(self, values: np.ndarray) -> np.ndarray:
        scale, zero = self.spread(values.shape)
        if self.type not in LIMITS:
            return np.asarray(values.astype(np.float32) * scale, np.float32)
        wide = values.astype(np.int64) - zero.astype(np.int64)
        return np.asarray(wide.astype(np.float32) * scale, np.float32)


def per_tensor(scale: float, zero_point: int, kind: str) -> Params:
    return Params(np.asarray(scale, np.float32), np.asarray(zero_point, np.int64), kind)


def for_range(low: float, high: float, kind: str, *, zero_point: bool) -> Params:
    """Choose a format for an observed range; 0 stays exact, and an empty range gets a scale of 1."""
    low, high = min(low, 0.0), max(high, 0.0)
    if kind not in LIMITS:
        return per_tensor(max(-low, high) / FP8_MAX or 1.0, 0, kind)
    least, most = LIMITS[kind]
    scale = (high - low) / (most - least) if zero_point else max(-low, high) / most
    if scale < float(np.finfo(np.float32).tiny):
        scale = 1.0
    return per_tensor(scale, int(np.clip(np.rint(least - low / scale), least, most)) if zero_point else 0, kind)


def change_sign(params: Params, kind: str) -> Params:
    """Shift between the signed and the unsigned type of one width; the scale stays."""
    if params.type == kind:
        return params
    shift = LIMITS[kind][0] - LIMITS[params.type][0]
    return replace(params, zero_point=params.zero_point + shift, type=kind)


def counterpart(kind: str, *, signed: bool) -> str:
    return (_SIGNED if signed else _UNSIGNED).get(kind, kind)


def without_zero_point(params: Params) -> Params:
    """Make an activation symmetric around 0 in its signed type.

    A zero point in the middle (uint8 128) goes by shifting; any other costs a new scale, with the range kept.
    """
    signed = change_sign(params, counterpart(params.type, signed=True)) if params.type in LIMITS else params
    if not np.any(signed.zero_point):
        return signed
    return for_range(*signed.bounds, signed.type, zero_point=False)


def with_zero_at_minimum(params: Params) -> Params:
    """Put the zero point of a range that starts at 0 at the type's minimum; the scale stays."""
    return replace(params, zero_point=np.asarray(LIMITS[params.type][0], np.int64))
