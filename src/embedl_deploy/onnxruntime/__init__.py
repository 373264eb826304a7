"""The ONNX Runtime backend: what its CPU kernels are, and where they want quantised values."""

from embedl_deploy.backend import Backend
from embedl_deploy.onnxruntime.placement import (
    ONNXRUNTIME_QUANTIZED,
    ONNXRUNTIME_SMOOTH,
    FloatLayerPattern,
    QuantizedAddPattern,
    QuantizedAvgPoolPattern,
    QuantizedConcatPattern,
    QuantizedConvAddPattern,
    QuantizedConvPattern,
    QuantizedLinearPattern,
    QuantizedMaxPoolPattern,
    SmoothNormPattern,
)
from embedl_deploy.patterns import (
    AdaptiveAvgPoolPattern,
    AddReLUPattern,
    AttentionPattern,
    BNReLUPattern,
    ConvBNClampPattern,
    ConvBNPattern,
    ConvTransposeBNPattern,
    ConvTransposeBNReLUPattern,
    ConvTransposeToPixelShufflePattern,
    DecomposeMultiheadAttentionPattern,
    DecomposeWindowAttentionPattern,
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
)

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

ONNXRUNTIME_CONVERSIONS = (
    RemoveIdentityPattern,
    RemoveDropoutPattern,
    RemoveStochasticDepthPattern,
    RemoveIdentityAdaptiveAvgPoolPattern,
    MeanToAdaptiveAvgPoolPattern,
    SigmoidMultiplyToSiLUPattern,
    ConvTransposeToPixelShufflePattern,
    DecomposeMultiheadAttentionPattern,
    DecomposeWindowAttentionPattern,
)
ONNXRUNTIME_FUSIONS = (
    ConvBNClampPattern,
    ConvBNPattern,
    ConvTransposeBNReLUPattern,
    ConvTransposeBNPattern,
    AddReLUPattern,
    MaskedSoftmaxAttentionPattern,
    SoftmaxAttentionPattern,
    AttentionPattern,
    LinearReLUPattern,
    LinearPattern,
    BNReLUPattern,
    LayerNormPattern,
    AdaptiveAvgPoolPattern,
)
ONNXRUNTIME_PATTERNS = (*ONNXRUNTIME_CONVERSIONS, *ONNXRUNTIME_FUSIONS)
ONNXRUNTIME = Backend(
    "onnxruntime",
    conversion_patterns=ONNXRUNTIME_CONVERSIONS,
    fusion_patterns=ONNXRUNTIME_FUSIONS,
    smooth_patterns=ONNXRUNTIME_SMOOTH,
    quantized_patterns=ONNXRUNTIME_QUANTIZED,
    symmetric_activations=False,
)
