"""Conversions that bring a CNN into the set of `rules`.

Exact where there is an exact rewrite. The lossy ones are off unless ``allow_lossy=True``, and then measured.
"""

from typing import Any, ClassVar

import torch
from torch import nn
from torch.nn import functional

from embedl_deploy.lattice import rules
from embedl_deploy.nn import Add
from embedl_deploy.pattern import Expand, Match, Op, Pattern, Phase, Refusal, Replacement

_TILE = 3


class TiledConv(nn.Module):
    """A convolution of any kernel and dilation as a sum of 3×3 ones.

    The kernel is written out with its dilation, filled up to whole tiles with zeros on the right and below, and cut.
    The input is padded once; a tile at (i, j) sees it from there on. Tiles of zeros only are left out.
    """

    def __init__(self, conv: nn.Conv2d) -> None:
        super().__init__()
        weight = spread_kernel(conv.weight.detach(), (conv.dilation[0], conv.dilation[1]))
        height, width = weight.shape[2:]
        self.extent = (height + -height % _TILE, width + -width % _TILE)
        whole = functional.pad(weight, (0, self.extent[1] - width, 0, self.extent[0] - height))
        top, bottom, left, right = padding_of(conv)
        self.margins = (left, right + self.extent[1] - width, top, bottom + self.extent[0] - height)
        self.mode = pad_mode(conv)
        self.origins: list[tuple[int, int]] = []
        self.tiles = nn.ModuleList()
        for row in range(0, self.extent[0], _TILE):
            for column in range(0, self.extent[1], _TILE):
                tile = whole[:, :, row : row + _TILE, column : column + _TILE]
                if bool(tile.any()) or not (row or column):
                    self.origins.append((row, column))
                    part = nn.Parameter(tile.contiguous(), requires_grad=conv.weight.requires_grad)
                    biased = conv.bias is not None and not (row or column)
                    plain = {"padding": 0, "dilation": 1, "padding_mode": "zeros"}
                    self.tiles.append(_conv_like(conv, part, bias=biased, **plain))
        self.sums = nn.ModuleList(Add() for _ in self.origins[1:])
        self.train(conv.training)

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        """Pad once, convolve every tile on its part, add up."""
        value = functional.pad(value, self.margins, self.mode)
        total: torch.Tensor | None = None
        for number, (tile, (row, column)) in enumerate(zip(self.tiles, self.origins, strict=True)):
            below, right = self.extent[0] - _TILE - row, self.extent[1] - _TILE - column
            part = value[:, :, row : -below or None, column : -right or None]
            result = tile(part)
            total = result if total is None else self.sums[number - 1](total, result)
        assert total is not None
        return total


class PaddedConv(nn.Module):
    """A convolution whose padding is a step of its own."""

    def __init__(self, conv: nn.Conv2d) -> None:
        super().__init__()
        top, bottom, left, right = padding_of(conv)
        self.margins = (left, right, top, bottom)
        self.mode = pad_mode(conv)
        self.conv = _conv_like(conv, padding=0, padding_mode="zeros")
        self.train(conv.training)

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        """Pad, then convolve."""
        result: torch.Tensor = self.conv(functional.pad(value, self.margins, self.mode))
        return result


class ThinnedConv(nn.Module):
    """A convolution with a long stride as one with stride 1 or 2, of which every n-th result is kept."""

    def __init__(self, conv: nn.Conv2d) -> None:
        super().__init__()
        inner = 2 if all(step % 2 == 0 for step in conv.stride) else 1
        self.steps = tuple(step // inner for step in conv.stride)
        self.conv = _conv_like(conv, stride=inner)
        self.train(conv.training)

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        """Convolve, then keep every n-th row and column."""
        result: torch.Tensor = self.conv(value)
        return result[:, :, :: self.steps[0], :: self.steps[1]]


def dense_of(conv: nn.Conv2d) -> nn.Conv2d:
    """Build the dense convolution that a grouped one is: zeros between the groups."""
    per_group = conv.out_channels // conv.groups
    width = conv.in_channels // conv.groups
    weight = conv.weight.new_zeros(conv.out_channels, conv.in_channels, *conv.kernel_size)
    for group in range(conv.groups):
        rows = slice(group * per_group, (group + 1) * per_group)
        weight[rows, group * width : (group + 1) * width] = conv.weight.detach()[rows]
    return _conv_like(conv, nn.Parameter(weight), groups=1).train(conv.training)


def average_conv(
    channels: int, kernel: tuple[int, int], stride: tuple[int, int], padding: tuple[int, int]
) -> nn.Conv2d:
    """Build the depthwise convolution that an average pooling is."""
    conv = nn.Conv2d(channels, channels, kernel, stride=stride, padding=padding, groups=channels, bias=False)
    nn.init.constant_(conv.weight, 1.0 / (kernel[0] * kernel[1]))
    return conv.requires_grad_(requires_grad=False)


class BoundedReLU(nn.Module):
    """ReLU6 out of two ReLUs."""

    def __init__(self, channels: int, bound: float) -> None:
        super().__init__()
        self.lower = nn.ReLU()
        self.mirror = mirror_conv(channels, bound)
        self.upper = nn.ReLU()
        self.back = mirror_conv(channels, bound)

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        """Cut below, mirror at the bound, cut again, mirror back."""
        result: torch.Tensor = self.back(self.upper(self.mirror(self.lower(value))))
        return result


def mirror_conv(channels: int, bound: float) -> nn.Conv2d:
    """Build the depthwise 1×1 convolution x → bound - x."""
    conv = nn.Conv2d(channels, channels, 1, groups=channels)
    nn.init.constant_(conv.weight, -1.0)
    assert conv.bias is not None
    nn.init.constant_(conv.bias, bound)
    return conv.requires_grad_(requires_grad=False)


class StackedMaxPool(nn.Module):
    """A large max pooling as 3×3 ones in a row."""

    def __init__(self, kernel: int, stride: int) -> None:
        super().__init__()
        count = (kernel - 1) // 2
        self.pools = nn.Sequential(
            *(nn.MaxPool2d(3, stride=stride if number == count else 1, padding=1) for number in range(1, count + 1))
        )

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        """Pool again and again."""
        result: torch.Tensor = self.pools(value)
        return result


def spread_kernel(weight: torch.Tensor, dilation: tuple[int, int]) -> torch.Tensor:
    """Write a dilated kernel out with its zeros."""
    if dilation == (1, 1):
        return weight
    height, width = ((size - 1) * step + 1 for size, step in zip(weight.shape[2:], dilation, strict=True))
    spread = weight.new_zeros(*weight.shape[:2], height, width)
    spread[:, :, :: dilation[0], :: dilation[1]] = weight
    return spread


def padding_of(conv: nn.Conv2d) -> tuple[int, int, int, int]:
    """Return a convolution's padding as top, bottom, left, right."""
    if conv.padding == "valid":
        return (0, 0, 0, 0)
    if isinstance(conv.padding, str):
        tall, wide = (step * (size - 1) for size, step in zip(conv.kernel_size, conv.dilation, strict=True))
        return (tall // 2, tall - tall // 2, wide // 2, wide - wide // 2)
    return (conv.padding[0], conv.padding[0], conv.padding[1], conv.padding[1])


def pad_mode(conv: nn.Conv2d) -> str:
    """Name a convolution's padding the way functional.pad does."""
    return "constant" if conv.padding_mode == "zeros" else conv.padding_mode


def _conv_like(conv: nn.Conv2d, weight: torch.Tensor | None = None, **changes: Any) -> nn.Conv2d:
    """Build a convolution with the settings of another but for the changes, on its bias and its weight or another."""
    weight = conv.weight if weight is None else weight
    names = ("stride", "padding", "dilation", "groups", "padding_mode")
    settings = {**{name: getattr(conv, name) for name in names}, "bias": conv.bias is not None, **changes}
    kernel = (weight.shape[2], weight.shape[3])
    made = nn.Conv2d(conv.in_channels, conv.out_channels, kernel, device="meta", **settings)
    made.weight, made.bias = weight, conv.bias if settings["bias"] else None
    return made


_INSIDE = Refusal("the accelerator takes it as it is", informative=False)


def _shared(match: Match, name: str) -> Refusal | None:
    """Refuse to make new weights out of ones that others use: the two would train apart."""
    others = match.sharers(name)
    return Refusal(f"its weight is also used by '{others[0]}'") if others else None


class _ConvConversion(Pattern):
    """What rewrites a single convolution, as the steps of a module."""

    phase = Phase.CONVERSION
    tree = Op(nn.Conv2d, name="conv")
    steps: ClassVar[type[TiledConv | ThinnedConv | PaddedConv]]

    def replace(self, match: Match) -> Replacement:
        return Expand(self.steps(match.module("conv", nn.Conv2d)))


class SplitConvPattern(_ConvConversion):
    """Turn a convolution with a large or dilated kernel into a sum of shifted 3×3 ones."""

    steps = TiledConv

    def check(self, match: Match) -> Refusal | None:
        """Refuse a kernel that is taken as it is, and a stride that another conversion settles first."""
        conv = match.module("conv", nn.Conv2d)
        if conv.kernel_size in ((1, 1), (3, 3)) and conv.dilation == (1, 1):
            return _INSIDE
        if conv.stride not in ((1, 1), (2, 2)):
            return Refusal("its stride is settled first", informative=False)
        return _shared(match, "conv")


class ThinStridePattern(_ConvConversion):
    """Turn a stride other than 1 and 2 into a shorter one and a choice of every n-th result."""

    steps = ThinnedConv

    def check(self, match: Match) -> Refusal | None:
        """Refuse a stride that is taken as it is."""
        return _INSIDE if match.module("conv", nn.Conv2d).stride in ((1, 1), (2, 2)) else None


class ExplicitPadPattern(_ConvConversion):
    """Turn a padding that the accelerator lacks into a step of its own."""

    steps = PaddedConv

    def check(self, match: Match) -> Refusal | None:
        """Refuse a padding that is taken as it is."""
        conv = match.module("conv", nn.Conv2d)
        if conv.kernel_size not in ((1, 1), (3, 3)) or conv.dilation != (1, 1) or conv.stride not in ((1, 1), (2, 2)):
            return Refusal("its kernel or stride is settled first", informative=False)
        return None if "pad" in rules.outside_conv(conv) else _INSIDE


class GroupedConvToDensePattern(_ConvConversion):
    """Turn a grouped convolution that is not depthwise into a dense one with zeros between the groups."""

    def check(self, match: Match) -> Refusal | None:
        """Refuse a dense or depthwise convolution."""
        conv = match.module("conv", nn.Conv2d)
        if conv.groups == 1 or conv.groups == conv.in_channels == conv.out_channels:
            return _INSIDE
        return _shared(match, "conv")

    def replace(self, match: Match) -> Replacement:
        """Put the dense convolution in place."""
        return dense_of(match.module("conv", nn.Conv2d))


class AvgPoolToConvPattern(Pattern):
    """Turn an average pooling into the depthwise convolution it is."""

    phase = Phase.CONVERSION
    needs_shapes = True
    tree = Op(nn.AvgPool2d, name="pool")

    def check(self, match: Match) -> Refusal | None:
        """Refuse a pooling whose divisor is not the kernel's area everywhere."""
        pool = match.module("pool", nn.AvgPool2d)
        padded = rules.both(pool.padding) != (0, 0)
        if pool.ceil_mode or pool.divisor_override is not None or (padded and not pool.count_include_pad):
            return Refusal("its divisor is not the kernel's area everywhere")
        shape = match.shape(match.inputs[0])
        return None if shape is not None and len(shape) == 4 else Refusal("its input is no batch of maps")

    def replace(self, match: Match) -> Replacement:
        """Put the convolution in place."""
        pool = match.module("pool", nn.AvgPool2d)
        shape = match.shape(match.inputs[0])
        assert shape is not None
        kernel, stride, padding = map(rules.both, (pool.kernel_size, pool.stride, pool.padding))
        return average_conv(shape[1], kernel, stride, padding).train(pool.training)


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
        pool = match.module("pool", nn.MaxPool2d)
        reason = rules.outside_max_pool(pool)
        if not reason:
            return _INSIDE
        kernel, stride, padding = (rules.both(value) for value in (pool.kernel_size, pool.stride, pool.padding))
        odd = kernel[0] == kernel[1] and kernel[0] % 2 == 1 and kernel[0] > 3
        centered = padding == (kernel[0] // 2, kernel[0] // 2)
        plain = rules.both(pool.dilation) == (1, 1) and not pool.ceil_mode and not pool.return_indices
        if not (odd and centered and plain and stride in ((1, 1), (2, 2))):
            return Refusal(f"{reason}, and it is no centered odd square with stride 1 or 2")
        return None

    def replace(self, match: Match) -> Replacement:
        """Put the poolings in place."""
        pool = match.module("pool", nn.MaxPool2d)
        return Expand(StackedMaxPool(rules.both(pool.kernel_size)[0], rules.both(pool.stride)[0]).train(pool.training))


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


class ReLU6ToReLUPattern(ActivationToReLUPattern):
    """Turn ReLU6 into ReLU: cheap, and different above 6."""

    tree = Op(nn.ReLU6, name="act")
