"""Models for the ExecuTorch tests: one with Q/DQ as its partitioner takes it in, and small ones of single operators."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

SHAPE = (1, 3, 12, 12)


class _Net:
    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.tensors: list[onnx.TensorProto] = []

    def constant(self, name: str, array: np.ndarray) -> str:
        self.tensors.append(numpy_helper.from_array(array, name))
        return name

    def node(self, kind: str, inputs: list[str], output: str, **attributes: Any) -> str:
        self.nodes.append(helper.make_node(kind, inputs, [output], name=f"{output}_node", **attributes))
        return output

    def rounded(self, name: str, scale: float, zero_point: int) -> str:
        """Put Q and DQ behind a tensor."""
        numbers = [
            self.constant(f"{name}/scale", np.array(scale, np.float32)),
            self.constant(f"{name}/zero", np.array(zero_point, np.int8)),
        ]
        self.node("QuantizeLinear", [name, *numbers], f"{name}/q")
        return self.node("DequantizeLinear", [f"{name}/q", *numbers], f"{name}/dq")

    def weight(self, name: str, shape: tuple[int, ...], axis: int = 0) -> str:
        real = np.random.default_rng(len(name)).normal(size=shape).astype(np.float32) * 0.2
        rest = tuple(other for other in range(len(shape)) if other != axis)
        scale = (np.abs(real).max(axis=rest) / 127).astype(np.float32)
        spread = scale.reshape([-1 if other == axis else 1 for other in range(len(shape))])
        self.constant(f"{name}/codes", np.clip(np.round(real / spread), -127, 127).astype(np.int8))
        self.constant(f"{name}/scale", scale)
        self.constant(f"{name}/zero", np.zeros(scale.shape, np.int8))
        return self.node("DequantizeLinear", [f"{name}/codes", f"{name}/scale", f"{name}/zero"], name, axis=axis)


def quantized_net() -> onnx.ModelProto:
    """Return a net of eight operators, seven of them between Q and DQ; the last is a softmax in float."""
    net = _Net()
    x = net.rounded("x", 0.03, 0)
    bias = net.constant("bias", np.linspace(-0.1, 0.1, 8, dtype=np.float32))
    net.node("Conv", [x, net.weight("w1", (8, 3, 3, 3)), bias], "conv", pads=[1, 1, 1, 1])
    net.node("Relu", ["conv"], "relu")
    first = net.rounded("relu", 0.02, -128)
    net.node("Conv", [first, net.weight("w22", (8, 8, 1, 1))], "point")
    net.node("Add", [first, net.rounded("point", 0.02, 3)], "sum")
    net.node("MaxPool", [net.rounded("sum", 0.03, -20)], "pool", kernel_shape=[2, 2], strides=[2, 2])
    net.node("GlobalAveragePool", [net.rounded("pool", 0.03, -20)], "mean")
    net.node("Flatten", [net.rounded("mean", 0.02, -20)], "flat")
    net.node("MatMul", [net.rounded("flat", 0.02, -20), net.weight("w333", (8, 4), axis=1)], "product")
    net.node("Add", ["product", net.constant("offset", np.array([0.1, -0.2, 0.3, 0.0], np.float32))], "scores")
    net.node("Softmax", [net.rounded("scores", 0.02, 0)], "y", axis=-1)
    graph = helper.make_graph(
        net.nodes,
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, list(SHAPE))],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 4])],
        net.tensors,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    modules = {"conv_node": ["stem.conv"], "product_node": ["head"], "y_node": ["head.softmax"]}
    helper.set_model_props(model, {"edgeproof.modules": json.dumps(modules)})
    return model


def one_node(
    kind: str, inputs: dict[str, np.ndarray], known: dict[str, np.ndarray], *, opset: int = 21, outputs: int = 1,
    **attributes: Any,
) -> onnx.ModelProto:  # fmt: skip
    """Return a model of one operator; an input that is named ``-`` is left out."""
    names = [*inputs, *known]
    ends = [f"y{number}" for number in range(outputs)]
    node = helper.make_node(
        kind, ["" if name.startswith("-") else name for name in names], ends, name="it", **attributes
    )
    given = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
        for name, array in inputs.items()
    ]
    ends_info = [helper.make_empty_tensor_value_info(name) for name in ends]
    tensors = [numpy_helper.from_array(array, name) for name, array in known.items() if not name.startswith("-")]
    graph = helper.make_graph([node], "one", given, ends_info, tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)
