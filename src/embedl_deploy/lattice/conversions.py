"""Conversions that bring a CNN into the set of `rules`.

Exact where there is an exact rewrite. The lossy ones are off unless ``allow_lossy=True``, and then measured.
"""

from torch import nn

from embedl_deploy.lattice import rules
from embedl_deploy.lattice.layers import (
    BoundedReLU,
    PaddedConv,
    StackedMaxPool,
    ThinnedConv,
    TiledConv,
    average_conv,
    dense_of,
)
from embedl_deploy.pattern import Expand, Match, Op, Pattern, Phase, Refusal, Replacement

_CONV = Op(nn.Conv2d, name="conv")
_INSIDE = Refusal("the accelerator takes it as it is", informative=False)


def _conv(match: Match) -> nn.Conv2d:
    module = match.module("conv")
    assert isinstance(module, nn.Conv2d)
    return module


def _shared(match: Match, name: str) -> Refusal | None:
    """Refuse to make new weights out of ones that others use: the two would train apart."""
    others = match.sharers(name)
    return Refusal(f"its weight is also used by '{others[0]}'") if others else None


class SplitConvPattern(Pattern):
    """Turn a convolution with a large or dilated kernel into a sum of shifted 3×3 ones."""

    phase = Phase.CONVERSION
    tree = _CONV

    def check(self, match: Match) -> Refusal | None:
        """Refuse a kernel that is taken as it is, and a stride that another conversion settles first."""
        conv = _conv(match)
        if conv.kernel_size in ((1, 1), (3, 3)) and conv.dilation == (1, 1):
            return _INSIDE
        if conv.stride not in ((1, 1), (2, 2)):
            return Refusal("its stride is settled first", informative=False)
        return _shared(match, "conv")

    def replace(self, match: Match) -> Replacement:
        """Put the tiles and their sum in place."""
        return Expand(TiledConv(_conv(match)))


class ThinStridePattern(Pattern):
    """Turn a stride other than 1 and 2 into a shorter one and a choice of every n-th result."""

    phase = Phase.CONVERSION
    tree = _CONV

    def check(self, match: Match) -> Refusal | None:
        """Refuse a stride that is taken as it is."""
        return _INSIDE if _conv(match).stride in ((1, 1), (2, 2)) else None

    def replace(self, match: Match) -> Replacement:
        """Put the convolution and the choice in place."""
        return Expand(ThinnedConv(_conv(match)))


class ExplicitPadPattern(Pattern):
    """Turn a padding that the accelerator lacks into a step of its own."""

    phase = Phase.CONVERSION
    tree = _CONV

    def check(self, match: Match) -> Refusal | None:
        """Refuse a padding that is taken as it is."""
        conv = _conv(match)
        if conv.kernel_size not in ((1, 1), (3, 3)) or conv.dilation != (1, 1) or conv.stride not in ((1, 1), (2, 2)):
            return Refusal("its kernel or stride is settled first", informative=False)
        return None if "pad" in rules.outside_conv(conv) else _INSIDE

    def replace(self, match: Match) -> Replacement:
        """Put the padding and the convolution in place."""
        return Expand(PaddedConv(_conv(match)))


class GroupedConvToDensePattern(Pattern):
    """Turn a grouped convolution that is not depthwise into a dense one with zeros between the groups."""

    phase = Phase.CONVERSION
    tree = _CONV

    def check(self, match: Match) -> Refusal | None:
        """Refuse a dense or depthwise convolution."""
        conv = _conv(match)
        if conv.groups == 1 or conv.groups == conv.in_channels == conv.out_channels:
            return _INSIDE
        return _shared(match, "conv")

    def replace(self, match: Match) -> Replacement:
        """Put the dense convolution in place."""
        return dense_of(_conv(match))


class AvgPoolToConvPattern(Pattern):
    """Turn an average pooling into the depthwise convolution it is."""

    phase = Phase.CONVERSION
    needs_shapes = True
    tree = Op(nn.AvgPool2d, name="pool")

    def check(self, match: Match) -> Refusal | None:
        """Refuse a pooling whose divisor is not the kernel's area everywhere."""
        pool = match.module("pool")
        assert isinstance(pool, nn.AvgPool2d)
        padded = rules.both(pool.padding) != (0, 0)
        if pool.ceil_mode or pool.divisor_override is not None or (padded and not pool.count_include_pad):
            return Refusal("its divisor is not the kernel's area everywhere")
        shape = match.shape(match.inputs[0])
        return None if shape is not None and len(shape) == 4 else Refusal("its input is no batch of maps")

    def replace(self, match: Match) -> Replacement:
        """Put the convolution in place."""
        pool = match.module("pool")
        shape = match.shape(match.inputs[0])
        assert isinstance(pool, nn.AvgPool2d)
        assert shape is not None
        kernel = rules.both(pool.kernel_size)
        stride = rules.both(pool.stride)
        return average_conv(shape[1], kernel, stride, rules.both(pool.padding)).train(pool.training)


class AdaptiveAvgPoolToAvgPoolPattern(Pattern):
    """Turn an adaptive average pooling that divides its input evenly into an ordinary one."""

    phase = Phase.CONVERSION
    needs_shapes = True
    tree = Op(nn.AdaptiveAvgPool2d, name="pool")

    def check(self, match: Match) -> Refusal | None:
        """Refuse the global one, which is taken as it is, and an uneven one."""
        before, after = match.shape(match.inputs[0]), match.shape("pool")
        if before is None or after is None or after[2:] in ((1, 1), before[2:]):
            return _INSIDE
        if any(size % parts for size, parts in zip(before[2:], after[2:], strict=True)):
            return Refusal(f"{before[2]}×{before[3]} does not divide into {after[2]}×{after[3]}")
        return None

    def replace(self, match: Match) -> Replacement:
        """Put the pooling in place."""
        before, after = match.shape(match.inputs[0]), match.shape("pool")
        assert before is not None
        assert after is not None
        return nn.AvgPool2d((before[2] // after[2], before[3] // after[3])).train(match.module("pool").training)


class StackMaxPoolPattern(Pattern):
    """Turn a large max pooling into 3×3 ones in a row."""

    phase = Phase.CONVERSION
    tree = Op(nn.MaxPool2d, name="pool")

    def check(self, match: Match) -> Refusal | None:
        """Refuse what 3×3 poolings in a row do not add up to."""
        pool = match.module("pool")
        assert isinstance(pool, nn.MaxPool2d)
        reason = rules.outside_max_pool(pool)
        if not reason:
            return _INSIDE
        kernel, stride, padding = (rules.both(value) for value in (pool.kernel_size, pool.stride, pool.padding))
        odd = kernel[0] == kernel[1] and kernel[0] % 2 == 1 and kernel[0] > 3
        centred = padding == (kernel[0] // 2, kernel[0] // 2)
        plain = rules.both(pool.dilation) == (1, 1) and not pool.ceil_mode and not pool.return_indices
        if not (odd and centred and plain and stride in ((1, 1), (2, 2))):
            return Refusal(f"{reason}, and it is no centred odd square with stride 1 or 2")
        return None

    def replace(self, match: Match) -> Replacement:
        """Put the poolings in place."""
        pool = match.module("pool")
        assert isinstance(pool, nn.MaxPool2d)
        return Expand(StackedMaxPool(rules.both(pool.kernel_size)[0], rules.both(pool.stride)[0]).train(pool.training))


class ReLU6ToReLUPattern(Pattern):
    """Turn ReLU6 into ReLU: cheap, and different above 6."""

    phase = Phase.CONVERSION
    lossy = True
    tree = Op(nn.ReLU6, name="act")

    def replace(self, match: Match) -> Replacement:
        """Put the ReLU in place."""
        return nn.ReLU().train(match.module("act").training)


class ReLU6ToBoundedReLUPattern(Pattern):
    """Turn ReLU6 into two ReLUs and two depthwise 1×1 convolutions, exactly."""

    phase = Phase.CONVERSION
    needs_shapes = True
    tree = Op(nn.ReLU6, name="act")

    def check(self, match: Match) -> Refusal | None:
        """Refuse anything but a batch of maps."""
        shape = match.shape("act")
        return None if shape is not None and len(shape) == 4 else Refusal("its input is no batch of maps")

    def replace(self, match: Match) -> Replacement:
        """Put the steps in place."""
        shape = match.shape("act")
        assert shape is not None
        return Expand(BoundedReLU(shape[1], 6.0).train(match.module("act").training))


class ActivationToReLUPattern(Pattern):
    """Turn a smooth activation into ReLU: a different function, to be fine-tuned."""

    phase = Phase.CONVERSION
    lossy = True
    tree = Op(nn.SiLU, nn.Hardswish, nn.GELU, nn.ELU, nn.Mish, name="act")

    def replace(self, match: Match) -> Replacement:
        """Put the ReLU in place."""
        return nn.ReLU().train(match.module("act").training)
