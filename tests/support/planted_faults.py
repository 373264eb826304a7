"""Faults planted in right files and in their making, for proofs that `verify` finds each and names its layer.

A fault is a change of a written file, of the network that a file is made from, or of the calibration data. `verify` is
always given the right network. Right files are made from the same networks, by seed, data and dialect.
"""

from __future__ import annotations

import copy
import functools
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from onnx import helper, numpy_helper
from torch import nn
from torch.nn import functional

from embedl_deploy import transform
from embedl_deploy.export import Verification, export_onnx, verify
from embedl_deploy.quantize import CalibrationMethod, QuantConfig, TensorQuantConfig, quantize

CANONICAL, FLOAT, VNNI = "canonical", "float", "onnxruntime-x86-vnni"
_TARGET = "onnxruntime-x86"


class Pictures(nn.Module):
    """What convolutional networks have: depthwise, squeeze and excitation, residual, concat, pools, upsampling."""

    shape = (3, 16, 16)

    def __init__(self) -> None:
        super().__init__()
        self.normalize = nn.BatchNorm2d(3, affine=False)
        self.stem, self.stem_bn, self.relu = nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU()
        self.depthwise = nn.Conv2d(16, 16, 3, padding=1, groups=16, bias=False)
        self.depthwise_bn, self.relu6 = nn.BatchNorm2d(16), nn.ReLU6()
        self.squeeze, self.reduce, self.expand = nn.AdaptiveAvgPool2d(1), nn.Conv2d(16, 8, 1), nn.Conv2d(8, 16, 1)
        self.gate = nn.Sigmoid()
        self.conv1, self.bn1 = nn.Conv2d(16, 16, 3, padding=1), nn.BatchNorm2d(16)
        self.conv2, self.bn2 = nn.Conv2d(16, 16, 3, padding=1), nn.BatchNorm2d(16)
        self.pool = nn.AvgPool2d(3, 2, 1)
        self.left, self.right = nn.Conv2d(16, 16, 1), nn.Conv2d(16, 16, 3, padding=1)
        self.up = nn.Upsample(scale_factor=2, mode="nearest")
        self.last, self.last_bn = nn.Conv2d(32, 24, 3, padding=1), nn.BatchNorm2d(24)
        self.average, self.flatten, self.head = nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(24, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Classify."""
        x = self.relu(self.stem_bn(self.stem(self.normalize(x))))
        x = self.relu6(self.depthwise_bn(self.depthwise(x)))
        x = x * self.gate(self.expand(self.relu(self.reduce(self.squeeze(x)))))
        y = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        x = self.pool(self.relu(x + y))
        x = self.up(torch.cat([self.left(x), self.right(x)], 1))
        x = self.relu(self.last_bn(self.last(x)))
        out: torch.Tensor = self.head(self.flatten(self.average(x)))
        return out


class Attention(nn.Module):
    """Attention written out, with a mask, as people write it."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.softmax, self.project = nn.Softmax(-1), nn.Linear(width, width)
        self.register_buffer("mask", torch.triu(torch.full((8, 8), -1e4), 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Attend to what came before."""
        batch, length, width = x.shape
        query, key, value = (
            layer(x).reshape(batch, length, self.heads, -1).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        )
        scores = query @ key.transpose(-2, -1) * (width // self.heads) ** -0.5 + self.mask
        mixed = (self.softmax(scores) @ value).transpose(1, 2).reshape(batch, length, width)
        out: torch.Tensor = self.project(mixed)
        return out


class Tokens(nn.Module):
    """A transformer's block: norm, attention, norm, two linears with GELU, both with a residual."""

    shape = (8, 32)

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.norm1, self.attention = nn.Linear(32, 32), nn.LayerNorm(32), Attention(32, 4)
        self.norm2, self.up, self.act, self.down = nn.LayerNorm(32), nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 32)
        self.norm3, self.head = nn.LayerNorm(32), nn.Linear(32, 12)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Score."""
        x = self.embed(x)
        x = x + self.attention(self.norm1(x))
        x = x + self.down(self.act(self.up(self.norm2(x))))
        out: torch.Tensor = self.head(self.norm3(x).mean(1))
        return out


NETS: dict[str, Callable[[], nn.Module]] = {"pictures": Pictures, "tokens": Tokens}


def network(kind: str, seed: int = 0) -> nn.Module:
    """Return a network whose norms have statistics and weights of their own, in eval mode."""
    torch.manual_seed(seed)
    net = NETS[kind]()
    with torch.no_grad():
        for part in net.modules():
            if isinstance(part, nn.BatchNorm2d | nn.LayerNorm) and part.weight is not None:
                part.weight.uniform_(0.7, 1.6)
                part.bias.normal_(0, 0.4)
        if isinstance(net, Pictures):
            net.depthwise_bn.weight.mul_(3)  # so that a bound of 6 is met
        net.train()
        for index in range(8):
            net(data(kind, 16, 1000 + 10 * seed + index))
    return net.eval()


def data(kind: str, count: int, seed: int) -> torch.Tensor:
    """Return a batch: neither zero mean nor unit spread, so that a normalization in front has work to do."""
    generator = torch.Generator().manual_seed(seed)
    shape = Pictures.shape if kind == "pictures" else Tokens.shape
    return 0.4 + 1.5 * torch.randn(count, *shape, generator=generator)


@dataclass(frozen=True)
class Made:
    """A network on its way to a file."""

    kind: str
    original: nn.Module
    transformed: nn.Module
    simulated: nn.Module

    def file(self, form: str) -> onnx.ModelProto:
        """Return the float file, the canonical one, or that of a dialect."""
        model = self.transformed if form == FLOAT else self.simulated
        dialect = None if form in (FLOAT, CANONICAL) else form
        with tempfile.TemporaryDirectory() as folder:
            path = export_onnx(
                model, (data(self.kind, 2, 1),), Path(folder) / "net.onnx", dialect=dialect, input_names=["x"]
            )
            return onnx.load(path)

    def verify(self, file: onnx.ModelProto, form: str, seed: int = 500) -> Verification:
        """Judge a file by this network."""
        samples = [data(self.kind, 2, seed + index) for index in range(2)]
        simulated = None if form == FLOAT else self.simulated
        return verify(file, samples, original=self.original, transformed=self.transformed, simulated=simulated)


def make(kind: str, net: nn.Module, *, seed: int = 100, spoil: Callable[[torch.Tensor], None] | None = None) -> Made:
    """Transform and quantize a network; by a method that keeps every value where the data is spoiled."""
    args = (data(kind, 2, 1),)
    batches = [data(kind, 8, seed + index) for index in range(4)]
    if spoil is not None:
        spoil(batches[0])
    transformed = transform(net, args, target=_TARGET).model
    config = None if spoil is None else QuantConfig(TensorQuantConfig(calibration_method=CalibrationMethod.MINMAX))
    simulated = quantize(transformed, args, config, batches, target=_TARGET)
    return Made(kind, net, transformed, simulated)


@functools.cache
def right(kind: str, seed: int = 0) -> Made:
    """Return a right network, made once."""
    return make(kind, network(kind, seed), seed=100 + 50 * seed)


@functools.cache
def _right_file(kind: str, form: str) -> bytes:
    return bytes(right(kind).file(form).SerializeToString())


@dataclass(frozen=True)
class Fault:
    """One kind of fault."""

    name: str
    kind: str  # the network
    form: str  # the file
    layer: str  # the first wrong layer, by the user's name for it
    plant: Callable[[str, str], tuple[Made, onnx.ModelProto]]  # returns what it is judged by, and the file
    is_edit: bool = False  # whether a right file was changed

    def verify(self) -> Verification:
        """Plant the fault and judge the file."""
        judge, file = self.plant(self.kind, self.form)
        return judge.verify(file, self.form)


FAULTS: list[Fault] = []
_Edit = Callable[["Editor"], None]


def _in_file(name: str, kind: str, form: str, layer: str) -> Callable[[_Edit], _Edit]:
    """Register a change of a right file."""

    def register(edit: _Edit) -> _Edit:
        def plant(kind: str, form: str) -> tuple[Made, onnx.ModelProto]:
            file = onnx.load_from_string(_right_file(kind, form))
            edit(Editor(file))
            return right(kind), file

        FAULTS.append(Fault(name, kind, form, layer, plant, is_edit=True))
        return edit

    return register


def _in_network(name: str, kind: str, form: str, layer: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Register a change of the network that the file is made from."""

    def register(change: Callable[..., None]) -> Callable[..., None]:
        def plant(kind: str, form: str) -> tuple[Made, onnx.ModelProto]:
            net = copy.deepcopy(right(kind).original)
            with torch.no_grad():
                change(net)
            return right(kind), make(kind, net.eval()).file(form)

        FAULTS.append(Fault(name, kind, form, layer, plant))
        return change

    return register


class Editor:
    """Finds and changes parts of a file."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self.model, self.graph = model, model.graph
        self.makers = {name: node for node in self.graph.node for name in node.output}

    def node(self, place: str, operator: str) -> onnx.NodeProto:
        """Return the first operator of a kind at a place."""
        found: list[onnx.NodeProto] = [
            node for node in self.graph.node if node.name.rpartition("/")[0] == place and node.op_type == operator
        ]
        names = sorted({node.name for node in self.graph.node})
        assert found, f"no {operator} of {place} among {names}"
        return found[0]

    def array(self, name: str) -> np.ndarray:
        """Return a constant."""
        return numpy_helper.to_array(self._constant(name)).copy()

    def put(self, name: str, values: np.ndarray) -> None:
        """Replace a constant."""
        self._constant(name).CopyFrom(numpy_helper.from_array(np.ascontiguousarray(values), name))

    def _constant(self, name: str) -> onnx.TensorProto:
        found: onnx.TensorProto = next(value for value in self.graph.initializer if value.name == name)
        return found

    def weight(self, place: str, operator: str = "Conv", index: int = 1) -> str:
        """Return the name of a layer's constant: its integers, or its floats."""
        name = self.node(place, operator).input[index]
        return str(self.makers[name].input[0] if name in self.makers else name)

    def change(self, name: str, function: Callable[[np.ndarray], Any]) -> None:
        """Change a constant's values; its type and shape stay."""
        before = self.array(name)
        self.put(name, np.asarray(function(before)).astype(before.dtype).reshape(before.shape))

    def pair(self, place: str, operator: str) -> tuple[onnx.NodeProto, list[onnx.NodeProto]]:
        """Return the Q behind an operator, and the DQs behind that."""
        end = self.node(place, operator).output[0]
        quantize = next(node for node in self.graph.node if node.op_type == "QuantizeLinear" and node.input[0] == end)
        readers = [node for node in self.graph.node if quantize.output[0] in node.input]
        return quantize, readers

    def scale(self, place: str, operator: str, factor: float) -> None:
        """Multiply the scale of the pair behind an operator."""
        quantize, _ = self.pair(place, operator)
        self.change(quantize.input[1], lambda values: values * np.float32(factor))

    def shift(self, place: str, operator: str, steps: int) -> None:
        """Move the zero point of the pair behind an operator."""
        quantize, _ = self.pair(place, operator)
        name = f"{quantize.input[2]}/own"
        values = self.array(quantize.input[2])
        moved = values.astype(np.int64) + (steps if int(values) + steps <= np.iinfo(values.dtype).max else -steps)
        self.graph.initializer.append(numpy_helper.from_array(moved.astype(values.dtype), name))
        for node in (quantize, *self.pair(place, operator)[1]):
            node.input[2] = name

    def replace_with_identity(self, node: onnx.NodeProto) -> None:
        """Let a node pass its first input on."""
        del node.input[1:]
        del node.attribute[:]
        node.op_type = "Identity"

    def attribute(self, node: onnx.NodeProto, name: str, value: Any) -> None:
        """Set an attribute."""
        for entry in [entry for entry in node.attribute if entry.name == name]:
            node.attribute.remove(entry)
        node.attribute.append(helper.make_attribute(name, value))


# Scales and zero points ----------------------------------------------------------------------------------------------


@_in_file("scale twice as large", "pictures", CANONICAL, "stem")
def _(file: Editor) -> None:
    file.scale("stem", "Relu", 2)


@_in_file("scale 5 % too large", "pictures", CANONICAL, "conv1")
def _(file: Editor) -> None:
    file.scale("conv1", "Relu", 1.05)


@_in_file("range cut to half: saturation", "pictures", CANONICAL, "last")
def _(file: Editor) -> None:
    file.scale("last", "Relu", 0.5)


@_in_file("zero point off by 1", "pictures", CANONICAL, "left")
def _(file: Editor) -> None:
    file.shift("left", "Conv", 1)


@_in_file("zero point off by 10", "pictures", CANONICAL, "right")
def _(file: Editor) -> None:
    file.shift("right", "Conv", 10)


@_in_file("activation read in the type of other sign", "pictures", CANONICAL, "left")
def _(file: Editor) -> None:
    quantize, readers = file.pair("left", "Conv")
    zero = file.array(quantize.input[2])
    other = np.uint8 if zero.dtype == np.int8 else np.int8
    name = f"{quantize.input[2]}/other"
    file.graph.initializer.append(numpy_helper.from_array(np.clip(zero, 0, 127).astype(other), name))
    for node in (quantize, *readers):
        node.input[2] = name
    del file.graph.value_info[:]  # types are noted there too


@_in_file("one channel's weight scale wrong", "pictures", CANONICAL, "conv2")
def _(file: Editor) -> None:
    dequantize = file.makers[file.node("conv2", "Conv").input[1]]
    file.change(dequantize.input[1], lambda values: np.where(np.arange(len(values)) == 3, values * 1.5, values))


@_in_file("bias scale twice as large", "pictures", VNNI, "right")
def _(file: Editor) -> None:
    dequantize = file.makers[file.node("right", "Conv").input[2]]
    file.change(dequantize.input[1], lambda values: values * 2)


@_in_file("Q/DQ pair missing", "pictures", CANONICAL, "conv1")
def _(file: Editor) -> None:
    quantize, readers = file.pair("conv1", "Relu")
    for node in file.graph.node:
        for index, name in enumerate(node.input):
            if name in {reader.output[0] for reader in readers}:
                node.input[index] = quantize.input[0]
    for node in (*readers, quantize):
        file.graph.node.remove(node)


@_in_file("Q/DQ pair too many", "tokens", CANONICAL, "norm3")
def _(file: Editor) -> None:
    end = file.node("norm3", "LayerNormalization").output[0]
    readers = [(node, at) for node in file.graph.node for at, name in enumerate(node.input) if name == end]
    file.graph.initializer.append(numpy_helper.from_array(np.asarray(0.05, np.float32), "extra.scale"))
    file.graph.initializer.append(numpy_helper.from_array(np.asarray(0, np.int8), "extra.zero"))
    pair = [
        helper.make_node("QuantizeLinear", [end, "extra.scale", "extra.zero"], ["extra.q"], name="extra/q"),
        helper.make_node("DequantizeLinear", ["extra.q", "extra.scale", "extra.zero"], ["extra.dq"], name="extra/dq"),
    ]
    for node, index in readers:
        node.input[index] = "extra.dq"
    place = next(at for at, node in enumerate(file.graph.node) if end in node.output) + 1
    rest = list(file.graph.node)[place:]
    del file.graph.node[place:]
    file.graph.node.extend([*pair, *rest])


# Weights and biases --------------------------------------------------------------------------------------------------


@_in_file("weights of two layers swapped", "pictures", CANONICAL, "conv1")
def _(file: Editor) -> None:
    first, second = file.weight("conv1"), file.weight("conv2")
    one, two = file.array(first), file.array(second)
    file.put(first, two)
    file.put(second, one)


@_in_file("sign of one weight", "pictures", CANONICAL, "conv2")
def _(file: Editor) -> None:
    file.change(file.weight("conv2"), lambda values: np.where(values == values.flat[np.abs(values.astype(int)).argmax()]
                                                              , -values.astype(int), values))  # fmt: skip


@_in_file("one bias zero", "pictures", CANONICAL, "stem")
def _(file: Editor) -> None:
    file.change(file.weight("stem", index=2), lambda values: np.where(np.arange(len(values)) == 5, 0, values))


@_in_file("output channels permuted", "pictures", CANONICAL, "conv1")
def _(file: Editor) -> None:
    file.change(file.weight("conv1"), lambda values: np.roll(values, 1, 0))


@_in_file("input channels permuted", "pictures", CANONICAL, "conv2")
def _(file: Editor) -> None:
    file.change(file.weight("conv2"), lambda values: np.roll(values, 1, 1))


@_in_file("square weight transposed", "tokens", CANONICAL, "attention.project")
def _(file: Editor) -> None:
    file.change(file.weight("attention.project", "MatMul"), np.transpose)


@_in_file("weights cut to 4 bits", "pictures", CANONICAL, "last")
def _(file: Editor) -> None:
    file.change(file.weight("last"), lambda values: (values >> 4) << 4)


@_in_file("weights rounded toward zero", "tokens", FLOAT, "up")
def _(file: Editor) -> None:
    file.change(file.weight("up", "MatMul"), lambda values: np.trunc(values * 512) / 512)


@_in_file("weights in half precision", "pictures", FLOAT, "stem")
def _(file: Editor) -> None:
    for value in file.graph.initializer:
        if value.data_type == onnx.TensorProto.FLOAT and len(value.dims) > 1:
            file.change(value.name, lambda values: values.astype(np.float16))


@_in_network("weights of another seed", "pictures", CANONICAL, "right")
def _(net: Pictures) -> None:
    torch.manual_seed(77)
    net.right.reset_parameters()


@_in_network("file of an earlier training step", "pictures", CANONICAL, "stem")
def _(net: Pictures) -> None:
    torch.manual_seed(5)
    for value in net.parameters():
        value.add_(0.003 * torch.randn_like(value))


# Operators -----------------------------------------------------------------------------------------------------------


@_in_file("padding on one side", "pictures", CANONICAL, "right")
def _(file: Editor) -> None:
    file.attribute(file.node("right", "Conv"), "pads", [0, 0, 2, 2])


@_in_file("dilation 2", "pictures", CANONICAL, "conv1")
def _(file: Editor) -> None:
    node = file.node("conv1", "Conv")
    file.attribute(node, "dilations", [2, 2])
    file.attribute(node, "pads", [2, 2, 2, 2])


@_in_file("stride 2 before a global pool", "pictures", FLOAT, "last")
def _(file: Editor) -> None:
    file.attribute(file.node("last", "Conv"), "strides", [2, 2])


@_in_file("softmax along another axis", "tokens", CANONICAL, "attention.softmax")
def _(file: Editor) -> None:
    file.attribute(file.node("attention.softmax", "Softmax"), "axis", -2)


@_in_file("ReLU gone", "pictures", CANONICAL, "stem")
def _(file: Editor) -> None:
    file.replace_with_identity(file.node("stem", "Relu"))


@_in_file("ReLU6 as ReLU", "pictures", FLOAT, "depthwise")
def _(file: Editor) -> None:
    node = file.node("depthwise", "Clip")
    file.change(node.input[2], lambda values: values * 1e6)


@_in_file("bound of a clip", "pictures", FLOAT, "depthwise")
def _(file: Editor) -> None:
    node = file.node("depthwise", "Clip")
    file.change(node.input[2], lambda values: values * 0.8)


@_in_file("residual dropped", "tokens", CANONICAL, "add/Add_1")
def _(file: Editor) -> None:
    node = next(node for node in file.graph.node if node.name == "add/Add_1")
    del node.input[0]
    node.op_type = "Identity"


@_in_file("subtraction for an addition", "tokens", FLOAT, "add/Add_1")
def _(file: Editor) -> None:
    next(node for node in file.graph.node if node.name == "add/Add_1").op_type = "Sub"


@_in_file("concat in another order", "pictures", CANONICAL, "cat/Concat")
def _(file: Editor) -> None:
    node = file.node("cat", "Concat")
    first, second = node.input
    node.input[0], node.input[1] = second, first


@_in_file("average pool counts its padding", "pictures", FLOAT, "pool")
def _(file: Editor) -> None:
    node = file.node("pool", "AveragePool")
    entry = next((one for one in node.attribute if one.name == "count_include_pad"), None)
    file.attribute(node, "count_include_pad", 0 if entry is not None and entry.i else 1)


@_in_file("resize linear for nearest", "pictures", CANONICAL, "up")
def _(file: Editor) -> None:
    file.attribute(file.node("up", "Resize"), "mode", "linear")


@_in_file("gate left out", "pictures", FLOAT, "mul/Mul")
def _(file: Editor) -> None:
    file.replace_with_identity(file.node("mul", "Mul"))


def _of_attention(file: Editor, operator: str) -> onnx.NodeProto:
    """Return the operator with a constant that stands before the softmax."""
    constants = {value.name for value in file.graph.initializer}
    softmax = next(node for node in file.graph.node if node.op_type == "Softmax")
    node: onnx.NodeProto = file.makers[softmax.input[0]]
    while node.op_type != operator or not set(node.input) & constants:
        node = file.makers[next(name for name in node.input if name in file.makers)]
    return node


@_in_file("attention scale left out", "tokens", CANONICAL, "attention")
def _(file: Editor) -> None:
    node = _of_attention(file, "Mul")
    file.change(next(name for name in node.input if name not in file.makers), np.ones_like)


@_in_file("attention scale 10 % off", "tokens", CANONICAL, "attention")
def _(file: Editor) -> None:
    node = _of_attention(file, "Mul")
    file.change(next(name for name in node.input if name not in file.makers), lambda values: values * 1.1)


@_in_file("mask left out", "tokens", CANONICAL, "attention")
def _(file: Editor) -> None:
    node = _of_attention(file, "Add")
    file.change(next(name for name in node.input if name not in file.makers), np.zeros_like)


@_in_file("layer norm's epsilon", "tokens", CANONICAL, "norm1")
def _(file: Editor) -> None:
    file.attribute(file.node("norm1", "LayerNormalization"), "epsilon", 1e-2)


@_in_file("layer norm's weights dropped", "tokens", CANONICAL, "norm2")
def _(file: Editor) -> None:
    file.change(file.weight("norm2", "LayerNormalization"), np.ones_like)


@_in_network("GELU by tanh", "tokens", FLOAT, "up")
def _(net: Tokens) -> None:
    net.act.approximate = "tanh"


# Norms and the making ------------------------------------------------------------------------------------------------


@_in_network("batch norm of one batch's statistics", "pictures", CANONICAL, "conv1")
def _(net: Pictures) -> None:
    net.bn1.train()
    net.bn1.momentum = 1.0
    net(data("pictures", 4, 9))


@_in_network("batch norm's epsilon", "pictures", FLOAT, "stem")
def _(net: Pictures) -> None:
    net.stem_bn.eps = 0.01


@_in_network("batch norm not folded", "pictures", CANONICAL, "depthwise")
def _(net: Pictures) -> None:
    net.depthwise_bn.reset_running_stats()


@_in_network("input not normalized", "pictures", FLOAT, "normalize")
def _(net: Pictures) -> None:
    net.normalize.reset_running_stats()


class _WithDropout(Tokens):
    """Dropout as a function, which no mode switches off."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Score, and drop."""
        x = self.embed(x)
        x = x + self.attention(self.norm1(x))
        x = x + self.down(functional.dropout(self.act(self.up(self.norm2(x))), 0.2))
        out: torch.Tensor = self.head(self.norm3(x).mean(1))
        return out


def _dropout(kind: str, form: str) -> tuple[Made, onnx.ModelProto]:
    net = network(kind)
    net.__class__ = _WithDropout
    made = right(kind)
    return Made(kind, net, made.transformed, made.simulated), made.file(form)


def _outlier(kind: str, form: str) -> tuple[Made, onnx.ModelProto]:
    def spoil(batch: torch.Tensor) -> None:
        batch[0].flatten()[7] = 1e6

    made = make(kind, right(kind).original, spoil=spoil)
    return made, made.file(form)


def _halved(kind: str, form: str) -> tuple[Made, onnx.ModelProto]:
    """Calibrate on data a tenth as large as what the network meets: everything saturates, in the simulation too."""
    args, net = (data(kind, 2, 1),), right(kind).original
    transformed = transform(net, args, target=_TARGET).model
    simulated = quantize(transformed, args, forward_loop=[0.1 * data(kind, 8, 100)], target=_TARGET)
    made = Made(kind, net, transformed, simulated)
    return made, made.file(form)


FAULTS += [
    Fault("dropout left on", "tokens", CANONICAL, "the model's own forward", _dropout),
    Fault("an outlier of 1e6 in the calibration data", "pictures", CANONICAL, "normalize", _outlier),
    Fault("calibrated on data a tenth as large", "tokens", CANONICAL, "input 'x'", _halved),
]


@dataclass(frozen=True)
class RightFile:
    """A file with nothing wrong."""

    kind: str
    seed: int
    form: str
    samples: int  # the seed of the data it is judged on

    @property
    def name(self) -> str:
        """What it is, in words."""
        return f"{self.kind}, seed {self.seed}, {self.form}, data {self.samples}"

    def verify(self) -> Verification:
        """Make it and judge it."""
        made = right(self.kind, self.seed)
        return made.verify(onnx.load_from_string(_file_of(self.kind, self.seed, self.form)), self.form, self.samples)


@functools.cache
def _file_of(kind: str, seed: int, form: str) -> bytes:
    return bytes(right(kind, seed).file(form).SerializeToString())


FORMS = (FLOAT, CANONICAL, VNNI, "onnxruntime-x86", "litert")


def right_files() -> Iterator[RightFile]:
    """Yield a hundred files: two networks, five seeds, five forms, two sets of data."""
    for seed in range(5):
        for kind in NETS:
            for form in FORMS:
                for samples in (500, 700):
                    yield RightFile(kind, seed, form, samples)
