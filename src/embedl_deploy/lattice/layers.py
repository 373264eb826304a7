"""The steps that conversions take a layer apart into.

Conv k×k             → Σ over 3×3 tiles of the kernel, each on the input shifted to its tile
AvgPool k×k          → depthwise convolution with 1/k² everywhere
ReLU6(x)             → 6 - ReLU(6 - ReLU(x)), the inner differences as depthwise 1×1 convolutions
MaxPool k×k, k odd   → (k-1)/2 poolings of 3×3, the last with the stride
"""

import torch
from torch import nn
from torch.nn import functional

from embedl_deploy.nn import Add

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
                    self.tiles.append(_conv_like(conv, tile, first=not (row or column)))
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
        self.conv = nn.Conv2d(
            conv.in_channels, conv.out_channels, (conv.kernel_size[0], conv.kernel_size[1]),
            stride=(conv.stride[0], conv.stride[1]), dilation=(conv.dilation[0], conv.dilation[1]),
            groups=conv.groups, bias=conv.bias is not None, device="meta",
        )  # fmt: skip
        self.conv.weight, self.conv.bias = conv.weight, conv.bias
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
        self.conv = nn.Conv2d(
            conv.in_channels, conv.out_channels, (conv.kernel_size[0], conv.kernel_size[1]), stride=inner,
            padding=conv.padding if isinstance(conv.padding, str) else (conv.padding[0], conv.padding[1]),
            dilation=(conv.dilation[0], conv.dilation[1]), groups=conv.groups, bias=conv.bias is not None,
            padding_mode=conv.padding_mode, device="meta",
        )  # fmt: skip
        self.conv.weight, self.conv.bias = conv.weight, conv.bias
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
    dense = nn.Conv2d(
        conv.in_channels, conv.out_channels, (conv.kernel_size[0], conv.kernel_size[1]),
        stride=(conv.stride[0], conv.stride[1]), dilation=(conv.dilation[0], conv.dilation[1]),
        padding=conv.padding if isinstance(conv.padding, str) else (conv.padding[0], conv.padding[1]),
        padding_mode=conv.padding_mode, bias=conv.bias is not None, device="meta",
    )  # fmt: skip
    dense.weight, dense.bias = nn.Parameter(weight), conv.bias
    return dense.train(conv.training)


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
            *(nn.MaxPool2d(3, stride=stride if at == count - 1 else 1, padding=1) for at in range(count))
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
        sides = []
        for size, step in zip(conv.kernel_size, conv.dilation, strict=True):
            total = step * (size - 1)
            sides += [total // 2, total - total // 2]
        return (sides[0], sides[1], sides[2], sides[3])
    return (conv.padding[0], conv.padding[0], conv.padding[1], conv.padding[1])


def pad_mode(conv: nn.Conv2d) -> str:
    """Name a convolution's padding the way functional.pad does."""
    return "constant" if conv.padding_mode == "zeros" else conv.padding_mode


def _conv_like(conv: nn.Conv2d, weight: torch.Tensor, *, first: bool) -> nn.Conv2d:
    """Build a 3×3 convolution of one tile; the first carries the bias."""
    biased = first and conv.bias is not None
    tile = nn.Conv2d(
        conv.in_channels, conv.out_channels, _TILE, stride=(conv.stride[0], conv.stride[1]), groups=conv.groups,
        bias=biased, device="meta",
    )  # fmt: skip
    tile.weight = nn.Parameter(weight.contiguous(), requires_grad=conv.weight.requires_grad)
    if biased:
        tile.bias = conv.bias
    return tile
