"""Saving a quantized model and going on: whole, as a state, as safetensors, in the middle of training."""

import copy
from pathlib import Path

import pytest
import torch
from support.quantized_nets import residual
from torch import fx, nn

from embedl_deploy import transform
from embedl_deploy.errors import QuantizationError
from embedl_deploy.onnxruntime import ONNXRUNTIME
from embedl_deploy.quantize import (
    MaxDrop,
    QatRecipe,
    QatSchedule,
    freeze_batch_norm,
    insert_qdq,
    load_state,
    plan_qdq,
    quantization_of,
    quantize,
    save_state,
)


class Annotated(nn.Module):
    """A network whose annotations are strings, as `from __future__ import annotations` makes them."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.bn, self.head = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Linear(8, 4)

    def forward(self, x: "torch.Tensor") -> "torch.Tensor":
        """Classify."""
        return self.head(torch.relu(self.bn(self.conv(x))).mean((2, 3)))  # type: ignore[no-any-return]


def pair() -> tuple[fx.GraphModule, fx.GraphModule, torch.Tensor]:
    """Return a calibrated network, one with the same pairs that was not calibrated, and a batch."""
    model, value = residual(ONNXRUNTIME)
    made = quantize(model, (value,), forward_loop=[value], backend=ONNXRUNTIME)
    return made, insert_qdq(model, plan_qdq(model, (value,), backend=ONNXRUNTIME)), value


def test_a_whole_model_is_saved(tmp_path: Path) -> None:
    """`torch.save` writes a quantized model with its record; what is read computes the same, trains, saves again."""
    value = torch.randn(2, 3, 8, 8)
    model = quantize(
        transform(Annotated().eval(), (value,), ONNXRUNTIME).model, (value,), None, [value], backend=ONNXRUNTIME
    )
    # A copy is as good as the original.
    for one in (model, copy.deepcopy(model)):
        torch.save(one, tmp_path / "model.pt")
        again = torch.load(tmp_path / "model.pt", weights_only=False)
        with torch.no_grad():
            assert torch.equal(again(value), model(value))
        assert str(quantization_of(again)) == str(quantization_of(model))
        again.train()(value).sum().backward()
        torch.save(again, tmp_path / "model.pt")


def test_a_state_needs_no_code_to_be_read(tmp_path: Path) -> None:
    """A state dict loads with `weights_only=True`, whatever was frozen comes back frozen."""
    trained, fresh, value = pair()
    freeze_batch_norm(trained)
    torch.save(trained.state_dict(), tmp_path / "state.pt")
    fresh.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    frozen = [part.batch_norm_frozen for part in fresh.modules() if hasattr(part, "batch_norm_frozen")]
    assert frozen
    assert all(frozen)
    with torch.no_grad():
        assert torch.equal(fresh.eval()(value), trained.eval()(value))


def test_safetensors(tmp_path: Path) -> None:
    """A state in a safetensors file is the state; another file is refused."""
    trained, fresh, value = pair()
    load_state(fresh, save_state(trained, tmp_path / "state.safetensors"))
    with torch.no_grad():
        assert torch.equal(fresh.eval()(value), trained.eval()(value))
    (tmp_path / "other").write_bytes(b"\x08\0\0\0\0\0\0\0{}      ")
    for path, said in (("missing", "There is no file"), ("other", "is no state of a quantized model")):
        with pytest.raises(QuantizationError, match=f"{said}.*save_state writes one"):
            load_state(fresh, tmp_path / path)


def steps(model: nn.Module, schedule: QatSchedule, optimizer: torch.optim.Optimizer, data: torch.Tensor) -> list[float]:
    """Train on as many batches as there are rows, and return the losses."""
    losses = []
    model.train()
    for value in data:
        optimizer.zero_grad()
        loss = model(value).square().mean()
        loss.backward()
        optimizer.step()
        schedule.step(optimizer)
        losses.append(float(loss.detach()))
    return losses


def test_training_goes_on_to_the_bit(tmp_path: Path) -> None:
    """Stopped after four of ten steps and resumed in a fresh model, losses are those of training without a stop."""
    made, fresh, _ = pair()
    data, recipe = torch.randn(10, 4, 3, 16, 16), QatRecipe(freeze_batch_norm_at=0.3, freeze_ranges_at=0.7)
    whole = copy.deepcopy(made)
    schedule = QatSchedule(whole, recipe, 10)
    expected = steps(whole, schedule, torch.optim.Adam(schedule.groups()), data)
    first = QatSchedule(made, recipe, 10)
    optimizer = torch.optim.Adam(first.groups())
    losses = steps(made, first, optimizer, data[:4])
    saved = {"model": made.state_dict(), "optimizer": optimizer.state_dict(), "schedule": first.state_dict()}
    torch.save(saved, tmp_path / "checkpoint.pt")
    found = torch.load(tmp_path / "checkpoint.pt", weights_only=True)
    # Scales are made parameters before the state is read, as they were when it was written.
    fresh.load_state_dict(found["model"])
    second = QatSchedule(fresh, recipe, 10)
    other = torch.optim.Adam(second.groups())
    other.load_state_dict(found["optimizer"])
    second.load_state_dict(found["schedule"])
    assert losses + steps(fresh, second, other, data[4:]) == expected


def test_a_search_goes_on_from_its_journal(tmp_path: Path) -> None:
    """Stopped after three measurements and started again, a search measures no model twice and finds the same."""
    model, value = residual(ONNXRUNTIME)
    measured: list[float] = []
    left = [3]

    def metric(one: nn.Module) -> float:
        if not left[0]:
            raise KeyboardInterrupt
        left[0] -= 1
        with torch.no_grad():
            measured.append(-float((one(value) - reference).square().mean()))
        return measured[-1]

    with torch.no_grad():
        reference = model(value)

    def run(journal: Path | None) -> fx.GraphModule:
        goal = MaxDrop(metric, 0.0, most_islands=2, journal=journal)
        return quantize(model, (value,), forward_loop=[value], backend=ONNXRUNTIME, goal=goal)

    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "journal")
    left[0] = 1000
    found = quantization_of(run(tmp_path / "journal")).search
    resumed = len(measured)
    measured.clear()
    whole = quantization_of(run(None)).search
    assert found is not None
    assert whole is not None
    assert resumed <= len(measured)  # models that are the same are measured once
    assert [(step.what, step.metric) for step in found.steps] == [(step.what, step.metric) for step in whole.steps]
