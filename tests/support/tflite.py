"""Models for the TFLite tests, and the converter's environment, made once and kept beside this Python's packages."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

SHARED_CACHE = Path(sys.prefix) / "edgeproof-test-cache"


def picture_net(size: tuple[int, int] = (8, 10)) -> onnx.ModelProto:
    """Return a net with names that need another spelling and a picture among its outputs."""
    weights = np.random.default_rng(0).normal(size=(4, 3, 3, 3)).astype(np.float32)
    height, width = size
    nodes = [
        helper.make_node("Conv", ["x:0", "w"], ["c"], name="conv", pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c"], ["r"], name="relu"),
        helper.make_node("GlobalAveragePool", ["r"], ["p"], name="pool"),
        helper.make_node("Flatten", ["p"], ["y"], name="flat"),
        helper.make_node("Sigmoid", ["c"], ["map"], name="sigmoid"),
    ]
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info("x:0", TensorProto.FLOAT, [1, 3, height, width])],
        [
            helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 4]),
            helper.make_tensor_value_info("map", TensorProto.FLOAT, [1, 4, height, width]),
        ],
        [numpy_helper.from_array(weights, "w")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def foreign_net() -> onnx.ModelProto:
    """Return a net with an operator that nobody knows."""
    graph = helper.make_graph(
        [
            helper.make_node("Relu", ["x"], ["r"], name="first"),
            helper.make_node("Swizzle", ["r"], ["y"], name="my swizzle", domain="org.example"),
        ],
        "foreign",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 4])],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("org.example", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def pictures(count: int, size: tuple[int, int] = (8, 10), seed: int = 1) -> np.ndarray:
    """Return random pictures for the picture net."""
    return np.random.default_rng(seed).normal(size=(count, 3, *size)).astype(np.float32)
