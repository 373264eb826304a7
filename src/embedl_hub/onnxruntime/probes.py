"""Small networks that are timed on a device, kernel by kernel: the table that predictions are made from.

Each is a piece of a real network, so that kernels are fused, laid out and find their data as they do there. Weights are
computed when a file is loaded; all files together are smaller than one layer of a network.
"""

from __future__ import annotations

import itertools
import logging
import math
import sys
import warnings
import zipfile
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from embedl_hub.onnxruntime.quantizing import flat_biases, float_model
from embedl_hub.onnxruntime.weightless import give_weights, int8_of, take_weights
from embedl_hub.toolchain.own_process import answer, ask

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from embedl_hub.onnxruntime.quantizing import Integers

# Raised when the networks change: a table of other networks is another table.
VERSION = 1
_OPSET = 17


@dataclass(frozen=True)
class ProbesRequest:
    """Where to write which networks, all if none is named, and in which format; the path is text, as JSON needs it."""

    output: str
    activations: str = "uint8"
    weights: str = "int8"
    per_channel: bool = False
    quantize_io: bool = False
    only: tuple[str, ...] = ()


def write_probes(request: ProbesRequest, scratch: Path) -> None:
    """Write all networks into one archive, in a process of its own; the same request gives the same bytes."""
    ask(__name__, asdict(request), scratch / "probes.json", lambda error: f"The probes could not be made: {error}")


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


def _inverted(size: int, width: int, kernel: int, act: str, *, squeeze: bool) -> onnx.ModelProto:
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


_NETS: dict[str, Callable[[], onnx.ModelProto]] = {
    "residual_64x16": lambda: _residual(64, 16),
    "residual_112x32": lambda: _residual(112, 32),
    "residual_96x64": lambda: _residual(96, 64),
    "bottleneck_14x32": lambda: _bottleneck(14, 32, 8),
    "bottleneck_28x48": lambda: _bottleneck(28, 48, 8),
    "bottleneck_28x64": lambda: _bottleneck(28, 64, 64),
    "bottleneck_56x32": lambda: _bottleneck(56, 32, 16),
    "bottleneck_14x128": lambda: _bottleneck(14, 128, 32),
    "plain_32x16": lambda: _plain(32, 16),
    "plain_56x48": lambda: _plain(56, 48),
    "inverted_64x8": lambda: _inverted(64, 8, 3, "Clip", squeeze=False),
    "inverted_160x16": lambda: _inverted(160, 16, 3, "Clip", squeeze=False),
    "squeezed_96x16": lambda: _inverted(96, 16, 5, "HardSwish", squeeze=True),
    "squeezed_128x16": lambda: _inverted(128, 16, 3, "Silu", squeeze=True),
    "squeezed_48x24": lambda: _inverted(48, 24, 5, "Silu", squeeze=True),
    "dense_14x16": lambda: _dense(14, 16),
    "dense_40x32": lambda: _dense(40, 32),
    "shuffle_7x124": lambda: _shuffle(7, 124),
    "shuffle_14x64": lambda: _shuffle(14, 64),
    "shuffle_28x60": lambda: _shuffle(28, 60),
    "shuffle_28x22": lambda: _shuffle(28, 22),
    "up_down_32x8": lambda: _up_down(32, 8),
    "up_down_64x24": lambda: _up_down(64, 24),
    "attention_16x64": lambda: _attention(16, 64, 2),
    "attention_64x192": lambda: _attention(64, 192, 3),
    "attention_144x320": lambda: _attention(144, 320, 5),
    "patches_7x320": lambda: _patches(7, 320),
    "patches_28x96": lambda: _patches(28, 96),
    "perceptron_1x32": lambda: _perceptron(1, 32),
    "perceptron_1x512": lambda: _perceptron(1, 512),
    "perceptron_16x256": lambda: _perceptron(16, 256),
}


def probe_models(integers: Integers, folder: Path, only: Sequence[str] = ()) -> dict[str, onnx.ModelProto]:
    """Return networks by name, each as float and as INT8.

    Args:
        integers: The number format.
        folder: For files on the way.
        only: Which; all if none is named.
    """
    made = {}
    for name, build in ((name, _NETS[name]) for name in only or _NETS):
        onnx.save(build(), folder / "probe.onnx")
        # The way of every model: the quantiser is given what the runtime has tidied.
        model = onnx.load(flat_biases(float_model(folder / "probe.onnx", folder)))
        sizes = take_weights(model)
        made[f"{name}.float"] = give_weights(model, sizes)
        made[f"{name}.int8"] = give_weights(int8_of(model, integers), sizes)
    return made


def _write_here(request: ProbesRequest, folder: Path) -> dict[str, Any]:
    folder.mkdir()
    models = probe_models(request, folder, request.only)
    with zipfile.ZipFile(request.output, "w") as archive:
        for name, model in models.items():
            entry = zipfile.ZipInfo(f"{name}.onnx", (1980, 1, 1, 0, 0, 0))
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, model.SerializeToString(deterministic=True))
    return {"models": len(models)}


def main() -> int:
    """Write what the file on the command line asks for."""
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    return answer("onnxruntime", lambda request, folder: _write_here(ProbesRequest(**request), folder))


if __name__ == "__main__":
    sys.exit(main())
