"""Small networks that are timed on a device, kernel by kernel: the table that predictions are made from.

Each is a piece of a real network, so that kernels are fused, laid out and find their data as they do there. Weights are
computed when a file is loaded; all files together are smaller than one layer of a network.
"""

from __future__ import annotations

import functools
import itertools
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from embedl_hub.machine.machine import zipped
from embedl_hub.machine.worker import call_worker, serve
from embedl_hub.quantization.quantize import Integers, flat_biases, float_model
from embedl_hub.toolchains.onnxruntime.workload import give_weights, int8_of, take_weights

# Raised when the networks change: a table of other networks is another table.
VERSION = 1
_OPSET = 17


@dataclass(frozen=True)
class ProbesRequest(Integers):
    """Where to write which networks, all if none is named, and in which format; the path is text, as JSON needs it."""

    output: str
    only: tuple[str, ...] = ()


def write_probes(request: ProbesRequest, scratch: Path) -> None:
    """Write all networks into one archive, in a process of its own; the same request gives the same bytes."""
    call_worker(__name__, request, scratch, "The probes could not be made")


class _Net:
    """Writes a network node by node; a tensor is known by its name, its shape by ``shapes``."""

    def __init__(self, *shape: int) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []
        self.shapes: dict[str, tuple[int, ...]] = {"x": shape}
        self._numbers = itertools.count()

    def put(self, op: str, inputs: Sequence[str], shape: Sequence[int], **attributes: Any) -> str:  # noqa: ANN401 - of any operator
        name = f"{op.lower()}{next(self._numbers)}"
        self.nodes.append(helper.make_node(op, list(inputs), [name], name, **attributes))
        self.shapes[name] = tuple(shape)
        return name

    def constant(self, values: np.ndarray) -> str:
        name = f"c{next(self._numbers)}"
        self.constants.append(numpy_helper.from_array(values, name))
        return name

    def weight(self, *shape: int) -> str:
        return self.constant(np.full(shape, 0.01, np.float32))

    def scalar(self, value: float) -> str:
        return self.constant(np.array(value, np.float32))

    def ints(self, *values: int) -> str:
        return self.constant(np.array(values, np.int64))

    def conv(self, x: str, channels: int, kernel: int = 3, stride: int = 1, groups: int = 1, act: str = "Relu") -> str:
        batch, inputs, height, width = self.shapes[x]
        size = [-(-height // stride), -(-width // stride)]
        y = self.put(
            "Conv", [x, self.weight(channels, inputs // groups, kernel, kernel), self.weight(channels)],
            [batch, channels, *size], kernel_shape=[kernel] * 2, strides=[stride] * 2, group=groups,
            pads=[(kernel - 1) // 2] * 4,
        )  # fmt: skip
        return self.act(y, act)

    def act(self, x: str, kind: str) -> str:
        shape = self.shapes[x]
        if kind == "Clip":
            return self.put("Clip", [x, self.scalar(0), self.scalar(6)], shape)
        if kind == "Silu":
            return self.put("Mul", [x, self.put("Sigmoid", [x], shape)], shape)
        if kind == "Gelu":
            root = self.put("Erf", [self.put("Div", [x, self.scalar(math.sqrt(2))], shape)], shape)
            whole = self.put("Mul", [x, self.put("Add", [root, self.scalar(1)], shape)], shape)
            return self.put("Mul", [whole, self.scalar(0.5)], shape)
        return self.put(kind, [x], shape) if kind else x

    def add(self, x: str, y: str) -> str:
        return self.put("Add", [x, y], self.shapes[x])

    def linear(self, x: str, outputs: int, *, bias: str = "fused") -> str:
        shape = self.shapes[x]
        y = self.put("MatMul", [x, self.weight(shape[-1], outputs)], [*shape[:-1], outputs])
        # A bias with as many axes as the data is one that the runtime leaves alone.
        return self.put("Add", [y, self.weight(outputs) if bias else self.weight(1, 1, outputs)], self.shapes[y])

    def gemm(self, x: str, outputs: int) -> str:
        rows, length = self.shapes[x]
        return self.put("Gemm", [x, self.weight(outputs, length), self.weight(outputs)], [rows, outputs], transB=1)

    def norm(self, x: str) -> str:
        width = self.shapes[x][-1]
        scale, bias = self.weight(width), self.weight(width)
        return self.put("LayerNormalization", [x, scale, bias], self.shapes[x], axis=-1, epsilon=1e-5)

    def pool(self, x: str, op: str, kernel: int = 3, stride: int = 2) -> str:
        batch, channels, height, width = self.shapes[x]
        size = [-(-height // stride), -(-width // stride)]
        pads = [(kernel - 1) // 2] * 2 + [kernel // 2 if stride == 1 else (kernel - 1) // 2] * 2
        return self.put(op, [x], [batch, channels, *size], kernel_shape=[kernel] * 2, strides=[stride] * 2, pads=pads)

    def whole(self, x: str) -> str:
        batch, channels, *_ = self.shapes[x]
        return self.put("GlobalAveragePool", [x], [batch, channels, 1, 1])

    def concat(self, *parts: str) -> str:
        batch, _, *size = self.shapes[parts[0]]
        return self.put("Concat", parts, [batch, sum(self.shapes[part][1] for part in parts), *size], axis=1)

    def reshape(self, x: str, *shape: int) -> str:
        return self.put("Reshape", [x, self.ints(*shape)], shape)

    def turn(self, x: str, *order: int) -> str:
        return self.put("Transpose", [x], [self.shapes[x][place] for place in order], perm=list(order))

    def half(self, x: str, axis: int, start: int, end: int) -> str:
        shape = list(self.shapes[x])
        shape[axis] = end - start
        return self.put("Slice", [x, self.ints(start), self.ints(end), self.ints(axis)], shape)

    def head(self, x: str, outputs: int) -> str:
        channels = self.shapes[x][1]
        return self.gemm(self.put("Flatten", [self.whole(x)], [1, channels]), outputs)

    def model(self, *outputs: str) -> onnx.ModelProto:
        values = [helper.make_tensor_value_info(name, 1, self.shapes[name]) for name in outputs]
        given = [helper.make_tensor_value_info("x", 1, self.shapes["x"])]
        graph = helper.make_graph(self.nodes, "probe", given, values, self.constants)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", _OPSET)], ir_version=8)


def _residual(size: int, width: int) -> onnx.ModelProto:
    net = _Net(1, 3, size, size)
    x = net.pool(net.conv("x", width, 7, 2), "MaxPool")
    for channels, stride in ((width, 1), (2 * width, 2), (4 * width, 2), (8 * width, 2)):
        skip = x if stride == 1 else net.conv(x, channels, 1, stride, act="")
        x = net.act(net.add(net.conv(net.conv(x, channels, 3, stride), channels, act=""), skip), "Relu")
    return net.model(net.head(x, 1000))


def _plain(size: int, width: int) -> onnx.ModelProto:
    """Convolutions of small pictures, and expansions of few channels to many."""
    net = _Net(1, 3, size, size)
    x = net.conv("x", width)
    for channels, stride in ((width, 1), (width, 1), (2 * width, 2), (2 * width, 1), (4 * width, 2), (4 * width, 1)):
        x = net.conv(x, channels, 3, stride)
    x = net.conv(x, width, 1)
    return net.model(net.head(net.concat(net.conv(x, 4 * width, 1), net.conv(x, 4 * width)), 10))


def _bottleneck(size: int, width: int, group: int) -> onnx.ModelProto:
    net = _Net(1, width, size, size)
    x = "x"
    for number, stride in enumerate((1, 2, 2)):
        narrow, wide = width << number, 4 * width << number
        y = net.conv(net.conv(x, narrow, 1), narrow, 3, stride, groups=narrow // group)
        skip = net.conv(x, wide, 1, stride, act="")
        x = net.act(net.add(net.conv(y, wide, 1, act=""), skip), "Relu")
    return net.model(net.head(x, 100))


def _inverted(size: int, width: int, kernel: int, act: str, *, squeeze: bool = False) -> onnx.ModelProto:
    net = _Net(1, 3, size, size)
    x = net.conv("x", width, 3, 2, act=act)
    x = net.conv(net.conv(x, width, kernel, 1, width, act=act), width, 1, act="")
    for channels, stride in ((width, 2), (2 * width, 1), (3 * width, 2), (6 * width, 2), (6 * width, 1)):
        inner = 6 * net.shapes[x][1]
        y = net.conv(net.conv(x, inner, 1, act=act), inner, kernel, stride, inner, act=act)
        if squeeze:
            gate = net.conv(net.conv(net.whole(y), max(inner // 8, 8), 1, act="Relu"), inner, 1, act="")
            gate = net.act(gate, "Sigmoid" if act == "Silu" else "HardSigmoid")
            y = net.put("Mul", [y, gate], net.shapes[y])
        y = net.conv(y, channels, 1, act="")
        x = net.add(x, y) if net.shapes[x] == net.shapes[y] else y
    return net.model(net.head(net.conv(x, 20 * width, 1, act=act), 200))


_squeezed = functools.partial(_inverted, squeeze=True)


def _dense(size: int, width: int) -> onnx.ModelProto:
    net = _Net(1, width, size, size)
    x = net.conv("x", width)
    for pool in ("AveragePool", "MaxPool", ""):
        for _ in range(2):
            x = net.concat(x, net.conv(net.conv(x, 2 * width, 1), width))
        # Batch norm and activation before a convolution, as dense networks have them: nothing to fold it into.
        numbers = [net.weight(net.shapes[x][1]) for _ in range(4)]
        x = net.act(net.put("BatchNormalization", [x, *numbers], net.shapes[x]), "Relu")
        x = net.pool(net.conv(x, 2 * width, 1), pool, 2) if pool else x
    branch = net.concat(net.conv(x, width, 1), net.conv(net.pool(x, "MaxPool", 3, 1), width, 1), net.conv(x, 2 * width))
    return net.model(net.head(branch, 50))


def _shuffle(size: int, width: int) -> onnx.ModelProto:
    net = _Net(1, width, size, size)
    x = net.conv("x", 2 * width, 1)
    for _ in range(3):
        _, channels, height, _ = net.shapes[x]
        left, right = net.half(x, 1, 0, channels // 2), net.half(x, 1, channels // 2, channels)
        right = net.conv(right, channels // 2, 1)
        right = net.conv(net.conv(right, channels // 2, 3, 1, channels // 2, act=""), channels // 2, 1)
        y = net.reshape(net.concat(left, right), 1, 2, channels // 2, height, height)
        x = net.reshape(net.turn(y, 0, 2, 1, 3, 4), 1, channels, height, height)
    mean = net.put("ReduceMean", [x], [1, net.shapes[x][1]], axes=[2, 3], keepdims=0)
    return net.model(net.gemm(mean, 100))


def _up_down(size: int, width: int) -> onnx.ModelProto:
    net = _Net(1, 3, size, size)
    first = net.conv(net.conv("x", width), width, act="LeakyRelu")
    low = net.conv(net.pool(first, "MaxPool", 2), 2 * width, act="Silu")
    lower = net.conv(net.pool(low, "AveragePool", 2), 4 * width, act="HardSwish")
    half = size // 2
    up = net.put(
        "ConvTranspose", [lower, net.weight(4 * width, 2 * width, 2, 2), net.weight(2 * width)],
        [1, 2 * width, half, half], strides=[2, 2], kernel_shape=[2, 2],
    )  # fmt: skip
    y = net.conv(net.concat(low, up), width)
    scales = net.constant(np.array([1, 1, 2, 2], np.float32))
    nearest = net.put("Resize", [y, "", scales], [1, width, size, size], mode="nearest")
    linear = net.put("Resize", [y, "", scales], [1, width, size, size], mode="linear")
    y = net.concat(first, nearest, linear)
    return net.model(net.put("Sigmoid", [net.conv(y, 8, 1, act="")], [1, 8, size, size]))


def _attention(tokens: int, width: int, heads: int) -> onnx.ModelProto:
    net = _Net(1, tokens, width)
    x, each = "x", width // heads
    for fused in (False, True):
        y = net.norm(x)
        if fused:
            whole = net.turn(net.reshape(net.linear(y, 3 * width), 1, tokens, 3, heads, each), 2, 0, 3, 1, 4)
            parts = [net.put("Gather", [whole, net.constant(np.array(place))], net.shapes[whole][1:], axis=0)
                     for place in range(3)]  # fmt: skip
        else:
            parts = [net.turn(net.reshape(net.linear(y, width, bias=bias), 1, tokens, heads, each), 0, 2, 1, 3)
                     for bias in ("", "", "fused")]  # fmt: skip
        query, key, value = parts
        key = net.turn(key, 0, 1, 3, 2)
        scores = net.put("MatMul", [query, key], [1, heads, tokens, tokens])
        scores = net.put("Mul" if fused else "Div", [scores, net.scalar(math.sqrt(each))], net.shapes[scores])
        scores = net.put("Softmax", [scores], net.shapes[scores], axis=-1)
        mixed = net.put("MatMul", [scores, value], [1, heads, tokens, each])
        x = net.add(x, net.linear(net.reshape(net.turn(mixed, 0, 2, 1, 3), 1, tokens, width), width))
        inner = net.linear(net.norm(x), 4 * width, bias="fused" if fused else "")
        x = net.add(x, net.linear(net.act(inner, "Gelu"), width))
    first = net.put("Gather", [net.norm(x), net.constant(np.array(0))], [1, width], axis=1)
    return net.model(net.gemm(first, 100))


def _patches(size: int, width: int) -> onnx.ModelProto:
    """Convolutions in one layout, the rest in the other, as ConvNeXt has them."""
    net = _Net(1, 3, 4 * size, 4 * size)
    x = net.put(
        "Conv", ["x", net.weight(width, 3, 4, 4), net.weight(width)], [1, width, size, size],
        kernel_shape=[4, 4], strides=[4, 4],
    )  # fmt: skip
    for kernel in (7, 5):
        y = net.norm(net.turn(net.conv(x, width, kernel, 1, width, act=""), 0, 2, 3, 1))
        y = net.turn(net.linear(net.act(net.linear(y, 4 * width), "Gelu"), width), 0, 3, 1, 2)
        x = net.add(x, net.put("Mul", [y, net.weight(width, 1, 1)], net.shapes[y]))
    return net.model(net.head(x, 100))


def _perceptron(rows: int, width: int) -> onnx.ModelProto:
    net = _Net(rows, width)
    x = net.act(net.gemm("x", 2 * width), "Relu")
    x = net.act(net.gemm(x, width), "Tanh")
    x = net.put("Softmax", [net.gemm(x, 10)], [rows, 10], axis=-1)
    return net.model(x)


# Each by its name, the size of its input and its width; what else a network takes follows.
_FAMILIES: tuple[tuple[str, Callable[..., onnx.ModelProto], tuple[tuple[Any, ...], ...]], ...] = (
    ("residual", _residual, ((64, 16), (112, 32), (96, 64))),
    ("bottleneck", _bottleneck, ((14, 32, 8), (28, 48, 8), (28, 64, 64), (56, 32, 16), (14, 128, 32))),
    ("plain", _plain, ((32, 16), (56, 48))),
    ("inverted", _inverted, ((64, 8, 3, "Clip"), (160, 16, 3, "Clip"))),
    ("squeezed", _squeezed, ((96, 16, 5, "HardSwish"), (128, 16, 3, "Silu"), (48, 24, 5, "Silu"))),
    ("dense", _dense, ((14, 16), (40, 32))),
    ("shuffle", _shuffle, ((7, 124), (14, 64), (28, 60), (28, 22))),
    ("up_down", _up_down, ((32, 8), (64, 24))),
    ("attention", _attention, ((16, 64, 2), (64, 192, 3), (144, 320, 5))),
    ("patches", _patches, ((7, 320), (28, 96))),
    ("perceptron", _perceptron, ((1, 32), (1, 512), (16, 256))),
)
_NETS = {
    f"{name}_{sizes[0]}x{sizes[1]}": functools.partial(build, *sizes)
    for name, build, variants in _FAMILIES
    for sizes in variants
}


def probe_models(integers: Integers, folder: Path, only: Sequence[str] = ()) -> dict[str, onnx.ModelProto]:
    """Return networks by name, all if none is named, each as float and as INT8."""
    made = {}
    for name in only or _NETS:
        onnx.save(_NETS[name](), folder / "probe.onnx")
        # The way of every model: the quantizer is given what the runtime has tidied.
        model = onnx.load(flat_biases(float_model(folder / "probe.onnx", folder)))
        sizes = take_weights(model)
        made[f"{name}.float"] = give_weights(model, sizes)
        made[f"{name}.int8"] = give_weights(int8_of(model, integers), sizes)
    return made


def _write_here(request: ProbesRequest, folder: Path) -> dict[str, int]:
    folder.mkdir()
    models = probe_models(request, folder, request.only)
    contents = {f"{name}.onnx": model.SerializeToString(deterministic=True) for name, model in models.items()}
    Path(request.output).write_bytes(zipped(contents))
    return {"models": len(models)}


if __name__ == "__main__":
    sys.exit(serve("onnxruntime", _write_here, ProbesRequest))
