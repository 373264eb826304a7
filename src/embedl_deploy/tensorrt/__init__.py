"""The TensorRT backend: what its compiler fuses, as patterns, and the modules they put in place.

Pairs stand on every input of a layer with weights; never on its result, so that the kernel's epilogue stays in high
precision and a pair further on fuses as its int8 output. A residual is quantized, the branch of the convolution is not:
a pair between the convolution and the add breaks the kernel. What has no int8 kernel stays float: a pair there is pure
cost.
"""

import math
from collections.abc import Sequence
from typing import Any, ClassVar

from torch import nn

from embedl_deploy import nn as layers
from embedl_deploy.backend import Backend
from embedl_deploy.nn import (
    FusedAdaptiveAvgPool2d,
    FusedAttention,
    FusedBNReLU,
    FusedConvBN,
    FusedConvBNAdd,
    FusedConvBNAddReLU,
    FusedConvBNReLU,
    FusedConvBNReLUMaxPool,
    FusedConvTransposeBN,
    FusedConvTransposeBNReLU,
    FusedLayerNorm,
    FusedLinear,
    FusedLinearReLU,
    FusedSoftmaxAttention,
)
from embedl_deploy.pattern import Match, Op, Pattern, Phase, Point, Refusal, When
from embedl_deploy.patterns import (
    AdaptiveAvgPoolPattern,
    AttentionPattern,
    BNReLUPattern,
    ConvBNAddPattern,
    ConvBNAddReLUPattern,
    ConvBNPattern,
    ConvBNReLUPattern,
    ConvTransposeBNPattern,
    ConvTransposeBNReLUPattern,
    DecomposeMultiheadAttentionPattern,
    DecomposeWindowAttentionPattern,
    FlattenLinearToConv1x1Pattern,
    LayerNormPattern,
    LinearPattern,
    LinearReLUPattern,
    MaskedSoftmaxAttentionPattern,
    MeanToAdaptiveAvgPoolPattern,
    RemoveDropoutPattern,
    RemoveIdentityAdaptiveAvgPoolPattern,
    RemoveIdentityPattern,
    RemoveStochasticDepthPattern,
    SigmoidMultiplyToSiLUPattern,
    SoftmaxAttentionPattern,
    StemConvBNReLUMaxPoolPattern,
)
from embedl_deploy.patterns.attention import COMMON_FUSIONS
from embedl_deploy.patterns.conversions import TIDYING
from embedl_deploy.patterns.fusions import SmoothNormPattern

__all__ = [
    "TENSORRT",
    "TENSORRT_CONVERSIONS",
    "TENSORRT_FUSIONS",
    "TENSORRT_PATTERNS",
    "TENSORRT_QUANTIZED",
    "TENSORRT_SMOOTH",
    "AdaptiveAvgPoolPattern",
    "AttentionPattern",
    "BNReLUPattern",
    "ConvBNAddPattern",
    "ConvBNAddReLUPattern",
    "ConvBNPattern",
    "ConvBNReLUPattern",
    "ConvTransposeBNPattern",
    "ConvTransposeBNReLUPattern",
    "DecomposeMultiheadAttentionPattern",
    "DecomposeWindowAttentionPattern",
    "FlattenLinearToConv1x1Pattern",
    "FloatLayerPattern",
    "FusedAdaptiveAvgPool2d",
    "FusedAttention",
    "FusedBNReLU",
    "FusedConvBN",
    "FusedConvBNAdd",
    "FusedConvBNAddReLU",
    "FusedConvBNReLU",
    "FusedConvBNReLUMaxPool",
    "FusedConvTransposeBN",
    "FusedConvTransposeBNReLU",
    "FusedLayerNorm",
    "FusedLinear",
    "FusedLinearReLU",
    "FusedSoftmaxAttention",
    "LayerNormPattern",
    "LinearPattern",
    "LinearReLUPattern",
    "MaskedSoftmaxAttentionPattern",
    "MeanToAdaptiveAvgPoolPattern",
    "QuantizedAttentionPattern",
    "QuantizedAvgPoolPattern",
    "QuantizedConcatPattern",
    "QuantizedConvAddPattern",
    "QuantizedConvPattern",
    "QuantizedConvTransposePattern",
    "QuantizedLinearPattern",
    "QuantizedMaxPoolPattern",
    "RemoveDropoutPattern",
    "RemoveIdentityAdaptiveAvgPoolPattern",
    "RemoveIdentityPattern",
    "RemoveStochasticDepthPattern",
    "SigmoidMultiplyToSiLUPattern",
    "SmoothNormPattern",
    "SoftmaxAttentionPattern",
    "StemConvBNReLUMaxPoolPattern",
]

_SMALL = 16
_LONG = 512


class QuantizedConvPattern(Pattern):
    """Input and weight of a convolution; its result stays open for the epilogue."""

    phase = Phase.QUANTIZED
    tree = Op(layers.FusedConvBN, layers.FusedConvBNReLU, layers.FusedConvBNReLUMaxPool, name="layer")
    qdq_points: ClassVar[Sequence[Point]] = (Point.INPUT, Point.WEIGHT)

    def check(self, match: Match) -> Refusal | None:
        """Refuse channels that int8 kernels do not take."""
        return _small_conv(match)


class QuantizedConvAddPattern(QuantizedConvPattern):
    """Input, weight and the residual of a convolution with an add; never the branch between the two."""

    tree = Op(layers.FusedConvBNAdd, layers.FusedConvBNAddReLU, name="layer")
    qdq_points = (Point.INPUT, Point.WEIGHT, Point.RESIDUAL_INPUT)


class QuantizedConvTransposePattern(QuantizedConvPattern):
    """Input and weight of a transposed convolution, one scale for the whole weight."""

    tree = Op(layers.FusedConvTransposeBN, layers.FusedConvTransposeBNReLU, name="layer")
    qdq_points = (Point.INPUT, Point.WEIGHT)


class QuantizedLinearPattern(Pattern):
    """Input and weight of a fully connected layer; its result stays open for the epilogue."""

    phase = Phase.QUANTIZED
    tree = Op(layers.FusedLinear, layers.FusedLinearReLU, name="layer")
    qdq_points = (Point.INPUT, Point.WEIGHT)

    def check(self, match: Match) -> Refusal | None:
        """Refuse products with a vector and very narrow matrices."""
        linear: Any = match.module("layer").linear
        if linear.out_features < _SMALL or linear.in_features < _SMALL:
            return Refusal(f"{linear.in_features} inputs and {linear.out_features} outputs are fewer than {_SMALL}")
        shape = match.shape(match.inputs[0])
        if shape is not None and math.prod(shape[:-1]) == 1:
            return Refusal("with the example's batch this is a matrix times a vector, which has no int8 kernel")
        return None


class _BeforeQuantized(Pattern):
    """What runs on integers where its result is quantized."""

    phase = Phase.QUANTIZED
    qdq_points = (Point.INPUT,)
    qdq_when = When.OUTPUT


class QuantizedAvgPoolPattern(_BeforeQuantized):
    """Input of a pooling whose result is quantized: int8 in wants int8 out, and both or neither."""

    tree = Op(layers.FusedAdaptiveAvgPool2d, name="layer")


class QuantizedConcatPattern(_BeforeQuantized):
    """Inputs of a concat whose result is quantized, all with one scale: a concat then only moves numbers."""

    tree = Op(layers.Concat, name="layer")
    one_scale = True


class QuantizedMaxPoolPattern(_BeforeQuantized):
    """Input of a pooling whose result is quantized, with one scale: pairs move across a maximum."""

    tree = Op(nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d, name="layer")
    one_scale = True


class QuantizedAttentionPattern(Pattern):
    """Both operands of both matrix products of an attention, each right before its product.

    Not in the default set: it costs accuracy, and whether it pays depends on the device. Put it in front of
    `TENSORRT_QUANTIZED` in a backend of your own to have it.
    """

    phase = Phase.QUANTIZED
    tree = Op(layers.FusedAttention, name="layer")
    qdq_points = (Point.PRODUCT,)
    needs_shapes = True

    def check(self, match: Match) -> Refusal | None:
        """Refuse what TensorRT does not fuse in int8: masks, long sequences, odd heads."""
        attention: Any = match.module("layer").attention
        if len(match.inputs) > 3 or attention.causal or attention.grouped:
            return Refusal("a masked or grouped attention is not fused in int8")
        shape = match.shape(match.inputs[0])
        if shape is None or shape[-2] > _LONG:
            return Refusal(f"a sequence of more than {_LONG} is not fused in int8")
        return None


class FloatLayerPattern(Pattern):
    """It stays float: normalization and attention have no int8 kernel that a pair around them would reach."""

    phase = Phase.QUANTIZED
    tree = Op(
        layers.FusedLayerNorm, layers.FusedBNReLU, layers.FusedAttention, layers.FusedSoftmaxAttention, name="layer"
    )


TENSORRT_SMOOTH = (SmoothNormPattern,)
TENSORRT_QUANTIZED = (
    QuantizedConvPattern,
    QuantizedConvAddPattern,
    QuantizedConvTransposePattern,
    QuantizedLinearPattern,
    QuantizedAvgPoolPattern,
    QuantizedConcatPattern,
    QuantizedMaxPoolPattern,
    FloatLayerPattern,
)


def _small_conv(match: Match) -> Refusal | None:
    """Refuse few channels, with the exceptions for which there are kernels."""
    conv: Any = match.module("layer").conv
    fewer, more = sorted((conv.in_channels, conv.out_channels))
    if fewer >= _SMALL:
        return None
    square = len(set(conv.kernel_size)) == 1
    if conv.groups > 1:
        if conv.out_channels % 8 == 0 and max(conv.kernel_size) >= 3:
            return None
        return Refusal(f"a grouped convolution of {fewer} channels has no int8 kernel")
    first = match.inputs[0].op == "placeholder"
    if square and ((first and conv.out_channels % 8 == 0) or (fewer % 8 == 0 and more >= _SMALL)):
        return None
    return Refusal(f"{conv.in_channels} to {conv.out_channels} channels are too few for an int8 kernel")


TENSORRT_CONVERSIONS = (
    *TIDYING,
    DecomposeMultiheadAttentionPattern,
    DecomposeWindowAttentionPattern,
    FlattenLinearToConv1x1Pattern,
)
TENSORRT_FUSIONS = (
    StemConvBNReLUMaxPoolPattern,
    ConvBNAddReLUPattern,
    ConvBNAddPattern,
    ConvBNReLUPattern,
    ConvBNPattern,
    ConvTransposeBNReLUPattern,
    ConvTransposeBNPattern,
    *COMMON_FUSIONS,
)
TENSORRT_PATTERNS = (*TENSORRT_CONVERSIONS, *TENSORRT_FUSIONS)
TENSORRT = Backend("tensorrt", TENSORRT_CONVERSIONS, TENSORRT_FUSIONS, TENSORRT_SMOOTH, TENSORRT_QUANTIZED)
