"""Patterns that several targets share, one family per file."""

from embedl_deploy.patterns.attention import (
    AttentionPattern,
    DecomposeMultiheadAttentionPattern,
    DecomposeWindowAttentionPattern,
    MaskedSoftmaxAttentionPattern,
    SoftmaxAttentionPattern,
)
from embedl_deploy.patterns.conv import (
    CLAMPS,
    AdaptiveAvgPoolPattern,
    AddReLUPattern,
    BNReLUPattern,
    ConvBNAddPattern,
    ConvBNAddReLUPattern,
    ConvBNClampPattern,
    ConvBNPattern,
    ConvBNReLUPattern,
    ConvTransposeBNPattern,
    ConvTransposeBNReLUPattern,
    StemConvBNReLUMaxPoolPattern,
)
from embedl_deploy.patterns.linear import LayerNormPattern, LinearPattern, LinearReLUPattern
from embedl_deploy.patterns.tidy import (
    FlattenLinearToConv1x1Pattern,
    MeanToAdaptiveAvgPoolPattern,
    RemoveDropoutPattern,
    RemoveIdentityAdaptiveAvgPoolPattern,
    RemoveIdentityPattern,
    RemoveStochasticDepthPattern,
    SigmoidMultiplyToSiLUPattern,
    conv1x1_of,
)
from embedl_deploy.patterns.transposed import ConvTransposeToPixelShufflePattern

__all__ = [
    "CLAMPS",
    "AdaptiveAvgPoolPattern",
    "AddReLUPattern",
    "AttentionPattern",
    "BNReLUPattern",
    "ConvBNAddPattern",
    "ConvBNAddReLUPattern",
    "ConvBNClampPattern",
    "ConvBNPattern",
    "ConvBNReLUPattern",
    "ConvTransposeBNPattern",
    "ConvTransposeBNReLUPattern",
    "ConvTransposeToPixelShufflePattern",
    "DecomposeMultiheadAttentionPattern",
    "DecomposeWindowAttentionPattern",
    "FlattenLinearToConv1x1Pattern",
    "LayerNormPattern",
    "LinearPattern",
    "LinearReLUPattern",
    "MaskedSoftmaxAttentionPattern",
    "MeanToAdaptiveAvgPoolPattern",
    "RemoveDropoutPattern",
    "RemoveIdentityAdaptiveAvgPoolPattern",
    "RemoveIdentityPattern",
    "RemoveStochasticDepthPattern",
    "SigmoidMultiplyToSiLUPattern",
    "SoftmaxAttentionPattern",
    "StemConvBNReLUMaxPoolPattern",
    "conv1x1_of",
]
