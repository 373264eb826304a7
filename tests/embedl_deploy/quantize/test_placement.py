"""Where pairs go, per backend, and the rule behind every decision."""

from dataclasses import replace

import pytest
import torch
from support.quantized_nets import Mixer, ratio_db, residual
from torch import fx, nn

from embedl_deploy import transform
from embedl_deploy.backend import Backend
from embedl_deploy.nn import QuantStub
from embedl_deploy.onnxruntime import ONNXRUNTIME
from embedl_deploy.pattern import Point
from embedl_deploy.quantize import (
    ModulesToSkip,
    Placement,
    QuantConfig,
    insert_qdq,
    plan_qdq,
    quantization_of,
    quantize,
)
from embedl_deploy.tensorrt import TENSORRT, QuantizedAttentionPattern


def plan(model: nn.Module, value: torch.Tensor, backend: Backend) -> Placement:
    """Transform and place."""
    return plan_qdq(transform(model.eval(), (value,), backend).model, (value,), backend=backend)


def points(placement: Placement) -> dict[str, tuple[Point, ...]]:
    """Return every layer's points."""
    return {one.place: one.points for one in placement.layers}


def test_tensorrt_quantizes_the_residual_and_not_the_branch() -> None:
    """Input, weight and skip; no pair between convolution and add."""
    model, value = residual(TENSORRT)
    placement = plan_qdq(model, (value,), backend=TENSORRT)
    found = points(placement)
    assert found["conv2"] == (Point.INPUT, Point.WEIGHT, Point.RESIDUAL_INPUT)
    assert found["conv1"] == (Point.INPUT, Point.WEIGHT)
    quantized = insert_qdq(model, placement)
    inner = quantized.get_submodule("conv2.conv.output")
    assert isinstance(inner, QuantStub)
    assert not inner.quantizes


def test_one_pair_per_value() -> None:
    """The block's input feeds a convolution and a skip: one scale for both."""
    model, value = residual(TENSORRT)
    quantized = insert_qdq(model, plan_qdq(model, (value,), backend=TENSORRT))
    users = {
        str(node.target): sorted(str(user.target) for user in node.users)
        for node in quantized.graph.nodes
        if str(node.target).startswith("stubs.") and len(node.users) > 1
    }
    assert users == {"stubs.stem": ["conv1", "conv2"], "stubs.conv2": ["conv3", "down"]}


def test_onnxruntime_quantizes_both_sides() -> None:
    """Convolutions in and out, sums in and out, the pooling with one scale, the head on its input alone."""
    model, value = residual(ONNXRUNTIME)
    placement = plan_qdq(model, (value,), backend=ONNXRUNTIME)
    found = points(placement)
    assert found["conv1"] == (Point.INPUT, Point.WEIGHT, Point.OUTPUT)
    assert found["add"] == (Point.INPUT, Point.OUTPUT)
    assert found["head"] == (Point.INPUT, Point.WEIGHT)
    groups = {one.value.removesuffix("_1"): one.group for one in placement.boundaries}
    assert groups["pool"] == groups["stem"] != groups["average"]
    assert groups["flatten"] == groups["average"]
    assert all(one.quantized for one in placement.layers if one.layer != "Flatten")


@pytest.mark.parametrize("backend", [TENSORRT, ONNXRUNTIME], ids=lambda one: one.name)
def test_normalization_and_residual_of_a_transformer_stay_float(backend: Backend) -> None:
    """Only the fully connected layers are quantized; every decision has its rule."""
    placement = plan(Mixer(), torch.randn(2, 8, 32), backend)
    assert {one.place for one in placement.quantized} == {"up", "down"}
    assert all(one.rule for one in placement.layers)
    assert "It stays float" in str(placement)


class Cat(nn.Module):
    """Two convolutions, concatenated, into a third."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Conv2d(16, 16, 1), nn.Conv2d(16, 16, 1), nn.Conv2d(32, 16, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Concatenate."""
        out: torch.Tensor = self.c(torch.cat([self.a(x), self.b(x)], 1))
        return out


@pytest.mark.parametrize(("backend", "scales"), [(TENSORRT, 1), (ONNXRUNTIME, 3)], ids=["tensorrt", "onnxruntime"])
def test_concat(backend: Backend, scales: int) -> None:
    """TensorRT: inputs and result have one scale; ONNX Runtime: any scales."""
    placement = plan(Cat(), torch.randn(2, 16, 8, 8), backend)
    groups = {one.value.removesuffix("_1"): one.group for one in placement.boundaries if one.quantizes}
    assert len({groups["a"], groups["b"], groups["cat"]}) == scales


@pytest.mark.parametrize(
    ("layer", "shape", "reason"),
    [
        (nn.Linear(8, 32), (4, 8), "8 inputs and 32 outputs are fewer than 16"),
        (nn.Linear(32, 32), (1, 32), "matrix times a vector"),
        (nn.Conv2d(3, 12, 3), (1, 3, 8, 8), "3 to 12 channels are too few"),
        (nn.Conv2d(8, 8, 1, groups=2), (1, 8, 8, 8), "a grouped convolution of 8 channels"),
        (nn.Conv2d(3, 16, (3, 5)), (1, 3, 8, 8), "3 to 16 channels are too few"),
    ],
)
def test_tensorrt_leaves_small_shapes(layer: nn.Module, shape: tuple[int, ...], reason: str) -> None:
    """A layer without an int8 kernel stays float, and the rule says why."""
    (decision,) = plan(nn.Sequential(layer), torch.randn(shape), TENSORRT).layers
    assert not decision.quantized
    assert reason in decision.rule


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (nn.Conv2d(3, 16, 3), (1, 3, 8, 8)),
        (nn.Conv2d(8, 8, 3, groups=8), (1, 8, 8, 8)),
        (nn.Conv2d(8, 32, 3), (1, 8, 8, 8)),
        (nn.Linear(16, 16), (2, 16)),
    ],
)
def test_tensorrt_exceptions_to_the_small_shapes(layer: nn.Module, shape: tuple[int, ...]) -> None:
    """The first layer, depthwise kernels, eight channels into many."""
    (decision,) = plan(nn.Sequential(layer), torch.randn(shape), TENSORRT).layers
    assert decision.quantized


@pytest.mark.parametrize("member", ["conv1", nn.Conv2d, "instance"])
def test_skip_by_name_type_and_instance(member: object) -> None:
    """What is skipped has neither pair nor quantized weight."""
    model, value = residual(TENSORRT)
    chosen = model.get_submodule("conv1") if member == "instance" else member
    config = QuantConfig(skip=ModulesToSkip.layers(chosen))  # type: ignore[arg-type]
    decisions = {one.place: one for one in plan_qdq(model, (value,), config, backend=TENSORRT).layers}
    assert decisions["conv1"].rule == "skipped by the user"
    assert decisions["conv2"].quantized is (member is not nn.Conv2d)


def test_partial_skips() -> None:
    """Weights alone stay float; the rule says so."""
    model, value = residual(TENSORRT)
    config = QuantConfig(skip=ModulesToSkip(weight=["conv1"]))
    decisions = {one.place: one for one in plan_qdq(model, (value,), config, backend=TENSORRT).layers}
    assert decisions["conv1"].points == (Point.INPUT,)
    assert "partly skipped" in decisions["conv1"].rule


def test_the_original_is_not_changed() -> None:
    """The copy has weights of its own."""
    model, value = residual(TENSORRT)
    before = {name: one.clone() for name, one in model.state_dict().items()}
    quantized = insert_qdq(model, plan_qdq(model, (value,), backend=TENSORRT))
    assert isinstance(quantized, fx.GraphModule)
    with torch.no_grad():
        for one in quantized.parameters():
            one.zero_()
    assert all(torch.equal(one, before[name]) for name, one in model.state_dict().items())


class Attend(nn.Module):
    """Self-attention."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(32, 4, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Attend."""
        out: torch.Tensor = self.attention(x, x, x, need_weights=False)[0]
        return out


@pytest.mark.parametrize(("length", "quantized"), [(16, True), (600, False)])
def test_attention_on_request(length: int, quantized: bool) -> None:
    """With its pattern in front, short attention has a pair before every operand; a softmax needs no data."""
    backend = replace(TENSORRT, quantized_patterns=(QuantizedAttentionPattern, *TENSORRT.quantized_patterns))
    value = torch.randn(2, length, 32)
    model = transform(Attend().eval(), (value,), backend).model
    result = quantize(model, (value,), None, [value], backend=backend)
    (decision,) = (one for one in quantization_of(result).placement.layers if one.layer == "FusedAttention")
    assert decision.quantized is quantized
    if not quantized:
        assert "more than 512" in decision.rule
        return
    weights = result.get_submodule(f"{decision.place}.attention.weights")
    assert isinstance(weights, QuantStub)
    assert float(weights.scale) == pytest.approx(1 / 127)
    with torch.no_grad():
        assert ratio_db(model(value), result(value)) > 25


def test_a_type_is_skipped_by_its_name() -> None:
    """As by the type itself."""
    model, value = residual(ONNXRUNTIME)
    named, typed = (
        plan_qdq(model, (value,), QuantConfig(skip=ModulesToSkip.layers(one)), backend=ONNXRUNTIME)
        for one in ("Linear", nn.Linear)
    )
    assert named == typed
    assert [one.rule for one in named.layers if one.place == "head"] == ["skipped by the user"]


def test_what_only_moves_values_is_said_so() -> None:
    """A flatten has no kernel because it needs none."""
    model, value = residual(ONNXRUNTIME)
    rules = {one.layer: one.rule for one in plan_qdq(model, (value,), backend=ONNXRUNTIME).layers}
    assert rules["Flatten"] == "it only moves values, in the numbers they come in"
