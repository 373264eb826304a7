"""Models for the TFLite tests, and the converter's environment, made once and kept beside this Python's packages."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

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


def conv_tflite(size: int = 16, *, custom: bool = False) -> bytes:
    """Return a TFLite file of four operators by hand: two convolutions, one that unfolds, their sum and its mean."""
    import flatbuffers  # type: ignore[import-untyped]
    from ai_edge_litert import schema_py_generated as schema

    random = np.random.default_rng(0)
    tensors: list[Any] = []
    buffers = [schema.BufferT()]

    def tensor(name: str, shape: list[int], values: np.ndarray | None = None) -> int:
        made = schema.TensorT()
        made.name, made.shape, made.buffer = name, shape, 0
        made.type = schema.TensorType.INT32 if name == "axes" else schema.TensorType.FLOAT32
        if values is not None:
            buffer = schema.BufferT()
            buffer.data = np.frombuffer(values.tobytes(), np.uint8)
            made.buffer = len(buffers)
            buffers.append(buffer)
        tensors.append(made)
        return len(tensors) - 1

    def weight(name: str, *shape: int) -> int:
        return tensor(name, list(shape), random.normal(size=shape).astype(np.float32))

    codes: list[Any] = []

    def operator(kind: str, inputs: list[int], output: int, options: Any) -> Any:
        code = schema.OperatorCodeT()
        number = getattr(schema.BuiltinOperator, kind)
        code.builtinCode, code.deprecatedBuiltinCode, code.version = number, min(number, 127), 1
        if kind == "CUSTOM":
            code.customCode = "mine"
        codes.append(code)
        made = schema.OperatorT()
        made.opcodeIndex, made.inputs, made.outputs = len(codes) - 1, inputs, [output]
        if options is not None:
            made.builtinOptionsType = getattr(schema.BuiltinOptions, type(options).__name__.removesuffix("T"))
            made.builtinOptions = options
        return made

    def conv() -> Any:
        options = schema.Conv2DOptionsT()
        options.strideW = options.strideH = options.dilationWFactor = options.dilationHFactor = 1
        return options

    x, wide = tensor("x", [1, size, size, 8]), [1, size, size, 16]
    first, second, total = tensor("first", wide), tensor("second", wide), tensor("total", wide)
    mean = tensor("mean", [1, 16])
    axes = tensor("axes", [2], np.array([1, 2], np.int32))
    graph = schema.SubGraphT()
    graph.operators = [
        operator("CONV_2D", [x, weight("w1", 16, 3, 3, 8), weight("b1", 16)], first, conv()),
        operator("CONV_2D", [first, weight("w2", 16, 1, 1, 16), weight("b2", 16)], second, conv()),
        operator("CUSTOM" if custom else "ADD", [first, second], total, None if custom else schema.AddOptionsT()),
        operator("MEAN", [total, axes], mean, schema.ReducerOptionsT()),
    ]
    graph.tensors, graph.inputs, graph.outputs = tensors, [x], [mean]
    model = schema.ModelT()
    model.version, model.subgraphs, model.operatorCodes, model.buffers = 3, [graph], codes, buffers
    builder = flatbuffers.Builder(4096)
    builder.Finish(model.Pack(builder), b"TFL3")
    return bytes(builder.Output())
