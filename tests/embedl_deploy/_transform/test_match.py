"""Matching says why not: shared values, hooks, in-place neighbors, missing shapes."""

import pytest
import torch
from support.deploy_nets import ConvBNAct, Residual, image, warm
from torch import nn

from embedl_deploy import make_plan, transform
from embedl_deploy._graph.network import Network
from embedl_deploy._transform import match as _match
from embedl_deploy.pattern import Kind
from embedl_deploy.patterns import ConvBNPattern, ConvBNReLUPattern, RemoveIdentityAdaptiveAvgPoolPattern
from embedl_deploy.tensorrt import TENSORRT_PATTERNS
from embedl_deploy.testing import assert_same_outputs


def reasons(model: nn.Module, *patterns: type) -> list[str]:
    """Return the reasons of a plan."""
    return [refusal.reason for refusal in make_plan(model, (image(),), patterns).refusals]


def test_a_value_someone_else_reads_is_not_hidden() -> None:
    """A fusion would take away the value; the refusal names the reader."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.block = ConvBNAct()
            self.pool = nn.MaxPool2d(2)

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            y = self.block.bn(self.block.conv(x))
            return self.block.act(y), self.pool(y)

    plan = make_plan(warm(Model()), (image(),), [ConvBNReLUPattern, ConvBNPattern])
    assert [refusal.reason for refusal in plan.refusals] == ["the result of 'block.bn' is also used by 'pool'"]
    assert plan.counts() == {"ConvBNPattern": 1}


def test_hooks_are_not_lost() -> None:
    """A module with a forward hook is left alone, and the hook still runs."""
    model = warm(ConvBNAct())
    seen: list[str] = []
    model.get_submodule("bn").register_forward_hook(lambda *_: seen.append("ran"))
    result = transform(model, (image(),), [ConvBNReLUPattern])
    assert not result.matches
    assert "has forward hooks" in result.report.refusals[0].reason
    seen.clear()
    result.model(image())
    assert seen == ["ran"]


def test_a_parametrized_weight_is_computed_once() -> None:
    """In eval mode it is what it is; the user's model keeps its parametrization."""
    model = warm(ConvBNAct())
    conv = model.get_submodule("conv")
    torch.nn.utils.parametrizations.weight_norm(conv)
    result = transform(model, (image(),), [ConvBNReLUPattern])
    assert [step.pattern for step in result.matches] == [ConvBNReLUPattern]
    assert_same_outputs(model, result.model, (image(),), tolerance=1e-5)
    assert torch.nn.utils.parametrize.is_parametrized(conv)


def test_an_in_place_neighbor_keeps_the_order() -> None:
    """A fused convolution would run after the in-place ReLU and read the changed value."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 3, 1)
            self.bn = nn.BatchNorm2d(3)
            self.relu = nn.ReLU(inplace=True)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = x * 1.0
            y = self.conv(x)
            z = self.relu(x)
            out: torch.Tensor = self.bn(y) + z
            return out

    model = warm(Model())
    for args in ((image(),), None):
        plan = make_plan(model, args, [ConvBNPattern])
        assert [step.members for step in plan.steps] == [("conv",)]
    assert "'relu' changes what 'conv' reads, in place, in between" in reasons(model, ConvBNPattern)


def test_without_inputs_shapes_are_unknown() -> None:
    """A pattern that needs shapes refuses and says what to call."""
    plan = make_plan(nn.Sequential(nn.AdaptiveAvgPool2d(4)), None, [RemoveIdentityAdaptiveAvgPoolPattern])
    assert "needs example inputs to know shapes; call transform(model, args)" in plan.refusals[0].reason


def test_the_whole_graph_is_looked_at_a_fixed_number_of_times(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planning and applying take time in proportion to the graph: counted, not timed."""
    counts = {"depths": 0, "kinds": 0}
    depths, kinds_of = _match._depths, _match._kinds_of

    def count_depths(graph: torch.fx.Graph) -> dict[torch.fx.Node, int]:
        counts["depths"] += 1
        return depths(graph)

    def count_kinds(network: Network, node: torch.fx.Node) -> tuple[Kind, ...]:
        counts["kinds"] += 1
        return kinds_of(network, node)

    monkeypatch.setattr(_match, "_depths", count_depths)
    monkeypatch.setattr(_match, "_kinds_of", count_kinds)
    seen = []
    for blocks in (10, 20):
        counts.update(depths=0, kinds=0)
        model = nn.Sequential(*(Residual() if at == 0 else _Block() for at in range(blocks))).eval()
        transform(model, None, TENSORRT_PATTERNS)
        seen.append(dict(counts))
    assert seen[0]["depths"] == seen[1]["depths"] <= 4
    assert seen[1]["kinds"] <= 2.1 * seen[0]["kinds"]


class _Block(nn.Module):
    """A residual block that can follow another."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(8, 8, 1)
        self.dropout = nn.Dropout()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.conv(self.dropout(x)) + x)
