"""A quantized ONNX model made on the spot."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper


def quantized_net(batch: int | str = 1) -> onnx.ModelProto:
    """Return a convolution between QuantizeLinear and DequantizeLinear nodes, as quantizers for TensorRT write it."""
    random = np.random.default_rng(7)
    values: dict[str, np.ndarray] = {
        "w": random.integers(-127, 128, size=(8, 3, 3, 3)).astype(np.int8),
        "w_scale": np.full(8, 0.01, np.float32),
        "w_zero": np.zeros(8, np.int8),
        "scale": np.array(0.05, np.float32),
        "zero": np.array(0, np.int8),
    }
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "scale", "zero"], ["xq"], name="quantize"),
        helper.make_node("DequantizeLinear", ["xq", "scale", "zero"], ["xd"], name="dequantize"),
        helper.make_node("DequantizeLinear", ["w", "w_scale", "w_zero"], ["wd"], name="weights", axis=0),
        helper.make_node("Conv", ["xd", "wd"], ["c"], name="conv", pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c"], ["y"], name="relu"),
    ]
    graph = helper.make_graph(
        nodes,
        "quantized",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [batch, 3, 16, 16])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [batch, 8, 16, 16])],
        [numpy_helper.from_array(array, name) for name, array in values.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def as_written(model: onnx.ModelProto) -> onnxruntime.InferenceSession:
    """Return a session that computes what a Q/DQ file says: integer kernels saturate on x86 without VNNI."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
