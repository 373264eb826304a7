"""The number formats of a quantized tensor, and the arithmetic that a runtime's QuantizeLinear does.

    q = clip(round_half_even(x / scale) + zero_point, low, high)        x' = (q - zero_point) · scale

The division is a division (not a product with 1/scale) because ONNX says so: one rounding apart is one step apart.
"""

import enum
from dataclasses import dataclass
from typing import NamedTuple, TypedDict

import torch

FP8_MAX = 448.0


class Precision(enum.Enum):
    """How many bits a quantized value has; FP8 is E4M3."""

    INT4 = "int4"
    INT8 = "int8"
    INT16 = "int16"
    FP8 = "fp8"

    @property
    def bits(self) -> int:
        """The width of one value."""
        return _BITS[self.value]


_BITS = {"int4": 4, "int8": 8, "int16": 16, "fp8": 8}


def _borders(name: str, signed: bool) -> tuple[float, float]:
    if name == "fp8":
        return -FP8_MAX, FP8_MAX
    bits = _BITS[name]
    return float(-(2 ** (bits - 1))) if signed else 0.0, float(2 ** (bits - int(signed)) - 1)


# A table: they are asked for at every rounding of a training step.
_BORDERS = {(name, signed): _borders(name, signed) for name in _BITS for signed in (True, False)}


class FormatState(TypedDict):
    """A number format as plain data for a file."""

    precision: str
    signed: bool


@dataclass(frozen=True)
class NumberFormat:
    """A precision with or without sign; signed formats have the zero point 0, as every target's symmetric mode has."""

    precision: Precision = Precision.INT8
    signed: bool = True

    @property
    def borders(self) -> tuple[float, float]:
        """The smallest and the largest code."""
        return _BORDERS[self.precision.value, self.signed]

    @property
    def low(self) -> float:
        """The smallest code (the smallest value for FP8)."""
        return _BORDERS[self.precision.value, self.signed][0]

    @property
    def high(self) -> float:
        """The largest code (the largest value for FP8)."""
        return _BORDERS[self.precision.value, self.signed][1]

    @property
    def is_fp8(self) -> bool:
        """Whether codes are floating-point numbers."""
        return self.precision is Precision.FP8

    def to_state(self) -> FormatState:
        """Return plain data for a file."""
        return {"precision": self.precision.value, "signed": self.signed}

    @classmethod
    def from_state(cls, state: FormatState) -> "NumberFormat":
        """Read plain data of a file."""
        return cls(Precision(state["precision"]), state["signed"])

    @property
    def name(self) -> str:
        """The ONNX name of the type."""
        if self.precision is Precision.FP8:
            return "float8e4m3fn"
        return self.precision.value if self.signed else f"u{self.precision.value}"


class PlainFormat(NamedTuple):
    """What rounding wants to know of a number format, in plain numbers."""

    low: float
    high: float
    is_fp8: bool


def quantized_codes(
    value: torch.Tensor, scale: torch.Tensor, zero_point: torch.Tensor, form: NumberFormat
) -> torch.Tensor:
    """Return codes minus the zero point, as floats: what is left to do is the product with the scale."""
    if form.precision is Precision.FP8:
        clipped = (value / scale).clamp(form.low, form.high)
        return clipped.to(torch.float8_e4m3fn).to(value.dtype)
    rounded = torch.div(value, scale).round_()
    if form.signed:
        return rounded.clamp_(form.low, form.high)
    return rounded.clamp_(form.low - zero_point, form.high - zero_point)
