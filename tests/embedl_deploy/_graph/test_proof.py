"""Proofs: exact, equal, approximate, wrong."""

import torch
from torch import nn

from embedl_deploy import transform
from embedl_deploy._graph.proof import compare
from embedl_deploy.pattern import Match, Op, Pattern, Phase, Replacement


def test_verdicts() -> None:
    """The four verdicts at hand-made differences."""
    one = torch.tensor([0.0, 1.0, -1.0])
    assert compare(one, one.clone()).verdict == "exact"
    assert compare(one, one + 1e-6).verdict == "equal"
    proof = compare(one, one + 0.01)
    assert proof.verdict == "approximate"
    assert abs(proof.relative_error - 0.005) < 1e-6
    assert compare(one, torch.zeros(2)).fault == "has the shape (2,) instead of (3,)"
    assert compare(one, one.double()).fault == "has the type torch.float64 instead of torch.float32"
    assert compare([one], [one, one]).fault == "has 2 results instead of 1"


def test_not_a_number_is_compared_by_place() -> None:
    """NaN in the same places is equal; in others it is a fault."""
    one = torch.tensor([1.0, float("nan"), float("inf")])
    assert compare(one, one.clone()).verdict == "exact"
    assert "not finite" in compare(one, torch.tensor([1.0, 2.0, float("inf")])).fault
    assert "not finite" in compare(torch.ones(1), torch.full((1,), float("nan"))).fault


def test_integers_are_equal_or_wrong() -> None:
    """There is no nearly for integers."""
    assert compare(torch.tensor([1, 2]), torch.tensor([1, 2])).verdict == "exact"
    assert compare(torch.tensor([1, 2]), torch.tensor([1, 3])).fault == "differs in 1 of 2 elements"


def test_the_worst_of_several_outputs_counts() -> None:
    """A dictionary of outputs is as good as its worst."""
    good, bad = torch.ones(2), torch.tensor([1.0, 2.0])
    proof = compare({"a": good, "b": bad}, {"a": good, "b": bad + 0.2})
    assert proof.verdict == "approximate"


def test_empty_and_constant_values() -> None:
    """No elements, and a range of zero, have a proof too."""
    assert compare(torch.zeros(0), torch.zeros(0)).verdict == "exact"
    assert compare(torch.zeros(2), torch.full((2,), 0.5)).relative_error == 0.5


def test_each_rewrite_is_proved_on_values_before_they_are_changed_in_place() -> None:
    """An in-place module after the match does not spoil the match's own inputs."""

    class Tanh(Pattern):
        phase = Phase.CONVERSION
        tree = Op(nn.Tanh, name="tanh")

        def replace(self, match: Match) -> Replacement:
            del match
            return nn.Sequential(nn.Tanh())

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.relu = nn.ReLU(inplace=True)
            self.tanh = nn.Tanh()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = x * 1.0
            out: torch.Tensor = self.tanh(y) + self.relu(y)
            return out

    report = transform(Model(), (torch.randn(5),), [Tanh]).report
    assert report.done[0].proof is not None
    assert report.done[0].proof.verdict == "exact"
