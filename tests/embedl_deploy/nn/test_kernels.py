"""Eval mode of a model made for ONNX Runtime computes what its kernels compute, to the bit."""

from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from support.families import exact_outputs
from support.quantized_nets import settled
from torch import nn

from embedl_deploy import transform
from embedl_deploy.export import export_onnx
from embedl_deploy.nn import NumberFormat, Precision, QuantizedConv, QuantizedElementwise
from embedl_deploy.nn.kernels import EXACT, largest_sum, sums
from embedl_deploy.onnxruntime import ONNXRUNTIME
from embedl_deploy.quantize import quantize
from embedl_deploy.tensorrt import TENSORRT


class Gated(nn.Module):
    """A residual block with a gate, a global average and a linear layer: one of every integer kernel."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm, self.relu = nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU()
        self.deep = nn.Conv2d(16, 16, 3, padding=1, groups=16)
        self.squeeze, self.up, self.gate = nn.AdaptiveAvgPool2d(1), nn.Conv2d(16, 16, 1), nn.Hardsigmoid()
        self.pool, self.head = nn.AdaptiveAvgPool2d(1), nn.Linear(16, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Run."""
        x = self.relu(self.norm(self.stem(x)))
        y = self.deep(x)
        y = y * self.gate(self.up(self.squeeze(y)))
        out: torch.Tensor = self.head(self.pool(x + y).flatten(1))
        return out


def test_every_output_equals_the_runtime(tmp_path: Path) -> None:
    """Sums, biases, products, averages: not one output differs over many pictures."""
    value = torch.randn(64, 3, 12, 12)
    model = transform(settled(Gated(), 8, 3, 12, 12), (value[:2],), ONNXRUNTIME).model
    quantized = quantize(model, (value[:2],), None, [value], backend=ONNXRUNTIME)
    assert sum(isinstance(one, QuantizedElementwise) for one in quantized.modules()) == 4
    path = export_onnx(
        quantized, (value[:2],), tmp_path / "gated.onnx", dialect="onnxruntime-x86-vnni", dynamic_batch=True
    )
    file = onnx.load(path)
    ((found,),) = exact_outputs(file, [{file.graph.input[0].name: value.numpy()}])
    with torch.no_grad():
        assert np.array_equal(quantized(value).numpy(), found)


def test_gradients_are_those_of_the_float_sums() -> None:
    """With gradients on, eval mode gives the same values and a gradient that is not zero."""
    value = torch.randn(4, 3, 12, 12)
    model = transform(settled(Gated(), 8, 3, 12, 12), (value,), ONNXRUNTIME).model
    quantized = quantize(model, (value,), None, [value], backend=ONNXRUNTIME)
    with torch.no_grad():
        plain = quantized(value)
    given = value.clone().requires_grad_()
    traced = quantized(given)
    traced.square().sum().backward()
    assert torch.equal(plain, traced)
    assert given.grad is not None
    assert float(given.grad.abs().sum()) > 0


def test_a_target_with_float_sums_keeps_them() -> None:
    """TensorRT's bias is float, so no layer is told of a grid."""
    value = torch.randn(4, 3, 12, 12)
    model = transform(settled(Gated(), 8, 3, 12, 12), (value,), TENSORRT).model
    quantized = quantize(model, (value,), None, [value], backend=TENSORRT)
    assert all(one.grid is None for one in quantized.modules() if isinstance(one, QuantizedConv))


@pytest.mark.parametrize("size", [64, 4096])
def test_sums_are_exact_whatever_their_size(size: int) -> None:
    """Beyond 2^24 the sums are taken in float64, and only then rounded to float32."""
    weight = torch.randint(60, 128, (8, size)).float()
    values = torch.randint(200, 256, (5, size)).float()
    bias = torch.randint(-1000, 1000, (8,)).float()
    bound = largest_sum(weight, NumberFormat(Precision.INT8, signed=False), torch.zeros(()))
    assert (bound >= EXACT) == (size == 4096)
    wanted = (values.long() @ weight.long().T + bias.long()).float()
    assert torch.equal(sums(values, weight, bias, bound, nn.functional.linear), wanted)
