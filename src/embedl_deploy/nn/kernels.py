"""What a runtime's integer kernels compute, to the last bit, on floats that hold integers.

    conv, linear     sum of code products, and the bias rounded to the same grid; times (sx · sw / sy); rounded
    add              a·(sa/sc) + (b·(sb/sc) + fixed part), each step a fused multiply-add in float32; rounded
    multiply         product of codes; times (sa · sb / sc), plus the zero point; rounded
    global average   sum of codes; times sx / (sy · size); rounded

The step in between matters: a float sum of dequantized values is a rounding error away from the integer sum, and where
that error decides between two codes, the layers behind make a visible difference of it. Integers below 2^24 add up
exactly in float32 in any order, so a float kernel serves as long as no partial sum can reach that; float64 otherwise.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from embedl_deploy.nn.number import NumberFormat

EXACT = 2.0**24
Layer = Callable[[torch.Tensor, torch.Tensor, torch.Tensor | None], torch.Tensor]


@dataclass(frozen=True)
class Scale:
    """Scale and zero point of a value, both in float32 and without gradient."""

    scale: torch.Tensor
    zero_point: torch.Tensor

    def codes(self, value: torch.Tensor) -> torch.Tensor:
        """Return the codes minus the zero point of a value that was quantized with this scale."""
        return torch.mul(value, 1 / self.scale).round_()


def requantize(total: torch.Tensor, factor: torch.Tensor, output: Scale) -> torch.Tensor:
    """Bring sums onto the grid of an output; what lies outside its range is cut off by the stub that follows."""
    return total.mul_(factor).round_().mul_(output.scale)


def largest_sum(weight: torch.Tensor, form: NumberFormat, zero_point: torch.Tensor) -> float:
    """Return what no partial sum of a layer with these weight codes exceeds, whatever the order of the products.

    Sums of positive and of negative products bound every partial sum.
    """
    if weight.is_cuda or torch.compiler.is_compiling():
        return 0.0  # a GPU's kernels choose how they sum, and asking would stop the stream
    flat = weight.flatten(1)
    up, down = flat.clamp(min=0).sum(1), flat.clamp(max=0).sum(1)
    low, high = form.low - zero_point, form.high - zero_point
    return float(torch.maximum(up * high + down * low, -up * low - down * high).max())


def sums(
    values: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, bound: float, layer: Layer
) -> torch.Tensor:
    """Run a layer on codes, exactly: in float32 where its sums stay below 2^24, else in float64."""
    most = 0.0 if bias is None or not bound else float(bias.abs().max())
    if bound + most < EXACT:
        return layer(values, weight, bias)
    wide = None if bias is None else bias.double()
    return layer(values.double(), weight.double(), wide).float()


def add(one: torch.Tensor, a: Scale, other: torch.Tensor, b: Scale, output: Scale) -> torch.Tensor:
    """Add two quantized values."""
    ratio_a, ratio_b = a.scale / output.scale, b.scale / output.scale
    fixed = output.zero_point - _fused(a.zero_point, ratio_a, ratio_b * b.zero_point)
    inner = _fused(b.codes(other) + b.zero_point, ratio_b, fixed)
    codes = _fused(a.codes(one) + a.zero_point, ratio_a, inner).round_()
    return codes.sub_(output.zero_point).mul_(output.scale)


def _fused(factor: torch.Tensor, scale: torch.Tensor, addend: torch.Tensor) -> torch.Tensor:
    """Multiply and add with one rounding: the product of 8 and 24 bits and the sum fit into float64."""
    return torch.addcmul(addend.double(), factor.double(), scale.double()).float()


def multiply(one: torch.Tensor, a: Scale, other: torch.Tensor, b: Scale, output: Scale) -> torch.Tensor:
    """Multiply two quantized values."""
    ratio = a.scale * b.scale / output.scale
    codes = (a.codes(one) * b.codes(other)).mul_(ratio).add_(output.zero_point).round_()
    return codes.sub_(output.zero_point).mul_(output.scale)


def global_average(value: torch.Tensor, given: Scale, output: Scale) -> torch.Tensor:
    """Average over everything behind batch and channel."""
    rest = list(range(2, value.ndim))
    size = math.prod(value.shape[2:])
    factor = given.scale / (output.scale * size)
    return requantize(given.codes(value).double().sum(rest, keepdim=True).float(), factor, output)


class _Stand(torch.autograd.Function):
    """Give the second value and the first one's gradient."""

    @staticmethod
    def forward(_ctx: Any, _smooth: torch.Tensor, exact: torch.Tensor) -> torch.Tensor:
        # A copy, not a view: what follows may be an activation that works in place.
        return exact.clone()

    @staticmethod
    def backward(_ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None]:
        return grads[0], None


def stand_in(smooth: torch.Tensor, exact: torch.Tensor) -> torch.Tensor:
    """Return the exact value with the gradient of the one it stands for."""
    result: torch.Tensor = _Stand.apply(smooth, exact)  # type: ignore[no-untyped-call]
    return result
