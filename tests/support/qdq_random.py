"""Random Q/DQ graphs of extreme numbers: what kernels do at the ends of their types shows there; a seed is a graph."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import helper

from support.qdq import Graph

CHANNELS, SIZE = 16, 6


class _Net:
    """Grows a graph of pictures by random operators, each between pairs."""

    def __init__(self, seed: int, kind: str) -> None:
        self.random = np.random.default_rng(seed)
        self.net = Graph(seed=seed)
        self.kind = kind
        self.count = 0

    def name(self, base: str) -> str:
        self.count += 1
        return f"{base}{self.count}"

    def pair(self, tensor: str, step: float | None = None) -> str:
        low, high = (0, 256) if self.kind == "uint8" else (-128, 128)
        zero = int(self.random.choice([low, (low + high) // 2, int(self.random.integers(low, high))]))
        return self.net.qdq(tensor, step or float(self.random.uniform(0.01, 0.06)), zero, self.kind)

    def weight(self, shape: tuple[int, ...], axis: int) -> str:
        """Make a weight, most of it at the ends of its type."""
        name = self.name("w")
        extreme = self.random.choice([-128, -127, -100, 0, 64, 100, 127], shape)
        plain = self.random.integers(-128, 128, shape)
        scales = self.random.uniform(0.0005, 0.004, shape[axis])
        self.net.constant(name, np.where(self.random.random(shape) < 0.6, extreme, plain), np.int8)
        self.net.constant(f"{name}.s", scales)
        self.net.constant(f"{name}.z", np.zeros_like(scales), np.int8)
        return self.net.node("DequantizeLinear", [name, f"{name}.s", f"{name}.z"], f"{name}.d", axis=axis)

    def conv(self, x: str) -> str:
        kernel, stride = int(self.random.choice([1, 2, 3])), 1
        group = int(self.random.choice([1, 1, 2, 4, CHANNELS]))
        pads = [kernel // 2, kernel // 2, kernel - 1 - kernel // 2, kernel - 1 - kernel // 2]
        weight = self.weight((CHANNELS, CHANNELS // group, kernel, kernel), 0)
        inputs = [x, weight, *([self.net.bias(self.name("b"), CHANNELS)] if self.random.random() < 0.5 else [])]
        return self.net.node("Conv", inputs, self.name("c"), pads=pads, strides=[stride] * 2, group=group)

    def binary(self, operator: str, x: str, other: str) -> str:
        return self.net.node(operator, [x, other], self.name("o"))

    def unary(self, x: str) -> str:
        options: list[tuple[str, dict[str, Any]]] = [
            ("LeakyRelu", {"alpha": 0.1}), ("Sigmoid", {}), ("Softmax", {"axis": -1}),
            ("AveragePool", {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}),
        ]  # fmt: skip
        operator, settings = options[int(self.random.integers(len(options)))]
        return self.net.node(operator, [x], self.name("u"), **settings)


def random_qdq(seed: int, kind: str = "uint8") -> onnx.ModelProto:
    """Return a graph of three to six operators in integers, and a linear head."""
    work = _Net(seed, kind)
    last = work.pair(work.net.input("x", [1, CHANNELS, SIZE, SIZE]))
    seen = [last]
    for _ in range(int(work.random.integers(3, 7))):
        what = work.random.choice(["conv", "conv", "Add", "Mul", "unary"])
        if what == "conv":
            made = work.conv(last)
        elif what == "unary":
            made = work.unary(last)
        else:
            made = work.binary(str(what), last, seen[int(work.random.integers(len(seen)))])
        last = work.pair(made, None if what != "conv" else float(work.random.uniform(0.05, 0.5)))
        seen.append(last)
    flat = work.net.node("Reshape", [last, work.net.constant("shape", [1, -1], np.int64)], "flat")
    length = CHANNELS * SIZE * SIZE
    work.net.node("MatMul", [work.pair(flat, 0.02), work.weight((length, 10), 1)], "y")
    return work.net.model("y")


def extreme_input(seed: int) -> dict[str, np.ndarray]:
    """Return an input that uses the ends of its format."""
    random = np.random.default_rng(seed)
    shape = (1, CHANNELS, SIZE, SIZE)
    ends = random.choice([-99.0, 99.0], shape)
    return {"x": np.where(random.random(shape) < 0.5, ends, random.normal(size=shape) * 2).astype(np.float32)}


def tapped(model: onnx.ModelProto, names: list[str]) -> bytes:
    """Return a model that also gives out inner tensors."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    copy.graph.output.extend(helper.make_empty_tensor_value_info(name) for name in names)
    text: bytes = copy.SerializeToString()
    return text
