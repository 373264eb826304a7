"""Dimensions that stay open: one calibration, one file, a proof at five shapes with the worst named."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import helper, numpy_helper
from torch import nn

from embedl_deploy import transform
from embedl_deploy._graph.shapes import DynamicShapes
from embedl_deploy.errors import ExportError, InputError, TraceError
from embedl_deploy.export import export_onnx, verify_shapes
from embedl_deploy.export._fixed_sizes import settled_at
from embedl_deploy.quantize import quantize

TARGET = "onnxruntime-x86"


class Reader(nn.Module):
    """Reads a sequence of any length, with the mean of it at the end."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 16)
        self.outer = nn.Linear(16, 4)

    def forward(self, value: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        """Weigh and add up."""
        result: torch.Tensor = self.outer((torch.relu(self.inner(value)) * weights[..., None]).sum(1))
        return result


class Fixed(nn.Module):
    """Knows the length of its input."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(8, 4)

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        """Cut rows in halves."""
        result: torch.Tensor = self.head(value.reshape(value.shape[0], 2, 3, 8)).sum(2)
        return result


class Holder(nn.Module):
    """Has such a part."""

    def __init__(self) -> None:
        super().__init__()
        self.part = Fixed()

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        """Call it."""
        return torch.mul(self.part(value), 2)


def call(batch: int, length: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a sequence and its weights."""
    random = torch.Generator().manual_seed(100 * batch + length)
    return torch.randn(batch, length, 8, generator=random), torch.rand(batch, length, generator=random)


SHAPES: DynamicShapes = {"value": {0: "batch", 1: "length"}, "weights": {0: "batch", 1: torch.export.Dim("length")}}


def test_one_file_serves_five_shapes_and_the_worst_is_named(tmp_path: Path) -> None:
    """One calibration; dimensions keep their names; samples of one shape make a row; a file wrong at one is found."""
    torch.manual_seed(0)
    model, args = Reader().eval(), call(1, 6)
    fused = transform(model, args, target=TARGET, dynamic_shapes=SHAPES).model
    data = [call(2, 6), call(1, 64), call(4, 2)]
    simulated = quantize(fused, args, forward_loop=data, target=TARGET)
    path = export_onnx(simulated, args, tmp_path / "reader.onnx", target=TARGET, dynamic_shapes=SHAPES)
    file = onnx.load(path)
    found = {value.name: sizes(value) for value in (*file.graph.input, *file.graph.output)}
    assert found["value"] == ["batch", "length", 8]
    assert found["weights"] == ["batch", "length"]
    assert found[file.graph.output[0].name] == ["batch", 4]

    samples = [call(batch, length) for batch, length in ((1, 1), (1, 6), (1, 6), (3, 5), (2, 17), (1, 60))]
    result = verify_shapes(path, samples, original=model, simulated=simulated, target=TARGET)
    assert result.passed, str(result)
    assert [(row.shape, row.samples) for row in result.rows] == [
        ("batch 1, length 1", 1), ("batch 1, length 6", 2), ("batch 3, length 5", 1), ("batch 2, length 17", 1),
        ("batch 1, length 60", 1),
    ]  # fmt: skip
    assert result.worst.file_db == min(row.file_db for row in result.rows)
    assert f"5 shapes; the worst is {result.worst.shape}" in str(result)
    assert result.to_dict()["worst"] == result.worst.shape

    (add,) = [node for node in file.graph.node if node.op_type == "ReduceSum"]
    ends = {"few/start": [0], "few/end": [8], "few/axes": [1]}
    for name, numbers in ends.items():
        file.graph.initializer.append(numpy_helper.from_array(np.array(numbers, np.int64), name))
    cut = helper.make_node("Slice", [add.input[0], *ends], ["few"], "few")
    place = list(file.graph.node).index(add)
    add.input[0] = "few"
    file.graph.node.insert(place, cut)
    result = verify_shapes(file, [call(1, 4), call(2, 32)], original=model, min_sqnr_db=20)
    assert [row.passed for row in result.rows] == [True, False]
    assert result.worst.shape == "batch 2, length 32"
    assert str(result).splitlines()[-1].startswith("FAIL: At batch 2, length 32: ")
    with pytest.raises(InputError, match="no samples"):
        verify_shapes(file, [])


def sizes(value: onnx.ValueInfoProto) -> list[str | int]:
    """Return names and sizes of the dimensions of a value."""
    return [dim.dim_param or dim.dim_value for dim in value.type.tensor_type.shape.dim]


REFUSED: dict[str, tuple[Any, str]] = {
    "unknown input": ({"valu": {1: "length"}}, r"'valu', which the model does not have; its inputs are .*'value'"),
    "unknown dimension": ({"value": {3: "length"}}, "dimension 3 of the input 'value', which has 3 dimensions"),
    "two sizes": ({"value": {1: "length", 2: "length"}}, r"one name to two sizes: 'length' .*6.* and 'length' .*8"),
    "no name": ({"value": {1: 7}}, "is 7; give a name or a torch.export.Dim"),
    "no dimensions": ({"value": "length"}, "of the input 'value' is 'length'; give {dimension: name}"),
    "too many": ((None, None, {0: "batch"}), "3 entries, the model 2 inputs"),
    "nothing": ("value", "dynamic_shapes is 'value'"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_means_nothing_is_refused(case: str, tmp_path: Path) -> None:
    """The known names are in the error, of transform and of export alike."""
    shapes, message = REFUSED[case]
    model, args = Reader().eval(), call(1, 6)
    with pytest.raises(InputError, match=message):
        transform(model, args, target=TARGET, dynamic_shapes=shapes)
    fused = transform(model, args, target=TARGET).model
    with pytest.raises(InputError, match=message):
        export_onnx(fused, args, tmp_path / "net.onnx", dynamic_shapes=shapes)


def test_open_dimensions_need_example_inputs() -> None:
    """Nobody knows the inputs without."""
    with pytest.raises(InputError, match="needs example inputs"):
        transform(Reader().eval(), target=TARGET, dynamic_shapes=SHAPES)


def test_the_module_that_settles_a_size_is_named() -> None:
    """A reshape to numbers in the user's code."""
    args = (torch.randn(1, 6, 8),)
    fused = transform(Holder().eval(), args, target=TARGET).model
    reason = settled_at(fused, args, {}, ({1: "length"},))
    assert reason.startswith("the model settles an open dimension at 'part': with twice the size it fails with ")
    assert "Open are 'length' (dimension 1 of 'value', 6 in the example inputs)." in reason


@pytest.mark.slow
def test_export_names_the_module_that_settles_a_size(tmp_path: Path) -> None:
    """Instead of the exporter's own words alone."""
    args = (torch.randn(1, 6, 8),)
    shapes = {"value": {1: "length"}}
    fused = transform(Holder().eval(), args, target=TARGET).model
    with pytest.raises(ExportError, match=r"settles an open dimension at 'part': .*'length' \(dimension 1 of 'value'"):
        export_onnx(fused, args, tmp_path / "net.onnx", dynamic_shapes=shapes)


def test_a_traced_graph_with_sizes_in_it_is_refused() -> None:
    """Transform with open dimensions tries another size."""

    class Counting(nn.Module):
        def forward(self, value: torch.Tensor, *others: torch.Tensor) -> torch.Tensor:
            rows = [value[:, index] for index in range(value.shape[1])]
            return torch.stack(rows, 1).cumsum(1) + others[0]

    args = torch.randn(2, 6), torch.randn(2, 6)
    with pytest.raises(TraceError, match="settles 'length'"):
        transform(Counting(), args, target=TARGET, dynamic_shapes=({1: "length"}, {1: "length"}))


def test_image_size_stays_open(tmp_path: Path) -> None:
    """A convolutional network, calibrated on one size, at five."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, stride=2, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4),
    ).eval()  # fmt: skip
    args = (torch.randn(1, 3, 16, 16),)
    shapes = ({0: "batch", 2: "height", 3: "width"},)
    fused = transform(model, args, target=TARGET, dynamic_shapes=shapes).model
    data = [torch.randn(4, 3, 16, 16), torch.randn(4, 3, 24, 8)]
    simulated = quantize(fused, args, forward_loop=data, target=TARGET)
    path = export_onnx(simulated, args, tmp_path / "net.onnx", target=TARGET, dynamic_shapes=shapes)
    samples = [torch.randn(1, 3, *size) for size in ((16, 16), (8, 8), (33, 17), (64, 16), (5, 40))]
    result = verify_shapes(path, samples, original=model, simulated=simulated, target=TARGET)
    assert result.passed, str(result)
    assert {row.shape for row in result.rows} >= {"batch 1, height 33, width 17"}


@pytest.mark.slow
def test_a_rewrite_for_one_size_only_is_refused_when_sizes_stay_open() -> None:
    """Swin's windows are cut for one picture size; the report says so, and the model stays right at others."""
    from torchvision.models.swin_transformer import SwinTransformer

    torch.manual_seed(0)
    model = SwinTransformer([4, 4], 16, [2], [2], [4, 4], num_classes=4).eval()
    args = (torch.randn(1, 3, 32, 32),)
    result = transform(model, args, target=TARGET, dynamic_shapes=({2: "height", 3: "width"},))
    reasons = [refusal.reason for refusal in result.report.refusals if "Window" in refusal.pattern]
    assert len(reasons) == 2
    assert all("for one size only" in reason for reason in reasons)
    other = torch.randn(1, 3, 48, 64)
    torch.testing.assert_close(result.model(other), model(other))
