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


def small_pte(buffer_bytes: int = 768) -> bytes:
    """Return a program written by hand: two calls, three tensors of 256 bytes in a planned buffer, some constants."""
    import flatbuffers  # type: ignore[import-untyped]

    builder = flatbuffers.Builder(1024)

    def table(*fields: tuple[str, int] | None) -> int:
        """Write a table: each field is a way to put it and a value; None has its default."""
        builder.StartObject(len(fields))
        for slot, field in enumerate(fields):
            if field is not None:
                kind, value = field
                put = (
                    builder.PrependUOffsetTRelativeSlot if kind == "UOffset" else getattr(builder, f"Prepend{kind}Slot")
                )
                put(slot, value, -1 if kind not in {"UOffset", "Uint8", "Uint32", "Uint64"} else 0)
        return int(builder.EndObject())

    def vector(items: list[int], kind: str = "UOffset") -> int:
        size = {"Int64": 8, "UOffset": 4}.get(kind, 4)
        builder.StartVector(size, len(items), size)
        for item in reversed(items):
            builder.PrependUOffsetTRelative(item) if kind == "UOffset" else getattr(builder, f"Prepend{kind}")(item)
        return int(builder.EndVector())

    def tensor(offset: int) -> int:
        allocation = table(("Uint32", 1), ("Uint32", offset), None)
        sizes = vector([1, 64], "Int32")
        own = table(("Int8", 6), None, ("UOffset", sizes), None, None, None, ("UOffset", allocation))
        return table(("Uint8", 5), ("UOffset", own))

    def call(*values: int) -> int:
        kernel = table(("Int32", 0), ("UOffset", vector(list(values), "Int32")))
        return table(("Uint8", 1), ("UOffset", kernel))

    values = vector([tensor(0), tensor(256), tensor(512)])
    names = vector([table(("UOffset", builder.CreateString("aten::relu")))])
    chains = vector([table(None, None, ("UOffset", vector([call(0, 1), call(1, 2)])))])
    inputs, outputs = vector([0], "Int32"), vector([2], "Int32")
    sizes, name = vector([0, buffer_bytes], "Int64"), builder.CreateString("forward")
    plan = table(
        ("UOffset", name), None, ("UOffset", values), ("UOffset", inputs), ("UOffset", outputs), ("UOffset", chains),
        ("UOffset", names), None, ("UOffset", sizes),
    )  # fmt: skip
    plans, segments = vector([plan]), vector([table(None, ("Uint64", 1000))])
    root = table(("Uint32", 0), ("UOffset", plans), None, None, ("UOffset", segments))
    builder.Finish(root, b"ET12")
    return bytes(builder.Output())
