"""A third party's backend: a target whose convolution ends in a clamp, and which has no other activation."""

import torch
from torch import nn

from embedl_deploy.backend import Backend
from embedl_deploy.pattern import Chain, Match, Maybe, Op, Pattern, Phase, Refusal, Replacement

__all__ = ["CLAMP", "ConvBNClampPattern", "FusedConvBNClamp", "RemoveDropoutPattern"]


class FusedConvBNClamp(nn.Module):
    """Convolution, batch norm where there is one, clamp."""

    def __init__(self, conv: nn.Module, bn: nn.Module | None, low: float, high: float) -> None:
        super().__init__()
        self.conv, self.bn = conv, bn
        self.low, self.high = low, high
        self.training = conv.training

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        """Run the members and clamp."""
        value = self.conv(value)
        value = value if self.bn is None else self.bn(value)
        return torch.clamp(value, self.low, self.high)


class ConvBNClampPattern(Pattern):
    """Convolution, batch norm and an activation that is a clamp."""

    phase = Phase.FUSION
    tree = Chain(
        Op(nn.Conv2d, name="conv"),
        Maybe(Op(nn.BatchNorm2d, name="bn")),
        Op(nn.ReLU, nn.ReLU6, nn.Hardtanh, name="act"),
    )

    def check(self, match: Match) -> Refusal | None:
        """Refuse more groups than the target has lanes."""
        conv = match.module("conv")
        assert isinstance(conv, nn.Conv2d)
        return Refusal(f"{conv.groups} groups, the target has 4 lanes") if conv.groups > 4 else None

    def replace(self, match: Match) -> Replacement:
        """Read the bounds off the activation."""
        act = match.module("act")
        low, high = (act.min_val, act.max_val) if isinstance(act, nn.Hardtanh) else (0.0, float("inf"))
        return FusedConvBNClamp(match.module("conv"), match.module_or_none("bn"), low, high)


class RemoveDropoutPattern(Pattern):
    """Remove dropout of a model in eval mode."""

    phase = Phase.CONVERSION
    tree = Op(nn.Dropout, name="dropout")

    def check(self, match: Match) -> Refusal | None:
        """Refuse while training."""
        return Refusal("the model is in training mode") if match.module("dropout").training else None

    def replace(self, match: Match) -> Replacement:
        """Let the input pass."""
        del match
        return nn.Identity()


CLAMP = Backend("clamp", conversion_patterns=[RemoveDropoutPattern], fusion_patterns=[ConvBNClampPattern])
