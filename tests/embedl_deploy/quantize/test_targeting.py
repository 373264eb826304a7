"""What is simulated is what is exported: the model in torch rounds where its target's file does, and as it does."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
import torch
from support.sampled import sampled
from torch import fx, nn

from embedl_deploy import transform
from embedl_deploy.dialect import dialects, get_dialect
from embedl_deploy.dialect._model import read
from embedl_deploy.errors import QuantizationError
from embedl_deploy.export import export_onnx
from embedl_deploy.nn import QuantStub, WeightQuantizer
from embedl_deploy.quantize import quantization_of, quantize, retarget

DIALECTS = tuple(dialect.name for dialect in dialects())


class Gated(nn.Module):
    """Residual sums of both kinds, a gate, SiLU, a concat, poolings, a linear head."""

    def __init__(self, act: type[nn.Module] = nn.SiLU, width: int = 16) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, 2, 1)
        self.pool = nn.MaxPool2d(2)
        self.conv = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(width)
        self.act = act()
        self.depthwise = nn.Conv2d(width, width, 3, padding=1, groups=width)
        self.squeeze = nn.Conv2d(width, 4, 1)
        self.expand = nn.Conv2d(4, width, 1)
        self.last = nn.Conv2d(width, width, 1)
        self.average = nn.AdaptiveAvgPool2d(1)
        self.head = nn.Linear(2 * width, 10)

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        stem = self.pool(torch.relu(self.stem(value)))
        inner = self.act(self.depthwise(self.act(self.norm(self.conv(stem)))))
        gate = torch.sigmoid(self.expand(torch.relu(self.squeeze(self.average(inner)))))
        summed = torch.relu(stem + self.last(inner * gate))
        result: torch.Tensor = self.head(torch.flatten(self.average(torch.cat([stem, summed], 1)), 1))
        return result


class Block(nn.Module):
    """A transformer block: a residual stream in float, GELU between two linear layers."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.embed = nn.Linear(16, width)
        self.layer = nn.TransformerEncoderLayer(width, 4, 64, activation="gelu", batch_first=True, norm_first=True)
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 10)

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.head(self.norm(self.layer(self.embed(value))).mean(1))
        return result


SHAPES = {"gated": (3, 32, 32), "relu6": (3, 32, 32), "hardswish": (3, 32, 32), "block": (12, 16)}
NETS: dict[str, Callable[[], nn.Module]] = {
    "gated": Gated,
    "relu6": lambda: Gated(nn.ReLU6),
    "hardswish": lambda: Gated(nn.Hardswish),
    "block": Block,
}


def network(name: str) -> tuple[nn.Module, list[torch.Tensor], torch.Tensor]:
    """Return a model with settled statistics, calibration batches, and others that it is judged on."""
    torch.manual_seed(0)
    model = NETS[name]()
    batches = [torch.randn(8, *SHAPES[name]) for _ in range(3)]
    with torch.no_grad():
        for batch in batches:
            model(batch)
    return model.eval(), batches, torch.randn(8, *SHAPES[name])


def quantized(name: str, target: str) -> tuple[fx.GraphModule, torch.Tensor]:
    model, batches, held = network(name)
    made = transform(model, (batches[0],), target=target).model
    return quantize(made, (batches[0],), forward_loop=batches, target=target), held


def as_written(path: Path, held: torch.Tensor) -> np.ndarray:
    """Run a file without any optimization: its Q, DQ and float operators, one after the other."""
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return np.asarray(session.run(None, {session.get_inputs()[0].name: held.numpy()})[0])


def decibels(wanted: np.ndarray, found: np.ndarray) -> float:
    noise = float(np.sum((wanted - found) ** 2))
    return float(10 * np.log10(np.sum(wanted**2) / noise)) if noise else float("inf")


def _file_equals_simulated(name: str, dialect: str, folder: Path) -> None:
    model, held = quantized(name, dialect)
    path = export_onnx(model, (held,), folder / "model.onnx", target=dialect)
    simulated = model(held).detach().numpy()
    assert decibels(simulated, as_written(path, held)) >= 45


@pytest.mark.parametrize("dialect", sampled(DIALECTS, "onnxruntime-x86", "tensorrt", "litert"))
def test_the_file_as_written_is_the_simulated_model(dialect: str, tmp_path: Path) -> None:
    """For every dialect, on data that was not calibrated on; the formats are the file's own, to the bit."""
    _file_equals_simulated("gated", dialect, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("name", [name for name in NETS if name != "gated"])
def test_other_networks_too(name: str, dialect: str, tmp_path: Path) -> None:
    """Clips, tables, residual streams in float."""
    _file_equals_simulated(name, dialect, tmp_path)


def test_the_formats_are_the_files(tmp_path: Path) -> None:
    """Every pair of the model is in the file with the same scale, and the file has no other."""
    model, held = quantized("relu6", "onnxruntime-x86")
    path = export_onnx(model, (held,), tmp_path / "model.onnx", target="onnxruntime-x86")
    qdq = read(onnx.load(path))
    found = sorted(float(params.scale) for params in qdq.params.values())
    stubs = [part for part in model.modules() if isinstance(part, QuantStub) and part.quantizes]
    assert found == sorted(float(stub.scale) for stub in stubs)
    assert len(stubs) == len(quantization_of(model).placement.rounded)


def test_one_calibration_serves_every_target() -> None:
    """A model that is retargeted computes what it computes when quantized for that target at once."""
    model, batches, held = network("gated")
    made = transform(model, (batches[0],), target="onnxruntime-x86").model
    canonical = quantize(made, (batches[0],), forward_loop=batches, backend="onnxruntime")
    assert quantization_of(canonical).placement.dialect == ""
    before = canonical(held)
    for dialect in ("litert", "openvino", "onnxruntime-x86", "executorch"):
        at_once = quantize(made, (batches[0],), forward_loop=batches, target=dialect)
        assert torch.equal(retarget(canonical, dialect)(held), at_once(held)), dialect
    # There and back again, and the model that was given is as it was.
    again = retarget(retarget(at_once, "litert"), "executorch")
    assert torch.equal(again(held), at_once(held))
    assert torch.equal(canonical(held), before)


def test_dialects_round_different_values() -> None:
    """LiteRT has an integer kernel for hard-swish and ONNX Runtime has not; TensorRT rounds inputs alone."""
    model, batches, _ = network("hardswish")
    made = transform(model, (batches[0],), target="onnxruntime-x86").model
    placement = quantization_of(quantize(made, (batches[0],), forward_loop=batches, target="litert")).placement
    counts = {name: len(variant.boundaries) for name, variant in placement.variants.items()}
    assert counts["tensorrt"] < counts["onnxruntime-x86"] < counts["litert"]
    assert len(placement.rounded) == counts["litert"]


def test_a_trained_model_keeps_its_scales() -> None:
    """Training moves weights and scales; what the file gets is what was trained."""
    model, held = quantized("gated", "onnxruntime-x86")
    fitted = [part for part in model.modules() if isinstance(part, WeightQuantizer) and part.fitted is not None]
    assert fitted
    model.train()
    torch.manual_seed(1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    for _ in range(3):
        optimizer.zero_grad()
        model(held).square().mean().backward()
        optimizer.step()
    model.eval()
    assert all(part.fitted is None for part in fitted)  # they were of other weights
    again = retarget(model, "onnxruntime-x86")
    assert any(isinstance(part, WeightQuantizer) and part.fitted is not None for part in again.modules())
    assert decibels(model(held).detach().numpy(), again(held).detach().numpy()) > 25


def test_a_prescribed_format_does_not_cut_what_shares_its_scale(tmp_path: Path) -> None:
    """LiteRT gives a sigmoid 1/256; in a concat with larger values all have one scale that reaches them."""

    class Joined(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = nn.Conv2d(3, 8, 1), nn.Conv2d(3, 8, 1)
            self.last = nn.Conv2d(16, 8, 1)

        def forward(self, value: torch.Tensor) -> torch.Tensor:
            joined = torch.cat([torch.sigmoid(self.one(value)), 20 * self.two(value)], 1)
            result: torch.Tensor = self.last(joined)
            return result

    torch.manual_seed(0)
    model, batches = Joined().eval(), [torch.randn(4, 3, 8, 8) for _ in range(3)]
    made = transform(model, (batches[0],), target="litert").model
    result = quantize(made, (batches[0],), forward_loop=batches, target="litert")
    assert decibels(model(batches[0]).detach().numpy(), result(batches[0]).detach().numpy()) > 25
    path = export_onnx(result, (batches[0],), tmp_path / "net.onnx", target="litert")
    assert decibels(result(batches[0]).detach().numpy(), as_written(path, batches[0])) >= 45


def test_scores_behind_a_mask_stay_float() -> None:
    """No integer stands for minus infinity, so no target rounds them."""

    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.query, self.key, self.head = nn.Linear(16, 16), nn.Linear(16, 16), nn.Linear(8, 8)

        def forward(self, value: torch.Tensor) -> torch.Tensor:
            scores = torch.matmul(self.query(value), self.key(value).transpose(1, 2))
            mask = torch.full((8, 8), float("-inf")).triu(1)
            result: torch.Tensor = self.head(torch.softmax(scores + mask, -1))
            return result

    model, batches = Masked().eval(), [torch.randn(4, 8, 16) for _ in range(2)]
    for target in ("onnxruntime-x86", "litert"):
        made = transform(model, (batches[0],), target=target).model
        result = quantize(made, (batches[0],), forward_loop=batches, target=target)
        assert torch.isfinite(result(batches[0])).all()
        masked = [part for part in result.modules() if isinstance(part, QuantStub) and part.masked]
        assert not any(part.quantizes for part in masked)


def test_a_dialect_that_came_later() -> None:
    """Nobody watched what it rounds."""
    model, _ = quantized("gated", "onnxruntime-x86")

    with pytest.raises(QuantizationError, match="quantize it again"):
        retarget(model, replace(get_dialect("litert"), name="mine"))
