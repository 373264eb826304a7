"""Q/DQ models made on the spot: a small language for graphs, and the networks that tests share."""

from __future__ import annotations

import functools
import json
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper

TYPES = {"uint8": np.uint8, "int8": np.int8, "int16": np.int16, "uint16": np.uint16, "int32": np.int32}


class Graph:
    """Collects nodes; every method returns the name of the tensor it makes."""

    def __init__(self, *, opset: int = 17, seed: int = 0) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []
        self.inputs: list[onnx.ValueInfoProto] = []
        self.opset = opset
        self.random = np.random.default_rng(seed)

    def input(self, name: str, shape: list[int | str]) -> str:
        self.inputs.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, shape))
        return name

    def constant(self, name: str, values: Any, dtype: Any = np.float32) -> str:
        self.constants.append(numpy_helper.from_array(np.asarray(values).astype(dtype), name))
        return name

    def node(self, op_type: str, inputs: list[str], name: str, **options: Any) -> str:
        self.nodes.append(helper.make_node(op_type, inputs, [name], name=f"{op_type}:{name}", **options))
        return name

    def qdq(self, tensor: str, scale: float, zero: int = 0, kind: str = "int8") -> str:
        """Put Q and DQ on a tensor."""
        self.constant(f"{tensor}.s{len(self.nodes)}", scale)
        self.constant(f"{tensor}.z{len(self.nodes)}", zero, TYPES[kind])
        ends = [self.constants[-2].name, self.constants[-1].name]
        self.node("QuantizeLinear", [tensor, *ends], f"{tensor}.q{len(self.nodes)}")
        return self.node("DequantizeLinear", [self.nodes[-1].output[0], *ends], f"{tensor}.d{len(self.nodes)}")

    def weight(self, name: str, shape: tuple[int, ...], axis: int | None = 0, spread: float = 1.0) -> str:
        """Make an int8 weight behind a DQ."""
        values = self.random.integers(-127, 128, shape)
        scales = self.random.uniform(0.002, 0.01, shape[axis] if axis is not None else ()) * spread
        self.constant(name, values, np.int8)
        self.constant(f"{name}.s", scales)
        self.constant(f"{name}.z", np.zeros_like(scales), np.int8)
        options = {} if axis is None else {"axis": axis}
        return self.node("DequantizeLinear", [name, f"{name}.s", f"{name}.z"], f"{name}.d", **options)

    def bias(self, name: str, size: int) -> str:
        return self.constant(name, self.random.normal(size=size) * 0.3)

    def model(self, *outputs: str, ranges: dict[str, list[float]] | None = None) -> onnx.ModelProto:
        results = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs]
        graph = helper.make_graph(self.nodes, "net", self.inputs, results, self.constants)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", self.opset)], ir_version=10)
        shapes = onnx.shape_inference.infer_shapes(model).graph.output
        for value, inferred in zip(model.graph.output, shapes, strict=True):
            value.CopyFrom(inferred if inferred.type.tensor_type.HasField("shape") else value)
        if ranges is not None:
            helper.set_model_props(model, {"edgeproof.ranges": json.dumps(ranges)})
        return model


def tensorrt_residual(*, ranges: bool = True) -> onnx.ModelProto:
    """Return a residual block as an exporter for TensorRT writes it: Q on inputs, on the skip branch, float biases."""
    observed = _observed()
    return _residual(observed).model("y", ranges={**observed} if ranges else None)


@functools.cache
def _observed() -> dict[str, list[float]]:
    """Calibrate the residual block: run it in float and note every range."""
    model = _residual(None).model("y")
    names = [node.output[0] for node in model.graph.node if node.op_type != "DequantizeLinear"]
    model.graph.output.extend(helper.make_empty_tensor_value_info(name) for name in names if name != "y")
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    found: dict[str, list[float]] = {}
    for seed in range(20, 28):
        feed = sample(seed)
        values = {**dict(zip(names, session.run(names, feed), strict=True)), **feed}
        for name, array in values.items():
            low, high = found.get(name, [np.inf, -np.inf])
            found[name] = [min(low, float(array.min())), max(high, float(array.max()))]
    return found


def _residual(observed: dict[str, list[float]] | None) -> Graph:
    net = Graph(seed=3)

    def pair(tensor: str) -> str:
        return tensor if observed is None else net.qdq(tensor, max(-observed[tensor][0], observed[tensor][1]) / 127)

    x = pair(net.input("x", [1, 8, 12, 12]))
    net.node("Conv", [x, net.weight("w0", (16, 8, 3, 3)), net.bias("b0", 16)], "c0", pads=[1, 1, 1, 1])
    net.node("Relu", ["c0"], "r0")
    r0 = pair("r0")
    net.node("Conv", [r0, net.weight("w1", (16, 16, 3, 3)), net.bias("b1", 16)], "c1", pads=[1, 1, 1, 1])
    net.node("Add", ["c1", r0], "a1")
    net.node("Relu", ["a1"], "r1")
    net.node("GlobalAveragePool", [pair("r1")], "p")
    net.node("Flatten", ["p"], "f")
    net.node("Gemm", [pair("f"), net.weight("w2", (10, 16)), net.bias("b2", 10)], "y", transB=1)
    return net


def sample(seed: int = 0, shape: tuple[int, ...] = (1, 8, 12, 12)) -> dict[str, np.ndarray]:
    """Return an input for the residual block."""
    return {"x": np.random.default_rng(seed).normal(size=shape).astype(np.float32)}


def scales(model: onnx.ModelProto) -> dict[str, bytes]:
    """Return every scale and zero point of a model, as bytes."""
    constants = {value.name: value for value in model.graph.initializer}
    found = {}
    for node in model.graph.node:
        if node.op_type in ("QuantizeLinear", "DequantizeLinear"):
            for name in node.input[1:]:
                found[f"{node.name} {name}"] = numpy_helper.to_array(constants[name]).tobytes()
    return found
