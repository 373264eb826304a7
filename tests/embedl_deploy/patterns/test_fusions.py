"""Fusions: convolutions, fully connected layers, normalizations, and what follows them."""

import pytest
import torch
from support.deploy_nets import ConvBNAct, Residual, image, kinds, warm
from torch import nn
from torch.nn import functional

from embedl_deploy.pattern import Pattern
from embedl_deploy.patterns import (
    AdaptiveAvgPoolPattern,
    BNReLUPattern,
    ConvBNAddPattern,
    ConvBNAddReLUPattern,
    ConvBNPattern,
    ConvBNReLUPattern,
    ConvTransposeBNPattern,
    ConvTransposeBNReLUPattern,
    LayerNormPattern,
    LinearPattern,
    LinearReLUPattern,
    StemConvBNReLUMaxPoolPattern,
)
from embedl_deploy.testing import check_pattern


def conv_bn(act: nn.Module | None = None) -> nn.Sequential:
    """Build a convolution and a batch norm, and an activation if wanted."""
    parts = [nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)]
    return nn.Sequential(*parts, *([act] if act is not None else []))


MATCHES: list[tuple[type[Pattern], nn.Module, list[str]]] = [
    (ConvBNPattern, conv_bn(), ["FusedConvBN"]),
    (ConvBNPattern, nn.Sequential(nn.Conv2d(3, 8, 3)), ["FusedConvBN"]),
    (ConvBNReLUPattern, ConvBNAct(), ["FusedConvBNReLU"]),
    (ConvBNReLUPattern, nn.Sequential(nn.Conv2d(3, 8, 3), nn.SiLU()), ["FusedConvBNReLU"]),
    (StemConvBNReLUMaxPoolPattern, nn.Sequential(ConvBNAct(), nn.MaxPool2d(3, 2, 1)), ["FusedConvBNReLUMaxPool"]),
    (
        ConvTransposeBNPattern,
        nn.Sequential(nn.ConvTranspose2d(3, 4, 2, 2), nn.BatchNorm2d(4)),
        ["FusedConvTransposeBN"],
    ),
    (
        ConvTransposeBNReLUPattern,
        nn.Sequential(nn.ConvTranspose2d(3, 4, 3, 2, 1, 1), nn.BatchNorm2d(4), nn.LeakyReLU()),
        ["FusedConvTransposeBNReLU"],
    ),
    (BNReLUPattern, nn.Sequential(nn.BatchNorm2d(3), nn.ReLU()), ["FusedBNReLU"]),
    (BNReLUPattern, nn.Sequential(nn.BatchNorm2d(3)), ["FusedBNReLU"]),
    (AdaptiveAvgPoolPattern, nn.Sequential(nn.AdaptiveAvgPool2d(2)), ["FusedAdaptiveAvgPool2d"]),
]


@pytest.mark.parametrize(("pattern", "model", "expected"), MATCHES)
def test_fusion(pattern: type[Pattern], model: nn.Module, expected: list[str]) -> None:
    """The match is exact to the bit and leaves one module."""
    result = check_pattern(pattern, warm(model), (image(),), matches=1, tolerance=0)
    assert kinds(result.model) == expected


@pytest.mark.parametrize(
    "act",
    [
        nn.ReLU(),
        nn.ReLU6(),
        nn.LeakyReLU(),
        nn.ELU(),
        nn.GELU(),
        nn.SiLU(),
        nn.Hardswish(),
        nn.Hardsigmoid(),
        nn.Sigmoid(),
    ],
)
def test_published_activations(act: nn.Module) -> None:
    """Every published activation is taken."""
    check_pattern(ConvBNReLUPattern, warm(ConvBNAct(act)), (image(),), matches=1, tolerance=0)


@pytest.mark.parametrize("dims", [1, 2, 3])
def test_dimensions_groups_and_depthwise(dims: int) -> None:
    """One, two and three dimensions; grouped and depthwise."""
    conv = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[dims - 1]
    bn = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)[dims - 1]
    model = nn.Sequential(conv(4, 8, 3, groups=2), bn(8), nn.ReLU(), conv(8, 8, 3, groups=8), bn(8), nn.ReLU6())
    check_pattern(ConvBNReLUPattern, warm(model), (torch.randn(2, 4, *[9] * dims),), matches=2, tolerance=0)


class Added(nn.Module):
    """A convolution added to something, in either order, with or without an activation."""

    def __init__(self, *, swapped: bool, act: bool, bn: bool = True, broadcast: bool = False) -> None:
        super().__init__()
        self.skip = nn.Conv2d(3, 8, 1)
        self.conv = nn.Conv2d(3, 8, 3, padding=1)
        self.bn = nn.BatchNorm2d(8) if bn else nn.Identity()
        self.plain = not bn
        self.swapped = swapped
        self.act = act
        self.broadcast = broadcast

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        skip = self.skip(x).sin()
        if self.broadcast:
            skip = skip.mean((2, 3), keepdim=True)
        out = self.conv(x) if self.plain else self.bn(self.conv(x))
        out = skip + out if self.swapped else out + skip
        return functional.relu(out) if self.act else out


@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize("bn", [False, True])
def test_residual_adds(swapped: bool, bn: bool) -> None:
    """Either operand order, with and without batch norm and activation."""
    plain = Added(swapped=swapped, act=False, bn=bn)
    assert "FusedConvBNAdd" in kinds(
        check_pattern(ConvBNAddPattern, warm(plain), (image(),), matches=1, tolerance=0).model
    )
    active = Added(swapped=swapped, act=True, bn=bn)
    fused = check_pattern(ConvBNAddReLUPattern, warm(active), (image(),), matches=1, tolerance=0).model
    assert kinds(fused) == ["Conv2d", "FusedConvBNAddReLU"]


def test_a_broadcasting_add_is_refused() -> None:
    """A kernel's epilogue adds element by element."""
    model = warm(Added(swapped=False, act=True, broadcast=True))
    reason = "the add broadcasts (2, 8, 1, 1) to (2, 8, 16, 16)"
    check_pattern(ConvBNAddReLUPattern, model, (image(),), matches=0, tolerance=0, refuses=[reason])


def test_indices_of_a_pooling_are_not_lost() -> None:
    """A pooling that also says where the maxima were is left alone."""
    model = warm(nn.Sequential(ConvBNAct(), nn.MaxPool2d(2, return_indices=True)))
    reason = "the pooling returns indices as well"
    check_pattern(StemConvBNReLUMaxPoolPattern, model, (image(),), matches=0, tolerance=0, refuses=[reason])


def test_a_value_added_to_itself_is_no_residual() -> None:
    """Both operands are the same value: nothing may be hidden, nothing breaks."""

    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 8, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.conv(x)
            out: torch.Tensor = y + y
            return out

    check_pattern(ConvBNAddPattern, Twice().eval(), (image(),), matches=0, tolerance=0)


def test_the_residual_block_of_many_networks() -> None:
    """A reused in-place ReLU and an in-place add do not stand in the way."""
    result = check_pattern(ConvBNAddReLUPattern, warm(Residual()), (image(),), matches=1, tolerance=0)
    assert result.matches[0].layers == ("conv2", "bn2", "add", "relu")


X = torch.randn(2, 5, 8, generator=torch.Generator().manual_seed(0))


def test_linear_with_and_without_activation() -> None:
    """Both forms are exact."""
    model = nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 4)).eval()
    assert kinds(check_pattern(LinearPattern, model, (X,), matches=2, tolerance=0).model) == [
        "FusedLinear", "GELU", "FusedLinear",
    ]  # fmt: skip
    fused = check_pattern(LinearReLUPattern, model, (X,), matches=1, tolerance=0).model
    assert kinds(fused) == ["FusedLinearReLU", "Linear"]


def test_a_shared_output_keeps_the_linear_alone() -> None:
    """The value before the activation is read by another layer."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(8, 8)
            self.act = nn.GELU()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.linear(x)
            out: torch.Tensor = y.cumsum(1) + self.act(y)
            return out

    refuses = ["the result of 'linear' is also used by 'cumsum'"]
    check_pattern(LinearReLUPattern, Model().eval(), (X,), matches=0, tolerance=0, refuses=refuses)


def test_layer_norm() -> None:
    """One layer, one kernel."""
    result = check_pattern(LayerNormPattern, nn.Sequential(nn.LayerNorm(8)), (X,), matches=1, tolerance=0)
    assert kinds(result.model) == ["FusedLayerNorm"]
