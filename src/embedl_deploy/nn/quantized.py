"""Layers on quantized weights, and layers of quantized values: what a fused module puts in the place of its members.

Batch norm is folded into the weights before they are quantized, exactly as on export: in eval mode with one product,
while training with the running statistics for the weights and the batch's own for the result.
"""

from collections.abc import Iterable
from typing import Any, ClassVar, NamedTuple

import torch
from torch import nn
from torch.nn import functional

from embedl_deploy.nn import kernels
from embedl_deploy.nn.number import NumberFormat
from embedl_deploy.nn.quantizers import Grid, Mode, QuantStub, WeightQuantizer
from embedl_deploy.nn.rounding import (
    Norm,
    RowWeight,
    Token,
    can_round_ahead,
    fake_quantize_together,
    inverse_deviation,
    kept_unrounded,
    norm_factor,
)

# As many dimensions as what they normalize may have.
_NORMS: dict[type, tuple[int, ...]] = {nn.BatchNorm1d: (2, 3), nn.BatchNorm2d: (4,), nn.BatchNorm3d: (5,)}
_TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
Folded = tuple[torch.Tensor, torch.Tensor | None]


def _parameter(module: nn.Module, name: str) -> Any:
    """Return a parameter past `nn.Module.__getattr__`: a training step asks hundreds of times."""
    known = module._parameters
    return known[name] if name in known else getattr(module, name)


def _needs_gradient(*values: torch.Tensor | None) -> bool:
    return torch.is_grad_enabled() and any(value is not None and value.requires_grad for value in values)


class QuantizedLayer(nn.Module):
    """A layer on quantized weights.

    Attributes:
        channel_dim: The dimension of its result that holds channels.
        weight_quantizer: `None` leaves the weights float.
        output: A stub right behind it, where the fused module goes on with an add or an activation.
        grid: The stubs around it, where eval mode computes what the target's integer kernel does.
        held: Folded weight and bias while they cannot change, so that a pass over much data folds them once.
        rounds_bias: Whether the target stores the bias as an integer, in units of the sums.
        together: The layers whose weights are rounded in one step with its own while training.
    """

    channel_dim: ClassVar[int]
    weight_quantizer: WeightQuantizer | None
    output: QuantStub | None
    together: "Together | None" = None

    def __init__(self) -> None:
        super().__init__()
        self.grid: Grid | None = None
        self.held: Folded | None = None
        self.rounds_bias = True

    @property
    def source(self) -> Any:
        """The torch module that has the weight and the bias."""
        raise NotImplementedError

    @property
    def bias_holder(self) -> Any:
        """The torch module whose bias is added last."""
        return self.source

    @property
    def reads_channels_apart(self) -> bool:
        """Whether input channels can be told apart in the weight."""
        return True

    def run(self, value: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        """Run the layer with other weights, without the stub behind it."""
        raise NotImplementedError

    def _fold(self) -> Folded:
        return self.source.weight, self.source.bias

    def folded(self) -> Folded:
        """Return weight and bias with the batch norm's running statistics folded in."""
        return self._fold() if self.held is None else self.held

    def folded_peak(self, quantizer: WeightQuantizer) -> torch.Tensor:
        """Return the peaks of the folded weight."""
        return quantizer.peak(self.folded()[0].detach())

    def put_folded(self, weight: torch.Tensor) -> None:
        """Take the weights that fold to these."""
        with torch.no_grad():
            self.source.weight.copy_(weight)

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        """Run the layer, in eval mode as the target's kernel does."""
        result = self._result(value)
        output = self._modules.get("output")
        return result if output is None else output(result)

    def _result(self, value: torch.Tensor) -> torch.Tensor:
        weight, bias = self.folded()
        if self.held is not None and self.passes_weight:
            return self.run(value, weight, bias)
        exact = None if self.training else self._exact(value, weight, bias)
        if exact is not None and not _needs_gradient(value, weight, bias):
            return exact
        smooth = self._run(value, self._rounded(weight), bias)
        return smooth if exact is None else kernels.stand_in(smooth, exact)

    @property
    def passes_weight(self) -> bool:
        """Whether its weight is not rounded now."""
        quantizer: Any = self._modules.get("weight_quantizer")
        return quantizer is None or quantizer.mode is Mode.FLOAT

    def _rounded(self, weight: torch.Tensor) -> torch.Tensor:
        if self.weight_quantizer is None:
            return weight
        ahead = self._ahead()
        return self.weight_quantizer(weight) if ahead is None else ahead.rounded

    def _ahead(self) -> "_Ahead | None":
        """Return the weight that was rounded together with others'."""
        if torch.compiler.is_compiling() or self.together is None:
            return None
        return self.together.take(self, self.source)

    def row_weight(self) -> RowWeight | None:
        """Return the weight as it can be rounded together with others, now; `None` where it cannot."""
        weight, quantizer = self.source.weight, self.weight_quantizer
        if quantizer is None or type(weight) is not nn.Parameter:
            return None
        return quantizer.row_weight(weight, None)

    def _run(self, value: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        saving = kept_unrounded(value)
        if saving is None:
            return self.run(value, weight, bias)
        with saving:
            return self.run(value, weight, bias)

    def _exact(self, value: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor | None:
        """Return what the target's kernel computes, on its own grid; `None` where it does not run on integers."""
        grid, quantizer = self.grid, self.weight_quantizer
        if grid is None or quantizer is None or not quantizer.has_eight_bits or not grid.active(value):
            return None
        with torch.no_grad():
            given, codes = grid.inputs[0].on_grid(), quantizer.codes(weight)
            # Sums are in units of input scale times weight scale, and the bias is rounded to that.
            unit = given.scale * quantizer.positive_scale.detach()
            rounded = None if bias is None else bias.detach().float() / unit
            if rounded is not None and self.rounds_bias:
                rounded = torch.round(rounded)
            bound = kernels.largest_sum(codes, grid.inputs[0].form, given.zero_point)
            total = kernels.sums(given.codes(value), codes, rounded, bound, self.run)
            if grid.output is None:
                return total.mul_(unit)
            output = grid.output.on_grid()
            factor = unit / output.scale
            if factor.ndim and self.channel_dim == 1:
                factor = factor.reshape(-1, *[1] * (total.ndim - 2))
            return kernels.requantize(total, factor, output)

    def by_channel(self, result: torch.Tensor) -> torch.Tensor:
        """Return a row per output channel of a result."""
        return result.detach().movedim(self.channel_dim, 0).flatten(1)

    def add_bias(self, shift: torch.Tensor) -> bool:
        """Add to the bias, channel by channel; `False` when there is none."""
        bias = self.bias_holder.bias
        if bias is None:
            return False
        with torch.no_grad():
            bias.add_(shift.to(bias.dtype))
        return True

    def output_parameters(self) -> list[torch.Tensor] | None:
        """Return the parameters, by output channel, that the result is proportional to; `None` if there are none."""
        holder = self.bias_holder
        if getattr(holder, "weight", None) is None:
            return None
        return [holder.weight, *([] if holder.bias is None else [holder.bias])]

    def input_peaks(self) -> torch.Tensor:
        """Return the largest weight that reads each input channel."""
        return self.folded()[0].detach().abs().transpose(0, 1).flatten(1).amax(1)

    def scale_inputs(self, scale: torch.Tensor) -> None:
        """Multiply the weights that read each input channel, in place."""
        weight = self.source.weight
        weight.mul_(scale.reshape(1, -1, *[1] * (weight.ndim - 2)))


class QuantizedConv(QuantizedLayer):
    """A convolution, batch norm folded into it, on quantized weights.

    Attributes:
        batch_norm_frozen: Training uses the running statistics, as eval mode does, and leaves them still.
    """

    channel_dim = 1

    def __init__(
        self, conv: nn.Module, bn: nn.Module | None, weight: WeightQuantizer | None, output: QuantStub | None
    ) -> None:
        super().__init__()
        self.conv = conv
        self.bn = bn
        self.weight_quantizer = weight
        self.output = output
        self.batch_norm_frozen = False
        self.training = conv.training

    def get_extra_state(self) -> dict[str, bool]:
        """Save what is no tensor."""
        if self.together is not None:
            self.together.settle()  # asked for before the tensors of the batch norm are
        return {"batch_norm_frozen": self.batch_norm_frozen}

    def set_extra_state(self, state: dict[str, bool]) -> None:
        """Load what is no tensor."""
        self.batch_norm_frozen = state["batch_norm_frozen"]

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        """Take states of earlier versions, which did not say whether batch norm is frozen."""
        state_dict.setdefault(f"{prefix}_extra_state", self.get_extra_state())
        super()._load_from_state_dict(state_dict, prefix, *rest)

    @property
    def source(self) -> Any:
        """The convolution."""
        return self._modules["conv"]  # past `nn.Module.__getattr__`: a step asks hundreds of times

    @property
    def bias_holder(self) -> Any:
        """The batch norm, or the convolution where there is none."""
        return self.conv if self.bn is None else self.bn

    @property
    def transposed(self) -> bool:
        """Whether the convolution is a transposed one."""
        return isinstance(self._modules["conv"], _TRANSPOSED)

    @property
    def reads_channels_apart(self) -> bool:
        """Whether all input channels are in one group, or each has one of its own."""
        return not self.transposed and self.source.groups in (1, self.source.in_channels)

    def _result(self, value: torch.Tensor) -> torch.Tensor:
        if self.training and self._modules.get("bn") is not None and not self.batch_norm_frozen:
            return self._train(value)
        return super()._result(value)

    def _fold(self) -> Folded:
        parts: Any = self._modules
        conv, bn = parts["conv"], parts.get("bn")
        if bn is None:
            return conv.weight, conv.bias
        factor = self._factor()
        mean = bn.running_mean if conv.bias is None else bn.running_mean - conv.bias
        shift = -mean * factor if bn.bias is None else bn.bias - mean * factor
        return conv.weight * self._spread(factor), shift

    def folded_peak(self, quantizer: WeightQuantizer) -> torch.Tensor:
        """Return the peaks of the folded weight; rounding keeps order, so it need not be folded for that."""
        if self.bn is None or quantizer.axis != 0 or self.transposed:
            return super().folded_peak(quantizer)
        return quantizer.peak(self.source.weight.detach()) * self._factor().detach().abs()

    def put_folded(self, weight: torch.Tensor) -> None:
        """Take the weights that fold to these."""
        if self.bn is not None:
            with torch.no_grad():
                factor = self._spread(self._factor())
                weight = torch.where(factor.abs() > 0, weight / factor, self.source.weight)
        super().put_folded(weight)

    def _factor(self) -> torch.Tensor:
        """Return what batch norm multiplies every channel with, by its running statistics."""
        bn: Any = self.bn
        factor = inverse_deviation(bn.running_var, bn.eps)
        return factor if bn.weight is None else factor * bn.weight

    @property
    def folds_by_row(self) -> bool:
        """Whether folding multiplies the rows of the weight."""
        return self.bn is not None and not self.transposed

    def _spread(self, factor: torch.Tensor) -> torch.Tensor:
        """Shape a value per output channel so that it broadcasts against the weight."""
        weight, groups = self.source.weight, self.source.groups
        rest = [1] * (weight.ndim - 2)
        if not self.transposed:
            return factor.reshape(-1, 1, *rest)
        inner = factor.reshape(groups, 1, -1).expand(groups, weight.shape[0] // groups, -1)
        return inner.reshape(weight.shape[0], -1, *rest)

    def row_weight(self) -> RowWeight | None:
        """Return the weight as it can be rounded together with others, now; `None` where it cannot."""
        parts = self._modules
        bn: Any = parts.get("bn")
        if bn is None:
            return super().row_weight()
        quantizer: Any = parts.get("weight_quantizer")
        if quantizer is None or self.batch_norm_frozen:
            return None
        weight = _parameter(self.source, "weight")
        if type(weight) is not nn.Parameter:
            return None
        found: RowWeight | None = quantizer.row_weight(
            weight, Norm(_parameter(bn, "weight"), bn._buffers["running_var"], bn.eps)
        )
        return found

    def _train(self, value: torch.Tensor) -> torch.Tensor:
        """Convolve with the weights export will have, then normalize by the batch's own statistics."""
        bn: Any = self._modules["bn"]
        source: Any = self._modules["conv"]
        # The rounded weight is divided back, not the result: the same sum, on a far smaller tensor.
        ahead = self._ahead()
        if ahead is not None:
            return self._normalized(self._run(value, ahead.rounded, _parameter(source, "bias")), ahead.gamma)
        quantizer, weight = self.weight_quantizer, source.weight
        if quantizer is not None and quantizer.is_by_row():
            weight = quantizer(weight, Norm(bn.weight, bn.running_var, bn.eps))
        elif quantizer is not None:
            # A channel that batch norm multiplies with zero cannot be divided back; it stays zero whatever its weights.
            spread = self._spread(norm_factor(None, self._factor()))
            weight = quantizer(weight * spread) / spread
        normal: torch.Tensor = bn(self._run(value, weight, source.bias))
        return normal

    def _normalized(self, value: torch.Tensor, gamma: torch.Tensor | None) -> torch.Tensor:
        """Normalize by the batch's own statistics, as the batch norm does by itself, with the factor that it is given.

        A GPU takes longer to be told of a factor's gradient, or of one more batch, than to add them up.
        """
        bn: Any = self._modules["bn"]
        if gamma is None or self.together is None or not _is_plain(bn, value):
            ready: torch.Tensor = bn(value)
            return ready
        known = bn._buffers
        mean, variance, count = known["running_mean"], known["running_var"], known["num_batches_tracked"]
        self.together.count(count)
        return functional.batch_norm(
            value, mean, variance, gamma, _parameter(bn, "bias"), training=True, momentum=bn.momentum, eps=bn.eps
        )

    def run(self, value: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        """Run the convolution with other weights."""
        conv: Any = self._modules["conv"]
        is_transposed = isinstance(conv, _TRANSPOSED)
        if not is_transposed:
            result: torch.Tensor = conv._conv_forward(value, weight, bias)
            return result
        call = {3: functional.conv_transpose1d, 4: functional.conv_transpose2d, 5: functional.conv_transpose3d}
        transposed: torch.Tensor = call[weight.ndim](
            value, weight, bias, conv.stride, conv.padding, conv.output_padding, conv.groups, conv.dilation
        )
        return transposed

    def output_parameters(self) -> list[torch.Tensor] | None:
        """Return the parameters by output channel; a transposed convolution has them along another dimension."""
        return None if self.transposed else super().output_parameters()

    def input_peaks(self) -> torch.Tensor:
        """Return the largest weight that reads each input channel."""
        if self.source.groups == 1:
            return super().input_peaks()
        return self.folded()[0].detach().abs().flatten(1).amax(1)

    def scale_inputs(self, scale: torch.Tensor) -> None:
        """Multiply the weights that read each input channel, in place."""
        if self.source.groups == 1:
            super().scale_inputs(scale)
        else:
            self.source.weight.mul_(scale.reshape(-1, *[1] * (self.source.weight.ndim - 1)))


def hold_folded(layers: Iterable[QuantizedLayer]) -> None:
    """Let layers hold their folded weight and bias, in few operators for all: bits are those of one after the other."""
    alike: dict[tuple[object, ...], list[QuantizedConv]] = {}
    with torch.no_grad():
        for layer in layers:
            if isinstance(layer, QuantizedConv) and layer.folds_by_row:
                bn, given = layer.bias_holder, (layer.bias_holder.weight, layer.bias_holder.bias, layer.source.bias)
                kind = (bn.running_var.device, bn.running_var.dtype, bn.eps, *[part is None for part in given])
                alike.setdefault(kind, []).append(layer)
            else:
                layer.held = layer.folded()
        for convs in alike.values():
            _hold_alike(convs)


def _hold_alike(convs: list[QuantizedConv]) -> None:
    norms, sources = [conv.bias_holder for conv in convs], [conv.source for conv in convs]

    factor = inverse_deviation(torch.cat([norm.running_var for norm in norms]), norms[0].eps)
    if norms[0].weight is not None:
        factor = factor * torch.cat([norm.weight for norm in norms])
    mean = torch.cat([norm.running_mean for norm in norms])
    if sources[0].bias is not None:
        mean = mean - torch.cat([source.bias for source in sources])
    shift = -mean * factor if norms[0].bias is None else torch.cat([norm.bias for norm in norms]) - mean * factor
    sizes = [len(norm.running_var) for norm in norms]
    rows = [
        part.reshape(-1, *[1] * (source.weight.ndim - 1))
        for part, source in zip(torch.split(factor, sizes), sources, strict=True)
    ]
    weights = torch._foreach_mul([source.weight for source in sources], rows)
    for conv, weight, bias in zip(convs, weights, torch.split(shift, sizes), strict=True):
        conv.held = weight, bias


class QuantizedLinear(QuantizedLayer):
    """A fully connected layer on quantized weights."""

    channel_dim = -1

    def __init__(self, linear: nn.Module, weight: WeightQuantizer | None, output: QuantStub | None = None) -> None:
        super().__init__()
        self.linear = linear
        self.weight_quantizer = weight
        self.output = output
        self.training = linear.training

    @property
    def source(self) -> Any:
        """The fully connected layer."""
        return self.linear

    def _fold(self) -> Folded:
        linear: Any = self._modules["linear"]
        return linear.weight, linear.bias

    def run(self, value: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        """Multiply with other weights and add the bias."""
        return functional.linear(value, weight, bias)


def _is_plain(bn: Any, value: torch.Tensor) -> bool:
    """Say whether a batch norm is torch's own, as it comes, and normalizes the value by the batch's statistics."""
    if value.ndim not in _NORMS.get(type(bn), ()) or not (bn.training and bn.track_running_stats):
        return False
    if bn.momentum is None or bn._buffers["num_batches_tracked"] is None or "forward" in bn.__dict__:
        return False
    return not (bn._forward_hooks or bn._forward_pre_hooks or bn._backward_hooks or bn._backward_pre_hooks)


class _Ahead(NamedTuple):
    """A weight that was rounded before it was asked for, its batch norm's factor, and what it was rounded from."""

    rounded: torch.Tensor
    gamma: torch.Tensor | None
    part: RowWeight
    versions: tuple[int, ...]
    token: Token

    def is_fresh(self, source: nn.Module) -> bool:
        """Say whether it is what rounding would give now, with its way back."""
        part = self.part
        return not self.token.used and _parameter(source, "weight") is part.weight and _versions(part) == self.versions


def _versions(part: RowWeight) -> tuple[int, ...]:
    weight, norm, *_ = part
    if norm is None:
        return (weight._version,)
    gamma, variance, _ = norm
    return weight._version, variance._version, 0 if gamma is None else gamma._version


class Together:
    """Layers whose weights are rounded in one step while training, by the first of them that is asked for its own.

    A GPU takes longer to be told of a weight than to round it. Groups are small: a gradient that waits for all others
    could not be sent to other processes meanwhile.
    """

    def __init__(self, layers: Iterable[QuantizedLayer]) -> None:
        self.layers = tuple(layers)
        self._waiting: dict[QuantizedLayer, _Ahead] = {}
        self._uncounted: list[torch.Tensor] = []

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what waits: a copy has weights of its own."""
        self.settle()
        return {"layers": self.layers, "_waiting": {}, "_uncounted": []}

    def count(self, batches: torch.Tensor) -> None:
        """Count one more batch of a layer that has taken its weight: with the last of them, for all in one step."""
        self._uncounted.append(batches)
        if not self._waiting:
            self.settle()

    def settle(self) -> None:
        """Count the batches that were not counted yet."""
        if self._uncounted:
            with torch.no_grad():
                torch._foreach_add_(self._uncounted, 1)
            self._uncounted.clear()

    def take(self, layer: QuantizedLayer, source: nn.Module) -> _Ahead | None:
        """Return the rounded weight of a layer and its torch module, once; `None` where it has to round by itself."""
        found = self._waiting.pop(layer, None)
        if not can_round_ahead():
            return None
        if found is not None and found.is_fresh(source):
            return found
        # A layer that is called twice must not round all the others again.
        if any(one.is_fresh(other.source) for other, one in self._waiting.items()):
            return None
        self._waiting.clear()
        self.settle()
        layers, parts = [], []
        for each in self.layers:
            if (part := each.row_weight()) is not None:
                layers.append(each)
                parts.append(part)
        if layer not in layers or len(parts) == 1 or not _are_alike(parts):
            return None
        token = Token()
        waiting = self._waiting
        rounded, gammas = fake_quantize_together(parts, token)
        for each, part, one, gamma in zip(layers, parts, rounded, gammas, strict=True):
            waiting[each] = _Ahead(one, gamma, part, _versions(part), token)
        return waiting.pop(layer)


def _are_alike(parts: list[RowWeight]) -> bool:
    """Say whether one kernel rounds all of them."""
    first = _kind(parts[0])
    return all(_kind(part) == first for part in parts)


def _kind(part: RowWeight) -> tuple[object, ...]:
    weight, norm, _, form, _ = part
    of_norm = None if norm is None else (norm.gamma is None, norm.epsilon)
    return weight.get_device(), weight.dtype, form, of_norm


class QuantizedElementwise(nn.Module):
    """A layer without weights on quantized values, which its target computes on their integers.

    Attributes:
        layer: What it computes; an `embedl_deploy.nn.ElementwiseModule`.
        grid: The stubs around it, whose scales the target's kernel works with.
    """

    def __init__(self, layer: nn.Module, grid: Grid) -> None:
        super().__init__()
        self.layer: Any = layer
        self.grid = grid
        self.training = layer.training

    def forward(self, *values: torch.Tensor) -> torch.Tensor:
        """Compute, in eval mode as the target's kernel does."""
        if self.training or not self.grid.active(*values):
            plain: torch.Tensor = self.layer(*values)
            return plain
        assert self.grid.output is not None
        with torch.no_grad():
            scales = [stub.on_grid() for stub in self.grid.inputs]
            exact: torch.Tensor = self.layer.on_integers(values, scales, self.grid.output.on_grid())
        return kernels.stand_in(self.layer(*values), exact) if _needs_gradient(*values) else exact


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
        if self.query.observer is not None and self.weights.observer is None and self.weights.mode is Mode.FLOAT:
            # Calibration: nobody looks between the two products, so they may be one kernel.
            seen = self.query(query * scale), self.key(key.transpose(-2, -1)).transpose(-2, -1), self.value(value)
            return functional.scaled_dot_product_attention(*seen, scale=1.0)
        scores = _product(self.query(query * scale), self.key(key.transpose(-2, -1)))
        return _product(self.weights(torch.softmax(scores, -1)), self.value(value))


def _product(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    saving = kept_unrounded(one, other)
    if saving is None:
        return torch.matmul(one, other)
    with saving:
        return torch.matmul(one, other)
