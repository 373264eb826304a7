"""Tracing: three routes, one result; it degrades instead of failing, and says where."""

from pathlib import Path
from typing import Any

import pytest
import torch
from support.deploy_nets import Branching, ConvBNAct, Functional, Head, Residual, WithBranch, image, kinds, warm
from torch import fx, nn
from torch.nn import functional

from embedl_deploy import TransformResult, make_plan, transform
from embedl_deploy._trace.tracing import trace
from embedl_deploy.errors import InputError, TraceError
from embedl_deploy.patterns import ConvBNPattern, ConvBNReLUPattern, RemoveDropoutPattern

FUSIONS = (ConvBNReLUPattern, ConvBNPattern)


def same(result: TransformResult, model: nn.Module, *args: Any, **kwargs: Any) -> None:
    """Assert bit-equal outputs."""
    with torch.no_grad():
        torch.testing.assert_close(result.model(*args, **kwargs), model(*args, **kwargs), rtol=0, atol=0)


class NotForFx(nn.Module):
    """Asks for a size in Python, which torch.fx cannot follow and torch.export can."""

    def __init__(self) -> None:
        super().__init__()
        self.block = ConvBNAct()
        self.pool = nn.MaxPool2d(2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.shape[2] > 4:
            x = self.pool(x)
        out: torch.Tensor = self.block(x)
        return out


def test_routes_give_one_vocabulary_and_the_users_names() -> None:
    """fx, export, a graph module, an exported program: the same modules under the same names."""
    model = warm(Residual())
    x = image()
    plans = [
        make_plan(model, (x,), FUSIONS),
        make_plan(fx.symbolic_trace(model), (x,), FUSIONS),
        make_plan(torch.export.export(model, (x,)), (x,), FUSIONS),
    ]
    rows = [[(step.pattern, step.layers) for step in plan.steps] for plan in plans]
    assert rows[0] == rows[1] == rows[2]
    assert rows[0][1] == (ConvBNReLUPattern, ("conv1", "bn1", "relu"))


def test_export_takes_over_where_fx_stops() -> None:
    """A branch on a shape is settled by torch.export; names and modules are the user's own."""
    model = warm(NotForFx())
    result = transform(model, (image(),), FUSIONS)
    assert result.report.route == "export"
    assert [step.layers for step in result.matches] == [("block.conv", "block.bn", "block.act")]
    same(result, model, image())
    assert result.model.get_parameter("block.conv.conv.weight") is model.get_parameter("block.conv.weight")


def test_an_exported_batch_stays_open() -> None:
    """The result takes another batch than the example's, also when that was one."""
    model = warm(NotForFx())
    for batch in (1, 2):
        result = transform(model, (image(batch),), FUSIONS)
        same(result, model, image(5))
        assert not result.report.notes


def test_a_settled_batch_is_told() -> None:
    """Where the model fixes the batch, the report says so and the example's own batch works."""

    class Fixed(NotForFx):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            out = super().forward(x)
            return out.reshape(2, 8, 8, 8) if x.shape[2] > 4 else out

    model = warm(Fixed())
    result = transform(model, (image(2),), FUSIONS)
    assert result.report.notes == ("torch.export fixed the batch size to that of the example inputs",)
    same(result, model, image(2))


def test_an_untraceable_part_is_kept_whole() -> None:
    """The rest is fused; the report names the part, the line of its code and the reason."""
    model = warm(WithBranch())
    result = transform(model, (image(),), FUSIONS)
    assert result.report.route == "parts"
    assert kinds(result.model) == ["FusedConvBNReLU", "Branching", "FusedConvBN"]
    note = result.report.notes[0]
    assert "'odd' is kept whole, in float" in note
    assert "deploy_nets.py" in note
    assert "if x.sum() > 0:" in note
    same(result, model, image())
    same(result, model, -image())


def test_an_untraceable_part_beside_an_exportable_one() -> None:
    """What torch.export can follow alone is put in; only the rest stays whole."""

    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = NotForFx()
            self.b = Branching()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = self.b(self.a(x))
            return out

    model = warm(Both())
    result = transform(model, (image(),), FUSIONS)
    assert kinds(result.model) == ["MaxPool2d", "FusedConvBNReLU", "Branching"]
    assert [step.layers for step in result.matches] == [("a.block.conv", "a.block.bn", "a.block.act")]
    assert any(note.startswith("'a' was traced by torch.export") for note in result.report.notes)
    same(result, model, image())


def test_a_model_that_is_itself_untraceable() -> None:
    """One error: the model, both reasons, the line, what to do."""
    with pytest.raises(TraceError, match="Branching cannot be traced") as caught:
        transform(Branching(), (image(),), FUSIONS)
    text = str(caught.value)
    assert "if x.sum() > 0:" in text
    assert "torch.fx: " in text
    assert "torch.export: " in text
    assert "move it into a submodule" in text
    assert "deploy_nets.py" in caught.value.line


def test_without_inputs_export_cannot_be_tried() -> None:
    """The error says what would help."""
    with pytest.raises(TraceError, match=r"needs example inputs; call transform\(model, args\)"):
        transform(NotForFx(), None, FUSIONS)


@pytest.mark.parametrize("spelling", ["flatten", "view", "reshape"])
def test_flatten_in_every_spelling(spelling: str) -> None:
    """Three ways to flatten are one module."""
    network = trace(Head(spelling).eval(), None, None).network
    assert [type(network.module_of(n)).__name__ for n in network.graph.nodes if n.op == "call_module"] == [
        "Conv2d", "AdaptiveAvgPool2d", "Flatten", "Dropout", "Linear",
    ]  # fmt: skip
    assert not [n for n in network.graph.nodes if n.op in ("call_method", "call_function")]


def test_functions_on_parameters_become_modules_on_the_same_parameters() -> None:
    """F.conv2d(x, self.weight) is a convolution that holds self.weight itself."""
    model = Functional().eval()
    result = transform(model, (image(),), FUSIONS)
    assert kinds(result.model) == ["FusedConvBNReLU", "AdaptiveAvgPool2d", "Flatten", "Linear"]
    assert any(one is model.weight for one in result.model.parameters())
    same(result, model, image())


def test_keyword_inputs_defaults_and_structured_outputs() -> None:
    """Inputs by keyword stay so, defaults that were not given keep their value, dicts and tuples come back."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.block = ConvBNAct()

        def forward(
            self,
            x: torch.Tensor,
            mask: torch.Tensor | None = None,
            *,
            scale: float = 2.0,
            gain: torch.Tensor | None = None,
        ) -> dict[str, Any]:
            y = self.block(x) * scale
            if mask is not None:
                y = y * mask
            if gain is not None:
                y = y + gain
            return {"y": y, "pair": (y.mean(), [x])}

    model = warm(Model())
    gain = torch.tensor(0.5)
    plain = transform(model, (image(),), FUSIONS)
    same(plain, model, image())
    named = transform(model, (image(),), FUSIONS, kwargs={"gain": gain})
    same(named, model, image(), gain=gain * 3)
    scaled = transform(model, (image(),), FUSIONS, kwargs={"scale": 3.0})
    same(scaled, model, image(), scale=3.0)


def test_keyword_inputs_through_export() -> None:
    """The exported route keeps keywords and structure as well."""

    class Model(NotForFx):
        def forward(self, x: torch.Tensor, *, gain: torch.Tensor | None = None) -> dict[str, Any]:  # type: ignore[override]
            y = super().forward(x)
            return {"y": y if gain is None else y * gain, "pair": (y.mean(), x)}

    model = warm(Model())
    result = transform(model, (image(),), FUSIONS, kwargs={"gain": torch.full((2, 1, 1, 1), 2.0)})
    assert result.report.route == "export"
    same(result, model, image(), gain=torch.full((2, 1, 1, 1), 3.0))


def test_tied_weights_stay_tied() -> None:
    """A weight used by an embedding and a head is one tensor in the result."""

    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(10, 4)
            self.head = nn.Linear(4, 10, bias=False)
            self.head.weight = self.embed.weight

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = self.head(self.embed(x))
            return out

    result = transform(Tied(), (torch.tensor([[1, 2]]),), FUSIONS).model
    assert result.get_parameter("embed.weight") is result.get_parameter("head.weight")


def test_train_and_eval_behavior_is_kept() -> None:
    """Batch norm and dropout, also the functional one, follow train() and eval() after the transform."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.block = ConvBNAct()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return functional.dropout(self.block(x), 0.5, self.training)

    for mode in (True, False):
        model = Model().train(mode)
        result = transform(model, (image(),), FUSIONS).model
        assert result.training is mode
        for train in (True, False):
            result.train(train)
            model.train(train)
            torch.manual_seed(3)
            wanted = model(image())
            assert model.block.bn.running_mean is not None
            statistics = model.block.bn.running_mean.clone()
            torch.manual_seed(3)
            torch.testing.assert_close(result(image()), wanted, rtol=0, atol=0)
            bn = result.get_submodule("block.conv.bn")
            torch.testing.assert_close(bn.running_mean, statistics, rtol=0, atol=0)


def test_batch_norm_exported_in_training_mode_trains() -> None:
    """The counters torch.export writes out are taken back into the module."""
    model = NotForFx()
    result = transform(model, (image(),), FUSIONS).model
    assert not any("add_" in str(node.target) for node in result.graph.nodes)
    torch.testing.assert_close(result(image()), model(image()), rtol=0, atol=0)
    assert result.get_buffer("block.conv.bn.num_batches_tracked").item() == 1


def test_dropout_in_training_mode_is_not_removed() -> None:
    """Removing it would change training; the refusal says what to call."""
    report = transform(Head().train(), (image(),), [RemoveDropoutPattern]).report
    assert not report.done
    assert "call eval() first" in report.refusals[0].reason
    assert len(transform(Head().eval(), (image(),), [RemoveDropoutPattern]).report.done) == 1


def test_a_branch_on_the_mode_is_told() -> None:
    """Code that asks for the mode is settled by the trace; the report says which branch it has."""

    class Aux(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.block = ConvBNAct()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = self.block(x)
            return out * 2 if self.training else out

    notes = transform(nn.Sequential(Aux()).eval(), (image(),), FUSIONS).report.notes
    assert notes == (
        "'0' asks whether it is training; the graph has the eval branch, train() and eval() do not change it",
    )


class Always(nn.Module):
    """Dropout that eval() does not switch off."""

    def __init__(self, *, exported: bool) -> None:
        super().__init__()
        self.exported = exported

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.exported:
            x = x * (2 if float(x.shape[0]) else 1)
        return functional.dropout2d(x, 0.5) if self.exported else functional.dropout(x, 0.5, training=True)


def test_an_always_on_dropout_is_refused() -> None:
    """A model that is random in eval mode cannot be proved: the error names the operator and what to write."""
    for exported in (False, True):
        model = nn.Sequential(nn.Conv2d(3, 4, 1), Always(exported=exported)).eval()
        with pytest.raises(TraceError, match=r"'1\.[a-z_0-9]+' \(.*dropout.*self.training") as caught:
            transform(model, (image(),), FUSIONS)
        assert caught.value.place.startswith("1.")


@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16, torch.float64])
def test_other_number_formats_become_float32(kind: torch.dtype) -> None:
    """The user's model keeps its own, and the report says so; shared weights stay shared."""
    shared = nn.Conv2d(3, 3, 1)
    model = nn.Sequential(shared, nn.BatchNorm2d(3), nn.ReLU(), shared).to(kind).eval()
    result = transform(model, (image().to(kind),), FUSIONS)
    assert {parameter.dtype for parameter in result.model.parameters()} == {torch.float32}
    assert {parameter.dtype for parameter in model.parameters()} == {kind}
    assert result.report.proof is not None
    assert result.report.proof.verdict == "exact"
    name = str(kind).removeprefix("torch.")
    assert f"the model has {name} weights; they were converted to float32" in result.report.notes[0]
    with torch.no_grad():
        close = torch.testing.assert_close
        close(result.model(image()), model(image().to(kind)).float(), rtol=0, atol=0.05)


def test_a_model_in_training_mode_is_told() -> None:
    notes = transform(nn.Sequential(nn.Conv2d(3, 4, 1), nn.Dropout()), (image(),), FUSIONS).report.notes
    assert any("the model is in training mode" in note and "call model.eval()" in note for note in notes)


def test_in_place_operators_keep_their_meaning() -> None:
    """An in-place change that someone reads later under another name stays in place; one nobody sees does not."""

    class Seen(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = x * 1.0
            view = y.view(-1)
            view += 1
            return y

    class Unseen(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = x * 1.0
            y += x
            return functional.relu(y, inplace=True)

    for model, expected, route in ((Seen(), [], "export"), (Unseen(), ["Add", "ReLU"], "fx")):
        result = transform(model, (image(),), FUSIONS)
        assert kinds(result.model) == expected
        assert result.report.route == route
        same(result, model, image())


def test_a_random_model_is_told() -> None:
    """Nothing can be proved about code that is random in eval mode; the report says so."""

    class Noisy(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + torch.rand_like(x)

    report = transform(Noisy().eval(), (image(),), FUSIONS).report
    assert "the model is random: 'rand_like" in report.notes[0]
    assert any("its code is random, or keeps a state" in note for note in report.notes)


def test_the_given_model_is_not_changed() -> None:
    """Mode, statistics, hooks, weights: all as before, in every route."""
    for model in (Residual(), NotForFx(), WithBranch()):
        model.train()
        modes = {name: module.training for name, module in model.named_modules()}
        state = {name: value.clone() for name, value in model.state_dict().items()}
        hooks = [len(module._forward_pre_hooks) for module in model.modules()]
        transform(model, (image(),), FUSIONS).model.eval()
        assert {name: module.training for name, module in model.named_modules()} == modes
        assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
        assert [len(module._forward_pre_hooks) for module in model.modules()] == hooks


def test_files(tmp_path: Path) -> None:
    """A saved exported program goes in by its path; other files and no file are named."""
    model = warm(Residual())
    path = tmp_path / "model.pt2"
    torch.export.save(torch.export.export(model, (image(),)), path)
    result = transform(path, (image(),), FUSIONS)
    same(result, model, image())
    with pytest.raises(TraceError, match="there is no file"):
        transform(tmp_path / "none.pt2", (image(),), FUSIONS)
    (tmp_path / "text.pt2").write_text("no program")
    with pytest.raises(TraceError, match="cannot be loaded as an exported program"):
        transform(str(tmp_path / "text.pt2"), (image(),), FUSIONS)


def test_what_is_no_model() -> None:
    """TorchScript and other things are named for what they are; a compiled module is unwrapped."""
    with pytest.raises(TraceError, match="list is no model"):
        transform([], (image(),), FUSIONS)  # type: ignore[arg-type]
    model = warm(ConvBNAct())
    compiled = torch.compile(model, backend="eager")
    assert isinstance(compiled, nn.Module)
    assert len(transform(compiled, (image(),), FUSIONS).matches) == 1
    with pytest.warns(DeprecationWarning, match="torch.jit"):
        scripted = torch.jit.script(model)
    with pytest.raises(TraceError, match="TorchScript"):
        transform(scripted, (image(),), FUSIONS)


def test_inputs_of_the_wrong_shape() -> None:
    """The error names the inputs, the submodule and what it said."""
    with pytest.raises(InputError, match=r"float32 \(1, 4, 8, 8\).*'conv' fails with RuntimeError"):
        transform(ConvBNAct(), (torch.randn(1, 4, 8, 8),), FUSIONS)
    with pytest.raises(InputError, match="args is a dict"):
        transform(ConvBNAct(), {"x": image()}, FUSIONS)  # type: ignore[arg-type]


def test_a_lone_tensor_is_the_only_input() -> None:
    """The common slip of leaving the tuple out is understood."""
    assert transform(ConvBNAct().eval(), image(), FUSIONS).matches  # type: ignore[arg-type]


class Cache:
    """An object that torch.export does not know, as a decoder's cache is."""


class Caching(nn.Module):
    """A model that returns more than tensors, in code that torch.fx cannot follow."""

    def forward(self, x: torch.Tensor, **_: object) -> tuple[torch.Tensor, Cache]:
        return x + 1, Cache()


def test_an_output_that_is_no_tensor_is_named_with_the_remedy() -> None:
    with pytest.raises(TraceError, match=r"returns a Cache, and a graph returns tensors.*'use_cache': False"):
        transform(Caching().eval(), (image(),), FUSIONS)
