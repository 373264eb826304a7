"""The arithmetic of a pair is ONNX's, to the bit."""

import numpy as np
import onnxruntime
import pytest
import torch
from onnx import TensorProto, helper

from embedl_deploy.nn import NumberFormat, Precision, fake_quantize

TYPES = {
    "int8": (TensorProto.INT8, NumberFormat()),
    "uint8": (TensorProto.UINT8, NumberFormat(signed=False)),
    "int16": (TensorProto.INT16, NumberFormat(Precision.INT16)),
    "uint16": (TensorProto.UINT16, NumberFormat(Precision.INT16, signed=False)),
    "float8e4m3fn": (TensorProto.FLOAT8E4M3FN, NumberFormat(Precision.FP8)),
}


def runtime(value: torch.Tensor, scale: float, zero_point: int, kind: int) -> torch.Tensor:
    """Quantize and dequantize in ONNX Runtime, with every optimization off."""
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["y"]),
    ]
    tensors = [helper.make_tensor("s", TensorProto.FLOAT, [], [scale]), helper.make_tensor("z", kind, [], [zero_point])]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n"]) for name in "xy"]
    graph = helper.make_graph(nodes, "pair", ends[:1], ends[1:], tensors)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    (found,) = session.run(None, {"x": value.numpy()})
    return torch.from_numpy(np.asarray(found))


@pytest.mark.parametrize("name", TYPES)
def test_equal_to_onnx_runtime(name: str) -> None:
    """Random values, half steps, and values far outside."""
    kind, form = TYPES[name]
    zero_point = 0 if form.signed else 37
    scale = 0.0123
    value = torch.cat(
        [torch.randn(5000), (torch.arange(-300, 300) + 0.5) * torch.tensor(scale), torch.tensor([1e6, -1e6])]
    )
    ours = fake_quantize(value, torch.tensor(scale), torch.tensor(float(zero_point)), form)
    assert torch.equal(ours, runtime(value, scale, zero_point, kind))


def test_straight_through() -> None:
    """Gradients pass inside the range and stop outside."""
    value = torch.tensor([0.3, -0.2, 99.0], requires_grad=True)
    fake_quantize(value, torch.tensor(0.1), torch.zeros(()), NumberFormat()).sum().backward()  # type: ignore[no-untyped-call]
    assert value.grad is not None
    assert value.grad.tolist() == [1.0, 1.0, 0.0]


def test_the_gradient_of_a_scale() -> None:
    """Inside: rounding error in steps; outside: the end code; damped by the number of values and codes."""
    scale = torch.tensor(0.1, requires_grad=True)
    value = torch.tensor([0.33, 99.0])
    fake_quantize(value, scale, torch.zeros(()), NumberFormat()).sum().backward()  # type: ignore[no-untyped-call]
    assert scale.grad is not None
    assert float(scale.grad) == pytest.approx((3 - 3.3 + 127) * (2 * 127) ** -0.5, rel=1e-4)
