"""Transposed convolutions without overlap become convolutions."""

from typing import Any

import pytest
import torch
from support.deploy_nets import image, kinds, warm
from torch import nn

from embedl_deploy import transform
from embedl_deploy.patterns import ConvBNClampPattern, ConvTransposeToPixelShufflePattern
from embedl_deploy.testing import check_pattern


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
    """Before it, every position would be normalised by itself."""
    model = nn.Sequential(nn.ConvTranspose2d(3, 6, 2, 2), nn.BatchNorm2d(6))
    result = transform(model, None, [ConvTransposeToPixelShufflePattern])
    assert kinds(result.model) == ["Conv2d", "PixelShuffle", "BatchNorm2d"]
    torch.testing.assert_close(result.model(image()), model(image()), rtol=1e-4, atol=1e-5)
