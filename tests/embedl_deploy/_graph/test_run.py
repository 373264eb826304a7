"""Running a graph node by node, and fitting a call to it."""

import pytest
import torch
from support.deploy_nets import ConvBNAct, image
from torch import fx, nn

from embedl_deploy._graph.run import Clock, bind, evaluating, run_graph
from embedl_deploy.errors import InputError


def graph_of(model: nn.Module) -> fx.Graph:
    """Trace with torch alone."""
    return fx.symbolic_trace(model).graph


class TwoInputs(nn.Module):
    """Takes a second input with a default."""

    def forward(self, x: torch.Tensor, scale: float = 2.0) -> torch.Tensor:
        return x * scale


def test_values_are_dropped_after_their_last_use() -> None:
    """A visitor sees every value; the run itself keeps none longer than needed."""
    model = ConvBNAct().eval()
    graph = graph_of(model)
    seen: list[str] = []
    inputs = bind(graph, (image(),), {})
    out = run_graph(graph, dict(model.named_modules()), {}, inputs, lambda node, _: seen.append(node.name))
    assert seen == ["x", "conv", "bn", "act"]
    torch.testing.assert_close(out, model(image()), rtol=0, atol=0)


@pytest.mark.parametrize(
    ("args", "kwargs", "message"),
    [
        ((1, 2, 3), {}, "3 positional inputs were given, the model takes 2: x, scale"),
        ((1,), {"scales": 1}, "takes no input called scales; it takes: x, scale"),
        ((), {"scale": 1}, "no example value was given for the input 'x'"),
    ],
)
def test_a_call_that_does_not_fit(args: tuple[int, ...], kwargs: dict[str, int], message: str) -> None:
    """Each misfit names the inputs there are."""
    with pytest.raises(InputError, match=message):
        bind(graph_of(TwoInputs()), args, kwargs)


def test_a_default_fills_in() -> None:
    """An input left out takes its default."""
    assert list(bind(graph_of(TwoInputs()), (1,), {}).values()) == [1, 2.0]


def test_an_exported_graph_wants_its_own_structure() -> None:
    """torch.export settled the call; another structure is named."""
    program = torch.export.export(TwoInputs(), (image(),))
    graph = program.module(check_guards=False).graph
    with pytest.raises(InputError, match="exported with the keyword inputs"):
        bind(graph, (image(),), {"scale": 1.0})
    with pytest.raises(InputError, match="exported for inputs like"):
        bind(graph, (image(), image()), {})


def test_modes_come_back() -> None:
    """Every module gets its own mode back, also after an exception."""
    model = nn.Sequential(nn.Dropout(), nn.Dropout().eval())
    with evaluating([model]):
        assert not model[0].training
        assert not torch.is_grad_enabled()
    with pytest.raises(ZeroDivisionError), evaluating([model]):
        _ = 1 / 0
    assert [model.training, model[0].training, model[1].training] == [True, True, False]


def test_clock_adds_up() -> None:
    """Two stretches make one sum."""
    clock = Clock()
    for _ in range(2):
        before = clock.seconds
        with clock:
            torch.ones(10).sum()
        assert clock.seconds > before
