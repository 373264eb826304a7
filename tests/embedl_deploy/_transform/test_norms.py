"""Batch norm in every guise goes into the layer before it, or the report says why not."""

from collections.abc import Callable

import pytest
import torch
from support.deploy_nets import kinds, warm
from torch import nn
from torch.nn import functional

from embedl_deploy import transform
from embedl_deploy._transform.pipeline import TransformResult
from embedl_deploy.onnxruntime import ONNXRUNTIME


class NormAct(nn.BatchNorm2d):
    """Batch norm that checks the rank and activates, as timm's does."""

    def __init__(self, width: int) -> None:
        super().__init__(width)
        self.drop = nn.Identity()
        self.act = nn.ReLU()

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        torch._assert(value.ndim == 4, f"expected four dimensions, got {value.ndim}")  # type: ignore[no-untyped-call]
        training = self.training or self.running_mean is None
        normal = functional.batch_norm(
            value, self.running_mean, self.running_var, self.weight, self.bias, training, 0.1, self.eps
        )
        activated: torch.Tensor = self.act(self.drop(normal))
        return activated


class SuperNorm(nn.BatchNorm2d):
    """Batch norm that calls its base."""

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        return functional.relu(super().forward(value))


class NamedNorm(nn.BatchNorm2d):
    """Batch norm that only has another name and constructor."""

    def __init__(self, width: int) -> None:
        super().__init__(width, eps=1e-3)


class ByFunction(nn.Module):
    """Statistics as buffers, batch norm by function; the convolution before it is behind a pooling."""

    mean: torch.Tensor
    variance: torch.Tensor

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(width) + 0.5)
        self.register_buffer("mean", torch.randn(width))
        self.register_buffer("variance", torch.rand(width) + 0.5)

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        return functional.batch_norm(value, self.mean, self.variance, self.weight, None)


def _transformed(model: nn.Module, value: torch.Tensor) -> TransformResult:
    result = transform(model, (value,), ONNXRUNTIME)
    assert result.report.proof is not None
    assert result.report.proof.relative_error < 1e-6
    return result


@pytest.mark.parametrize("norm", [NormAct, SuperNorm, NamedNorm, ByFunction, nn.SyncBatchNorm])
@pytest.mark.parametrize(
    "conv", [lambda: nn.Conv2d(3, 8, 3), lambda: nn.ConvTranspose2d(3, 8, 3), lambda: nn.Conv2d(3, 9, 3, groups=3)]
)
def test_every_guise_goes_into_the_convolution(
    norm: Callable[[int], nn.Module], conv: Callable[[], nn.Conv2d | nn.ConvTranspose2d]
) -> None:
    torch.manual_seed(0)
    layer = conv()
    model = warm(nn.Sequential(layer, norm(layer.out_channels)))
    result = _transformed(model, torch.randn(2, 3, 12, 12))
    assert not result.report.norms
    assert result.report.route == "fx"
    assert len([part for part in result.model.modules() if isinstance(part, nn.modules.batchnorm._BatchNorm)]) == 1
    assert kinds(result.model)[0].startswith("FusedConv")


def test_a_batch_norm_that_stays_is_listed_with_its_reason() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Conv2d(3, 8, 3)
            self.shared = nn.BatchNorm2d(8)
            self.pool = nn.MaxPool2d(2)
            self.after = nn.BatchNorm2d(8)

        def forward(self, value: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            value = self.first(value)
            return self.shared(value) + value, self.after(self.pool(value)).relu()

    report = _transformed(warm(Net()), torch.randn(1, 3, 12, 12)).report
    reasons = {norm.place: norm.reason for norm in report.norms}
    assert "also read by" in reasons["shared"]
    assert "follows MaxPool2d ('pool')" in reasons["after"]
    assert "ReLU" in reasons["after"]
    assert "Batch norms that are not folded" in str(report)
    assert "also read by" in report.to_html()


class Sliced(nn.Module):
    """A weight that is cut to the width of the input: torch.fx does not know it, torch.export does."""

    def __init__(self, *, by_value: bool = False) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(8, 16))
        self.by_value = by_value

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        weight = self.weight[:, : value.shape[-1]]
        return functional.linear(value, weight * value.mean() if self.by_value else weight)


def test_the_tracer_that_leaves_fewer_functions_is_chosen() -> None:
    result = _transformed(Sliced().eval(), torch.randn(2, 12))
    assert result.report.route == "export"
    assert any("torch.export was chosen: 1 layers" in note for note in result.report.notes)
    assert kinds(result.model) == ["FusedLinear"]
    report = transform(Sliced(by_value=True).eval(), (torch.randn(2, 12),), ONNXRUNTIME).report
    assert report.route == "fx"
    assert any("which was not taken" in note for note in report.notes)
