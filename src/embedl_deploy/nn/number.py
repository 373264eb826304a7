"""The number formats of a quantized tensor, and the arithmetic that a runtime's QuantizeLinear does.

    q = clip(round_half_even(x / scale) + zero_point, low, high)        x' = (q - zero_point) · scale

The division is a division (not a product with 1/scale) because ONNX says so: one rounding apart is one step apart.
"""

import enum
from dataclasses import dataclass
from typing import Any, TypedDict

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
        return {"int4": 4, "int8": 8, "int16": 16, "fp8": 8}[self.value]


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
    def low(self) -> float:
        """The smallest code (the smallest value for FP8)."""
        if self.precision is Precision.FP8:
            return -FP8_MAX
        return float(-(2 ** (self.precision.bits - 1))) if self.signed else 0.0

    @property
    def high(self) -> float:
        """The largest code (the largest value for FP8)."""
        if self.precision is Precision.FP8:
            return FP8_MAX
        return float(2 ** (self.precision.bits - int(self.signed)) - 1)

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


class _Fake(torch.autograd.Function):
    """Round in the forward pass; straight through in the backward pass, with the learned-step gradient for scales."""

    @staticmethod
    def forward(
        ctx: Any, value: torch.Tensor, scale: torch.Tensor, zero_point: torch.Tensor, form: NumberFormat
    ) -> torch.Tensor:
        ctx.save_for_backward(value, scale, zero_point)
        ctx.form = form
        return quantized_codes(value, scale, zero_point, form) * scale

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """Pass gradients of values inside the range; a scale gets the gradient of learned step size quantization."""
        (grad,) = grads
        value, scale, zero_point = ctx.saved_tensors
        form = ctx.form
        ratio = value / scale
        low, high = form.low - zero_point, form.high - zero_point
        inside = (ratio >= low) & (ratio <= high)
        scale_grad = None
        if ctx.needs_input_grad[1]:
            codes = quantized_codes(value, scale, zero_point, form)
            slope = torch.where(inside, codes - ratio, codes) * grad
            # Without this factor a scale, which every element pulls at, moves far faster than the weights.
            damping = (value.numel() / scale.numel() * form.high) ** -0.5
            scale_grad = slope.sum_to_size(scale.shape) * damping
        return grad * inside, scale_grad, None, None


def _has_one_kernel(value: torch.Tensor, scale: torch.Tensor, form: NumberFormat) -> bool:
    """Say whether torch has one kernel for the step: on a GPU seven of them in a row would be most of a training step.

    It multiplies by 1/scale, so that a value on the edge of a rounding may fall to the other side. Training does not
    mind; eval mode and export never use it. A compiler makes one kernel of ours by itself.
    """
    plain = scale.ndim == 0 and not scale.requires_grad and form.precision is not Precision.FP8
    return value.is_cuda and plain and not torch.compiler.is_compiling()


def fake_quantize(
    value: torch.Tensor, scale: torch.Tensor, zero_point: torch.Tensor, form: NumberFormat
) -> torch.Tensor:
    """Quantize and dequantize; `scale` and `zero_point` broadcast against `value`."""
    if torch.is_grad_enabled() and (value.requires_grad or scale.requires_grad):
        if _has_one_kernel(value, scale, form):
            point = zero_point.to(torch.int32)
            return torch.fake_quantize_per_tensor_affine(value, scale, point, int(form.low), int(form.high))
        result: torch.Tensor = _Fake.apply(value, scale, zero_point, form)  # type: ignore[no-untyped-call]
        return result
    # In place on what was just made: eval mode is bound by memory, not by arithmetic.
    return quantized_codes(value, scale, zero_point, form).mul_(scale)
