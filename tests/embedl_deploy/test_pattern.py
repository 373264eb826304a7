"""The tree language: what is a valid tree, and what a match tells."""

import pytest
import torch
from support.deploy_nets import ConvBNAct, Residual, image, kinds, warm
from torch import nn

from embedl_deploy import make_plan, transform
from embedl_deploy.errors import PatternError
from embedl_deploy.nn import Add
from embedl_deploy.pattern import (
    Call,
    Chain,
    Expand,
    Fork,
    Match,
    Maybe,
    Op,
    PassThrough,
    Pattern,
    Phase,
    Refusal,
    Repeat,
    Replacement,
    Value,
)


class Row(nn.Sequential):
    """A fused row of whatever was matched."""


def pattern_of(tree: object, reason: str = "") -> type[Pattern]:
    """Make a fusion pattern that puts the matched modules in a row."""

    class Made(Pattern):
        phase = Phase.FUSION

        def check(self, match: Match) -> Refusal | None:
            del match
            return Refusal(reason) if reason else None

        def replace(self, match: Match) -> Replacement:
            return Row(*(match.module(name) for name in match.ops))

    Made.tree = tree  # type: ignore[assignment]
    return Made


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (Chain, "empty"),
        (lambda: Chain(Op(nn.ReLU), Fork(Op(Add), Value("a"), Value("b"))), "only be the first"),
        (lambda: Chain(Maybe(Op(nn.ReLU)), Repeat()), "all of these are optional"),
    ],
)
def test_a_wrong_tree_is_refused_where_it_is_written(build: object, message: str) -> None:
    """Mistakes in a tree surface when the class is made."""
    assert callable(build)
    with pytest.raises(PatternError, match=message):
        build()


def test_two_ops_of_one_name() -> None:
    """A match could not tell them apart."""
    tree = Chain(Op(nn.Conv2d), Op(nn.Conv2d))
    with pytest.raises(PatternError, match=r"\['conv2d'\]; give each Op a name"):
        make_plan(ConvBNAct(), None, [pattern_of(tree)])


def test_a_tree_is_required() -> None:
    """A pattern without a tree says so by name."""

    class Bare(Pattern):
        phase = Phase.FUSION

    with pytest.raises(PatternError, match="Bare has no tree"):
        make_plan(ConvBNAct(), None, [Bare])


def test_optional_nodes_are_taken_when_there() -> None:
    """Maybe prefers the longer match."""
    tree = Chain(Op(nn.Conv2d, name="conv"), Maybe(Op(nn.BatchNorm2d, name="bn")), Maybe(Op(nn.GELU, name="act")))
    plan = make_plan(ConvBNAct(), None, [pattern_of(tree)])
    assert [step.members for step in plan.steps] == [("conv", "bn")]


def test_repeat_takes_a_run_of_elementwise_nodes() -> None:
    """A Repeat without kinds takes any elementwise module, as many as come."""
    model = nn.Sequential(nn.Conv2d(3, 3, 1), nn.ReLU(), nn.Dropout(), nn.Sigmoid(), nn.MaxPool2d(2))
    tree = Chain(Op(nn.Conv2d), Repeat(), Op(nn.MaxPool2d))
    result = transform(model.eval(), (image(),), [pattern_of(tree)])
    assert kinds(result.model) == ["Row"]
    assert result.report.proof is not None
    assert result.report.proof.max_error == 0


@pytest.mark.parametrize("swapped", [False, True])
def test_fork_takes_either_order_of_operands(swapped: bool) -> None:
    """The long branch is the main one, whichever operand it is."""
    tree = Chain(Fork(Op(Add, name="add"), Op(nn.BatchNorm2d, name="bn"), Value("skip")), Op(nn.ReLU))
    plan = make_plan(warm(Residual(swapped=swapped)), (image(),), [pattern_of(tree)])
    assert [(step.members[0], step.inputs) for step in plan.steps] == [("bn2", ("conv2", "stem"))]


def test_fork_in_order_only() -> None:
    """An ordered fork does not swap."""
    ordered = Fork(Op(Add, name="add"), Op(nn.BatchNorm2d, name="bn"), Value("skip"), ordered=True)
    assert not make_plan(warm(Residual(swapped=True)), (image(),), [pattern_of(ordered)]).steps
    assert len(make_plan(warm(Residual()), (image(),), [pattern_of(ordered)]).steps) == 1


def test_functions_and_dotted_names_are_kinds() -> None:
    """A kind can be a function, or a name of something that is not imported."""

    class Model(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.cumsum(torch.clamp(x, 0, 1), 1)

    class Clamp(Pattern):
        phase = Phase.CONVERSION
        tree = Op(torch.clamp, name="clamp")

        def replace(self, match: Match) -> Replacement:
            assert match.node("clamp").args[1:] == (0, 1)
            return nn.Hardtanh(0, 1)

    assert kinds(transform(Model(), (image(),), [Clamp]).model) == ["Hardtanh"]
    named = Op(f"{ConvBNAct.__module__}.Branching", name="odd")
    assert named.name == "odd"
    assert Op("a.b.Thing").name == "thing"


def test_subclasses_are_not_matched() -> None:
    """A subclass may compute something else."""

    class Odd(nn.ReLU):
        def forward(self, input: torch.Tensor) -> torch.Tensor:  # noqa: A002 (torch's name)
            return -input

    model = nn.Sequential(nn.Conv2d(3, 3, 1), Odd())
    assert not make_plan(model, (image(),), [pattern_of(Chain(Op(nn.Conv2d), Op(nn.ReLU)))]).steps


def test_match_answers_questions() -> None:
    """Shapes, types, modules, inputs: what an author may ask."""
    seen: list[Match] = []

    class Look(Pattern):
        phase = Phase.FUSION
        tree = Chain(Fork(Op(Add, name="add"), Op(nn.BatchNorm2d, name="bn"), Value("skip")))

        def check(self, match: Match) -> Refusal | None:
            seen.append(match)
            return Refusal("only looking")

    make_plan(warm(Residual()), (image(),), [Look])
    match = seen[0]
    assert match.shape("bn") == (2, 8, 16, 16)
    assert match.shape(match.input("skip")) == (2, 8, 16, 16)
    assert match.dtype("add") is torch.float32
    assert match.place == "bn2"
    assert "act" not in match
    assert match.module_or_none("act") is None
    assert match.sharers("bn") == ()
    assert isinstance(match.module("add"), Add)


def test_asking_a_function_for_its_module() -> None:
    """The error says which accessor to use."""

    class Model(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.clamp(x, 0)

    class Wrong(Pattern):
        phase = Phase.FUSION
        tree = Op(torch.clamp, name="clamp")

        def replace(self, match: Match) -> Replacement:
            return match.module("clamp")

    with pytest.raises(PatternError, match=r"call of a function at 'clamp'.*use node\('clamp'\)"):
        transform(Model(), (image(),), [Wrong])


def test_replacements() -> None:
    """A call may pick its inputs, an expansion becomes several nodes, a pass-through none."""
    assert Call(nn.ReLU(), (1, None)).select(["a", "b"]) == ("b", None)
    assert Expand(nn.ReLU()).select(["a"]) == ("a",)
    assert PassThrough().position == 0


def test_refusal_prints_where_and_why() -> None:
    """A refusal of a plan names pattern and place; a bare one its reason."""
    assert str(Refusal("why")) == "why"
    assert str(Refusal("why", "P", "a.b")) == "P at 'a.b': why"
