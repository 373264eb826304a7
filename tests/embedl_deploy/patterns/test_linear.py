"""Linear and normalisation fusions."""

import torch
from support.deploy_nets import kinds
from torch import nn

from embedl_deploy.patterns import LayerNormPattern, LinearPattern, LinearReLUPattern
from embedl_deploy.testing import check_pattern

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
