"""The seam between a fused module and quantization: the module says itself what of it is quantized.

`quantize` puts quantized layers in the place of members; `attach_stubs` is told the stubs around the module; the rest
answers who makes and who reads channels, for corrections that even them out. Every answer has a default.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import nn

from embedl_deploy.nn.kernels import Scale
from embedl_deploy.nn.number import NumberFormat, Precision
from embedl_deploy.nn.quantized import (
    QuantizedAttention,
    QuantizedConv,
    QuantizedElementwise,
    QuantizedLayer,
    QuantizedLinear,
)
from embedl_deploy.nn.quantizers import Grid, QuantStub, WeightQuantizer
from embedl_deploy.pattern import Point

NO_INPUTS = slice(0)
ALL_INPUTS = slice(None)


@dataclass(frozen=True)
class QuantSpec:
    """How one layer is to be quantized, and the parts to do it with."""

    place: str
    points: tuple[Point, ...]  # where its pattern wants Q/DQ
    activation: NumberFormat  # the number format of values
    precision: Precision = Precision.INT8  # of weights
    per_channel: bool = True  # weights have a scale per output channel
    block_size: int = 0  # inputs of a fully connected layer that share a scale of INT4 weights; 0 for whole channels

    def stub(self, name: str, *, quantizes: bool) -> QuantStub:
        """Make a stub for a value inside the layer."""
        return QuantStub(f"{self.place}.{name}", self.activation, quantizes=quantizes)

    def conv(self, conv: nn.Module, bn: nn.Module | None = None, output: QuantStub | None = None) -> QuantizedConv:
        """Put a convolution, its batch norm folded in, on quantized weights where the pattern wants it."""
        if isinstance(conv, QuantizedConv):
            return conv
        # A transposed convolution gets one scale for its weight, which every target accepts.
        transposed = isinstance(conv, nn.ConvTranspose1d | nn.ConvTranspose2d | nn.ConvTranspose3d)
        axis = 0 if self.per_channel and not transposed else None
        return QuantizedConv(conv, bn, self._weight(axis), output)

    def linear(self, linear: nn.Module, output: QuantStub | None = None) -> nn.Module:
        """Put a fully connected layer on quantized weights where the pattern wants it, with a stub right behind it."""
        if isinstance(linear, QuantizedLinear) or (Point.WEIGHT not in self.points and output is None):
            return linear
        width: Any = linear.in_features
        fits = self.precision is Precision.INT4 and self.block_size and width % self.block_size == 0
        weight = self._weight(0 if self.per_channel else None, self.block_size if fits else 0)
        return QuantizedLinear(linear, weight, output)

    def attention(self, attention: nn.Module) -> nn.Module:
        """Put pairs before the matrix products of an attention where the pattern wants it."""
        if isinstance(attention, QuantizedAttention) or Point.PRODUCT not in self.points:
            return attention
        return QuantizedAttention(attention, self.activation, self.place)

    def _weight(self, axis: int | None, block: int = 0) -> WeightQuantizer | None:
        return WeightQuantizer(NumberFormat(self.precision), axis, block) if Point.WEIGHT in self.points else None


class QuantizableModule(nn.Module):
    """A layer that says itself what of it is quantized; base of every fused module, ours and yours.

    Attributes:
        is_one_step: Tracing does not look into it.
        watched: Values whose ranges are kept for other targets, even where this one does not quantize them.
        normalizes: It is a normalization, into whose readers outliers may be smoothed.
        passed_inputs: The inputs whose channels its result has too, as those of a sum; `NO_INPUTS`, `ALL_INPUTS`, or
            all but the first where that one goes through weights.
        behind: The stub that alone reads its result, if there is one: while training, both may be one step.
    """

    is_one_step = True
    watched: ClassVar[tuple[Point, ...]] = ()
    normalizes: ClassVar[bool] = False
    passed_inputs: slice = NO_INPUTS
    behind: tuple[QuantStub, ...] = ()

    def finish(self, act: nn.Module | None, value: torch.Tensor, other: torch.Tensor | None = None) -> torch.Tensor:
        """Add, then activate; with the rounding or the look at it that follows where that is one step."""
        # A compiler makes one step of them by itself.
        if not torch.compiler.is_compiling() and self.behind and not self._forward_hooks:
            stub = self.behind[0]
            done = stub.round_after(act, value, other) if stub.observer is None else stub.see_after(act, value, other)
            if done is not None:
                return done
        if other is not None:
            value = value + other
        result: torch.Tensor = value if act is None else act(value)
        return result

    def quantize(self, spec: QuantSpec) -> None:
        """Put quantized layers in the place of members."""

    def attach_stubs(self, inputs: tuple[QuantStub, ...], output: QuantStub | None) -> nn.Module:
        """Take the stubs around the layer, for targets that run it on integers; return what is called from now on."""
        del inputs, output
        return self

    def input_layer(self) -> QuantizedLayer | None:
        """Return the weights that read the first input, where its channels can be scaled in them."""
        return None

    def output_parameters(self) -> list[torch.Tensor] | None:
        """Return the parameters, by output channel, that the result is proportional to; `None` if there are none."""
        return None

    @property
    def output_top(self) -> float | None:
        """Up to which value the result is proportional to them, where it is cut off there."""
        return None


class ElementwiseModule(QuantizableModule):
    """A layer without weights that a target can compute on the integers of its inputs."""

    watched = (Point.OUTPUT, Point.INPUT)

    def on_integers(self, values: Sequence[torch.Tensor], inputs: Sequence[Scale], output: Scale) -> torch.Tensor:
        """Return what the target's kernel computes, to the bit."""
        raise NotImplementedError

    def attach_stubs(self, inputs: tuple[QuantStub, ...], output: QuantStub | None) -> nn.Module:
        """Compute on integers where the result is quantized too."""
        return self if output is None else QuantizedElementwise(self, Grid(inputs, output))
