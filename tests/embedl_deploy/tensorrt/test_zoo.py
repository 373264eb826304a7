"""The networks the TensorRT backend is made for: all transform, with equal outputs; their counts are fixed."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from support.deploy_zoo import (
    HUGGING_FACE,
    SEGMENTATION,
    classification_names,
    hugging_face,
    timm_model,
    torchvision_model,
)
from support.sampled import sampled
from torch import nn

from embedl_deploy import TransformResult, transform
from embedl_deploy.tensorrt import TENSORRT_PATTERNS

TOLERANCE = 1e-4
FAST = (
    "resnet18", "resnext50_32x4d", "regnet_y_400mf", "mobilenet_v2", "mobilenet_v3_small", "efficientnet_b0",
    "convnext_tiny", "swin_t", "swin_v2_t", "densenet121", "inception_v3", "shufflenet_v2_x0_5", "googlenet",
    "squeezenet1_1", "mnasnet0_5", "vgg11_bn",
)  # fmt: skip
FAMILIES = (
    "resnet18",
    "mobilenet_v3_small",
    "efficientnet_b0",
    "convnext_tiny",
    "swin_t",
    "densenet121",
    "squeezenet1_1",
)


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    with torch.no_grad():
        yield


def check(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None) -> TransformResult:
    """Transform and assert equal outputs and a proof per step."""
    result = transform(model, args, TENSORRT_PATTERNS, kwargs=kwargs)
    report = result.report
    assert report.proof is not None
    assert not report.proof.fault
    assert report.proof.relative_error <= TOLERANCE
    assert report.proof.scale > 1e-3, "a constant output proves nothing"
    assert all(done.proof is not None for done in report.done)
    weighted = set(report.left) & {"Conv1d", "Conv2d", "Conv3d", "Linear", "ConvTranspose2d", "LayerNorm"}
    assert not weighted, f"no fusion takes {weighted}"
    return result


def test_resnet50_counts() -> None:
    """All 53 convolutions and the head: stem 1, residual 16, conv-bn-relu 32, conv-bn 4 + 1, pooling 1."""
    model, args = torchvision_model("resnet50", size=64)
    for inputs in (args, None):
        counts = transform(model, inputs, TENSORRT_PATTERNS).report.counts()
        assert counts == {
            "FlattenLinearToConv1x1Pattern": 1,
            "StemConvBNReLUMaxPoolPattern": 1,
            "ConvBNAddReLUPattern": 16,
            "ConvBNReLUPattern": 32,
            "ConvBNPattern": 5,
            "AdaptiveAvgPoolPattern": 1,
        }


def test_resnet50_shares_every_weight() -> None:
    """No weight of the original is copied."""
    model, args = torchvision_model("resnet50", size=32)
    result = transform(model, args, TENSORRT_PATTERNS).model
    theirs = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    assert {parameter.untyped_storage().data_ptr() for parameter in result.parameters()} == theirs


@pytest.mark.parametrize("name", sampled(FAST, *FAMILIES))
def test_classification(name: str) -> None:
    """One of each family."""
    check(*torchvision_model(name))


@pytest.mark.slow
@pytest.mark.parametrize("name", classification_names())
def test_every_classification_model(name: str) -> None:
    """All of torchvision's classification models."""
    check(*torchvision_model(name))


@pytest.mark.parametrize("name", sampled(SEGMENTATION, "lraspp_mobilenet_v3_large"))
def test_segmentation(name: str) -> None:
    """FCN, DeepLabV3 and LRASPP: dictionaries come back."""
    model, args = torchvision_model(name)
    result = check(model, args)
    assert list(result.model(*args)) == list(model(*args))


@pytest.mark.parametrize("name", sampled(HUGGING_FACE, "vit", "bert", "resnet"))
def test_hugging_face(name: str) -> None:
    """Through torch.export, keyword inputs, structured outputs."""
    model, kwargs = hugging_face(name)
    result = check(model, (), kwargs)
    assert result.report.route == "export"
    assert type(result.model(**kwargs)) is type(model(**kwargs))


@pytest.mark.parametrize(
    "name", sampled(["efficientnet_b0", "mobilevit_xxs", "vit_tiny_patch16_224", "repvgg_a0"], "efficientnet_b0")
)
def test_timm(name: str) -> None:
    """Another library's spellings: its own batch norm with activation, control flow, stochastic depth."""
    check(*timm_model(name))


class UNet(nn.Module):
    """A small U-Net: double convolutions, skip connections by concat, transposed convolutions."""

    def __init__(self) -> None:
        super().__init__()
        self.down1, self.down2, self.bottom = self.pair(3, 8), self.pair(8, 16), self.pair(16, 32)
        self.up2, self.up1 = nn.ConvTranspose2d(32, 16, 2, 2), nn.ConvTranspose2d(16, 8, 2, 2)
        self.right2, self.right1 = self.pair(32, 16), self.pair(16, 8)
        self.pool, self.head = nn.MaxPool2d(2), nn.Conv2d(8, 2, 1)

    @staticmethod
    def pair(into: int, out: int) -> nn.Sequential:
        """Two convolutions with batch norm and ReLU."""
        parts = [nn.Conv2d(into, out, 3, padding=1), nn.BatchNorm2d(out), nn.ReLU(inplace=True)]
        return nn.Sequential(*parts, nn.Conv2d(out, out, 3, padding=1), nn.BatchNorm2d(out), nn.ReLU(inplace=True))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        one = self.down1(x)
        two = self.down2(self.pool(one))
        low = self.bottom(self.pool(two))
        two = self.right2(torch.cat([self.up2(low), two], 1))
        out: torch.Tensor = self.head(self.right1(torch.cat([self.up1(two), one], 1)))
        return out


def test_unet() -> None:
    """Transposed convolutions are fused, concats stay layers."""
    counts = check(UNet().eval(), (torch.randn(1, 3, 16, 16),)).report.counts()
    assert counts == {"ConvBNReLUPattern": 10, "ConvTransposeBNPattern": 2, "ConvBNPattern": 1}


@pytest.mark.parametrize(
    ("build", "shape"),
    [
        (lambda: nn.Sequential(nn.Conv1d(3, 8, 3), nn.BatchNorm1d(8), nn.ReLU(), nn.Conv1d(8, 4, 1)), (2, 3, 9)),
        (lambda: nn.Sequential(nn.Conv3d(3, 8, 3), nn.BatchNorm3d(8), nn.ReLU(), nn.Conv3d(8, 4, 1)), (2, 3, 5, 5, 5)),
        (lambda: nn.Sequential(nn.LSTM(3, 4, batch_first=True)), (2, 6, 3)),
        (
            lambda: nn.Sequential(nn.Conv2d(4, 8, 3, groups=2, dilation=2, padding_mode="circular", padding=2)),
            (1, 4, 8, 8),
        ),
    ],
)
def test_other_layers(build: Callable[[], nn.Module], shape: tuple[int, ...]) -> None:
    """One and three dimensions, recurrent layers, unusual convolutions: fused or left, never a crash."""
    check(build().eval(), (torch.randn(shape),))
