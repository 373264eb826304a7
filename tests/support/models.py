"""ONNX models made on the spot."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import embedl_kernels


def weights(name: str, *shape: int, seed: int = 0) -> onnx.TensorProto:
    """Return random weights."""
    values = np.random.default_rng(seed + len(name)).normal(size=shape) * 0.1
    return numpy_helper.from_array(values.astype(np.float32), name)


def ones(name: str, size: int) -> onnx.TensorProto:
    """Return a vector of ones."""
    return numpy_helper.from_array(np.ones(size, np.float32), name)


def all_bits_product(*, requires: bool) -> onnx.ModelProto:
    """Return a product of u8 × s8 with all 8 bits, which kernels without VNNI saturate; it says so if asked to."""
    graph = helper.make_graph(
        [helper.make_node("MatMulInteger", ["x", "w"], ["y"], name="product")],
        "product",
        [helper.make_tensor_value_info("x", TensorProto.UINT8, [2, 64])],
        [helper.make_tensor_value_info("y", TensorProto.INT32, [2, 16])],
        [numpy_helper.from_array(np.full((64, 16), 127, np.int8), "w")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    if requires:
        helper.set_model_props(model, {embedl_kernels.REQUIRES: embedl_kernels.EXACT_U8S8})
    return model


def residual_net(batch: int | str = 1, *, size: int = 16, opset: int = 17, named: bool = True) -> onnx.ModelProto:
    """Return a net with everything that gets fused: conv, norm, relu, residual addition, pool, matmul and bias."""
    nodes = [
        helper.make_node("Conv", ["x", "w0"], ["c0"], name="conv/0", pads=[1, 1, 1, 1]),
        helper.make_node("BatchNormalization", ["c0", "s", "b", "m", "v"], ["n0"], name="norm/0"),
        helper.make_node("Relu", ["n0"], ["r0"], name="relu/0"),
        helper.make_node("Conv", ["r0", "w1"], ["c1"], name="conv/1", pads=[1, 1, 1, 1]),
        helper.make_node("Add", ["c1", "r0"], ["a1"], name="add/1"),
        helper.make_node("Relu", ["a1"], ["r1"], name="relu/1"),
        helper.make_node("GlobalAveragePool", ["r1"], ["p"], name="pool"),
        helper.make_node("Flatten", ["p"], ["f"], name="flat"),
        helper.make_node("MatMul", ["f", "w2"], ["mm"], name="fc"),
        helper.make_node("Add", ["mm", "b2"], ["y"], name="bias"),
    ]
    if not named:
        for node in nodes:
            node.name = ""
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [batch, 3, size, size])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [batch, 10])],
        [
            weights("w0", 16, 3, 3, 3), weights("w1", 16, 16, 3, 3), weights("w2", 16, 10), weights("b2", 10),
            *(ones(name, 16) for name in "sbmv"),
        ],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def two_input_net() -> onnx.ModelProto:
    """Return a sum of two inputs that share their batch, one of them with a further open size."""
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["a", "w"], ["aw"], name="matmul"),
            helper.make_node("Add", ["aw", "b"], ["y"], name="add"),
        ],
        "two",
        [
            helper.make_tensor_value_info("a", TensorProto.FLOAT, ["n", 4]),
            helper.make_tensor_value_info("b", TensorProto.FLOAT, ["n", 8]),
        ],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 8])],
        [weights("w", 4, 8)],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def save(model: onnx.ModelProto, path: Path) -> Path:
    """Write a model and return its path."""
    onnx.save(model, path)
    return path


def images(count: int = 1, *, size: int = 16, seed: int = 1) -> np.ndarray:
    """Return random pictures for the residual net."""
    return np.random.default_rng(seed).normal(size=(count, 3, size, size)).astype(np.float32)


class _Builder:
    """Collects nodes and random weights of a larger net."""

    def __init__(self, seed: int = 0) -> None:
        self.random = np.random.default_rng(seed)
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []

    def constant(self, name: str, values: np.ndarray) -> str:
        self.constants.append(numpy_helper.from_array(values.astype(np.float32), name))
        return name

    def node(self, op_type: str, inputs: list[str], **attributes: Any) -> str:
        name = f"{op_type}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(op_type, inputs, [f"{name}_out"], name=name, **attributes))
        return f"{name}_out"

    def conv(self, tensor: str, into: int, out: int, size: int, stride: int = 1, group: int = 1) -> str:
        """Add a convolution with its norm."""
        number, fan = len(self.nodes), into // group * size * size
        kernel = self.random.normal(size=(out, into // group, size, size)) * np.sqrt(2 / fan)
        found = self.node(
            "Conv",
            [tensor, self.constant(f"w{number}", kernel)],
            pads=[size // 2] * 4,
            strides=[stride] * 2,
            group=group,
        )
        norm = [self.random.uniform(0.8, 1.2, out), self.random.normal(size=out) * 0.1,
                self.random.normal(size=out) * 0.1, self.random.uniform(0.8, 1.2, out)]  # fmt: skip
        names = [self.constant(f"n{number}_{index}", values) for index, values in enumerate(norm)]
        return self.node("BatchNormalization", [found, *names])

    def relu6(self, tensor: str) -> str:
        if not any(value.name == "six" for value in self.constants):
            self.constant("zero", np.array(0.0))
            self.constant("six", np.array(6.0))
        return self.node("Clip", [tensor, "zero", "six"])

    def model(self, tensor: str, channels: int) -> onnx.ModelProto:
        """Add pool and classifier and return the model."""
        flat = self.node("Flatten", [self.node("GlobalAveragePool", [tensor])])
        weight = self.constant("head", self.random.normal(size=(1000, channels)) * np.sqrt(1 / channels))
        self.node("Gemm", [flat, weight, self.constant("head_bias", np.zeros(1000))], transB=1)
        self.nodes[-1].output[0] = "scores"
        graph = helper.make_graph(
            self.nodes, "net",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3, 224, 224])],
            [helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["n", 1000])],
            self.constants,
        )  # fmt: skip
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def resnet50() -> onnx.ModelProto:
    """Return a net of ResNet-50's shape with random weights."""
    net = _Builder()
    tensor = net.node("Relu", [net.conv("x", 3, 64, 7, 2)])
    tensor = net.node("MaxPool", [tensor], kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    into = 64
    for stage, (width, blocks) in enumerate([(64, 3), (128, 4), (256, 6), (512, 3)]):
        for block in range(blocks):
            stride = 2 if block == 0 and stage else 1
            branch = net.node("Relu", [net.conv(tensor, into, width, 1)])
            branch = net.node("Relu", [net.conv(branch, width, width, 3, stride)])
            branch = net.conv(branch, width, width * 4, 1)
            side = net.conv(tensor, into, width * 4, 1, stride) if block == 0 else tensor
            tensor = net.node("Relu", [net.node("Add", [branch, side])])
            into = width * 4
    return net.model(tensor, into)


def mobilenet_v2() -> onnx.ModelProto:
    """Return a net of MobileNetV2's shape with random weights."""
    net = _Builder(1)
    tensor = net.relu6(net.conv("x", 3, 32, 3, 2))
    into = 32
    rows = [(1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1)]
    for factor, out, blocks, first_stride in rows:
        for block in range(blocks):
            stride, wide = (first_stride if block == 0 else 1), into * factor
            branch = tensor if factor == 1 else net.relu6(net.conv(tensor, into, wide, 1))
            branch = net.conv(net.relu6(net.conv(branch, wide, wide, 3, stride, group=wide)), wide, out, 1)
            tensor = net.node("Add", [branch, tensor]) if stride == 1 and into == out else branch
            into = out
    return net.model(net.relu6(net.conv(tensor, into, 1280, 1)), 1280)
