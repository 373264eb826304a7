"""Stages side by side: what agrees, what does not, and where it begins."""

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import numpy_helper
from support.qdq import sample, tensorrt_residual
from torch import nn

from embedl_deploy import transform
from embedl_deploy.backend import discover_backends
from embedl_deploy.dialect import lower
from embedl_deploy.errors import InputError
from embedl_deploy.export import export_onnx, verify
from embedl_deploy.quantize import quantize


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
    assert any("those of tensorrt were not run" in note for note in found.notes)
