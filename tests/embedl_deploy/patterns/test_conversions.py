"""Conversions that bring a network into the shape fusions expect."""

import importlib
from typing import Any

import pytest
import torch
from support.deploy_nets import Head, image, kinds, warm
from torch import nn

from embedl_deploy import transform
from embedl_deploy.patterns import (
    ConvBNClampPattern,
    ConvTransposeToPixelShufflePattern,
    FlattenLinearToConv1x1Pattern,
    MeanToAdaptiveAvgPoolPattern,
    RemoveDropoutPattern,
    RemoveIdentityAdaptiveAvgPoolPattern,
    RemoveIdentityPattern,
    RemoveStochasticDepthPattern,
    SigmoidMultiplyToSiLUPattern,
)
from embedl_deploy.testing import check_pattern


def test_identity_and_dropout_go() -> None:
    """Also several in a row, and at the end of the network."""
    model = nn.Sequential(nn.Identity(), nn.Identity(), nn.ReLU(), nn.Identity()).eval()
    assert kinds(check_pattern(RemoveIdentityPattern, model, (image(),), matches=3, tolerance=0).model) == ["ReLU"]
    model = nn.Sequential(nn.Dropout(), nn.Dropout2d(), nn.ReLU(), nn.Dropout()).eval()
    assert kinds(check_pattern(RemoveDropoutPattern, model, (image(),), matches=3, tolerance=0).model) == ["ReLU"]


def test_a_network_of_nothing() -> None:
    """When everything goes, the input is the output."""
    model = nn.Sequential(nn.Identity()).eval()
    result = transform(model, (image(),), [RemoveIdentityPattern])
    assert kinds(result.model) == []
    torch.testing.assert_close(result.model(image()), image(), rtol=0, atol=0)


def test_stochastic_depth_goes_after_a_look() -> None:
    """In eval mode torchvision's module lets a tensor pass; in training it stays."""
    depth = importlib.import_module("torchvision.ops").StochasticDepth
    model = nn.Sequential(nn.ReLU(), depth(0.5, "row"))
    done = check_pattern(RemoveStochasticDepthPattern, model.eval(), (image(),), matches=1, tolerance=0)
    assert kinds(done.model) == ["ReLU"]
    report = transform(model.train(), (image(),), [RemoveStochasticDepthPattern]).report
    assert "call eval() first" in report.refusals[0].reason


def test_a_pooling_that_does_not_pool_goes() -> None:
    """The input already has the size; another size stays, silently."""
    model = nn.Sequential(nn.AdaptiveAvgPool2d(16), nn.AdaptiveAvgPool2d(4)).eval()
    result = check_pattern(RemoveIdentityAdaptiveAvgPoolPattern, model, (image(),), matches=1, tolerance=0)
    assert kinds(result.model) == ["AdaptiveAvgPool2d"]
    assert not result.report.refusals


class Mean(nn.Module):
    """A mean over some dimensions."""

    def __init__(self, dims: tuple[int, ...], *, keepdim: bool) -> None:
        super().__init__()
        self.dims = dims
        self.keepdim = keepdim

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.mean(self.dims, keepdim=self.keepdim)


@pytest.mark.parametrize(
    ("dims", "keepdim", "expected"),
    [
        ((2, 3), True, ["AdaptiveAvgPool2d"]),
        ((-1, -2), False, ["AdaptiveAvgPool2d", "Flatten"]),
        ((1, 2), False, []),
        ((1,), True, []),
    ],
)
def test_mean_over_height_and_width_is_a_pooling(dims: tuple[int, ...], keepdim: bool, expected: list[str]) -> None:
    """Other means stay what they are."""
    model = Mean(dims, keepdim=keepdim)
    result = check_pattern(
        MeanToAdaptiveAvgPoolPattern, model, (image(),), matches=1 if expected else 0, tolerance=1e-6
    )
    assert kinds(result.model) == expected


def test_swish_written_out() -> None:
    """x·sigmoid(x) is SiLU in either order; a gate over another value is not."""

    class Swish(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = torch.sigmoid(x) * x
            return y * torch.sigmoid(y)

    class Gate(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * torch.sigmoid(x.flip(1))

    assert kinds(check_pattern(SigmoidMultiplyToSiLUPattern, Swish(), (image(),), matches=2, tolerance=1e-6).model) == [
        "SiLU", "SiLU",
    ]  # fmt: skip
    check_pattern(SigmoidMultiplyToSiLUPattern, Gate(), (image(),), matches=0, tolerance=0)


def test_a_head_becomes_a_convolution_on_the_same_memory() -> None:
    """Flatten and linear after a global pooling; no weight is copied."""
    model = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(3, 4)).eval()
    result = check_pattern(FlattenLinearToConv1x1Pattern, model, (image(),), matches=1, tolerance=1e-6)
    assert kinds(result.model) == ["AdaptiveAvgPool2d", "Conv2d", "Flatten"]
    weight = result.model.get_parameter("2.conv.weight")
    assert weight.data_ptr() == model.get_parameter("2.weight").data_ptr()
    assert len(transform(model, None, [FlattenLinearToConv1x1Pattern]).matches) == 1


def test_heads_that_stay_linear() -> None:
    """A larger map, another flatten, a flat input, a shared weight, an unknown size: each with its reason."""
    pattern = FlattenLinearToConv1x1Pattern
    large = nn.Sequential(nn.Flatten(), nn.Linear(3 * 4 * 4, 2))
    check_pattern(pattern, large, (image(2, 4),), matches=0, tolerance=0, refuses=["the flattened map is 4×4, not 1×1"])
    inner = nn.Sequential(nn.Flatten(2), nn.Linear(16, 2))
    check_pattern(pattern, inner, (image(2, 4),), matches=0, tolerance=0, refuses=["flattens dimensions 2 to -1"])
    flat = nn.Sequential(nn.Flatten(), nn.Linear(6, 2))
    check_pattern(pattern, flat, (torch.randn(2, 6),), matches=0, tolerance=0, refuses=["the flattened map is flat"])

    class Shared(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.pool = nn.AdaptiveAvgPool2d(1)
            self.flatten = nn.Flatten()
            self.fc = nn.Linear(3, 4)
            self.other = nn.Linear(3, 4)
            self.other.weight = self.fc.weight

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.flatten(self.pool(x))
            out: torch.Tensor = self.fc(y) + self.other(x.mean((2, 3)))
            return out

    check_pattern(
        pattern, Shared().eval(), (image(),), matches=0, tolerance=0, refuses=["its weight is also used by 'other'"]
    )
    reasons = [one.reason for one in transform(large, None, [pattern]).report.refusals]
    assert reasons == ["the size of the flattened map is unknown; call transform(model, args)"]


def test_head_after_dropout_needs_the_dropout_gone() -> None:
    """Two conversions work hand in hand."""
    result = transform(warm(Head()), (image(),), [RemoveDropoutPattern, FlattenLinearToConv1x1Pattern])
    assert kinds(result.model) == ["Conv2d", "AdaptiveAvgPool2d", "Conv2d", "Flatten"]


@pytest.mark.parametrize("side", [1, 2, 3])
@pytest.mark.parametrize("bias", [True, False])
def test_patches_side_by_side(side: int, bias: bool) -> None:
    """Any size of patch, with and without a bias."""
    model = nn.Sequential(nn.ConvTranspose2d(3, 5, side, side, bias=bias)).eval()
    result = check_pattern(ConvTransposeToPixelShufflePattern, model, (image(),), matches=1, tolerance=1e-5)
    assert kinds(result.model) == ["Conv2d", "PixelShuffle"]


def test_what_follows_goes_before_the_shuffle() -> None:
    """So that a fusion finds convolution, batch norm and activation in a row."""
    model = warm(nn.Sequential(nn.ConvTranspose2d(3, 5, 2, 2), nn.BatchNorm2d(5), nn.ReLU()))
    result = transform(model, (image(),), [ConvTransposeToPixelShufflePattern, ConvBNClampPattern])
    assert kinds(result.model) == ["FusedConvBNReLU", "PixelShuffle"]
    torch.testing.assert_close(result.model(image()), model(image()), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"kernel_size": 3, "stride": 2}, "no square patches"),
        ({"kernel_size": (1, 2), "stride": (1, 2)}, "no square patches"),
        ({"kernel_size": 2, "stride": 2, "padding": 1}, "padding, dilation or groups"),
        ({"kernel_size": 2, "stride": 2, "groups": 3}, "padding, dilation or groups"),
    ],
)
def test_others_stay(settings: dict[str, Any], reason: str) -> None:
    """Each with its reason."""
    result = transform(
        nn.Sequential(nn.ConvTranspose2d(3, 6, **settings)).eval(), (image(),), [ConvTransposeToPixelShufflePattern]
    )
    assert kinds(result.model) == ["ConvTranspose2d"]
    assert reason in str(result.report)


def test_a_batch_norm_in_training_stays_behind_the_shuffle() -> None:
    """Before it, every position would be normalized by itself."""
    model = nn.Sequential(nn.ConvTranspose2d(3, 6, 2, 2), nn.BatchNorm2d(6))
    result = transform(model, None, [ConvTransposeToPixelShufflePattern])
    assert kinds(result.model) == ["Conv2d", "PixelShuffle", "BatchNorm2d"]
    torch.testing.assert_close(result.model(image()), model(image()), rtol=1e-4, atol=1e-5)
