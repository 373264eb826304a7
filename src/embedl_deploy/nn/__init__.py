"""Modules shaped like the kernels of a target: what patterns put into a network."""

from embedl_deploy.nn.attention import (
    DecomposedAttention,
    FusedAttention,
    FusedSoftmaxAttention,
    WindowAttention,
    linear_of,
)
from embedl_deploy.nn.fused import (
    FusedAdaptiveAvgPool2d,
    FusedAddReLU,
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
)
from embedl_deploy.nn.number import NumberFormat, Precision, fake_quantize
from embedl_deploy.nn.ops import Add, Concat, MatMul, Multiply, ScaledDotProductAttention
from embedl_deploy.nn.quantized import (
    Mode,
    QuantizedAttention,
    QuantizedConv,
    QuantizedLinear,
    QuantStub,
    WeightQuantizer,
)

__all__ = [
    "Add",
    "Concat",
    "DecomposedAttention",
    "FusedAdaptiveAvgPool2d",
    "FusedAddReLU",
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
    "MatMul",
    "Mode",
    "Multiply",
    "NumberFormat",
    "Precision",
    "QuantStub",
    "QuantizedAttention",
    "QuantizedConv",
    "QuantizedLinear",
    "ScaledDotProductAttention",
    "WeightQuantizer",
    "WindowAttention",
    "fake_quantize",
    "linear_of",
]
