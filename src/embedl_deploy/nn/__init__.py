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
from embedl_deploy.nn.ops import Add, Concat, MatMul, Multiply, ScaledDotProductAttention

__all__ = [
    "Add",
    "Concat",
    "DecomposedAttention",
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
    "MatMul",
    "Multiply",
    "ScaledDotProductAttention",
    "WindowAttention",
    "linear_of",
]
