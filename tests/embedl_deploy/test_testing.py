"""The checks for authors fail when they should."""

import pytest
import torch
from support.deploy_nets import ConvBNAct, image, warm
from torch import nn

from embedl_deploy.lattice import LATTICE
from embedl_deploy.pattern import Match, Op, Pattern, Phase, Replacement
from embedl_deploy.patterns import ConvBNReLUPattern
from embedl_deploy.tensorrt import TENSORRT
from embedl_deploy.testing import assert_same_outputs, check_backend, check_pattern


def test_check_pattern_counts_matches() -> None:
    """Too few and too many both fail, with the report in the message."""
    model = warm(ConvBNAct())
    check_pattern(ConvBNReLUPattern, model, (image(),), matches=1, tolerance=0)
    with pytest.raises(AssertionError, match="matched 1 times, not 2"):
        check_pattern(ConvBNReLUPattern, model, (image(),), matches=2, tolerance=0)
    with pytest.raises(AssertionError, match="no refusal says 'because'"):
        check_pattern(ConvBNReLUPattern, model, (image(),), matches=1, tolerance=0, refuses=["because"])


def test_check_pattern_sees_a_changed_result() -> None:
    """A lossy pattern is measured against the stated tolerance."""

    class Flat(Pattern):
        phase = Phase.CONVERSION
        lossy = True
        tree = Op(nn.ReLU, name="act")

        def replace(self, match: Match) -> Replacement:
            del match
            return nn.Tanh()

    check_pattern(Flat, warm(ConvBNAct()), (image(),), matches=1, tolerance=1.0)
    with pytest.raises(AssertionError, match="Flat changes 'act' by"):
        check_pattern(Flat, warm(ConvBNAct()), (image(),), matches=1, tolerance=1e-3)


def test_check_pattern_sees_a_changed_model() -> None:
    """A pattern that scribbles on the user's weights is caught."""

    class Scribble(Pattern):
        phase = Phase.FUSION
        tree = Op(nn.Conv2d, name="conv")

        def replace(self, match: Match) -> Replacement:
            conv = match.module("conv")
            with torch.no_grad():
                conv.get_parameter("bias").add_(1)
            return nn.Sequential(conv)

    with pytest.raises(AssertionError, match=r"changed the model it was given: \['conv.bias'\]"):
        check_pattern(Scribble, warm(ConvBNAct()), (image(),), matches=1, tolerance=10.0)


def test_assert_same_outputs() -> None:
    """Structure and size of the difference both count."""
    one, other = nn.Linear(2, 2), nn.Linear(2, 2)
    x = torch.randn(1, 2)
    assert_same_outputs(one, one, (x,), tolerance=0)
    with pytest.raises(AssertionError, match="the outputs differ by"):
        assert_same_outputs(one, other, (x,), tolerance=1e-6)
    with pytest.raises(AssertionError, match="output has the shape"):
        assert_same_outputs(one, nn.Linear(2, 3), (x,), tolerance=1)


@pytest.mark.parametrize("backend", [TENSORRT, LATTICE])
def test_our_backends_pass_their_contract(backend: object) -> None:
    """Both built-in backends, on one network."""
    from embedl_deploy.backend import Backend

    assert isinstance(backend, Backend)
    results = check_backend(backend, {"net": (warm(ConvBNAct()), (image(),))}, tolerance=1e-5)
    assert list(results) == ["net"]
