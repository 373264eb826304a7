"""The ONNX Runtime backend: what its CPU kernels are, and where they want quantized values.

A convolution is quantized on both sides or not at all; a fully connected layer on its input only, and its float result
is free. A sum, a pooling and a concat are quantized where everything they read is. Normalization, attention, GELU and
hard-swish have no quantized kernel: pairs around them are pure cost.
"""

from torch import nn

from embedl_deploy import nn as layers
from embedl_deploy import patterns
from embedl_deploy.backend import Backend
from embedl_deploy.pattern import Match, Op, Pattern, Phase, Point, Refusal, When
from embedl_deploy.patterns.attention import COMMON_FUSIONS
from embedl_deploy.patterns.conversions import TIDYING
from embedl_deploy.patterns.fusions import SmoothNormPattern

__all__ = [
    "ONNXRUNTIME",
    "ONNXRUNTIME_CONVERSIONS",
    "ONNXRUNTIME_FUSIONS",
    "ONNXRUNTIME_PATTERNS",
    "ONNXRUNTIME_QUANTIZED",
    "ONNXRUNTIME_SMOOTH",
    "FloatLayerPattern",
    "QuantizedAddPattern",
    "QuantizedAvgPoolPattern",
    "QuantizedConcatPattern",
    "QuantizedConvAddPattern",
    "QuantizedConvPattern",
    "QuantizedLinearPattern",
    "QuantizedMaxPoolPattern",
    "SmoothNormPattern",
]


class _OnIntegers(Pattern):
    """What runs on integers, and gives them, where everything it reads is quantized."""

    phase = Phase.QUANTIZED
    qdq_points = (Point.INPUT, Point.OUTPUT)
    qdq_when = When.INPUTS


class QuantizedConvPattern(Pattern):
    """Input, weight and result of a convolution: it becomes QLinearConv only with all three."""

    phase = Phase.QUANTIZED
    tree = Op(layers.FusedConvBN, layers.FusedConvBNReLU, name="layer")
    qdq_points = (Point.INPUT, Point.WEIGHT, Point.OUTPUT)


class QuantizedConvAddPattern(Pattern):
    """Input, weight, residual and both results of a convolution with an add: QLinearConv, then QLinearAdd."""

    phase = Phase.QUANTIZED
    tree = Op(layers.FusedConvBNAdd, layers.FusedConvBNAddReLU, name="layer")
    qdq_points = (Point.INPUT, Point.WEIGHT, Point.RESIDUAL_INPUT, Point.OUTPUT)


class QuantizedLinearPattern(Pattern):
    """Input and weight of a fully connected layer; it gives float at no cost, and float is what follows."""

    phase = Phase.QUANTIZED
    tree = Op(layers.FusedLinear, layers.FusedLinearReLU, name="layer")
    qdq_points = (Point.INPUT, Point.WEIGHT)


class QuantizedAddPattern(_OnIntegers):
    """Both operands and the result of a sum of quantized values: QLinearAdd."""

    tree = Op(layers.Add, layers.FusedAddReLU, layers.Multiply, name="layer")


class QuantizedConcatPattern(_OnIntegers):
    """Every input and the result of a concat of quantized values: QLinearConcat."""

    tree = Op(layers.Concat, name="layer")


class QuantizedAvgPoolPattern(_OnIntegers):
    """Input and result of a global average of quantized values: QLinearGlobalAveragePool."""

    tree = Op(layers.FusedAdaptiveAvgPool2d, name="layer")

    def check(self, match: Match) -> Refusal | None:
        """Refuse a result of more than one value per channel."""
        layer = match.module("layer", layers.FusedAdaptiveAvgPool2d)
        size = getattr(layer.pool, "output_size", None)
        return None if layer.is_global else Refusal(f"a pooling to {size} is not a global average")


class QuantizedMaxPoolPattern(_OnIntegers):
    """Input and result of a maximum of quantized values, with one scale: it runs on the integers themselves."""

    tree = Op(nn.MaxPool2d, name="layer")
    one_scale = True


class FloatLayerPattern(Pattern):
    """It stays float: ONNX Runtime has no quantized kernel for it."""

    phase = Phase.QUANTIZED
    tree = Op(
        layers.FusedLayerNorm,
        layers.FusedBNReLU,
        layers.FusedSiLU,
        layers.FusedAttention,
        layers.FusedSoftmaxAttention,
        layers.FusedConvTransposeBN,
        layers.FusedConvTransposeBNReLU,
        name="layer",
    )


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

ONNXRUNTIME_CONVERSIONS = (
    *TIDYING,
    patterns.ConvTransposeToPixelShufflePattern,
    patterns.DecomposeMultiheadAttentionPattern,
    patterns.DecomposeWindowAttentionPattern,
    patterns.Int8EmbeddingPattern,
)
ONNXRUNTIME_FUSIONS = (
    patterns.ConvBNClampPattern,
    patterns.ConvBNPattern,
    patterns.ConvTransposeBNReLUPattern,
    patterns.ConvTransposeBNPattern,
    patterns.AddReLUPattern,
    patterns.SiLUPattern,
    *COMMON_FUSIONS,
)
ONNXRUNTIME_PATTERNS = (*ONNXRUNTIME_CONVERSIONS, *ONNXRUNTIME_FUSIONS)
ONNXRUNTIME = Backend(
    "onnxruntime",
    ONNXRUNTIME_CONVERSIONS,
    ONNXRUNTIME_FUSIONS,
    ONNXRUNTIME_SMOOTH,
    ONNXRUNTIME_QUANTIZED,
    symmetric_activations=False,
    integer_kernels=True,
)
