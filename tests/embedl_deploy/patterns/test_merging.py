"""Branches, batch norms, factors and consecutive products become one layer, exactly."""

from collections.abc import Callable

import pytest
import torch
from support.deploy_nets import kinds, warm
from torch import nn

from embedl_deploy import transform
from embedl_deploy.onnxruntime import ONNXRUNTIME
from embedl_deploy.patterns import (
    FoldNormAcrossFlattenPattern,
    FoldNormForwardPattern,
    FoldNormIntoLinearPattern,
    MergeBranchesPattern,
    MergeIdentityBranchPattern,
    MergeLinearsPattern,
    MergePointwisePattern,
    RemoveNeutralPattern,
)
from embedl_deploy.testing import check_pattern

TOLERANCE = 2e-6


class Sum(nn.Module):
    """The sum of what several layers make of one value, added up in a loop that starts with zero."""

    def __init__(self, *branches: nn.Module) -> None:
        super().__init__()
        self.branches = nn.ModuleList(branches)

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        total: torch.Tensor = 0  # type: ignore[assignment]
        for branch in self.branches:
            total = total + branch(value)
        return total


def _conv(kernel: int | tuple[int, int], *, stride: int = 1, groups: int = 1, bias: bool = False) -> nn.Sequential:
    sides = (kernel, kernel) if isinstance(kernel, int) else kernel
    padding = (sides[0] // 2, sides[1] // 2)
    return nn.Sequential(
        nn.Conv2d(8, 8, sides, stride, padding, groups=groups, bias=bias), nn.BatchNorm2d(8)
    )  # fmt: skip


BRANCHES: dict[str, Callable[[], list[nn.Module]]] = {
    "repvgg": lambda: [_conv(3), _conv(1), nn.BatchNorm2d(8)],
    "mobileone": lambda: [_conv(1, groups=8), *(_conv(3, groups=8) for _ in range(4)), nn.BatchNorm2d(8)],
    "stride": lambda: [_conv(3, stride=2), _conv(1, stride=2, bias=True)],
    "asymmetric": lambda: [_conv(3), _conv((1, 3)), _conv((3, 1))],
    "groups": lambda: [_conv(3, groups=2), _conv(1, groups=2), nn.BatchNorm2d(8)],
    "crossed": lambda: [_conv((1, 3)), _conv((3, 1))],
    "plain": lambda: [nn.Conv2d(8, 8, 5, padding=2), nn.Conv2d(8, 8, 3, padding=1)],
}


@pytest.mark.parametrize("name", BRANCHES)
def test_branches_become_one_convolution(name: str) -> None:
    torch.manual_seed(0)
    model = warm(nn.Sequential(Sum(*BRANCHES[name]()), nn.ReLU()))
    result = transform(model, (torch.randn(1, 8, 9, 9),), ONNXRUNTIME)
    assert kinds(result.model) == ["FusedConvBNReLU"]
    assert result.report.proof is not None
    assert result.report.proof.relative_error < TOLERANCE
    assert not result.report.norms


@pytest.mark.parametrize(
    ("one", "other", "reason"),
    [
        (nn.Conv2d(8, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=2, dilation=2), "dilations differ"),
        (nn.Conv2d(8, 8, 3, padding=1), nn.Conv2d(8, 8, 1, groups=8), "groups differ"),
        (nn.Conv2d(8, 8, 3, padding=(0, 2)), nn.Conv2d(8, 8, (1, 1), padding=(0, 1)).requires_grad_(False), "cover"),
    ],
)
def test_branches_that_are_not_one_convolution_stay(one: nn.Module, other: nn.Module, reason: str) -> None:
    model = nn.Sequential(Sum(one, other)).eval()
    value = (torch.randn(1, 8, 3, 1) if reason == "cover" else torch.randn(1, 8, 9, 9),)
    report = transform(model, value, [RemoveNeutralPattern, MergeBranchesPattern]).report
    assert any(reason in refusal.reason for refusal in report.refusals), report


def test_training_branches_and_shared_weights_stay() -> None:
    model = warm(Sum(_conv(3), _conv(1)))
    patterns = [RemoveNeutralPattern, MergeBranchesPattern, MergeIdentityBranchPattern]
    report = transform(model.train(), (torch.randn(1, 8, 9, 9),), patterns).report
    assert any("call eval() first" in refusal.reason for refusal in report.refusals)
    conv = nn.Conv2d(8, 8, 3, padding=1)
    shared = nn.Sequential(Sum(conv, nn.Conv2d(8, 8, 1)), conv).eval()
    report = transform(shared, (torch.randn(1, 8, 9, 9),), patterns).report
    assert any("also used by" in refusal.reason for refusal in report.refusals)


def test_a_batch_norm_goes_into_the_linear_layer_before_it() -> None:
    model = warm(nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5)))
    result = check_pattern(FoldNormIntoLinearPattern, model, (torch.randn(3, 6),), matches=1, tolerance=TOLERANCE)
    assert kinds(result.model) == ["Linear"]
    model = warm(nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(4)))
    check_pattern(
        FoldNormIntoLinearPattern, model, (torch.randn(3, 4, 6),), matches=0, tolerance=0, refuses=["dimension 1 of 3"]
    )


class Tokens(nn.Module):
    """A batch norm over the tokens of a transformer."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 5)
        self.bn = nn.BatchNorm1d(5)

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        value = self.linear(value)
        result: torch.Tensor = self.bn(value.flatten(0, 1)).reshape_as(value)
        return result


def test_a_batch_norm_over_tokens_goes_into_the_linear_layer() -> None:
    result = check_pattern(
        FoldNormAcrossFlattenPattern, warm(Tokens()), (torch.randn(3, 4, 6),), matches=1, tolerance=TOLERANCE
    )
    assert kinds(result.model) == ["Linear"]


class Mixed(nn.Module):
    """Convolutions of several sizes side by side, and one batch norm behind them."""

    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Conv2d(3, 4, 3, padding=1)
        self.other = nn.Conv2d(3, 6, 5, padding=2)
        self.bn = nn.BatchNorm2d(10)

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.bn(torch.cat([self.one(value), self.other(value)], 1)).relu()
        return result


def test_a_batch_norm_behind_a_concat_goes_into_each_convolution() -> None:
    result = transform(warm(Mixed()), (torch.randn(1, 3, 8, 8),), ONNXRUNTIME)
    assert kinds(result.model) == ["FusedConvBN", "FusedConvBN", "Concat", "ReLU"]
    assert not result.report.norms
    assert result.report.proof is not None
    assert result.report.proof.relative_error < TOLERANCE


@pytest.mark.parametrize(
    "layer", [nn.Conv2d(8, 4, 3), nn.Conv2d(8, 4, 3, groups=2), nn.Conv2d(8, 4, 3, padding=1, padding_mode="reflect")]
)
def test_a_batch_norm_goes_into_the_convolution_behind_it(layer: nn.Conv2d) -> None:
    model = warm(nn.Sequential(nn.MaxPool2d(2), nn.BatchNorm2d(8), layer))
    value = torch.randn(1, 8, 9, 9)
    result = check_pattern(FoldNormForwardPattern, model, (value,), matches=1, tolerance=TOLERANCE)
    assert kinds(result.model) == ["MaxPool2d", "Conv2d"]


def test_a_shift_does_not_reach_padded_zeros() -> None:
    norm, conv = nn.BatchNorm2d(8), nn.Conv2d(8, 4, 3, padding=1)
    model = warm(nn.Sequential(nn.MaxPool2d(2), norm, conv))
    value = (torch.randn(1, 8, 9, 9),)
    check_pattern(FoldNormForwardPattern, model, value, matches=0, tolerance=0, refuses=["pads with zeros"])
    report = transform(model, value, ONNXRUNTIME).report
    assert "pads with zeros" in report.norms[0].reason
    with torch.no_grad():
        assert norm.running_mean is not None
        norm.running_mean.zero_()
        norm.bias.zero_()
    check_pattern(FoldNormForwardPattern, model, value, matches=1, tolerance=TOLERANCE)


def test_consecutive_products_are_merged_unless_they_are_a_bottleneck() -> None:
    model = nn.Sequential(nn.Linear(6, 8), nn.Linear(8, 5, bias=False)).eval()
    result = check_pattern(MergeLinearsPattern, model, (torch.randn(2, 3, 6),), matches=1, tolerance=TOLERANCE)
    assert kinds(result.model) == ["Linear"]
    narrow = nn.Sequential(nn.Linear(16, 2), nn.Linear(2, 16)).eval()
    check_pattern(MergeLinearsPattern, narrow, (torch.randn(2, 16),), matches=0, tolerance=0)
    convs = warm(nn.Sequential(nn.Conv2d(6, 8, 1, stride=2), nn.BatchNorm2d(8), nn.Conv2d(8, 5, 1, stride=2)))
    check_pattern(MergePointwisePattern, convs, (torch.randn(1, 6, 9, 9),), matches=1, tolerance=TOLERANCE)


def test_a_layer_scale_goes_into_the_layer_before_it() -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(6, 6)
            self.conv = nn.Conv1d(6, 4, 1)
            self.gamma = nn.Parameter(torch.rand(6))
            self.shift = nn.Parameter(torch.rand(1, 4, 1))
            self.table = nn.Parameter(torch.rand(1, 4, 5))

        def forward(self, value: torch.Tensor) -> torch.Tensor:
            value = self.gamma * self.linear(value)
            result: torch.Tensor = self.conv(value.transpose(1, 2)) + self.shift + self.table
            return result

    result = transform(Scaled().eval(), (torch.randn(2, 5, 6),), ONNXRUNTIME)
    assert kinds(result.model) == ["FusedLinear", "FusedConvBN", "Add"]
    assert result.report.proof is not None
    assert result.report.proof.relative_error < TOLERANCE
