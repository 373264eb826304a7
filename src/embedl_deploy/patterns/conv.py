"""Convolutions with what follows them.

    act ∘ BatchNorm ∘ Conv                 → FusedConvBNReLU
    BatchNorm ∘ Conv                       → FusedConvBN
    MaxPool ∘ act ∘ BatchNorm ∘ Conv       → FusedConvBNReLUMaxPool
    act ∘ (residual + BatchNorm ∘ Conv)    → FusedConvBNAddReLU
    ReLU ∘ (one + other)                   → FusedAddReLU

The batch norm may be absent everywhere, and the residual may be either operand. Members are kept, nothing is folded, so
every fusion is exact. Conv is of one, two or three dimensions, with any groups.
"""

from torch import nn

from embedl_deploy.nn import (
    Add,
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
)
from embedl_deploy.pattern import Chain, Fork, Match, Maybe, Op, Pattern, Phase, Refusal, Replacement, Value

CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
TRANSPOSED_CONVOLUTIONS = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
ACTIVATIONS = (
    nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.ELU, nn.GELU, nn.SiLU, nn.Hardswish, nn.Hardsigmoid, nn.Sigmoid, nn.Mish,
)  # fmt: skip
CLAMPS = (nn.ReLU, nn.ReLU6)
"""Activations that a quantised value's own range can take over."""

_CONV = Op(*CONVOLUTIONS, name="conv")
_TRANSPOSED = Op(*TRANSPOSED_CONVOLUTIONS, name="conv")
_BN = Op(*BATCH_NORMS, name="bn")
_ACT = Op(*ACTIVATIONS, name="act")
_CLAMP = Op(*CLAMPS, name="act")


class ConvBNPattern(Pattern):
    """Convolution and batch norm, or a convolution alone."""

    phase = Phase.FUSION
    tree = Chain(_CONV, Maybe(_BN))

    def replace(self, match: Match) -> Replacement:
        """Hold both in one module."""
        return FusedConvBN(match.module("conv"), match.module_or_none("bn"))


class ConvBNReLUPattern(Pattern):
    """Convolution, batch norm, activation."""

    phase = Phase.FUSION
    tree = Chain(_CONV, Maybe(_BN), _ACT)

    def replace(self, match: Match) -> Replacement:
        """Hold all in one module."""
        return FusedConvBNReLU(match.module("conv"), match.module_or_none("bn"), match.module("act"))


class StemConvBNReLUMaxPoolPattern(Pattern):
    """Convolution, batch norm, activation, max pooling."""

    phase = Phase.FUSION
    tree = Chain(_CONV, Maybe(_BN), _ACT, Op(nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d, name="pool"))

    def check(self, match: Match) -> Refusal | None:
        """Refuse a pooling that also returns where the maxima were."""
        if getattr(match.module("pool"), "return_indices", False):
            return Refusal("the pooling returns indices as well")
        return None

    def replace(self, match: Match) -> Replacement:
        """Hold all in one module."""
        return FusedConvBNReLUMaxPool(
            match.module("conv"), match.module_or_none("bn"), match.module("act"), match.module("pool")
        )


def _operands(match: Match, main: str) -> Refusal | None:
    """Refuse an add that broadcasts: a kernel's epilogue adds element by element."""
    one, other = match.shape(main), match.shape(match.input("residual"))
    if one is not None and other is not None and one != other:
        return Refusal(f"the add broadcasts {other} to {one}")
    return None


class ConvBNAddPattern(Pattern):
    """Convolution and batch norm, added to a residual."""

    phase = Phase.FUSION
    tree = Chain(Fork(Op(Add, name="add"), Chain(_CONV, Maybe(_BN)), Value("residual")))

    def check(self, match: Match) -> Refusal | None:
        """Refuse a broadcasting add."""
        return _operands(match, "bn" if "bn" in match else "conv")

    def replace(self, match: Match) -> Replacement:
        """Hold all in one module of two inputs."""
        return FusedConvBNAdd(match.module("conv"), match.module_or_none("bn"))


class ConvBNAddReLUPattern(Pattern):
    """Convolution and batch norm, added to a residual, activation."""

    phase = Phase.FUSION
    tree = Chain(Fork(Op(Add, name="add"), Chain(_CONV, Maybe(_BN)), Value("residual")), _ACT)

    def check(self, match: Match) -> Refusal | None:
        """Refuse a broadcasting add."""
        return _operands(match, "bn" if "bn" in match else "conv")

    def replace(self, match: Match) -> Replacement:
        """Hold all in one module of two inputs."""
        return FusedConvBNAddReLU(match.module("conv"), match.module_or_none("bn"), match.module("act"))


class ConvBNClampPattern(Pattern):
    """Convolution, batch norm, and an activation that only cuts off: a quantised kernel's own limits do that."""

    phase = Phase.FUSION
    tree = Chain(_CONV, Maybe(_BN), _CLAMP)

    def replace(self, match: Match) -> Replacement:
        """Hold all in one module."""
        return FusedConvBNReLU(match.module("conv"), match.module_or_none("bn"), match.module("act"))


class AddReLUPattern(Pattern):
    """The sum of two tensors and an activation that only cuts off."""

    phase = Phase.FUSION
    tree = Chain(Op(Add, name="add"), _CLAMP)

    def replace(self, match: Match) -> Replacement:
        """Hold both in one module of two inputs."""
        return FusedAddReLU(match.module("act"))


class ConvTransposeBNPattern(Pattern):
    """Transposed convolution and batch norm, or a transposed convolution alone."""

    phase = Phase.FUSION
    tree = Chain(_TRANSPOSED, Maybe(_BN))

    def replace(self, match: Match) -> Replacement:
        """Hold both in one module."""
        return FusedConvTransposeBN(match.module("conv"), match.module_or_none("bn"))


class ConvTransposeBNReLUPattern(Pattern):
    """Transposed convolution, batch norm, activation."""

    phase = Phase.FUSION
    tree = Chain(_TRANSPOSED, Maybe(_BN), _ACT)

    def replace(self, match: Match) -> Replacement:
        """Hold all in one module."""
        return FusedConvTransposeBNReLU(match.module("conv"), match.module_or_none("bn"), match.module("act"))


class BNReLUPattern(Pattern):
    """Batch norm that follows no convolution, and the activation after it (pre-activation networks)."""

    phase = Phase.FUSION
    tree = Chain(_BN, Maybe(_ACT))

    def replace(self, match: Match) -> Replacement:
        """Hold both in one module."""
        return FusedBNReLU(match.module("bn"), match.module_or_none("act"))


class AdaptiveAvgPoolPattern(Pattern):
    """Adaptive average pooling."""

    phase = Phase.FUSION
    tree = Op(nn.AdaptiveAvgPool2d, name="pool")

    def replace(self, match: Match) -> Replacement:
        """Hold it as one kernel."""
        return FusedAdaptiveAvgPool2d(match.module("pool"))
