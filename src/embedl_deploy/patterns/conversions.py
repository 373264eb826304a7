"""Conversions that bring a network into the shape fusions expect; none changes what it computes."""

import operator

import torch
from torch import Tensor, nn

from embedl_deploy.nn import CLAMPS, Multiply
from embedl_deploy.pattern import (
    Call,
    Chain,
    Expand,
    Fork,
    Match,
    Maybe,
    Op,
    PassThrough,
    Pattern,
    Phase,
    Refusal,
    Replacement,
    Value,
)
from embedl_deploy.patterns.merging import MERGING


class _RemovePattern(Pattern):
    """What removes its only member: the input passes."""

    phase = Phase.CONVERSION

    def replace(self, match: Match) -> Replacement:
        del match
        return PassThrough()


class RemoveIdentityPattern(_RemovePattern):
    """Remove `nn.Identity`."""

    tree = Op(nn.Identity, name="identity")


class RemoveDropoutPattern(_RemovePattern):
    """Remove dropout of a model in eval mode, where it does nothing."""

    tree = Op(
        nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout, name="dropout"
    )

    def check(self, match: Match) -> Refusal | None:
        """Refuse while training: there it is part of the model."""
        if match.module("dropout").training:
            return Refusal("the model is in training mode; call eval() first to have it removed")
        return None


_SUMS = (operator.add, operator.iadd, torch.add, torch.ops.aten.add.Tensor, torch.ops.aten.add_.Tensor)
_PRODUCTS = (operator.mul, operator.imul, torch.mul, torch.ops.aten.mul.Tensor, torch.ops.aten.mul_.Tensor)


class RemoveNeutralPattern(_RemovePattern):
    """Remove a sum with zero and a product with one, as code has them that adds up branches in a loop."""

    tree = Op(*_SUMS, *_PRODUCTS, name="operator")

    def check(self, match: Match) -> Refusal | None:
        """Refuse other numbers, and what changes the number format."""
        node = match.node("operator")
        neutral = 0 if node.target in _SUMS else 1
        numbers = [value for value in node.args if isinstance(value, int | float) and not isinstance(value, bool)]
        if len(node.args) != 2 or node.kwargs or len(match.inputs) != 1 or numbers != [neutral]:
            return Refusal("it is not neutral", informative=False)
        before, after = match.dtype(match.inputs[0]), match.dtype("operator")
        if before is None or before != after:
            return Refusal("it may change the number format", informative=False)
        return None


class RemoveStochasticDepthPattern(_RemovePattern):
    """Remove stochastic depth of a model in eval mode, after seeing that the module really lets a tensor pass."""

    tree = Op("torchvision.ops.stochastic_depth.StochasticDepth", "timm.layers.drop.DropPath", name="depth")

    def check(self, match: Match) -> Refusal | None:
        """Refuse while training, or when the module does something in eval mode."""
        module = match.module("depth")
        if module.training:
            return Refusal("the model is in training mode; call eval() first to have it removed")
        probe = torch.zeros(1, 1, 1, 1)
        if module(probe) is not probe:
            return Refusal("it changes its input in eval mode")
        return None


class RemoveIdentityAdaptiveAvgPoolPattern(_RemovePattern):
    """Remove an adaptive average pooling whose input already has the size it asks for."""

    needs_shapes = True
    tree = Op(nn.AdaptiveAvgPool2d, name="pool")

    def check(self, match: Match) -> Refusal | None:
        """Refuse a pooling that pools."""
        before, after = match.shape(match.inputs[0]), match.shape("pool")
        if before != after or before is None:
            return Refusal(f"it pools {_size(before)} to {_size(after)}", informative=False)
        return None


def _size(shape: tuple[int, ...] | None) -> str:
    """Name the last two dimensions."""
    return "an unknown size" if shape is None else "×".join(str(side) for side in shape[-2:])


class MeanToAdaptiveAvgPoolPattern(Pattern):
    """Turn a mean over height and width into the pooling it is."""

    phase = Phase.CONVERSION
    needs_shapes = True
    tree = Op(torch.mean, name="mean")

    def check(self, match: Match) -> Refusal | None:
        """Refuse a mean over anything but the two spatial dimensions of a 4-dimensional tensor."""
        node = match.node("mean")
        shape = match.shape(match.inputs[0])
        dims = node.args[1] if len(node.args) > 1 else ()
        if shape is None or len(shape) != 4 or not isinstance(dims, tuple):
            return Refusal("it is no mean over height and width", informative=False)
        if sorted(dim % 4 for dim in dims if isinstance(dim, int)) != [2, 3]:
            return Refusal("it is no mean over height and width", informative=False)
        return None

    def replace(self, match: Match) -> Replacement:
        """Pool, and drop the two dimensions when the mean did."""
        node = match.node("mean")
        if len(node.args) > 2 and node.args[2]:
            return nn.AdaptiveAvgPool2d(1)
        return Expand(_PoolFlatten())


class _PoolFlatten(nn.Module):
    """Average over height and width."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.flatten = nn.Flatten(1)

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.flatten(self.pool(value))
        return result


class SigmoidMultiplyToSiLUPattern(Pattern):
    """Turn x·sigmoid(x) into the activation it is."""

    phase = Phase.CONVERSION
    tree = Chain(Fork(Op(Multiply, name="multiply"), Op(nn.Sigmoid, name="sigmoid"), Value("gated")))

    def check(self, match: Match) -> Refusal | None:
        """Refuse a gate over another value (squeeze-excite, for one)."""
        if match.input("gated") is not match.node("sigmoid").args[0]:
            return Refusal("the gate is computed from another value", informative=False)
        return None

    def replace(self, match: Match) -> Replacement:
        """Put the activation in place."""
        return Call(nn.SiLU().train(match.module("sigmoid").training), (0,))


class RMSNormPattern(Pattern):
    """Turn x / sqrt(mean(x²) + eps) · weight into the normalization it is."""

    phase = Phase.CONVERSION
    tree = Chain(
        Fork(
            Op(Multiply, name="scale"),
            Chain(
                Fork(
                    Op(Multiply, name="normal"),
                    Chain(
                        Op(torch.pow, torch.square, torch.ops.aten.pow.Tensor_Scalar, name="square"),
                        Op(torch.mean, name="mean"),
                        Op(*_SUMS, name="sum"),
                        Op(torch.rsqrt, torch.ops.aten.rsqrt.default, name="root"),
                    ),
                    Value("value"),
                )
            ),
            Value("weight"),
        )
    )

    def check(self, match: Match) -> Refusal | None:
        """Refuse other powers and dimensions, and weights that are computed."""
        square, mean, total = (match.node(name) for name in ("square", "mean", "sum"))
        weight, shape = match.view.tensor_of(match.input("weight")), match.shape(match.input("value"))
        if square.args[0] is not match.input("value") or (len(square.args) > 1 and square.args[1] != 2):
            return Refusal("it is not the mean of its own squares", informative=False)
        last = shape is not None and mean.args[1] in ((-1,), (len(shape) - 1,)) and mean.args[2:] == (True,)
        if not last or not isinstance(total.args[1], float):
            return Refusal("it is not a mean over the last dimension plus a small number", informative=False)
        if weight is None or shape is None or tuple(weight.shape) != shape[-1:]:
            return Refusal("its weight is computed, or not one value for the last dimension")
        return None

    def replace(self, match: Match) -> Replacement:
        """Put the normalization in place."""
        weight, epsilon = match.view.tensor_of(match.input("weight")), match.node("sum").args[1]
        assert weight is not None
        assert isinstance(epsilon, float)
        norm = nn.RMSNorm(weight.shape[0], eps=epsilon, device="meta")
        norm.weight = weight if isinstance(weight, nn.Parameter) else nn.Parameter(weight, weight.requires_grad)
        norm.train(match.module("scale").training)
        return Call(norm, (match.inputs.index(match.input("value")),))


class FlattenLinearToConv1x1Pattern(Pattern):
    """Turn a linear layer on a flattened 1×1 map into a 1×1 convolution and a flatten."""

    phase = Phase.CONVERSION
    tree = Chain(Op(nn.Flatten, name="flatten"), Op(nn.Linear, name="linear"))

    def check(self, match: Match) -> Refusal | None:
        """Refuse another flatten, a larger map, or a weight that others use."""
        flatten = match.module("flatten", nn.Flatten)
        if flatten.start_dim != 1 or flatten.end_dim not in (-1, 3):
            return Refusal(f"it flattens dimensions {flatten.start_dim} to {flatten.end_dim}, not all but the batch")
        shape = self._map(match)
        if shape is None:
            return Refusal("the size of the flattened map is unknown; call transform(model, args)")
        if len(shape) != 4 or shape[2:] != (1, 1):
            sides = "×".join(str(side) for side in shape[2:])
            return Refusal(f"the flattened map is {sides or 'flat'}, not 1×1")
        if others := match.sharers("linear"):
            return Refusal(f"its weight is also used by '{others[0]}'")
        return None

    def _map(self, match: Match) -> tuple[int, ...] | None:
        """Return the flattened map's shape; a global pooling right before it tells without example inputs."""
        pool = match.view.module_of(match.inputs[0])
        if isinstance(pool, nn.AdaptiveAvgPool2d | nn.AdaptiveMaxPool2d) and pool.output_size in (1, (1, 1)):
            linear = match.module("linear", nn.Linear)
            return (1, linear.in_features, 1, 1)
        return match.shape(match.inputs[0])

    def replace(self, match: Match) -> Replacement:
        """Convolve, then flatten."""
        linear, flatten = match.module("linear"), match.module("flatten")
        assert isinstance(linear, nn.Linear)
        return Expand(ConvFlatten(conv1x1_of(linear), flatten))


class ConvFlatten(nn.Module):
    """A convolution on a 1×1 map, and the flatten after it."""

    def __init__(self, conv: nn.Conv2d, flatten: nn.Module) -> None:
        super().__init__()
        self.conv = conv
        self.flatten = flatten
        self.training = conv.training

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        """Convolve and flatten."""
        result: torch.Tensor = self.flatten(self.conv(value))
        return result


def conv1x1_of(linear: nn.Linear) -> nn.Conv2d:
    """Build the 1×1 convolution that a linear layer is, on the memory of the same weight."""
    conv = nn.Conv2d(linear.in_features, linear.out_features, 1, bias=linear.bias is not None, device="meta")
    weight = linear.weight
    conv.weight = nn.Parameter(weight.detach()[:, :, None, None], requires_grad=weight.requires_grad)
    if linear.bias is not None:
        conv.bias = linear.bias
    return conv.train(linear.training)


class ConvTransposeToPixelShufflePattern(Pattern):
    """Turn a transposed convolution without overlap into a 1×1 convolution and a pixel shuffle.

    Where the kernel is as long as the stride, every input pixel writes a patch of its own, a linear map of the pixel's
    channels. It is for targets that have integer convolutions but no integer transposed one.
    """

    phase = Phase.CONVERSION
    tree = Chain(
        Op(nn.ConvTranspose2d, name="conv"), Maybe(Op(nn.BatchNorm2d, name="bn")), Maybe(Op(*CLAMPS, name="act"))
    )

    def check(self, match: Match) -> Refusal | None:
        """Refuse patches that overlap or are not square, groups, shared weights, and a batch norm that is training."""
        conv = match.module("conv", nn.ConvTranspose2d)
        side = conv.kernel_size[0]
        if conv.kernel_size != (side, side) or conv.stride != (side, side):
            return Refusal(f"kernel {conv.kernel_size} with stride {conv.stride} makes no square patches side by side")
        if any((*conv.padding, *conv.output_padding)) or conv.dilation != (1, 1) or conv.groups != 1:
            return Refusal("it has padding, dilation or groups")
        if others := match.sharers("conv"):
            return Refusal(f"its weight is also used by '{others[0]}'")
        bn = match.module_or_none("bn")
        if bn is not None and bn.training:
            return Refusal(
                "its batch norm is training, and each position would get statistics of its own; call eval() first"
            )
        return None

    def replace(self, match: Match) -> Replacement:
        """Convolve, normalize, clamp, shuffle."""
        conv, bn = match.module("conv"), match.module_or_none("bn")
        assert isinstance(conv, nn.ConvTranspose2d)
        assert bn is None or isinstance(bn, nn.BatchNorm2d)
        return Expand(_ConvShuffle(conv, bn, match.module_or_none("act")))


class _ConvShuffle(nn.Module):
    """A 1×1 convolution to all positions of a patch, what follows it, and the shuffle to their places."""

    def __init__(self, conv: nn.ConvTranspose2d, bn: nn.BatchNorm2d | None, act: nn.Module | None) -> None:
        super().__init__()
        side = conv.kernel_size[0]
        self.conv = _pointwise(conv)
        self.bn = None if bn is None else _repeated(bn, side * side)
        self.act = act
        self.shuffle = nn.PixelShuffle(side)
        self.training = conv.training

    def forward(self, value: Tensor) -> Tensor:
        value = self.conv(value)
        if self.bn is not None:
            value = self.bn(value)
        if self.act is not None:
            value = self.act(value)
        result: Tensor = self.shuffle(value)
        return result


def _pointwise(conv: nn.ConvTranspose2d) -> nn.Conv2d:
    """Build the 1×1 convolution: its channel (c, row, column) writes that position of channel c's patch."""
    positions = conv.kernel_size[0] * conv.kernel_size[1]
    made = nn.Conv2d(conv.in_channels, conv.out_channels * positions, 1, bias=conv.bias is not None, device="meta")
    weight = conv.weight.detach().permute(1, 2, 3, 0).reshape(-1, conv.in_channels, 1, 1).contiguous()
    made.weight = nn.Parameter(weight, requires_grad=conv.weight.requires_grad)
    if conv.bias is not None:
        bias = conv.bias.detach().repeat_interleave(positions)
        made.bias = nn.Parameter(bias, requires_grad=conv.bias.requires_grad)
    return made.train(conv.training)


def _repeated(bn: nn.BatchNorm2d, times: int) -> nn.BatchNorm2d:
    """Build the batch norm of all positions: every channel's figures, once for each."""
    made = nn.BatchNorm2d(
        bn.num_features * times, bn.eps, bn.momentum, bn.affine, bn.track_running_stats, device=_device(bn)
    )
    wanted = {
        name: value if value.ndim == 0 else value.repeat_interleave(times) for name, value in bn.state_dict().items()
    }
    made.load_state_dict(wanted)
    return made.train(bn.training)


def _device(bn: nn.BatchNorm2d) -> object:
    """Return where a batch norm's figures are."""
    return next((value.device for value in bn.state_dict().values()), None)


TIDYING = (
    RemoveIdentityPattern,
    RemoveDropoutPattern,
    RemoveNeutralPattern,
    RemoveStochasticDepthPattern,
    RemoveIdentityAdaptiveAvgPoolPattern,
    MeanToAdaptiveAvgPoolPattern,
    SigmoidMultiplyToSiLUPattern,
    RMSNormPattern,
    *MERGING,
)
"""What every target wants first."""
