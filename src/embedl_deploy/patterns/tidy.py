"""Conversions that bring a network into the shape fusions expect.

Dropout, Identity, stochastic depth (eval)  → nothing
AdaptiveAvgPool to the size it gets         → nothing
mean over height and width                  → AdaptiveAvgPool2d(1) [+ Flatten]
x · sigmoid(x)                              → SiLU
Linear ∘ Flatten on a 1×1 map               → Flatten ∘ Conv1×1
"""

import torch
from torch import nn

from embedl_deploy.nn import Multiply
from embedl_deploy.pattern import (
    Call,
    Chain,
    Expand,
    Fork,
    Match,
    Op,
    PassThrough,
    Pattern,
    Phase,
    Refusal,
    Replacement,
    Value,
)


class RemoveIdentityPattern(Pattern):
    """Remove `nn.Identity`."""

    phase = Phase.CONVERSION
    tree = Op(nn.Identity, name="identity")

    def replace(self, match: Match) -> Replacement:
        """Let the input pass."""
        del match
        return PassThrough()


class RemoveDropoutPattern(Pattern):
    """Remove dropout of a model in eval mode, where it does nothing."""

    phase = Phase.CONVERSION
    tree = Op(
        nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout, name="dropout"
    )

    def check(self, match: Match) -> Refusal | None:
        """Refuse while training: there it is part of the model."""
        if match.module("dropout").training:
            return Refusal("the model is in training mode; call eval() first to have it removed")
        return None

    def replace(self, match: Match) -> Replacement:
        """Let the input pass."""
        del match
        return PassThrough()


class RemoveStochasticDepthPattern(Pattern):
    """Remove stochastic depth of a model in eval mode, after seeing that the module really lets a tensor pass."""

    phase = Phase.CONVERSION
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

    def replace(self, match: Match) -> Replacement:
        """Let the input pass."""
        del match
        return PassThrough()


class RemoveIdentityAdaptiveAvgPoolPattern(Pattern):
    """Remove an adaptive average pooling whose input already has the size it asks for."""

    phase = Phase.CONVERSION
    needs_shapes = True
    tree = Op(nn.AdaptiveAvgPool2d, name="pool")

    def check(self, match: Match) -> Refusal | None:
        """Refuse a pooling that pools."""
        before, after = match.shape(match.inputs[0]), match.shape("pool")
        if before != after or before is None:
            return Refusal(f"it pools {_size(before)} to {_size(after)}", informative=False)
        return None

    def replace(self, match: Match) -> Replacement:
        """Let the input pass."""
        del match
        return PassThrough()


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
        """Pool and flatten."""
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


class FlattenLinearToConv1x1Pattern(Pattern):
    """Turn a linear layer on a flattened 1×1 map into a 1×1 convolution and a flatten."""

    phase = Phase.CONVERSION
    tree = Chain(Op(nn.Flatten, name="flatten"), Op(nn.Linear, name="linear"))

    def check(self, match: Match) -> Refusal | None:
        """Refuse another flatten, a larger map, or a weight that others use."""
        flatten = match.module("flatten")
        assert isinstance(flatten, nn.Flatten)
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
            linear = match.module("linear")
            assert isinstance(linear, nn.Linear)
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


__all__ = [
    "ConvFlatten",
    "FlattenLinearToConv1x1Pattern",
    "MeanToAdaptiveAvgPoolPattern",
    "RemoveDropoutPattern",
    "RemoveIdentityAdaptiveAvgPoolPattern",
    "RemoveIdentityPattern",
    "RemoveStochasticDepthPattern",
    "SigmoidMultiplyToSiLUPattern",
    "conv1x1_of",
]
