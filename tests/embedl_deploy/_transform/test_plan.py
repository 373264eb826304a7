"""Plans: order, overlap, switching off, loops, printing."""

import pytest
import torch
from support.deploy_nets import ConvBNAct, Head, Residual, image, kinds, warm
from torch import nn

from embedl_deploy import apply_plan, make_plan, transform
from embedl_deploy.errors import PatternError, PlanError
from embedl_deploy.pattern import Chain, Expand, Match, Op, Pattern, Phase, Replacement
from embedl_deploy.patterns import (
    AdaptiveAvgPoolPattern,
    ConvBNAddReLUPattern,
    ConvBNPattern,
    ConvBNReLUPattern,
    FlattenLinearToConv1x1Pattern,
    RemoveDropoutPattern,
)

HEAD = (RemoveDropoutPattern, FlattenLinearToConv1x1Pattern, ConvBNPattern, AdaptiveAvgPoolPattern)


def test_the_longest_fusion_wins_whatever_the_order_of_the_list() -> None:
    """ConvBNReLU takes the three nodes even when ConvBN is listed first."""
    for patterns in ([ConvBNPattern, ConvBNReLUPattern], [ConvBNReLUPattern, ConvBNPattern]):
        plan = make_plan(warm(ConvBNAct()), None, patterns)
        assert plan.counts() == {"ConvBNReLUPattern": 1}
        assert plan.steps[0].members == ("conv", "bn", "act")
        assert not plan.refusals


def test_partial_overlap_is_settled_and_told() -> None:
    """The loser of an overlap is a refusal that names the winner."""

    class Tail(Pattern):
        phase = Phase.FUSION
        tree = Chain(Op(nn.ReLU, name="act"), Op(nn.MaxPool2d, name="pool"))

        def replace(self, match: Match) -> Replacement:
            return nn.Sequential(match.module("act"), match.module("pool"))

    model = warm(nn.Sequential(ConvBNAct(), nn.MaxPool2d(2)))
    plan = make_plan(model, (image(),), [Tail, ConvBNReLUPattern])
    assert plan.counts() == {"ConvBNReLUPattern": 1}
    assert [str(one) for one in plan.refusals] == ["Tail at '0.act': '0.conv' went to ConvBNReLUPattern"]
    assert kinds(apply_plan(plan).model) == ["FusedConvBNReLU", "MaxPool2d"]


def test_conversions_run_to_a_fixpoint_and_say_what_they_need() -> None:
    """Dropout goes first; then flatten and linear are neighbors."""
    plan = make_plan(warm(Head()), (image(),), HEAD)
    rows = [(step.number, step.pattern.__name__, step.round, step.needs) for step in plan.steps]
    assert rows == [
        (1, "RemoveDropoutPattern", 1, ()),
        (2, "FlattenLinearToConv1x1Pattern", 2, ()),
        (3, "ConvBNPattern", 3, ()),
        (4, "AdaptiveAvgPoolPattern", 3, ()),
        (5, "ConvBNPattern", 3, (2,)),
    ]


def test_rows_can_be_switched_off() -> None:
    """A row that is off is not done, and what needs it becomes a refusal; the plan itself is unchanged."""
    plan = make_plan(warm(Head()), (image(),), HEAD)
    changed = plan.without(2)
    result = apply_plan(changed)
    assert kinds(result.model) == ["FusedConvBN", "FusedAdaptiveAvgPool2d", "Flatten", "Linear"]
    assert "it needs step 2, which was not done" in [one.reason for one in result.report.refusals]
    assert all(step.enabled for step in plan.steps)
    again = apply_plan(plan)
    assert kinds(again.model) == ["FusedConvBN", "FusedAdaptiveAvgPool2d", "FusedConvBN", "Flatten"]


def test_a_neighbor_that_stays_is_told() -> None:
    """Without the dropout's removal, flatten and linear are no neighbors."""
    plan = make_plan(warm(Head()), (image(),), HEAD).without(RemoveDropoutPattern)
    reasons = [one.reason for one in apply_plan(plan).report.refusals]
    assert "the graph is no longer as planned here" in reasons


def test_rows_by_pattern_place_and_only() -> None:
    """Rows are named by number, by pattern or by place; `only` brings what is needed along."""
    plan = make_plan(warm(Head()), (image(),), HEAD)
    assert "ConvBNPattern" not in plan.without("ConvBNPattern").counts()
    assert [step.enabled for step in plan.without("conv").steps] == [True, True, False, True, True]
    only = plan.only(5)
    assert [step.number for step in only.steps if step.enabled] == [2, 5]


def test_an_unknown_row_is_named() -> None:
    """The error says which rows and patterns there are."""
    plan = make_plan(warm(ConvBNAct()), None, [ConvBNPattern])
    with pytest.raises(PlanError, match=r"no step 7; it has the rows 1 to 1, for the patterns ConvBNPattern"):
        plan.without(7)


def test_a_plan_prints_rows_and_refusals() -> None:
    """The table has the rows with on and off, and below it what is not done."""
    plan = make_plan(warm(Head(pool=2)), (image(),), HEAD).without(3)
    text = str(plan)
    assert "3    off  fusion      AdaptiveAvgPoolPattern  pool" in text
    assert "the flattened map is 2×2, not 1×1" in text
    assert str(make_plan(nn.Sequential(nn.Softplus()).eval(), None, HEAD)) == "nothing to do"


def test_two_conversions_that_undo_each_other() -> None:
    """The error names both patterns and the place."""

    class ToTanh(Pattern):
        phase = Phase.CONVERSION
        tree = Op(nn.Sigmoid, name="act")

        def replace(self, match: Match) -> Replacement:
            del match
            return nn.Tanh()

    class ToSigmoid(Pattern):
        phase = Phase.CONVERSION
        tree = Op(nn.Tanh, name="act")

        def replace(self, match: Match) -> Replacement:
            del match
            return nn.Sigmoid()

    with pytest.raises(PlanError, match=r"ToSigmoid, ToTanh keep changing '1' forever"):
        make_plan(nn.Sequential(nn.Linear(2, 2), nn.Sigmoid()), None, [ToTanh, ToSigmoid])


def test_a_conversion_that_grows_for_ever() -> None:
    """Growth never repeats a state; the bound on rounds ends it."""

    class Grow(Pattern):
        phase = Phase.CONVERSION
        tree = Op(nn.Tanh, name="act")

        def replace(self, match: Match) -> Replacement:
            del match
            return Expand(nn.Sequential(nn.ReLU(), nn.Tanh()))

    with pytest.raises(PlanError, match="Grow keep changing"):
        make_plan(nn.Sequential(nn.Tanh()), None, [Grow])


def test_only_conversions_and_fusions_are_run() -> None:
    """A pattern of another phase, or no pattern, is refused with what it is."""

    class Smooth(ConvBNPattern):
        phase = Phase.SMOOTH

    with pytest.raises(PatternError, match="Smooth has phase SMOOTH; transform runs CONVERSION and FUSION"):
        transform(ConvBNAct(), None, [Smooth])
    with pytest.raises(PatternError, match="give pattern classes"):
        transform(ConvBNAct(), None, [ConvBNPattern()])  # type: ignore[list-item]


def test_a_downsample_branch_is_the_residual() -> None:
    """Where both operands come from a batch norm, the longer way is the main one."""

    class Block(Residual):
        def __init__(self) -> None:
            super().__init__()
            self.down = nn.BatchNorm2d(8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.stem(x)
            out = self.down(y) + self.bn2(self.conv2(self.relu(self.bn1(self.conv1(y)))))
            result: torch.Tensor = self.relu(out)
            return result

    plan = make_plan(warm(Block()), None, [ConvBNAddReLUPattern])
    assert [step.place for step in plan.steps] == ["conv2"]
