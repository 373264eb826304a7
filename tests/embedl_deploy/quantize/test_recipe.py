"""Recipes for training: what moves when, under what torch offers for speed and memory."""

import copy
from typing import Any

import pytest
import torch
from support.quantized_nets import residual
from torch import fx, nn
from torch.utils.checkpoint import checkpoint

from embedl_deploy.errors import QuantizationError
from embedl_deploy.nn import QuantizedConv
from embedl_deploy.onnxruntime import ONNXRUNTIME
from embedl_deploy.quantize import QatRecipe, QatSchedule, freeze_batch_norm, quantize, train_quantized


def calibrated() -> tuple[fx.GraphModule, torch.Tensor]:
    """Return a calibrated network and a batch."""
    torch.manual_seed(0)
    model, value = residual(ONNXRUNTIME)
    return quantize(model, (value,), forward_loop=[value], backend=ONNXRUNTIME), value


def gradients(model: nn.Module, loss: torch.Tensor) -> list[torch.Tensor]:
    """Return the gradients of a loss."""
    loss.backward()  # type: ignore[no-untyped-call]
    return [one.grad for one in model.parameters() if one.grad is not None]


def test_a_recipe_trains_and_freezes() -> None:
    """Losses fall, batch norm and scales stand still when the recipe says so."""
    model, value = calibrated()
    target = torch.arange(8) % 4
    losses = train_quantized(model, [(value, target)] * 4, recipe=QatRecipe(epochs=3, rate=1e-2))
    assert losses[-1] < losses[0]
    assert not model.training
    assert all(part.batch_norm_frozen for part in model.modules() if isinstance(part, QuantizedConv))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_compiled_model_is_trained_and_the_one_inside_exported() -> None:
    """The same losses as without the compiler; what wants the model itself says which one that is."""
    model, value = calibrated()
    twin, batches = copy.deepcopy(model), [(value, torch.arange(8) % 4)] * 2
    compiled: Any = torch.compile(twin, backend="eager")
    found = train_quantized(compiled, lambda _: batches, recipe=QatRecipe(epochs=2))
    assert found == pytest.approx(train_quantized(model, lambda _: batches, recipe=QatRecipe(epochs=2)), rel=1e-4)
    assert not twin.training
    with pytest.raises(QuantizationError, match=r"give the model that torch\.compile was given"):
        freeze_batch_norm(compiled)


def test_rates_fall_and_scales_stop() -> None:
    """Learned scales have a rate of their own, which is zero from their point on."""
    model, _ = calibrated()
    schedule = QatSchedule(model, QatRecipe(rate=1.0, scale_rate=0.1, freeze_ranges_at=0.5), 4)
    optimizer = torch.optim.SGD(schedule.groups())
    rates = []
    for _ in range(4):
        rates.append([group["lr"] for group in optimizer.param_groups])
        schedule.step(optimizer)
    assert rates[0] == [1.0, 0.1]
    assert [scale > 0 for _, scale in rates] == [True, True, False, False]
    assert [weight for weight, _ in rates] == sorted((weight for weight, _ in rates), reverse=True)


def test_distillation_is_towards_the_float_model() -> None:
    """The loss is nothing where both models agree and all of it is distillation; without a teacher it is refused."""
    model, value = calibrated()
    schedule = QatSchedule(model, QatRecipe(distillation=1.0), 1)
    outputs = model(value)
    assert float(schedule.loss(torch.tensor(5.0), outputs, outputs).detach()) == pytest.approx(0, abs=1e-6)
    with pytest.raises(QuantizationError, match="teacher"):
        train_quantized(model, lambda _: [], recipe=QatRecipe(distillation=0.5))
    with pytest.raises(QuantizationError, match="an iterator, which gives each of them once"):
        train_quantized(model, iter([]))


def test_the_recipe_for_four_bits_can_be_changed() -> None:
    """What is not named stays as the recipe has it."""
    found = QatRecipe.four_bits(epochs=2)
    assert (found.epochs, found.learn_weights, found.distillation) == (2, True, 0.5)
    with pytest.raises(QuantizationError, match="rate"):
        QatRecipe.four_bits(rate=0.0)


@pytest.mark.parametrize("wrong", [{"epochs": 0}, {"rate": -1.0}, {"distillation": 2.0}, {"freeze_ranges_at": -0.1}])
def test_recipes_are_checked(wrong: dict[str, float]) -> None:
    """What makes no sense is refused when it is written."""
    with pytest.raises(QuantizationError):
        QatRecipe(**wrong)  # type: ignore[arg-type]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_there_is_no_graph_break() -> None:
    """A calibrated model is one graph for a compiler, in training and in eval mode."""
    model, value = calibrated()
    for training in (True, False):
        torch._dynamo.reset()
        found = torch._dynamo.explain(model.train(training))(value)
        assert (found.graph_break_count, found.graph_count) == (0, 1), found.break_reasons


def test_checkpointing_changes_no_gradient() -> None:
    """Recomputed activations give the gradients of kept ones, to the bit, with batch norm frozen."""
    model, value = calibrated()
    freeze_batch_norm(model)
    twin = copy.deepcopy(model)
    expected = gradients(model, model.train()(value).square().mean())
    again: torch.Tensor = checkpoint(twin.train(), value, use_reentrant=False)
    found = gradients(twin, again.square().mean())
    assert all(torch.equal(one, two) for one, two in zip(expected, found, strict=True))


def test_autocast_channels_last_and_averages() -> None:
    """bfloat16, another memory format and a moving average of the weights train as usual."""
    model, value = calibrated()
    model = model.to(memory_format=torch.channels_last).train()  # type: ignore[call-overload]
    average = torch.optim.swa_utils.AveragedModel(model, use_buffers=True)
    with torch.autocast("cpu", torch.bfloat16):
        loss = model(value.to(memory_format=torch.channels_last)).float().square().mean()
    assert all(bool(one.isfinite().all()) for one in gradients(model, loss))
    average.update_parameters(model)
    with torch.no_grad():
        assert bool(average.eval()(value).isfinite().all())
