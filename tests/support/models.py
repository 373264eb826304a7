"""ONNX models made on the spot."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


def weights(name: str, *shape: int, seed: int = 0) -> onnx.TensorProto:
    """Return random weights."""
    values = np.random.default_rng(seed + len(name)).normal(size=shape) * 0.1
    return numpy_helper.from_array(values.astype(np.float32), name)


def ones(name: str, size: int) -> onnx.TensorProto:
    """Return a vector of ones."""
    return numpy_helper.from_array(np.ones(size, np.float32), name)


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
