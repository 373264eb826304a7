"""Layers with what follows them: convolutions, fully connected layers, normalizations, poolings.

The batch norm may be absent everywhere, and the residual may be either operand. Members are kept, nothing is folded, so
every fusion is exact. Conv is of one, two or three dimensions, with any groups.
"""

from torch import nn

from embedl_deploy.nn import fused
from embedl_deploy.nn.ops import Add
from embedl_deploy.pattern import Chain, Fork, FusionPattern, Match, Maybe, Op, Pattern, Phase, Refusal, Value

CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
TRANSPOSED_CONVOLUTIONS = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
ACTIVATIONS = (
    nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.ELU, nn.GELU, nn.SiLU, nn.Hardswish, nn.Hardsigmoid, nn.Sigmoid, nn.Mish,
)  # fmt: skip

_CONV = Op(*CONVOLUTIONS, name="conv")
_TRANSPOSED = Op(*TRANSPOSED_CONVOLUTIONS, name="conv")
_BN = Op(*BATCH_NORMS, name="bn")
_ACT = Op(*ACTIVATIONS, name="act")
_LINEAR = Op(nn.Linear, name="linear")
_CLAMP = Op(*fused.CLAMPS, name="act")
_RESIDUAL = Fork(Op(Add, name="add"), Chain(_CONV, Maybe(_BN)), Value("residual"))


class ConvBNPattern(FusionPattern):
    """Convolution and batch norm, or a convolution alone."""

    tree = Chain(_CONV, Maybe(_BN))
    fused = fused.FusedConvBN


class ConvBNReLUPattern(FusionPattern):
    """Convolution, batch norm, activation."""

    tree = Chain(_CONV, Maybe(_BN), _ACT)
    fused = fused.FusedConvBNReLU


class StemConvBNReLUMaxPoolPattern(FusionPattern):
    """Convolution, batch norm, activation, max pooling."""

    tree = Chain(_CONV, Maybe(_BN), _ACT, Op(nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d, name="pool"))
    fused = fused.FusedConvBNReLUMaxPool

    def check(self, match: Match) -> Refusal | None:
        """Refuse a pooling that also returns where the maxima were."""
        if getattr(match.module("pool"), "return_indices", False):
            return Refusal("the pooling returns indices as well")
        return None


class ConvBNAddPattern(FusionPattern):
    """Convolution and batch norm, added to a residual."""

    tree = Chain(_RESIDUAL)
    fused = fused.FusedConvBNAdd

    def check(self, match: Match) -> Refusal | None:
        """Refuse an add that broadcasts: a kernel's epilogue adds element by element."""
        main, residual = match.shape("bn" if "bn" in match else "conv"), match.shape(match.input("residual"))
        if main is not None and residual is not None and main != residual:
            return Refusal(f"the add broadcasts {residual} to {main}")
        return None


class ConvBNAddReLUPattern(ConvBNAddPattern):
    """Convolution and batch norm, added to a residual, activation."""

    tree = Chain(_RESIDUAL, _ACT)
    fused = fused.FusedConvBNAddReLU


class ConvBNClampPattern(FusionPattern):
    """Convolution, batch norm, and an activation that only cuts off: a quantized kernel's own limits do that."""

    tree = Chain(_CONV, Maybe(_BN), _CLAMP)
    fused = fused.FusedConvBNReLU


class AddReLUPattern(FusionPattern):
    """The sum of two tensors and an activation that only cuts off."""

    tree = Chain(Op(Add, name="add"), _CLAMP)
    fused = fused.FusedAddReLU


class ConvTransposeBNPattern(FusionPattern):
    """Transposed convolution and batch norm, or a transposed convolution alone."""

    tree = Chain(_TRANSPOSED, Maybe(_BN))
    fused = fused.FusedConvTransposeBN


class ConvTransposeBNReLUPattern(FusionPattern):
    """Transposed convolution, batch norm, activation."""

    tree = Chain(_TRANSPOSED, Maybe(_BN), _ACT)
    fused = fused.FusedConvTransposeBNReLU


class BNReLUPattern(FusionPattern):
    """Batch norm that follows no convolution, and the activation after it (pre-activation networks)."""

    tree = Chain(_BN, Maybe(_ACT))
    fused = fused.FusedBNReLU


class AdaptiveAvgPoolPattern(FusionPattern):
    """Adaptive average pooling."""

    tree = Op(nn.AdaptiveAvgPool2d, name="pool")
    fused = fused.FusedAdaptiveAvgPool2d


class LinearPattern(FusionPattern):
    """A fully connected layer."""

    tree = _LINEAR
    fused = fused.FusedLinear


class LinearReLUPattern(FusionPattern):
    """A fully connected layer and its activation."""

    tree = Chain(_LINEAR, Op(*ACTIVATIONS, nn.Tanh, name="act"))
    fused = fused.FusedLinearReLU


class SiLUPattern(FusionPattern):
    """SiLU that no other layer takes in, as a layer whose sigmoid a target can quantize."""

    tree = Op(nn.SiLU, name="act")
    fused = fused.FusedSiLU


class LayerNormPattern(FusionPattern):
    """Layer normalization, with or without the mean (RMSNorm)."""

    tree = Op(nn.LayerNorm, nn.RMSNorm, name="norm")
    fused = fused.FusedLayerNorm


class SmoothNormPattern(Pattern):
    """A normalization whose channels may be evened out into the layers that read it."""

    phase = Phase.SMOOTH
    tree = Op(fused.FusedLayerNorm, name="norm")
