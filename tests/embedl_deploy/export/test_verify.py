"""Stages side by side: what agrees, what does not, and where it begins."""

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import numpy_helper
from support.qdq import sample, tensorrt_residual
from torch import fx, nn

from embedl_deploy import transform
from embedl_deploy.backend import discover_backends
from embedl_deploy.dialect import lower
from embedl_deploy.errors import InputError
from embedl_deploy.export import _verify, export_onnx, verify
from embedl_deploy.quantize import quantization_of, quantize
from embedl_kernels import get_family


def network() -> nn.Module:
    """Return a small net in eval mode."""
    torch.manual_seed(1)
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 16, 3, padding=1), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10),
    ).eval()  # fmt: skip


def stages(folder: Path) -> tuple[nn.Module, nn.Module, nn.Module, Path]:
    """Return a net, transformed, quantized, and its file."""
    original = network()
    backend = next(one for one in discover_backends() if one.name == "onnxruntime")
    args = (torch.randn(2, 3, 12, 12),)
    transformed = transform(original, args, backend).model
    simulated = quantize(transformed, args, forward_loop=[torch.randn(4, 3, 12, 12) for _ in range(4)], backend=backend)
    path = export_onnx(simulated, args, folder / "net.onnx", dialect="onnxruntime-x86")
    return original, transformed, simulated, path


def test_all_stages_of_a_real_export(tmp_path: Path) -> None:
    """Every boundary is inside; torch, the file and the integers agree; training mode is given back."""
    original, transformed, simulated, path = stages(tmp_path)
    original.train()
    found = verify(path, [torch.randn(2, 3, 12, 12)], original=original, transformed=transformed, simulated=simulated)
    assert original.training
    assert found.passed
    rows = {(row.stage, row.against): row for row in found.outputs}
    assert rows["integer", "file"].max_error == 0
    # The portable weights are not the simulated ones; those of the dialect with all 8 bits are.
    assert rows["file", "simulated"].sqnr_db > 40
    assert rows["file", "simulated"].agreement == 1
    assert all(row.kernel_lsb == 0 for row in found.boundaries)
    made = [row for row in found.boundaries if row.kernel != "input"]
    assert all(row.layer_lsb is not None and row.layer_lsb <= row.layer_bound < 0.05 for row in made)
    assert all(row.inside for row in found.layers)
    assert rows["written", "simulated"].bound_db == 45
    assert rows["layers", "simulated"].bound_db > 80
    assert found.stages == (
        "original", "transformed", "simulated", "the file as written", "the file as it runs", "integer arithmetic",
    )  # fmt: skip
    assert not found.unjudged
    assert "within their bounds on 1 samples" in str(found)
    page = found.save_html(tmp_path / "report.html").read_text(encoding="utf-8")
    assert page.startswith("<!doctype html>")
    assert "QLinearConv" in page
    assert "net.onnx, onnxruntime-x86, kernels of " in page
    assert "<p class='inside'><strong>PASS" in page
    assert json.loads(json.dumps(found.to_dict()))["passed"] is True


def test_the_first_wrong_layer_is_named(tmp_path: Path) -> None:
    """A weight is changed in the file: the layers before it are inside, and it is the first outside."""
    original, transformed, simulated, path = stages(tmp_path)
    model = onnx.load(path)
    second = [node for node in model.graph.node if node.op_type == "Conv"][1]
    source = next(node for node in model.graph.node if second.input[1] in node.output).input[0]
    for value in model.graph.initializer:
        if value.name == source:
            numbers = numpy_helper.to_array(value).copy()
            numbers[0] = -numbers[0]
            value.CopyFrom(numpy_helper.from_array(numbers, value.name))
    found = verify(model, [torch.randn(2, 3, 12, 12)], original=original, transformed=transformed, simulated=simulated)
    assert not found.passed
    assert found.first_outside is not None
    assert found.first_outside.module == "3"
    assert "First boundary outside its bound" in found.verdict
    assert "QLinearConv 3" in found.verdict


def test_a_file_alone_is_compared_with_integers() -> None:
    """No torch model is needed; samples may be arrays, tuples or dictionaries."""
    model = lower(tensorrt_residual(), "onnxruntime-x86")
    values = sample(3)["x"]
    found = verify(model, [values, (values,), {"x": values}])
    assert found.samples == 3
    assert found.passed
    assert {(row.stage, row.against) for row in found.outputs} == {("integer", "file"), ("kernels", "file")}
    assert "Not judged: the quality against the float model (give original=); the file against" in found.verdict


def test_samples_that_do_not_fit() -> None:
    """None at all, too many inputs, another model's outputs."""
    model = lower(tensorrt_residual(), "onnxruntime-x86")
    with pytest.raises(InputError, match="no samples"):
        verify(model, [])
    with pytest.raises(InputError, match="has 2 inputs; the file wants 1"):
        verify(model, [(np.zeros(1), np.zeros(1))])
    with pytest.raises(InputError, match="not the same model"):
        verify(model, [sample(0)["x"]], original=lambda value: value)
    with pytest.raises(InputError, match="has not the 1 outputs of the file"):
        verify(model, [sample(0)["x"]], original=lambda value: (value, value))


def test_another_model_does_not_pass(tmp_path: Path) -> None:
    """The boundaries hold without a simulation, and yet the outputs tell that the file is not this model's."""
    _, _, _, path = stages(tmp_path)
    torch.manual_seed(9)
    other = nn.Sequential(nn.Flatten(), nn.Linear(432, 10)).eval()
    found = verify(path, [torch.randn(2, 3, 12, 12)], original=other)
    assert found.first_outside is None
    assert not found.passed
    assert found.first_far is not None
    assert (found.first_far.stage, found.first_far.against) == ("file", "original")
    assert "below the bound of 10.0 dB. Is this the model" in found.verdict
    assert found.to_dict()["outputs"][0]["inside"] is False
    page = found.save_html(tmp_path / "report.html").read_text(encoding="utf-8")
    assert "<p class='outside'><strong>FAIL" in page
    assert verify(path, [torch.randn(2, 3, 12, 12)], original=other, min_sqnr_db=-200).passed


def test_samples_that_are_not_finite() -> None:
    """NaN and infinity prove nothing; a model that makes them of good samples does not pass."""
    model = lower(tensorrt_residual(), "onnxruntime-x86")
    values = sample(0)["x"].copy()
    values[0, 0, 0, 0] = np.nan
    with pytest.raises(InputError, match="NaN or infinity in 'x'"):
        verify(model, [values])
    plain = verify(model, [sample(0)["x"]]).outputs[0]
    shape = next(value for value in model.graph.output if value.name == plain.output).type.tensor_type.shape
    broken = torch.full([size.dim_value or 1 for size in shape.dim], float("inf"))
    found = verify(model, [sample(0)["x"]], original=lambda _: broken)
    assert not found.passed
    assert json.loads(json.dumps(found.to_dict(), allow_nan=False))["outputs"][0]["sqnr_db"] is None


def test_a_file_without_boundaries(tmp_path: Path) -> None:
    """A float file has outputs to compare and nothing else."""
    net, args = network(), (torch.randn(2, 3, 12, 12),)
    path = export_onnx(net, args, tmp_path / "float.onnx", dialect=None)
    found = verify(path, [args[0]], original=net)
    assert found.passed
    assert "the file has no Q/DQ" in found.verdict


def test_kernels_of_another_runtime_are_not_claimed() -> None:
    """A file for TensorRT is judged here, and the report says by what."""
    found = verify(lower(tensorrt_residual(), "tensorrt"), [sample(0)["x"]])
    # Without VNNI the kernels here saturate, and it is judged in float instead.
    assert any("those of tensorrt" in note and "were not run" in note for note in found.notes)


def test_a_file_in_half_precision() -> None:
    """Integer arithmetic is computed beside operators in half precision, and its bounds are theirs."""
    found = verify(lower(tensorrt_residual(), "tensorrt", float_type="float16"), [sample(0)["x"], sample(1)["x"]])
    assert found.passed, found.verdict
    assert "integer arithmetic" in found.stages
    assert {row.bound_db for row in found.outputs if row.stage == "kernels"} == {30}


class _Sized(nn.Module):
    """A convolution, and its result brought to a size, as segmentation heads do."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, padding=1)

    def forward(self, picture: torch.Tensor, shift: torch.Tensor) -> torch.Tensor:
        """Resize and add."""
        made = nn.functional.interpolate(self.conv(picture), size=(9, 9), mode="bilinear", align_corners=False)
        return torch.relu(made) - shift


def test_samples_by_name_reach_torch_by_name(tmp_path: Path) -> None:
    """Whatever order a model takes them in; a resize to a size is judged as any other operator."""
    torch.manual_seed(0)
    net = _Sized().eval()
    args = (torch.randn(2, 3, 6, 6), torch.randn(2, 4, 9, 9))
    path = export_onnx(net, args, tmp_path / "net.onnx", dialect=None)
    sample = {"shift": args[1], "picture": args[0]}

    def other_order(*, shift: torch.Tensor, picture: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = net(picture, shift)
        return made

    found = verify(path, [sample, args[:2]], original=net)
    assert found.passed, found.verdict
    assert verify(path, [sample], original=other_order).passed
    with pytest.raises(TypeError):
        verify(path, [args], original=other_order)


def test_labels_and_a_metric(tmp_path: Path) -> None:
    """The file must be about as good as the simulated model, and a broken one is told by its accuracy too."""
    original, _, simulated, path = stages(tmp_path)
    pictures = torch.randn(64, 3, 12, 12, generator=torch.Generator().manual_seed(5))
    batches = list(torch.split(pictures, 2))
    with torch.no_grad():
        labels = [original(batch).argmax(1) for batch in batches]

    def metric(model: nn.Module) -> float:
        with torch.no_grad():
            hits = [(model(batch).argmax(1) == label).float() for batch, label in zip(batches, labels, strict=True)]
        return float(torch.cat(hits).mean())

    good = verify(path, batches, original=original, simulated=simulated, labels=labels, metric=metric)
    assert good.passed, good.verdict
    rows = {row.stage: row for row in good.metrics}
    assert rows["original"].value == 1
    assert rows["file"].bound == pytest.approx(rows["simulated"].value - 0.02)
    wrong = [1 - metric(simulated), 1.0]
    found = verify(
        path, batches[:1], simulated=simulated, metric=lambda model: wrong[isinstance(model, fx.GraphModule)]
    )
    assert not found.passed
    assert any("The metric of file is" in text for text in found.failures)
    with pytest.raises(InputError, match="give a class per row"):
        verify(path, batches[:1], original=original, labels=[torch.zeros(5)])


def test_samples_that_were_calibrated_on_are_noted(tmp_path: Path) -> None:
    """They prove less; so does a single one."""
    original, _, simulated, path = stages(tmp_path)
    kept = quantization_of(simulated).samples
    batch = torch.cat([kept[0][0], kept[1][0]])
    found = verify(path, [batch], simulated=simulated)
    assert any("2 of 2 samples were calibrated on" in note for note in found.notes)
    assert not any(
        "calibrated" in note for note in verify(path, [torch.randn(2, 3, 12, 12)], simulated=simulated).notes
    )
    one = export_onnx(original, (batch[:1],), tmp_path / "one.onnx", dialect=None)
    assert any("One sample says little" in note for note in verify(one, [batch[:1]], original=original).notes)


def test_outputs_of_integers_are_compared_entry_by_entry(tmp_path: Path) -> None:
    """An index that is off by one is another class, not a small difference."""

    class Classes(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.argmax(1)

    args = (torch.randn(4, 100, 10),)
    path = export_onnx(Classes(), args, tmp_path / "net.onnx", dialect=None)
    assert verify(path, [args[0]], original=Classes()).passed
    found = verify(path, [args[0]], original=lambda x: x.argmax(1) + (torch.arange(10) == 3))
    assert not found.passed
    assert "90.0% agree, below the bound" in found.verdict


@pytest.mark.parametrize("dialect", ["openvino", "litert"])
def test_kernels_that_saturate_do_not_judge_files_of_other_runtimes(
    dialect: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On x86 without VNNI the stand-in computes what the file says; only ONNX Runtime's own files meet its kernels."""
    monkeypatch.setattr(_verify, "family_here", lambda: get_family("x86-avx2"))
    torch.manual_seed(3)
    original = nn.Sequential(
        nn.Conv2d(1, 16, 3), nn.ReLU(), nn.Conv2d(16, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()
    ).eval()
    batch = torch.rand(8, 1, 12, 12)
    network = transform(original, (batch[:1],), target="openvino").model
    simulated = quantize(network, (batch[:1],), forward_loop=[batch], target="openvino")
    path = export_onnx(simulated, (batch[:1],), tmp_path / "net.onnx", dialect=dialect)
    found = verify(path, list(batch[:, None]), simulated=simulated)
    assert found.passed, str(found)
    assert any("in float" in note and dialect in note for note in found.notes)
