"""What a quantised network is made of: stubs on values, quantisers on weights, and the layers that hold them.

A stub passes values on, shows them to an observer, or quantises and dequantises them; which of the three is its `mode`.
Batch norm is folded into the weights before they are quantised, exactly as on export: in eval mode with one product,
while training with the running statistics for the weights and the batch's own for the result.
"""

import enum
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeGuard

import torch
from torch import nn
from torch.nn import functional

from embedl_deploy.nn import kernels
from embedl_deploy.nn.fused import FusedAdaptiveAvgPool2d, FusedAddReLU
from embedl_deploy.nn.number import NumberFormat, Precision, fake_quantize, quantized_codes
from embedl_deploy.nn.ops import Multiply

Observer = Callable[["QuantStub", torch.Tensor], None]
_TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
_SMALLEST_SCALE = 2.0**-100


class Mode(enum.Enum):
    """What a stub or a weight quantiser does with a value."""

    FLOAT = "float"
    QUANTIZE = "quantize"


class QuantStub(nn.Module):
    """A boundary between two layers, quantised or only watched.

    Attributes:
        quantizes: It carries a quantise/dequantise pair; otherwise its range is kept for targets that want one here.
        label: The value it stands on, for messages and files.
        bounds: The range that was found, ``(low, high)``.
        learned: Gradient moves the scale.
        fixed: A range that is known without data (a softmax lies in 0..1), or `None`.
    """

    scale: torch.Tensor
    zero_point: torch.Tensor
    bounds: torch.Tensor

    def __init__(
        self, label: str, form: NumberFormat, *, quantizes: bool, fixed: tuple[float, float] | None = None
    ) -> None:
        super().__init__()
        self.label = label
        self.form = form
        self.quantizes = quantizes
        self.fixed = fixed
        self.calibrated = False
        self.mode = Mode.FLOAT
        self.observer: Observer | None = None
        self.register_buffer("scale", torch.ones(()))
        self.register_buffer("zero_point", torch.zeros(()))
        self.register_buffer("bounds", torch.zeros(2))

    @property
    def learned(self) -> bool:
        """Whether gradient moves the scale."""
        return isinstance(self.scale, nn.Parameter)

    def current_bounds(self) -> tuple[float, float]:
        """Return the range that belongs to the scale as it is now: training may have moved it since calibration."""
        low, high = self.bounds.tolist()
        found = float(self.scale.detach().abs()) / scale_of(low, high, self.form)[0]
        return low * found, high * found

    def set_range(self, low: float, high: float) -> None:
        """Take a range: scale and zero point follow from it and the number format."""
        scale, zero_point = scale_of(low, high, self.form)
        with torch.no_grad():
            self.scale.fill_(scale)
            self.zero_point.fill_(zero_point)
            self.bounds.copy_(torch.tensor([low, high]))
        self.calibrated = True
        self.mode = Mode.QUANTIZE if self.quantizes else Mode.FLOAT

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        """Pass on, watch or quantise."""
        if self.observer is not None:
            self.observer(self, value)
        if self.mode is Mode.FLOAT or not value.is_floating_point():
            return value
        return self.rounded(value)

    def rounded(self, value: torch.Tensor) -> torch.Tensor:
        """Quantise and dequantise, whatever the mode."""
        # A step of the optimiser may carry a learned scale past zero, where the division would blow up.
        scale = self.scale.abs().clamp(min=_SMALLEST_SCALE)
        return fake_quantize(value, scale.to(value.dtype), self.zero_point.to(value.dtype), self.form)

    def on_grid(self) -> kernels.Scale:
        """Return scale and zero point as a runtime has them."""
        return kernels.Scale(self.scale.detach().abs().clamp(min=_SMALLEST_SCALE).float(), self.zero_point.float())

    def get_extra_state(self) -> dict[str, Any]:
        """Save what is no tensor."""
        return {"calibrated": self.calibrated, "mode": self.mode.value, "form": self.form.to_state()}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        """Load what is no tensor."""
        self.calibrated = bool(state["calibrated"])
        self.mode = Mode(state["mode"])
        # Scales and zero points mean nothing in another format.
        self.form = NumberFormat.from_state(state["form"])

    def extra_repr(self) -> str:
        """Name the value, the format and the range."""
        kind = self.form.name if self.quantizes else "watched"
        bounds = f", range=({self.bounds[0]:.4g}, {self.bounds[1]:.4g})" if self.calibrated else ", not calibrated"
        return f"{self.label}, {kind}{bounds}"


def scale_of(low: float, high: float, form: NumberFormat) -> tuple[float, float]:
    """Return scale and zero point for a range; a range of nothing gets the scale 1, never 0 and never NaN."""
    low, high = min(low, 0.0), max(high, 0.0)
    if form.precision is Precision.FP8 or form.signed:
        top = max(-low, high)
        scale = top / form.high
        return (scale if scale >= _SMALLEST_SCALE else 1.0), 0.0
    scale = (high - low) / (form.high - form.low)
    if scale < _SMALLEST_SCALE:
        return 1.0, 0.0
    return scale, float(min(max(round(form.low - low / scale), form.low), form.high))


@dataclass(frozen=True)
class Grid:
    """The stubs around a layer that its target runs on integers.

    Attributes:
        inputs: On the values it reads.
        output: On its result, `None` when the result is float.
    """

    inputs: tuple[QuantStub, ...]
    output: QuantStub | None

    def active(self, *values: torch.Tensor) -> bool:
        """Say whether the layer computes on integers of eight bits now."""
        stubs = self.inputs if self.output is None else (*self.inputs, self.output)
        return all(one.mode is Mode.QUANTIZE and one.form.precision is Precision.INT8 for one in stubs) and all(
            one.dtype == torch.float32 for one in values
        )


def _traced(*values: torch.Tensor | None) -> bool:
    """Say whether somebody may ask for gradients."""
    return torch.is_grad_enabled() and any(one is not None and one.requires_grad for one in values)


class WeightQuantizer(nn.Module):
    """Quantises a weight symmetrically, per output channel, per tensor or per block of the input dimension.

    Attributes:
        axis: The output channel's dimension, `None` for one scale.
        block: Elements of dimension 1 that share a scale; 0 for whole channels.
        follows: While training, the scale follows the weight; otherwise it stays as calibrated (or is learned).
    """

    scale: torch.Tensor
    ratio: torch.Tensor

    def __init__(self, form: NumberFormat, axis: int | None, block: int = 0) -> None:
        super().__init__()
        self.form = form
        self.axis = axis
        self.block = block
        self.follows = True
        self.calibrated = False
        self.mode = Mode.FLOAT
        self.register_buffer("scale", torch.ones(()))
        self.register_buffer("ratio", torch.ones(()))

    @property
    def learned(self) -> bool:
        """Whether gradient moves the scale."""
        return isinstance(self.scale, nn.Parameter)

    def calibrate(self, weight: torch.Tensor, ratio: torch.Tensor | None = None) -> None:
        """Take the scale from a weight; `ratio` is the part of each channel's peak that is kept."""
        self.calibrate_peak(self.peak(weight.detach()), ratio)

    def calibrate_peak(self, peak: torch.Tensor, ratio: torch.Tensor | None = None) -> None:
        """Take the scale from the peaks of a weight."""
        with torch.no_grad():
            self.ratio = torch.ones_like(peak) if ratio is None else ratio
            self._set_scale(self._scale_for(peak))
        self.calibrated = True
        self.mode = Mode.QUANTIZE

    def peak(self, weight: torch.Tensor) -> torch.Tensor:
        """Return the largest magnitude of every group of elements that shares a scale."""
        if self.block:
            return weight.abs().reshape(weight.shape[0], -1, self.block).amax(2)
        if self.axis is None:
            return weight.abs().amax()
        return weight.abs().amax([at for at in range(weight.ndim) if at != self.axis])

    def _scale_for(self, peak: torch.Tensor) -> torch.Tensor:
        """Scale so that the peak meets the largest code; a channel of zeros gets the scale 1."""
        scale = peak * self.ratio / self.form.high
        return torch.where(scale >= _SMALLEST_SCALE, scale, torch.ones_like(scale))

    def _set_scale(self, scale: torch.Tensor) -> None:
        """Keep a scale in the buffer or parameter that is there."""
        if isinstance(self.scale, nn.Parameter):
            self.scale.data = scale
        else:
            self.scale = scale

    def spread(self, scale: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """Shape scales so that they broadcast against the weight."""
        if self.block:
            return scale.repeat_interleave(self.block, 1)
        if self.axis is None:
            return scale
        return scale.reshape([-1 if at == self.axis else 1 for at in range(weight.ndim)])

    def forward(self, weight: torch.Tensor) -> torch.Tensor:
        """Quantise and dequantise, or pass on."""
        if self.mode is Mode.FLOAT:
            return weight
        if self.training and self.follows and not self.learned:
            self._set_scale(self._scale_for(self.peak(weight.detach())))
        return self.rounded(weight)

    def rounded(self, weight: torch.Tensor) -> torch.Tensor:
        """Quantise and dequantise, whatever the mode."""
        scale = self.scale.abs().clamp(min=_SMALLEST_SCALE)
        return fake_quantize(weight, self.spread(scale, weight), torch.zeros((), device=weight.device), self.form)

    def codes(self, weight: torch.Tensor) -> torch.Tensor:
        """Return the integers (or FP8 values) a runtime stores."""
        scale = self.spread(self.scale.detach().abs().clamp(min=_SMALLEST_SCALE), weight)
        return quantized_codes(weight.detach(), scale, torch.zeros((), device=weight.device), self.form)

    def get_extra_state(self) -> dict[str, Any]:
        """Save what is no tensor."""
        shared = {"axis": self.axis, "block": self.block}
        return {"calibrated": self.calibrated, "mode": self.mode.value, "form": self.form.to_state(), **shared}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        """Load what is no tensor."""
        self.calibrated = bool(state["calibrated"])
        self.mode = Mode(state["mode"])
        # Scales mean nothing in another format, or spread over other elements.
        self.form = NumberFormat.from_state(state["form"])
        self.axis, self.block = state["axis"], state["block"]

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        """Take scales of any shape: an uncalibrated quantiser does not know its own yet."""
        for name in ("scale", "ratio"):
            if (found := state_dict.get(prefix + name)) is not None and found.shape != getattr(self, name).shape:
                getattr(self, name).data = torch.ones_like(found)
        super()._load_from_state_dict(state_dict, prefix, *rest)

    def extra_repr(self) -> str:
        """Name the format and how scales are shared."""
        shared = f"blocks of {self.block}" if self.block else "tensor" if self.axis is None else "channel"
        return f"{self.form.name} per {shared}"


class QuantizedConv(nn.Module):
    """A convolution, batch norm folded into it, on quantised weights.

    Attributes:
        output: A stub right behind the convolution, where the layer goes on with an add or an activation.
        grid: The stubs around it, where eval mode computes what the target's integer kernel does.
        held: Folded weight and bias while they cannot change, so that a pass over much data folds them once.
        batch_norm_frozen: Training uses the running statistics, as eval mode does, and leaves them still.
    """

    def __init__(
        self, conv: nn.Module, bn: nn.Module | None, weight: WeightQuantizer | None, output: QuantStub | None
    ) -> None:
        super().__init__()
        self.conv = conv
        self.bn = bn
        self.weight_quantizer = weight
        self.output = output
        self.grid: Grid | None = None
        self.held: tuple[torch.Tensor, torch.Tensor | None] | None = None
        self.batch_norm_frozen = False
        self.training = conv.training

    @property
    def transposed(self) -> bool:
        """Whether the convolution is a transposed one."""
        return isinstance(self.conv, _TRANSPOSED)

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        """Convolve."""
        if self.training and self.bn is not None and not self.batch_norm_frozen:
            result = self._train(value)
        else:
            result = self._fixed(value)
        return result if self.output is None else self.output(result)

    def _fixed(self, value: torch.Tensor) -> torch.Tensor:
        """Convolve with the batch norm's running statistics, in eval mode as the target's kernel does."""
        weight, bias = self.folded()
        exact = None if self.training else self._exact(value, weight, bias)
        if exact is not None and not _traced(value, weight, bias):
            return exact
        smooth = self._convolve(value, self._rounded(weight), bias)
        return smooth if exact is None else kernels.stand_in(smooth, exact)

    def _exact(self, value: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor | None:
        """Return what the target's kernel computes, on its own grid; `None` where it does not run on integers."""
        grid, quantizer = self.grid, self.weight_quantizer
        if grid is None or grid.output is None or not grid.active(value) or not _eight_bits(quantizer):
            return None
        with torch.no_grad():
            total, scale = _integer_sums(grid.inputs[0], quantizer, value, (weight, bias), self._convolve)
            output = grid.output.on_grid()
            factor = scale / output.scale
            return kernels.land(total, factor.reshape(-1, *[1] * (total.ndim - 2)) if factor.ndim else factor, output)

    def folded(self) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Return weight and bias with the batch norm's running statistics folded in."""
        if self.held is not None:
            return self.held
        conv: Any = self.conv
        bn: Any = self.bn
        weight: torch.Tensor = conv.weight
        if bn is None:
            return weight, conv.bias
        factor = self._factor()
        mean = bn.running_mean if conv.bias is None else bn.running_mean - conv.bias
        shift = -mean * factor if bn.bias is None else bn.bias - mean * factor
        return weight * self._spread(factor), shift

    def folded_peak(self, quantizer: WeightQuantizer) -> torch.Tensor:
        """Return the peaks of the folded weight; rounding keeps order, so it need not be folded for that."""
        conv: Any = self.conv
        if self.bn is None or quantizer.axis != 0 or self.transposed:
            return quantizer.peak(self.folded()[0].detach())
        return quantizer.peak(conv.weight.detach()) * self._factor().detach().abs()

    def _factor(self) -> torch.Tensor:
        """Return what batch norm multiplies every channel with, by its running statistics."""
        bn: Any = self.bn
        factor = torch.rsqrt(bn.running_var + bn.eps)
        return factor if bn.weight is None else factor * bn.weight

    def _spread(self, factor: torch.Tensor) -> torch.Tensor:
        """Shape a value per output channel so that it broadcasts against the weight."""
        conv: Any = self.conv
        weight, groups = conv.weight, conv.groups
        rest = [1] * (weight.ndim - 2)
        if not self.transposed:
            return factor.reshape(-1, 1, *rest)
        inner = factor.reshape(groups, 1, -1).expand(groups, weight.shape[0] // groups, -1)
        return inner.reshape(weight.shape[0], -1, *rest)

    def _rounded(self, weight: torch.Tensor) -> torch.Tensor:
        """Quantise and dequantise the weight."""
        return weight if self.weight_quantizer is None else self.weight_quantizer(weight)

    def _train(self, value: torch.Tensor) -> torch.Tensor:
        """Convolve with the weights export will have, then normalise by the batch's own statistics."""
        factor = self._factor()
        # A channel that batch norm multiplies with zero cannot be divided back; it stays zero whatever its weights.
        factor = torch.where(factor.abs() < _SMALLEST_SCALE, torch.ones_like(factor), factor)
        conv: Any = self.conv
        spread = self._spread(factor)
        # The rounded weight is divided back, not the result: the same sum, on a far smaller tensor.
        weight = self._rounded(conv.weight * spread) / spread
        assert self.bn is not None
        normal: torch.Tensor = self.bn(self._convolve(value, weight, conv.bias))
        return normal

    def _convolve(self, value: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        """Run the convolution with other weights."""
        conv: Any = self.conv
        if not self.transposed:
            result: torch.Tensor = conv._conv_forward(value, weight, bias)
            return result
        call = {3: functional.conv_transpose1d, 4: functional.conv_transpose2d, 5: functional.conv_transpose3d}
        found: torch.Tensor = call[weight.ndim](
            value, weight, bias, conv.stride, conv.padding, conv.output_padding, conv.groups, conv.dilation
        )
        return found


class QuantizedLinear(nn.Module):
    """A fully connected layer on quantised weights.

    Attributes:
        output: A stub right behind it.
        grid: The stubs around it, where eval mode computes what the target's integer kernel does.
    """

    def __init__(self, linear: nn.Module, weight: WeightQuantizer | None, output: QuantStub | None = None) -> None:
        super().__init__()
        self.linear = linear
        self.weight_quantizer = weight
        self.output = output
        self.grid: Grid | None = None
        self.training = linear.training

    def folded(self) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Return weight and bias."""
        return self.linear.weight, self.linear.bias  # type: ignore[return-value]

    def folded_peak(self, quantizer: WeightQuantizer) -> torch.Tensor:
        """Return the peaks of the weight."""
        return quantizer.peak(self.folded()[0].detach())

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        """Multiply and add the bias."""
        weight, bias = self.folded()
        result = None if self.training else self._exact(value, weight, bias)
        if result is None or _traced(value, weight, bias):
            rounded = weight if self.weight_quantizer is None else self.weight_quantizer(weight)
            smooth = functional.linear(value, rounded, bias)
            result = smooth if result is None else kernels.stand_in(smooth, result)
        return result if self.output is None else self.output(result)

    def _exact(self, value: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor | None:
        """Return what the target's kernel computes; `None` where it does not run on integers."""
        grid, quantizer = self.grid, self.weight_quantizer
        if grid is None or not grid.active(value) or not _eight_bits(quantizer):
            return None
        with torch.no_grad():
            total, scale = _integer_sums(grid.inputs[0], quantizer, value, (weight, bias), functional.linear)
            return total.mul_(scale)


def _eight_bits(quantizer: WeightQuantizer | None) -> TypeGuard[WeightQuantizer]:
    """Say whether weights are integers of eight bits now, with a scale per channel or one for all."""
    if quantizer is None or quantizer.mode is Mode.FLOAT:
        return False
    return quantizer.form.precision is Precision.INT8 and not quantizer.block


def _integer_sums(
    stub: QuantStub,
    quantizer: WeightQuantizer,
    value: torch.Tensor,
    folded: tuple[torch.Tensor, torch.Tensor | None],
    layer: kernels.Layer,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a layer's sums in units of input scale times weight scale, and that unit."""
    given, (weight, bias) = stub.on_grid(), folded
    codes = quantizer.codes(weight)
    scale = given.scale * quantizer.scale.detach().abs().clamp(min=_SMALLEST_SCALE)
    rounded = None if bias is None else torch.round(bias.detach().float() / scale)
    bound = kernels.largest_sum(codes, stub.form, given.zero_point)
    return kernels.sums(given.codes(value), codes, rounded, bound, layer), scale


class QuantizedJoint(nn.Module):
    """A sum, a product or a global average of quantised values.

    Attributes:
        layer: What it computes.
        grid: The stubs around it, whose scales the target's kernel works with.
    """

    def __init__(self, layer: nn.Module, grid: Grid) -> None:
        super().__init__()
        self.layer = layer
        self.grid = grid
        self.training = layer.training

    def forward(self, *values: torch.Tensor) -> torch.Tensor:
        """Compute, in eval mode as the target's kernel does."""
        exact = not self.training and self.grid.active(*values)
        if not exact:
            plain: torch.Tensor = self.layer(*values)
            return plain
        with torch.no_grad():
            result = self._exact(*values)
        return kernels.stand_in(self.layer(*values), result) if _traced(*values) else result

    def _exact(self, *values: torch.Tensor) -> torch.Tensor:
        """Compute on codes."""
        assert self.grid.output is not None
        output, (first, *rest) = self.grid.output.on_grid(), [one.on_grid() for one in self.grid.inputs]
        if isinstance(self.layer, FusedAdaptiveAvgPool2d):
            return kernels.global_average(values[0], first, output)
        call = kernels.multiply if isinstance(self.layer, Multiply) else kernels.add
        result = call(values[0], first, values[1], rest[0], output)
        activated: torch.Tensor = self.layer.act(result) if isinstance(self.layer, FusedAddReLU) else result
        return activated


class QuantizedAttention(nn.Module):
    """Scaled dot-product attention with a pair right before each operand of both matrix products.

    The scale is applied to the query and the key is transposed before their pairs, so that a pair stands right before
    its product. A softmax lies in 0..1, so its pair needs no data.
    """

    def __init__(self, attention: nn.Module, form: NumberFormat, label: str) -> None:
        super().__init__()
        self.attention = attention
        self.query = QuantStub(f"{label}.query", form, quantizes=True)
        self.key = QuantStub(f"{label}.key", form, quantizes=True)
        self.value = QuantStub(f"{label}.value", form, quantizes=True)
        self.weights = QuantStub(f"{label}.weights", form, quantizes=True, fixed=(0.0, 1.0))
        for part in self.modules():
            part.training = attention.training

    def forward(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        """Attend."""
        given: Any = self.attention.scale
        scale = query.shape[-1] ** -0.5 if given is None else given
        scores = torch.matmul(self.query(query * scale), self.key(key.transpose(-2, -1)))
        return torch.matmul(self.weights(torch.softmax(scores, -1)), self.value(value))
