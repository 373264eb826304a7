"""Models for the device program's tests, made on the spot."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

MakeModel = Callable[..., Path]


def build(batch: int | str = 1, *, name: str = "conv", dtype: int = TensorProto.FLOAT) -> onnx.ModelProto:
    """Return a small convolution network: conv, relu, pool, flatten."""
    weights = np.random.default_rng(0).normal(size=(4, 3, 3, 3)).astype(np.float32)
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], name=f"{name}/0", pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c"], ["r"], name="relu/0"),
        helper.make_node("GlobalAveragePool", ["r"], ["p"], name='po"ol\\q'),
        helper.make_node("Flatten", ["p"], ["y/out"], name="flat"),
    ]
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info("x", dtype, [batch, 3, 8, 8])],
        [helper.make_tensor_value_info("y/out", TensorProto.FLOAT, [batch, 4])],
        [numpy_helper.from_array(weights, "w")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.fixture
def make_model(tmp_path: Path) -> MakeModel:
    """Write a model and return its path."""

    def make(batch: int | str = 1, **options: object) -> Path:
        path = tmp_path / "model.onnx"
        onnx.save(build(batch, **options), path)  # type: ignore[arg-type]
        return path

    return make
