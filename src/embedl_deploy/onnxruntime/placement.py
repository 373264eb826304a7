"""Where ONNX Runtime's CPU kernels want quantise/dequantise pairs.

A convolution is quantised on both sides or not at all; a fully connected layer on its input only, and its float result
is free. A sum, a pooling and a concat are quantised where everything they read is. Normalisation, attention, GELU and
hard-swish have no quantised kernel: pairs around them are pure cost.
"""

from torch import nn

from embedl_deploy.nn import (
    Add,
    Concat,
    FusedAdaptiveAvgPool2d,
    FusedAddReLU,
    FusedAttention,
    FusedBNReLU,
    FusedConvBN,
    FusedConvBNAdd,
    FusedConvBNAddReLU,
    FusedConvBNReLU,
    FusedConvTransposeBN,
    FusedConvTransposeBNReLU,
    FusedLayerNorm,
    FusedLinear,
    FusedLinearReLU,
    FusedSoftmaxAttention,
    Multiply,
)
from embedl_deploy.pattern import Match, Op, Pattern, Phase, Point, Refusal, When


class QuantizedConvPattern(Pattern):
    """Input, weight and result of a convolution: it becomes QLinearConv only with all three."""

    phase = Phase.QUANTIZED
    tree = Op(FusedConvBN, FusedConvBNReLU, name="layer")
    qdq_points = (Point.INPUT, Point.WEIGHT, Point.OUTPUT)


class QuantizedConvAddPattern(Pattern):
    """Input, weight, residual and both results of a convolution with an add: QLinearConv, then QLinearAdd."""

    phase = Phase.QUANTIZED
    tree = Op(FusedConvBNAdd, FusedConvBNAddReLU, name="layer")
    qdq_points = (Point.INPUT, Point.WEIGHT, Point.RESIDUAL_INPUT, Point.OUTPUT)


class QuantizedLinearPattern(Pattern):
    """Input and weight of a fully connected layer; it gives float at no cost, and float is what follows."""

    phase = Phase.QUANTIZED
    tree = Op(FusedLinear, FusedLinearReLU, name="layer")
    qdq_points = (Point.INPUT, Point.WEIGHT)


class QuantizedAddPattern(Pattern):
    """Both operands and the result of a sum of quantised values: QLinearAdd."""

    phase = Phase.QUANTIZED
    tree = Op(Add, FusedAddReLU, Multiply, name="layer")
    qdq_points = (Point.INPUT, Point.OUTPUT)
    qdq_when = When.INPUTS


class QuantizedConcatPattern(Pattern):
    """Every input and the result of a concat of quantised values: QLinearConcat."""

    phase = Phase.QUANTIZED
    tree = Op(Concat, name="layer")
    qdq_points = (Point.INPUT, Point.OUTPUT)
    qdq_when = When.INPUTS


class QuantizedAvgPoolPattern(Pattern):
    """Input and result of a global average of quantised values: QLinearGlobalAveragePool."""

    phase = Phase.QUANTIZED
    tree = Op(FusedAdaptiveAvgPool2d, name="layer")
    qdq_points = (Point.INPUT, Point.OUTPUT)
    qdq_when = When.INPUTS

    def check(self, match: Match) -> Refusal | None:
        """Refuse a result of more than one value per channel."""
        size = getattr(match.module("layer").pool, "output_size", None)
        return None if size in (1, (1, 1)) else Refusal(f"a pooling to {size} is no global average")


class QuantizedMaxPoolPattern(Pattern):
    """Input and result of a maximum of quantised values, with one scale: it runs on the integers themselves."""

    phase = Phase.QUANTIZED
    tree = Op(nn.MaxPool2d, name="layer")
    qdq_points = (Point.INPUT, Point.OUTPUT)
    qdq_when = When.INPUTS
    one_scale = True


class FloatLayerPattern(Pattern):
    """It stays float: ONNX Runtime has no quantised kernel for it."""

    phase = Phase.QUANTIZED
    tree = Op(
        FusedLayerNorm,
        FusedBNReLU,
        FusedAttention,
        FusedSoftmaxAttention,
        FusedConvTransposeBN,
        FusedConvTransposeBNReLU,
        name="layer",
    )


class SmoothNormPattern(Pattern):
    """A normalisation whose channels may be evened out into the layers that read it."""

    phase = Phase.SMOOTH
    tree = Op(FusedLayerNorm, nn.RMSNorm, name="norm")


ONNXRUNTIME_SMOOTH = (SmoothNormPattern,)
ONNXRUNTIME_QUANTIZED = (
    QuantizedConvPattern,
    QuantizedConvAddPattern,
    QuantizedLinearPattern,
    QuantizedAddPattern,
    QuantizedConcatPattern,
    QuantizedAvgPoolPattern,
    QuantizedMaxPoolPattern,
    FloatLayerPattern,
)
