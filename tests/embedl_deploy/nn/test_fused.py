"""What fused modules do when they are quantized: where their stubs stand, and what they compute then."""

import pytest
import torch
from torch import nn

from embedl_deploy import transform
from embedl_deploy.backend import Backend, discover_backends
from embedl_deploy.export._frozen import FrozenLinear
from embedl_deploy.nn import (
    FusedLinearReLU,
    FusedSiLU,
    NumberFormat,
    Precision,
    QuantizedElementwise,
    QuantizedLinear,
    QuantSpec,
    QuantStub,
)
from embedl_deploy.nn.quantizers import Grid
from embedl_deploy.onnxruntime import ONNXRUNTIME
from embedl_deploy.pattern import Point
from embedl_deploy.quantize import quantize

FORM = NumberFormat(Precision.INT8, signed=False)
ALL = (Point.INPUT, Point.WEIGHT, Point.OUTPUT)


def _spec(*points: Point) -> QuantSpec:
    return QuantSpec("layer", points, FORM)


@pytest.mark.parametrize(("act", "cut"), [(nn.ReLU(), False), (nn.ReLU6(), False), (nn.GELU(), True)])
def test_a_linear_has_a_stub_before_an_activation_that_is_not_a_clamp(act: nn.Module, cut: bool) -> None:
    layer = FusedLinearReLU(nn.Linear(8, 4), act)
    layer.quantize(_spec(*ALL))
    assert isinstance(layer.linear, QuantizedLinear)
    stub = layer.linear.output
    assert (stub is not None) is cut
    if stub is not None:
        assert stub.quantizes
        assert stub.label == "layer.linear"


def test_the_stub_is_watched_only_where_the_result_is_not_quantized() -> None:
    layer = FusedLinearReLU(nn.Linear(8, 4), nn.GELU())
    layer.quantize(_spec(Point.INPUT, Point.WEIGHT))
    assert isinstance(layer.linear, QuantizedLinear)
    assert layer.linear.output is not None
    assert not layer.linear.output.quantizes


def test_a_linear_with_a_quantized_result_computes_what_an_integer_kernel_does() -> None:
    torch.manual_seed(0)
    layer = FusedLinearReLU(nn.Linear(16, 4), nn.GELU()).eval()
    layer.quantize(_spec(*ALL))
    linear = layer.linear
    assert isinstance(linear, QuantizedLinear)
    assert linear.output is not None
    assert linear.weight_quantizer is not None
    given = QuantStub("input", FORM, quantizes=True)
    for stub in (given, linear.output):
        stub.set_range(-2.0, 2.0)
    linear.weight_quantizer.calibrate(linear.folded()[0])
    layer.attach_stubs((given,), None)
    assert linear.grid == Grid((given,), linear.output)
    value = given(torch.randn(3, 5, 16))
    with torch.no_grad():
        result = linear(value)
    step = float(linear.output.scale)
    codes = result / step
    assert torch.allclose(codes, codes.round(), atol=1e-3)
    with torch.no_grad():
        smooth = linear.run(value, linear.weight_quantizer(linear.source.weight), linear.source.bias)
    assert (result - smooth).abs().max() <= 0.51 * step


def test_silu_quantizes_its_sigmoid() -> None:
    layer = FusedSiLU(nn.SiLU())
    value = torch.linspace(-6, 6, 101)
    assert torch.equal(layer(value), nn.functional.silu(value))
    layer.quantize(_spec(Point.INPUT, Point.OUTPUT))
    assert layer.sigmoid is not None
    assert torch.allclose(layer(value), nn.functional.silu(value), atol=1e-6)
    layer.sigmoid.set_range(0.0, 1.0)
    assert torch.equal(layer(value), value * layer.sigmoid.rounded(torch.sigmoid(value)))
    assert not torch.allclose(layer(value), nn.functional.silu(value), atol=1e-4)


def test_onnxruntime_makes_a_layer_of_silu() -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.SiLU(), nn.Conv2d(8, 8, 3)).eval()
    result = transform(model, (torch.randn(1, 3, 8, 8),), ONNXRUNTIME)
    assert [type(part).__name__ for part in result.model.children()] == ["FusedConvBN", "FusedSiLU", "FusedConvBN"]
    assert result.report.proof is not None
    assert result.report.proof.verdict == "exact"


def test_the_stub_behind_a_linear_is_written_to_the_file() -> None:
    layer = FusedLinearReLU(nn.Linear(8, 4), nn.GELU()).eval()
    layer.quantize(_spec(*ALL))
    assert isinstance(layer.linear, QuantizedLinear)
    assert layer.linear.weight_quantizer is not None
    layer.linear.weight_quantizer.calibrate(layer.linear.folded()[0])
    frozen = FrozenLinear(layer.linear)
    assert frozen.output is not None
    assert frozen.output.label == "layer.linear"


@pytest.mark.parametrize(("size", "on_integers"), [(1, True), ((1, 1), True), (3, False), ((3, 1), False)])
@pytest.mark.parametrize("backend", ["onnxruntime", "tensorrt"])
def test_only_a_global_pooling_runs_on_integers(size: int | tuple[int, int], on_integers: bool, backend: str) -> None:
    torch.manual_seed(0)
    layers = nn.Conv2d(3, 16, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(size), nn.Conv2d(16, 16, 1)
    model = nn.Sequential(*layers).eval()
    value = torch.randn(2, 3, 9, 9)
    result = quantize(transform(model, (value,), discovered(backend)).model, (value,), backend=backend)
    found = [type(part).__name__ for part in result.modules() if isinstance(part, QuantizedElementwise)]
    assert bool(found) is (on_integers and backend == "onnxruntime")
    with torch.no_grad():
        torch.testing.assert_close(result(value), model(value), rtol=0, atol=0.05)


def discovered(name: str) -> Backend:
    return next(backend for backend in discover_backends() if backend.name == name)


def test_an_activation_in_place_follows_an_integer_layer_that_has_a_gradient() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(inplace=True), nn.Linear(16, 4)).eval()
    value = torch.randn(4, 8)
    result = quantize(transform(model, (value,), ONNXRUNTIME).model, (value,), backend="onnxruntime")
    result(value).sum().backward()
    assert all(parameter.grad is not None for parameter in result.parameters() if parameter.requires_grad)
