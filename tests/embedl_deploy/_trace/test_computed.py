"""Weights that are computed, and products that are spelled otherwise, become layers that can be quantized."""

import importlib
import warnings
from collections.abc import Callable

import pytest
import torch
from support.deploy_nets import kinds
from torch import nn
from torch.nn import functional
from torch.nn.utils import parametrizations, parametrize, prune

from embedl_deploy import transform
from embedl_deploy._transform.pipeline import TransformResult
from embedl_deploy.onnxruntime import ONNXRUNTIME


def _transformed(model: nn.Module, *values: torch.Tensor) -> TransformResult:
    result = transform(model, values, ONNXRUNTIME)
    assert result.report.proof is not None
    assert result.report.proof.relative_error < 2e-6, result.report.proof
    return result


def _old_weight_norm(layer: nn.Module) -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found: nn.Module = nn.utils.weight_norm(layer)
        return found


class Doubled(nn.Module):
    """A parametrization of one's own."""

    def forward(self, weight: torch.Tensor) -> torch.Tensor:
        return 2 * weight


def _doubled(layer: nn.Module) -> nn.Module:
    parametrize.register_parametrization(layer, "weight", Doubled())
    return layer


COMPUTED: dict[str, Callable[[nn.Module], nn.Module]] = {
    "weight_norm": parametrizations.weight_norm,
    "spectral_norm": parametrizations.spectral_norm,
    "orthogonal": parametrizations.orthogonal,
    "own": _doubled,
    "old weight_norm": _old_weight_norm,
    "old spectral_norm": nn.utils.spectral_norm,
    "pruned": lambda layer: prune.l1_unstructured(layer, "weight", 0.5),  # type: ignore[no-untyped-call]
}


@pytest.mark.parametrize("name", COMPUTED)
def test_a_computed_weight_is_evaluated(name: str) -> None:
    torch.manual_seed(0)
    layer = COMPUTED[name](nn.Linear(8, 8))
    model = nn.Sequential(layer, nn.ReLU()).eval()
    before = {key: value.clone() for key, value in model.state_dict().items()}
    kind = type(layer)
    result = _transformed(model, torch.randn(3, 8))
    assert kinds(result.model) == ["FusedLinearReLU"]
    assert any("evaluated to a plain weight" in note for note in result.report.notes)
    assert type(layer) is kind
    assert before.keys() == model.state_dict().keys()
    assert torch.equal(model(torch.ones(1, 8)), result.model(torch.ones(1, 8)))


class Functional(nn.Module):
    """Products that are functions of parameters, in every spelling."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(6, 8))
        self.bias = nn.Parameter(torch.randn(6))
        self.zeros = nn.Parameter(torch.zeros(3))
        self.packed = nn.Parameter(torch.randn(12, 8))
        self.matrix = nn.Parameter(torch.randn(8, 6))

    def forward(self, value: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (
            functional.linear(value, self.weight, torch.cat((self.bias[:3], self.zeros))),
            functional.linear(value, self.packed[6:], self.bias),
            torch.addmm(self.bias, value, self.matrix),
            value @ self.matrix,
            torch.matmul(value, self.weight.t()) + self.bias,
            torch.mm(value, self.matrix.contiguous()),
        )


def test_products_of_parameters_become_linear_layers() -> None:
    torch.manual_seed(0)
    result = _transformed(Functional().eval(), torch.randn(4, 8))
    assert kinds(result.model) == ["FusedLinear"] * 6
    program = torch.export.export(Functional().eval(), (torch.randn(4, 8),))
    assert kinds(transform(program, (torch.randn(4, 8),), ONNXRUNTIME).model) == ["FusedLinear"] * 6


def test_hugging_face_conv1d_becomes_a_linear_layer() -> None:
    layer = importlib.import_module("transformers.pytorch_utils").Conv1D
    result = _transformed(nn.Sequential(layer(6, 8), nn.GELU(), layer(4, 6)).eval(), torch.randn(2, 5, 8))
    assert [kind for kind in kinds(result.model) if "Linear" in kind] == ["FusedLinear", "FusedLinear"]


class RMS(nn.Module):
    """RMSNorm as people write it, with conversions that do nothing in float32."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(8) + 0.5)

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        kind = value.dtype
        value = value.to(torch.float32)
        variance = torch.pow(value, 2).mean(-1, keepdim=True)
        return self.weight * (value * torch.rsqrt(variance + 1e-6)).to(kind)


@pytest.mark.parametrize("norm", [RMS, lambda: nn.RMSNorm(8)])
@pytest.mark.parametrize("exported", [False, True])
def test_rms_norm_is_a_normalization(norm: Callable[[], nn.Module], exported: bool) -> None:
    model = nn.Sequential(norm(), nn.Linear(8, 4)).eval()
    value = torch.randn(2, 5, 8)
    given = torch.export.export(model, (value,)) if exported else model
    result = transform(given, (value,), ONNXRUNTIME)
    assert result.report.proof is not None
    assert result.report.proof.relative_error < 2e-6
    assert kinds(result.model) == ["FusedLayerNorm", "FusedLinear"]


class Frozen(nn.Module):
    """Batch norm whose statistics and weights are buffers, as detectors have it."""

    weight: torch.Tensor
    bias: torch.Tensor
    mean: torch.Tensor
    variance: torch.Tensor

    def __init__(self, width: int) -> None:
        super().__init__()
        for name in ("weight", "bias", "mean", "variance"):
            self.register_buffer(name, torch.rand(width) + 0.5)

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        scale = self.weight.reshape(1, -1, 1, 1) * (self.variance.reshape(1, -1, 1, 1) + 1e-5).rsqrt()
        return value * scale + (self.bias.reshape(1, -1, 1, 1) - self.mean.reshape(1, -1, 1, 1) * scale)


@pytest.mark.parametrize("exported", [False, True])
def test_a_frozen_batch_norm_goes_into_the_convolution(exported: bool) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 3, bias=False), Frozen(4), nn.ReLU()).eval()
    value = torch.randn(1, 3, 8, 8)
    given = torch.export.export(model, (value,)) if exported else model
    result = transform(given, (value,), ONNXRUNTIME)
    assert result.report.proof is not None
    assert result.report.proof.relative_error < 2e-6
    assert kinds(result.model) == ["FusedConvBNReLU"]
