"""Easy slips, and what they are answered with."""

import pytest
import torch
from torch import nn

from embedl_deploy import apply_plan, make_plan, transform
from embedl_deploy.backend import Backend, set_backend
from embedl_deploy.errors import PatternError, UnknownBackendError
from embedl_deploy.pattern import Call, Chain, Match, Maybe, Op, Pattern, Phase, Replacement
from embedl_deploy.tensorrt import TENSORRT, TENSORRT_PATTERNS


class Gate(nn.Module):
    """Branches on its data."""

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        if value.sum() > 0:
            return value
        return -value


def block() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout()).eval()


EXAMPLE = (torch.randn(1, 3, 8, 8),)


def test_a_row_that_is_off_is_told() -> None:
    """The report says that it was switched off, and does the rest."""
    plan = make_plan(block(), EXAMPLE, TENSORRT_PATTERNS)
    report = str(apply_plan(plan.without(1)).report)
    assert "step 1 was switched off" in report
    assert "ConvBNReLUPattern" in report


def test_a_backend_may_be_given_for_its_patterns() -> None:
    """Made on the spot or imported."""
    made = Backend("mine", fusion_patterns=TENSORRT.fusion_patterns)
    assert transform(block(), EXAMPLE, made).matches


@pytest.mark.parametrize("slip", ["tensorrt", TENSORRT_PATTERNS[0]])
def test_patterns_must_be_a_list(slip: object) -> None:
    """The message says what to give."""
    with pytest.raises(PatternError, match=r"give a list of pattern classes or a Backend.*set_backend"):
        transform(block(), EXAMPLE, slip)  # type: ignore[arg-type]


def test_a_misspelt_backend_is_guessed() -> None:
    """The name that was meant, and no advice to install what is installed."""
    with pytest.raises(UnknownBackendError, match="Did you mean 'tensorrt'") as caught:
        set_backend("TensorRT")
    assert "pip install" not in str(caught.value)


class Careless(Pattern):
    """Asks for a member that is not always there."""

    phase = Phase.FUSION
    tree = Chain(Op(nn.Conv2d, name="conv"), Maybe(Op(nn.BatchNorm2d, name="bn")), Op(nn.SiLU, name="act"))

    def replace(self, match: Match) -> Replacement:
        return Call(nn.Sequential(match.module("conv"), match.module("bn"), match.module("act")))


def test_an_absent_member_is_named_with_those_there_are() -> None:
    """No bare KeyError: the members, and how to ask for one that may be absent."""
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.SiLU()).eval()
    with pytest.raises(PatternError, match=r"no member 'bn'; it has: 'act', 'conv'.*module_or_none\('bn'\)"):
        transform(model, EXAMPLE, [Careless])


def test_tracing_in_parts_is_silent(capfd: pytest.CaptureFixture[str]) -> None:
    """What torch prints about a branch on data would bury the report."""
    model = nn.Sequential(nn.Linear(4, 4), Gate()).eval()
    result = transform(model, (torch.randn(2, 4),), TENSORRT_PATTERNS)
    assert "'1' is kept whole" in str(result.report)
    assert capfd.readouterr().err == ""
