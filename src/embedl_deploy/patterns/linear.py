"""Fully connected layers and normalisation.

act ∘ Linear  → FusedLinearReLU
Linear        → FusedLinear
LayerNorm     → FusedLayerNorm
"""

from torch import nn

from embedl_deploy.nn import FusedLayerNorm, FusedLinear, FusedLinearReLU
from embedl_deploy.pattern import Chain, Match, Op, Pattern, Phase, Replacement
from embedl_deploy.patterns.conv import ACTIVATIONS

_LINEAR = Op(nn.Linear, name="linear")


class LinearPattern(Pattern):
    """A fully connected layer."""

    phase = Phase.FUSION
    tree = _LINEAR

    def replace(self, match: Match) -> Replacement:
        """Hold it as one kernel."""
        return FusedLinear(match.module("linear"))


class LinearReLUPattern(Pattern):
    """A fully connected layer and its activation."""

    phase = Phase.FUSION
    tree = Chain(_LINEAR, Op(*ACTIVATIONS, nn.Tanh, name="act"))

    def replace(self, match: Match) -> Replacement:
        """Hold both in one module."""
        return FusedLinearReLU(match.module("linear"), match.module("act"))


class LayerNormPattern(Pattern):
    """Layer normalisation."""

    phase = Phase.FUSION
    tree = Op(nn.LayerNorm, name="norm")

    def replace(self, match: Match) -> Replacement:
        """Hold it as one kernel."""
        return FusedLayerNorm(match.module("norm"))
