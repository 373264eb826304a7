"""Layers that are one layer: batch norms and factors folded, parallel branches and consecutive products merged.

Everything here is exact up to float rounding and is done in eval mode only: a batch norm that is training has no fixed
factors. The merged layer has weights of its own, because they are computed from several of the user's.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx, nn

from embedl_deploy.nn.ops import Add, Concat, Multiply
from embedl_deploy.pattern import (
    Call,
    Chain,
    Expand,
    Fork,
    Match,
    Maybe,
    Op,
    Pattern,
    Phase,
    Refusal,
    Replacement,
    Value,
)
from embedl_deploy.patterns.fusions import BATCH_NORMS, CONVOLUTIONS

_CONVOLUTIONS: dict[int, type[nn.Module]] = {3: nn.Conv1d, 4: nn.Conv2d, 5: nn.Conv3d}
_TRAINING = "its batch norm is training; call eval() first to have it merged"


@dataclass(frozen=True)
class Affine:
    """A factor and a shift per channel, in float64: what a batch norm with running statistics is."""

    factor: torch.Tensor
    shift: torch.Tensor

    @classmethod
    def of(cls, bn: Any) -> "Affine":
        """Take both from the running statistics."""
        factor = torch.rsqrt(bn.running_var.detach().double() + bn.eps)
        factor = factor if bn.weight is None else factor * bn.weight.detach().double()
        shift = -bn.running_mean.detach().double() * factor
        return cls(factor, shift if bn.bias is None else shift + bn.bias.detach().double())


@dataclass(frozen=True)
class _Kernel:
    """Weight and bias of a convolution in float64, and the padding its weight goes with."""

    weight: torch.Tensor
    bias: torch.Tensor
    padding: tuple[int, ...]

    @classmethod
    def of(cls, conv: Any, bn: nn.Module | None) -> "_Kernel":
        weight = conv.weight.detach().double()
        bias = weight.new_zeros(weight.shape[0]) if conv.bias is None else conv.bias.detach().double()
        padding = (0,) * (weight.ndim - 2) if isinstance(conv.padding, str) else tuple(conv.padding)
        if bn is not None:
            affine = Affine.of(bn)
            weight = weight * affine.factor.reshape(-1, *[1] * (weight.ndim - 1))
            bias = bias * affine.factor + affine.shift
        return cls(weight, bias, padding)

    def spread(self, size: Sequence[int], padding: Sequence[int]) -> torch.Tensor:
        """Return the weight in the middle of zeros, in a larger kernel with more padding."""
        edges: list[int] = []
        for own, wide, inner, outer in zip(self.weight.shape[2:], size, self.padding, padding, strict=True):
            left = outer - inner
            edges = [left, wide - own - left, *edges]
        return nn.functional.pad(self.weight, edges)


def _norm_refusal(bn: Any) -> Refusal | None:
    """Refuse a batch norm whose factors are not fixed."""
    if bn is None:
        return None
    if bn.training:
        return Refusal(_TRAINING)
    return Refusal("its batch norm has no running statistics") if bn.running_mean is None else None


def _shared(match: Match, *names: str) -> Refusal | None:
    """Refuse weights that another layer reads: it would lose them."""
    for name in names:
        if name in match and (others := match.sharers(name)):
            return Refusal(f"the weight of '{match.view.place_of(match.node(name))}' is also used by '{others[0]}'")
    return None


def conv_of(like: Any, weight: torch.Tensor, bias: torch.Tensor | None, padding: tuple[int, ...] | str) -> nn.Module:
    """Build a convolution with the stride, dilation and groups of another one."""
    kind: Any = _CONVOLUTIONS[weight.ndim]
    made: Any = kind(
        weight.shape[1] * like.groups, weight.shape[0], tuple(weight.shape[2:]), stride=like.stride, padding=padding,
        dilation=like.dilation, groups=like.groups, bias=bias is not None, padding_mode=like.padding_mode,
        device="meta",
    )  # fmt: skip
    return _held(made, like, weight, bias)


def _held(made: Any, like: Any, weight: torch.Tensor, bias: torch.Tensor | None) -> nn.Module:
    kind, trained = like.weight.dtype, like.weight.requires_grad
    made.weight = nn.Parameter(weight.to(kind), requires_grad=trained)
    if bias is not None:
        made.bias = nn.Parameter(bias.to(kind), requires_grad=trained)
    trained_module: nn.Module = made.train(like.training)
    return trained_module


class _MergedPattern(Pattern):
    phase = Phase.CONVERSION


_BRANCH = Chain(Op(*CONVOLUTIONS, name="conv"), Maybe(Op(*BATCH_NORMS, name="bn")))
_OTHER = Chain(Op(*CONVOLUTIONS, name="other"), Maybe(Op(*BATCH_NORMS, name="other_bn")))


class MergeBranchesPattern(_MergedPattern):
    """Merge two convolutions of one value whose results are added, with their batch norms, into one convolution."""

    tree = Chain(Fork(Op(Add, name="add"), _BRANCH, _OTHER))

    def check(self, match: Match) -> Refusal | None:
        """Refuse convolutions of two values, or whose kernels do not lie in one another."""
        if match.node("conv").args[0] is not match.node("other").args[0]:
            return Refusal("they read two values", informative=False)
        one, other = match.module("conv"), match.module("other")
        for refusal in (
            _unlike(one, other),
            _norm_refusal(match.module_or_none("bn")),
            _norm_refusal(match.module_or_none("other_bn")),
            _shared(match, "conv", "other"),
        ):
            if refusal is not None:
                return refusal
        return None

    def replace(self, match: Match) -> Replacement:
        """Add the kernels, the smaller one in the middle of zeros."""
        conv: Any = match.module("conv")
        one = _Kernel.of(conv, match.module_or_none("bn"))
        other = _Kernel.of(match.module("other"), match.module_or_none("other_bn"))
        size = [max(pair) for pair in zip(one.weight.shape[2:], other.weight.shape[2:], strict=True)]
        padding = tuple(max(pair) for pair in zip(one.padding, other.padding, strict=True))
        weight = one.spread(size, padding) + other.spread(size, padding)
        return Call(conv_of(conv, weight, one.bias + other.bias, padding), (0,))


def _unlike(one: Any, other: Any) -> Refusal | None:
    """Say what keeps two convolutions from being one."""
    for name in ("stride", "groups", "in_channels", "out_channels"):
        if getattr(one, name) != getattr(other, name):
            return Refusal(f"their {name} differ: {getattr(one, name)} and {getattr(other, name)}")
    if {one.padding_mode, other.padding_mode} != {"zeros"} or "same" in (one.padding, other.padding):
        return Refusal("one of them pads by name ('same') or with something other than zeros")
    sized = one.kernel_size != other.kernel_size
    if sized and any(step > 1 for step in (*one.dilation, *other.dilation)):
        return Refusal("kernels with holes have different sizes")
    if not sized and one.dilation != other.dilation and max(one.kernel_size) > 1:
        return Refusal(f"their dilations differ: {one.dilation} and {other.dilation}")
    return _uncovered(one, other)


def _uncovered(one: Any, other: Any) -> Refusal | None:
    """Refuse kernels that are not centered on one another, so that their results have other sizes."""
    a, b = _Kernel.of(one, None), _Kernel.of(other, None)
    for mine, theirs, inner, outer in zip(one.kernel_size, other.kernel_size, a.padding, b.padding, strict=True):
        gap = inner - outer if mine >= theirs else outer - inner
        if 2 * gap != abs(mine - theirs):
            sizes = f"{one.kernel_size} padded by {one.padding} and {other.kernel_size} padded by {other.padding}"
            return Refusal(f"their kernels do not cover the same places: {sizes}")
    return None


class MergeIdentityBranchPattern(_MergedPattern):
    """Merge a convolution and a batch norm of the same value, whose results are added, into one convolution."""

    tree = Chain(Fork(Op(Add, name="add"), _BRANCH, Op(*BATCH_NORMS, name="identity")))

    def check(self, match: Match) -> Refusal | None:
        """Refuse another value, or a convolution without a place for the identity."""
        if match.node("conv").args[0] is not match.node("identity").args[0]:
            return Refusal("they read two values", informative=False)
        conv: Any = match.module("conv")
        if conv.in_channels != conv.out_channels or any(step != 1 for step in conv.stride):
            return Refusal("the convolution changes the size or the number of channels")
        if conv.padding_mode != "zeros" or isinstance(conv.padding, str):
            return Refusal("the convolution pads by name or with something other than zeros")
        for size, step, pad in zip(conv.kernel_size, conv.dilation, conv.padding, strict=True):
            if pad % step or pad // step >= size:
                return Refusal("the convolution's kernel has no element at the place it writes")
        return (
            _norm_refusal(match.module_or_none("bn"))
            or _norm_refusal(match.module("identity"))
            or _shared(match, "conv", "identity")
        )

    def replace(self, match: Match) -> Replacement:
        """Add the batch norm's factor to the element that reads the place it writes."""
        conv: Any = match.module("conv")
        kernel, affine = _Kernel.of(conv, match.module_or_none("bn")), Affine.of(match.module("identity"))
        weight = kernel.weight.clone()
        middle = [pad // step for pad, step in zip(kernel.padding, conv.dilation, strict=True)]
        channels = torch.arange(weight.shape[0])
        weight[(channels, channels % weight.shape[1], *middle)] += affine.factor
        return Call(conv_of(conv, weight, kernel.bias + affine.shift, kernel.padding), (0,))


class FoldNormIntoLinearPattern(_MergedPattern):
    """Fold a batch norm into the fully connected layer before it."""

    tree = Chain(Op(nn.Linear, name="linear"), Op(*BATCH_NORMS, name="bn"))

    def check(self, match: Match) -> Refusal | None:
        """Refuse what has its channels elsewhere: a batch norm has them in the second dimension."""
        shape = match.shape("bn")
        if shape is None:
            return Refusal("needs example inputs to know which dimension has the channels; call transform(model, args)")
        if len(shape) != 2:
            return Refusal(
                f"the batch norm's channels are dimension 1 of {len(shape)}, the linear layer's are the last"
            )
        return _norm_refusal(match.module("bn")) or _shared(match, "linear")

    def replace(self, match: Match) -> Replacement:
        """Scale the weight's rows and shift the bias."""
        return _normed(match)


class FoldNormAcrossFlattenPattern(_MergedPattern):
    """Fold a batch norm into the fully connected layer before it, where the code flattens for it and back again."""

    tree = Chain(
        Op(nn.Linear, name="linear"),
        Op(nn.Flatten, name="flatten"),
        Op(*BATCH_NORMS, name="bn"),
        Op(".reshape_as", ".view_as", name="unflatten"),
    )

    def check(self, match: Match) -> Refusal | None:
        """Refuse a flattening that takes the channels in, and a shape that is not the linear layer's."""
        linear, shape = match.module("linear", nn.Linear), match.shape("bn")
        if shape is None or len(shape) != 2 or shape[1] != linear.out_features:
            return Refusal("it does not flatten everything but the channels, or the shape is unknown")
        if match.node("unflatten").args[1] is not match.node("linear"):
            return Refusal("it is given another shape than the linear layer's result has")
        return _norm_refusal(match.module("bn")) or _shared(match, "linear")

    def replace(self, match: Match) -> Replacement:
        """Scale the weight's rows and shift the bias; the shape is the linear layer's own."""
        data = match.node("linear").args[0]
        assert isinstance(data, fx.Node)
        return Call(_normed(match), (match.inputs.index(data),))


def _normed(match: Match) -> nn.Module:
    linear, affine = match.module("linear", nn.Linear), Affine.of(match.module("bn"))
    weight = linear.weight.detach().double() * affine.factor[:, None]
    own: torch.Tensor | None = linear.bias
    bias = affine.shift if own is None else affine.shift + own.detach().double() * affine.factor
    return linear_like(linear, weight, bias)


def linear_like(like: nn.Module, weight: torch.Tensor, bias: torch.Tensor | None) -> nn.Module:
    """Build a fully connected layer in the mode and number format of another one."""
    made = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None, device="meta")
    return _held(made, like, weight, bias)


class SplitNormPattern(_MergedPattern):
    """Split a batch norm behind a concat of convolutions into one for each, which the convolution takes in."""

    tree = Chain(Op(Concat, name="concat"), Op(*BATCH_NORMS, name="bn"))

    def check(self, match: Match) -> Refusal | None:
        """Refuse a concat along another dimension, and of anything but convolutions that nobody else reads."""
        layers = [match.view.module_of(value) for value in match.node("concat").all_input_nodes]
        alone = all(len(value.users) == 1 for value in match.node("concat").all_input_nodes)
        if not alone or not all(isinstance(layer, nn.modules.conv._ConvNd) for layer in layers):
            return Refusal("it reads more than convolutions that nobody else reads", informative=False)
        if match.module("concat", Concat).dim != 1 or len(layers) != len(match.node("concat").args):
            return Refusal("it does not put different values together along the channels", informative=False)
        return _norm_refusal(match.module("bn"))

    def replace(self, match: Match) -> Replacement:
        """Normalize every part, then put them together."""
        bn: Any = match.module("bn")
        graph, parts, start = fx.Graph(), dict[str, nn.Module](), 0
        values = [graph.placeholder(f"value_{number}") for number in range(len(match.inputs))]
        normal = []
        for number, (value, source) in enumerate(zip(values, match.inputs, strict=True)):
            conv: Any = match.view.module_of(source)
            parts[f"bn_{number}"] = _cut(bn, start, start + conv.out_channels)
            normal.append(graph.call_module(f"bn_{number}", (value,)))
            start += conv.out_channels
        parts["concat"] = match.module("concat")
        graph.output(graph.call_module("concat", tuple(normal)))
        return Expand(fx.GraphModule(parts, graph))


def _cut(bn: Any, start: int, end: int) -> nn.Module:
    """Return the batch norm of some of the channels; weights share the memory of the whole."""
    made: Any = type(bn)(end - start, bn.eps, bn.momentum, affine=False)
    made.running_mean = bn.running_mean[start:end].clone()
    made.running_var = bn.running_var[start:end].clone()
    for name in ("weight", "bias"):
        whole = getattr(bn, name)
        if whole is not None:
            part = nn.Parameter(whole.detach()[start:end], requires_grad=whole.requires_grad)
            made.register_parameter(name, part)
    made.affine = bn.weight is not None
    module: nn.Module = made.train(bn.training)
    return module


class FoldNormForwardPattern(_MergedPattern):
    """Fold a batch norm into the convolution or fully connected layer that reads it, where none stands before it."""

    tree = Chain(Op(*BATCH_NORMS, name="bn"), Op(*CONVOLUTIONS, nn.Linear, name="layer"))

    def check(self, match: Match) -> Refusal | None:
        """Refuse where a layer before takes it in, and where zeros of a padding do not get its shift."""
        source = match.view.module_of(match.inputs[0])
        backwards = isinstance(source, nn.Linear | nn.modules.conv._ConvNd) and len(match.inputs[0].users) == 1
        if backwards and not (isinstance(source, nn.Linear) and len(match.shape("bn") or ()) != 2):
            return Refusal("the layer before it takes it in", informative=False)
        refusal = _norm_refusal(match.module("bn")) or _shared(match, "layer")
        if refusal is not None:
            return refusal
        layer: Any = match.module("layer")
        if isinstance(layer, nn.Linear):
            shape = match.shape("bn")
            known = shape is not None and len(shape) == 2
            return None if known else Refusal("its channels are not the linear layer's inputs, or the shape is unknown")
        padded = layer.padding == "same" or (not isinstance(layer.padding, str) and any(layer.padding))
        if padded and layer.padding_mode == "zeros" and bool(Affine.of(match.module("bn")).shift.any()):
            place = match.view.place_of(match.node("layer"))
            return Refusal(f"'{place}' pads with zeros, which the batch norm's shift does not reach")
        return None

    def replace(self, match: Match) -> Replacement:
        """Scale what reads each channel, and add what the shift comes to."""
        layer: Any = match.module("layer")
        affine, weight = Affine.of(match.module("bn")), layer.weight.detach().double()
        groups = getattr(layer, "groups", 1)
        # Output channel o of group g reads the input channels of that group only.
        per_group = affine.factor.reshape(groups, 1, -1), affine.shift.reshape(groups, 1, -1)
        rows = weight.shape[0] // groups
        factor, shift = (value.expand(groups, rows, -1).reshape(weight.shape[0], -1) for value in per_group)
        rest = [1] * (weight.ndim - 2)
        moved = (weight * shift.reshape(*shift.shape, *rest)).flatten(1).sum(1)
        bias = moved if layer.bias is None else moved + layer.bias.detach().double()
        scaled = weight * factor.reshape(*factor.shape, *rest)
        if isinstance(layer, nn.Linear):
            return linear_like(layer, scaled, bias)
        return conv_of(layer, scaled, bias, layer.padding)


class MergeLinearsPattern(_MergedPattern):
    """Merge two fully connected layers with nothing in between, where the product is not larger than both."""

    tree = Chain(Op(nn.Linear, name="first"), Op(nn.Linear, name="second"))

    def check(self, match: Match) -> Refusal | None:
        """Refuse a bottleneck, whose product is larger."""
        first, second = match.module("first", nn.Linear), match.module("second", nn.Linear)
        if first.in_features * second.out_features > first.weight.numel() + second.weight.numel():
            return Refusal("the merged layer would be larger than both", informative=False)
        if first.training:
            return Refusal("the model is in training mode; call eval() first to have them merged")
        return _shared(match, "first", "second")

    def replace(self, match: Match) -> Replacement:
        """Multiply the weights."""
        first, second = match.module("first", nn.Linear), match.module("second", nn.Linear)
        weight = second.weight.detach().double() @ first.weight.detach().double()
        return linear_like(second, weight, _passed(second, second.weight.detach().double(), first))


def _passed(second: Any, matrix: torch.Tensor, first: Any) -> torch.Tensor | None:
    """Return the bias of two layers in a row."""
    own = None if second.bias is None else second.bias.detach().double()
    if first.bias is None:
        return own
    through: torch.Tensor = matrix @ first.bias.detach().double()
    return through if own is None else through + own


class MergePointwisePattern(_MergedPattern):
    """Merge two 1×1 convolutions with nothing but a batch norm in between, where the product is not larger."""

    tree = Chain(Op(*CONVOLUTIONS, name="first"), Maybe(Op(*BATCH_NORMS, name="bn")), Op(*CONVOLUTIONS, name="second"))

    def check(self, match: Match) -> Refusal | None:
        """Refuse kernels, groups, padding, and a bottleneck, whose product is larger."""
        first, second = match.module("first"), match.module("second")
        if not (_is_pointwise(first) and _is_pointwise(second)):
            return Refusal("they are not 1×1 without groups and padding", informative=False)
        one, two = first.weight, second.weight
        assert isinstance(one, torch.Tensor)
        assert isinstance(two, torch.Tensor)
        if one.shape[1] * two.shape[0] > one.numel() + two.numel():
            return Refusal("the merged layer would be larger than both", informative=False)
        return _norm_refusal(match.module_or_none("bn")) or _shared(match, "first", "second")

    def replace(self, match: Match) -> Replacement:
        """Multiply the weights."""
        first: Any = match.module("first")
        second: Any = match.module("second")
        kernel = _Kernel.of(first, match.module_or_none("bn"))
        matrix = second.weight.detach().double().flatten(1)
        weight = (matrix @ kernel.weight.flatten(1)).reshape(-1, kernel.weight.shape[1], *first.weight.shape[2:])
        own = 0 if second.bias is None else second.bias.detach().double()
        bias: torch.Tensor | None = matrix @ kernel.bias + own
        if first.bias is None and second.bias is None and "bn" not in match:
            bias = None
        made: Any = conv_of(second, weight, bias, (0,) * (weight.ndim - 2))
        made.stride = tuple(a * b for a, b in zip(first.stride, second.stride, strict=True))
        module: nn.Module = made
        return module


def _is_pointwise(conv: Any) -> bool:
    plain = all(size == 1 for size in conv.kernel_size) and conv.groups == 1
    return plain and (conv.padding == "valid" or not (isinstance(conv.padding, str) or any(conv.padding)))


class _FactorPattern(_MergedPattern):
    """What multiplies or shifts the channels of a layer's result by constants."""

    def check(self, match: Match) -> Refusal | None:
        """Refuse values that are computed or lie along another dimension than the channels."""
        constant = match.view.tensor_of(match.input("constant"))
        if constant is None:
            return Refusal("the other operand is computed", informative=False)
        layer: Any = match.module("layer")
        if _per_channel(match, layer, constant) is None:
            return Refusal("the constant is not one value per channel", informative=False)
        if layer.training:
            return Refusal("the model is in training mode; call eval() first to have it folded")
        return _shared(match, "layer")


def _per_channel(match: Match, layer: Any, constant: torch.Tensor) -> torch.Tensor | None:
    """Return a constant as one value per output channel, `None` when it is not that."""
    linear = isinstance(layer, nn.Linear)
    channels = layer.weight.shape[0]
    if not constant.is_floating_point() or constant.dtype != layer.weight.dtype:
        return None
    if constant.numel() == 1:
        shape, result = match.shape("layer"), match.shape(match.output)
        return constant.detach().double().reshape(1).expand(channels) if shape == result else None
    behind = 0 if linear else layer.weight.ndim - 2
    wanted = (channels, *[1] * behind)
    front = tuple(constant.shape[: -len(wanted)] if constant.ndim > len(wanted) else ())
    if tuple(constant.shape[-len(wanted) :]) != wanted or any(side != 1 for side in front):
        return None
    shape = match.shape("layer")
    if shape is None or constant.ndim > len(shape):
        return None
    return constant.detach().double().reshape(-1)


_LAYER = Op(*CONVOLUTIONS, nn.Linear, name="layer")


class FoldFactorPattern(_FactorPattern):
    """Fold a product with one constant per channel (frozen batch norm, layer scale) into the layer before it."""

    tree = Chain(Fork(Op(Multiply, name="multiply"), _LAYER, Value("constant")))

    def replace(self, match: Match) -> Replacement:
        """Scale the weight's rows and the bias."""
        layer: Any = match.module("layer")
        factor = _constant(match, layer)
        weight = layer.weight.detach().double() * factor.reshape(-1, *[1] * (layer.weight.ndim - 1))
        bias = None if layer.bias is None else layer.bias.detach().double() * factor
        return Call(_rebuilt(layer, weight, bias), (_data(match),))


class FoldShiftPattern(_FactorPattern):
    """Fold a sum with one constant per channel into the bias of the layer before it."""

    tree = Chain(Fork(Op(Add, name="add"), _LAYER, Value("constant")))

    def replace(self, match: Match) -> Replacement:
        """Add to the bias."""
        layer: Any = match.module("layer")
        shift = _constant(match, layer)
        bias = shift if layer.bias is None else shift + layer.bias.detach().double()
        return Call(_rebuilt(layer, layer.weight.detach(), bias), (_data(match),))


def _constant(match: Match, layer: Any) -> torch.Tensor:
    tensor = match.view.tensor_of(match.input("constant"))
    assert tensor is not None
    found = _per_channel(match, layer, tensor)
    assert found is not None
    return found


def _data(match: Match) -> int:
    """Return which input the layer reads."""
    read = match.node("layer").args[0]
    assert isinstance(read, fx.Node)
    return match.inputs.index(read)


def _rebuilt(layer: Any, weight: torch.Tensor, bias: torch.Tensor | None) -> nn.Module:
    if isinstance(layer, nn.Linear):
        return linear_like(layer, weight, bias)
    return conv_of(layer, weight, bias, layer.padding)


MERGING = (
    MergeBranchesPattern,
    MergeIdentityBranchPattern,
    FoldNormIntoLinearPattern,
    FoldNormAcrossFlattenPattern,
    SplitNormPattern,
    FoldNormForwardPattern,
    FoldFactorPattern,
    FoldShiftPattern,
    MergeLinearsPattern,
    MergePointwisePattern,
)
"""What every target wants once nothing that does nothing stands in between."""
