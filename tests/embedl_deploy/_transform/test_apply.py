"""Applying: proofs decide, the rest goes on."""

import copy

import pytest
import torch
from support.deploy_nets import ConvBNAct, Residual, image, kinds, warm
from torch import nn

from embedl_deploy import apply_plan, make_plan, transform
from embedl_deploy.pattern import Match, Op, Pattern, Phase, Replacement
from embedl_deploy.patterns import ConvBNPattern, ConvBNReLUPattern


class Reshaping(Pattern):
    """Replaces a ReLU by something with another shape."""

    phase = Phase.CONVERSION
    tree = Op(nn.ReLU, name="act")

    def replace(self, match: Match) -> Replacement:
        del match
        return nn.Sequential(nn.ReLU(), nn.MaxPool2d(2))


class Failing(Reshaping):
    """Replaces a ReLU by something that cannot take the value."""

    def replace(self, match: Match) -> Replacement:
        del match
        return nn.Linear(3, 3)


class Wrong(Reshaping):
    """Replaces a ReLU by another function."""

    def replace(self, match: Match) -> Replacement:
        del match
        return nn.Tanh()


class Lossy(Wrong):
    """The same, and says so."""

    lossy = True


@pytest.mark.parametrize(
    ("pattern", "reason"),
    [
        (Reshaping, "its result has the shape (2, 8, 8, 8) instead of (2, 8, 16, 16)"),
        (Failing, "the replacement fails on the example inputs: RuntimeError"),
        (Wrong, "of its range, more than 0.0001"),
    ],
)
def test_a_rewrite_that_is_not_right_is_refused_and_the_rest_goes_on(pattern: type[Pattern], reason: str) -> None:
    """The proof finds it, the refusal says where, the model still computes the same."""
    result = transform(warm(ConvBNAct()), (image(),), [pattern, ConvBNPattern])
    assert [done.step.pattern for done in result.report.done] == [ConvBNPattern]
    refusal = result.report.refusals[-1]
    assert reason in refusal.reason
    assert refusal.place == "act"
    assert result.report.proof is not None
    assert result.report.proof.verdict == "exact"


def test_lossy_patterns_are_off_unless_asked_for_and_then_measured() -> None:
    """The refusal says how to ask; the report then has the size of the change."""
    model = warm(ConvBNAct())
    refused = transform(model, (image(),), [Lossy]).report.refusals
    assert [one.reason for one in refused] == ["changes results; off unless allow_lossy=True"]
    report = transform(model, (image(),), [Lossy], allow_lossy=True).report
    assert report.done[0].proof is not None
    assert report.done[0].proof.verdict == "approximate"
    assert report.done[0].proof.relative_error > 0.01


def test_a_plan_can_be_applied_again_and_again() -> None:
    """Two results of one plan do not share modules that have a mode."""
    plan = make_plan(warm(ConvBNAct()), (image(),), [ConvBNReLUPattern])
    one, two = apply_plan(plan).model, apply_plan(plan).model
    torch.testing.assert_close(one(image()), two(image()), rtol=0, atol=0)
    assert kinds(one) == kinds(two) == ["FusedConvBNReLU"]
    one.train()
    assert not two.get_submodule("conv.bn").training
    assert one.get_parameter("conv.conv.weight") is two.get_parameter("conv.conv.weight")


def test_without_verify_nothing_is_proved() -> None:
    """The result is the same; the report says that it has no proofs."""
    model = warm(Residual())
    proved = transform(model, (image(),), [ConvBNReLUPattern])
    trusted = transform(model, (image(),), [ConvBNReLUPattern], verify=False)
    assert kinds(proved.model) == kinds(trusted.model)
    assert trusted.report.proof is None
    assert "not proved" in str(trusted.report)


def test_a_module_called_at_several_sites_is_fused_at_each() -> None:
    """One convolution called twice stays one set of weights in two fused modules."""

    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 3, 3, padding=1)
            self.bn = nn.BatchNorm2d(3)
            self.relu = nn.ReLU()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for _ in range(2):
                x = self.relu(self.bn(self.conv(x)))
            return x

    model = warm(Twice())
    result = transform(model, (image(),), [ConvBNReLUPattern])
    assert kinds(result.model) == ["FusedConvBNReLU", "FusedConvBNReLU"]
    targets = [str(node.target) for node in result.model.graph.nodes if node.op == "call_module"]
    assert sorted(targets) == ["conv", "conv_1"]
    weights = {id(result.model.get_submodule(name).get_parameter("conv.weight")) for name in targets}
    assert len(weights) == 1
    assert result.report.proof is not None
    assert result.report.proof.max_error == 0


def test_results_can_be_copied_and_saved(tmp_path: object) -> None:
    """A result is an ordinary module: deep copies, pickles and state dicts work."""
    model = warm(Residual())
    result = transform(model, (image(),), [ConvBNReLUPattern]).model
    twin = copy.deepcopy(result)
    torch.testing.assert_close(twin(image()), model(image()), rtol=0, atol=0)
    path = f"{tmp_path}/model.pt"
    torch.save(result, path)
    loaded = torch.load(path, weights_only=False)
    torch.testing.assert_close(loaded(image()), model(image()), rtol=0, atol=0)
    loaded.load_state_dict(result.state_dict())
