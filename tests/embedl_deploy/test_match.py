"""Matching says why not: shared values, hooks, in-place neighbours, missing shapes."""

import torch
from deploy_nets import ConvBNAct, image, warm
from torch import nn

from embedl_deploy import make_plan, transform
from embedl_deploy.patterns import ConvBNPattern, ConvBNReLUPattern, RemoveIdentityAdaptiveAvgPoolPattern
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


def test_a_parametrised_weight_is_left_alone() -> None:
    """Its weight is computed at every call."""
    model = warm(ConvBNAct())
    conv = model.get_submodule("conv")
    torch.nn.utils.parametrizations.weight_norm(conv)
    plan = make_plan(model, (image(),), [ConvBNReLUPattern])
    assert not plan.steps
    assert_same_outputs(model, transform(model, (image(),), [ConvBNReLUPattern]).model, (image(),), tolerance=0)


def test_an_in_place_neighbour_keeps_the_order() -> None:
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


def test_matching_looks_at_a_few_nodes_per_node() -> None:
    """Twice the nodes take about twice the look-ups, counted rather than timed."""
    from embedl_deploy import _match  # noqa: PLC0415 (counted through the module it mirrors)

    def count(depth: int) -> int:
        calls = 0
        plain = _match._kinds_of

        def counted(network: object, node: torch.fx.Node) -> object:
            nonlocal calls
            calls += 1
            return plain(network, node)  # type: ignore[arg-type]

        _match._kinds_of = counted  # type: ignore[assignment]
        try:
            make_plan(
                nn.Sequential(*(ConvBNAct(width=3) for _ in range(depth))), None, [ConvBNReLUPattern, ConvBNPattern]
            )
        finally:
            _match._kinds_of = plain
        return calls

    assert count(40) <= 2.1 * count(20)
