"""Weights that every processor computes alike: which layers can saturate, and the remedies for our own files.

Kernels of x86 without VNNI add pairs of u8 × s8 products in 16 bits; `embedl_kernels` says which are pairs.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
from onnx import numpy_helper

import embedl_kernels as kernels
from embedl_hub.models.onnx_file import nodes_of

if TYPE_CHECKING:
    Floats = Mapping[str, onnx.TensorProto]
    Runs = Callable[[onnx.ModelProto], Callable[[Mapping[str, np.ndarray]], Mapping[str, np.ndarray]]]

# Integer operators: where the weight is, and where the zero point of the other side, whose type is that side's.
_INTEGER = {
    "QLinearConv": (3, 2), "ConvInteger": (1, 2), "QLinearMatMul": (3, 2), "QGemm": (3, 2), "MatMulInteger": (1, 2),
    "MatMulIntegerToFloat": (1, 4), "DynamicQuantizeMatMul": (1, None), "QAttention": (1, 6),
}  # fmt: skip
_FLOAT = ("Conv", "FusedConv", "MatMul", "FusedMatMul", "Gemm")
# Remedies that keep the fast kernel of the layer and need nothing around it.
_AMONG = ("scaled", "compensated", "clipped")
_LOWEST = -127
_MOST_ROWS = 2000
_MOST_NUMBERS = 2_000_000
_MOST_BATCHES = 16
_INT32 = np.iinfo(np.int32)


def requires_of(model: onnx.ModelProto) -> str:
    """Return what a file says it requires of kernels."""
    return next((entry.value for entry in model.metadata_props if entry.key == kernels.REQUIRES), "")


def require_exact(model: onnx.ModelProto) -> None:
    """Let a file say that it needs exact kernels."""
    kept = {entry.key: entry.value for entry in model.metadata_props}
    onnx.helper.set_model_props(model, {**kept, kernels.REQUIRES: kernels.EXACT_U8S8})


def saturating_layers(model: onnx.ModelProto) -> list[str]:
    """Return the names of the layers that some input makes saturate on kernels that add pairs in 16 bits.

    Files of every origin: integer operators, and float ones between DequantizeLinear, which the runtime fuses. There it
    makes signed activations unsigned on x86, so both kinds count.
    """
    graph = _Graph(model)
    coded = ((node.name or node.output[0], graph.codes(node)) for node in nodes_of(model.graph))
    return [name for name, codes in coded if codes is not None and kernels.can_saturate(codes).any()]


def narrow(model: onnx.ModelProto) -> None:
    """Keep weights off -128 in place: its products wrap in pairs on ARM without dot products, and it buys nothing."""
    graph = _Graph(model)
    for node in model.graph.node:
        weight = graph.weight(node)
        if weight is not None and (array := graph.array(weight)) is not None and array.min(initial=0) < _LOWEST:
            graph.values[weight].CopyFrom(numpy_helper.from_array(np.maximum(array, np.int8(_LOWEST)), weight))


def make_portable(
    model: onnx.ModelProto, plain: onnx.ModelProto, batches: Iterable[Mapping[str, np.ndarray]], runs: Runs
) -> list[dict[str, Any]]:
    """Give a quantized model, in place, weights that no input can saturate; return what each layer got.

    ``plain`` is the float model it was made from, for the weights before rounding. ``runs`` returns a function that
    runs a model as float arithmetic and returns its outputs by name.
    """
    graph = _Graph(model)
    sites = [site for node in model.graph.node if (site := _site(graph, node)) is not None]
    rows = _rows_of(model, [site for site in sites if site.can_sample], batches, runs)
    floats = {value.name: value for value in plain.graph.initializer}
    remedies_taken = []
    for site in sites:
        layer = _layer(graph, site, floats, rows.get(site.name))
        choice = kernels.choose(layer, [remedy for remedy in kernels.remedies() if remedy.name in site.among])
        codes = choice.fitted.codes
        if codes is None:  # not one of those that were asked for
            continue
        _write(graph, site, np.maximum(codes, np.int8(_LOWEST)), choice.fitted.scale, floats)
        remedies_taken.append({"layer": site.name, "remedy": choice.remedy, "cost_db": round(choice.cost_db, 3)})
    _drop_unused(model)
    return remedies_taken


class _Graph:
    """A model's tensors by name."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self.model = model
        self.values = {value.name: value for value in model.graph.initializer}
        self.initializers = set(self.values)
        self.makers: dict[str, onnx.NodeProto] = {}
        self.readers: dict[str, int] = {}
        for node in nodes_of(model.graph):
            self.makers.update(dict.fromkeys(node.output, node))
            for name in node.input:
                self.readers[name] = self.readers.get(name, 0) + 1
            if node.op_type == "Constant" and node.attribute and node.attribute[0].name == "value":
                self.values[node.output[0]] = node.attribute[0].t

    def array(self, name: str) -> np.ndarray | None:
        """Return a constant; None for what is computed or lies outside the file."""
        value = self.values.get(name)
        if value is None or value.data_location == onnx.TensorProto.EXTERNAL:
            return None
        return numpy_helper.to_array(value)

    def dequantized(self, name: str) -> onnx.NodeProto | None:
        """Return the DequantizeLinear that makes a tensor."""
        maker = self.makers.get(name)
        return maker if maker is not None and maker.op_type == "DequantizeLinear" else None

    def weight(self, node: onnx.NodeProto) -> str | None:
        """Return the name of the int8 weight that a node multiplies unsigned numbers by."""
        name = None
        if node.op_type in _INTEGER:
            at, zero_at = _INTEGER[node.op_type]
            signed = zero_at is not None and self._is_signed(node, zero_at)
            name = None if signed or len(node.input) <= at else node.input[at]
        elif node.op_type in _FLOAT and len(node.input) > 1 and self.dequantized(node.input[0]) is not None:
            maker = self.dequantized(node.input[1])
            name = None if maker is None else maker.input[0]
        found = self.values.get(name) if name else None
        return name if found is not None and found.data_type == onnx.TensorProto.INT8 else None

    def codes(self, node: onnx.NodeProto) -> np.ndarray | None:
        """Return the weight as (groups, channels, K), K as the kernel adds; None for what is not added in pairs."""
        name = self.weight(node)
        array = None if name is None else self.array(name)
        return None if array is None or array.size == 0 else in_kernel_order(node, array)

    def _is_signed(self, node: onnx.NodeProto, at: int) -> bool:
        name = node.input[at] if len(node.input) > at else ""
        if name in self.values:
            return bool(self.values[name].data_type == onnx.TensorProto.INT8)
        inputs = {value.name: value.type.tensor_type.elem_type for value in self.model.graph.input}
        return bool(inputs.get(node.input[0]) == onnx.TensorProto.INT8)


def in_kernel_order(node: onnx.NodeProto, weight: np.ndarray) -> np.ndarray | None:
    """Return a weight as (groups, channels, K), K as the kernel adds; None for a kernel that adds exactly."""
    if "Conv" not in node.op_type:
        return kernels.product_to_matrix(weight, transposed=bool(_attribute(node, "transB", 0)))
    groups = _attribute(node, "group", 1)
    return None if kernels.is_depthwise(weight.shape, groups) else kernels.conv_to_matrix(weight, groups)


def _from_kernel_order(node: onnx.NodeProto, ordered: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Undo `in_kernel_order`."""
    if "Conv" in node.op_type:
        return kernels.matrix_to_conv(ordered, shape)
    return kernels.matrix_to_product(ordered, shape, transposed=bool(_attribute(node, "transB", 0)))


def _attribute(node: onnx.NodeProto, name: str, default: Any) -> Any:  # noqa: ANN401 - numbers, lists and words
    for attribute in node.attribute:
        if attribute.name == name:
            return onnx.helper.get_attribute_value(attribute)
    return default


@dataclass(frozen=True)
class _Site:
    """A dense layer with int8 weights, of a quantized model.

    ``codes`` are its integers, (groups, channels, K), ``scale`` their scales, (groups, channels), of which the file has
    ``scales``; ``step`` is that of its input.
    """

    node: onnx.NodeProto
    shape: tuple[int, ...]
    codes: np.ndarray
    scale: np.ndarray
    scales: int
    step: np.ndarray

    @property
    def name(self) -> str:
        return self.node.name or self.node.output[0]

    @property
    def rows(self) -> int:
        groups, _, length = self.codes.shape
        return max(1, min(_MOST_ROWS, _MOST_NUMBERS // int(groups * length)))

    @property
    def among(self) -> tuple[str, ...]:
        """The remedies it can take: several matrices with one row of scales must keep those."""
        return _AMONG if self.scales in (1, self.scale.size) else _AMONG[-1:]

    @property
    def can_sample(self) -> bool:
        """Whether rows of its input can be told: not where each of several matrices has rows of its own."""
        return "Conv" in self.node.op_type or len(self.codes) == 1


def _site(graph: _Graph, node: onnx.NodeProto) -> _Site | None:
    if node.op_type not in _FLOAT or (codes := graph.codes(node)) is None:
        return None
    into, maker = graph.dequantized(node.input[0]), graph.dequantized(node.input[1])
    if into is None or maker is None:
        return None
    step, scale = graph.array(into.input[1]), graph.array(maker.input[1])
    if step is None or scale is None:
        return None
    groups, channels, _ = codes.shape
    if scale.size not in (1, channels, groups * channels):
        return None
    rows = scale.reshape(-1, channels) if scale.size > 1 else scale.reshape(1, 1)
    full = np.broadcast_to(rows, (groups, channels)).astype(np.float64)
    return _Site(node, tuple(graph.values[maker.input[0]].dims), codes, full, scale.size, step)


def _layer(graph: _Graph, site: _Site, floats: Floats, rows: np.ndarray | None) -> kernels.Layer:
    real = site.codes * site.scale[..., None]
    maker = graph.dequantized(site.node.input[1])
    if maker is not None and (value := _before_rounding(floats, maker.input[0])) is not None:
        ordered = in_kernel_order(site.node, value)
        if ordered is not None and ordered.shape == real.shape:
            real = ordered.astype(np.float64)
    return kernels.Layer(real, site.codes, site.scale, rows, float(site.step.reshape(-1)[0]), shared=site.scales == 1)


def _before_rounding(floats: Floats, name: str) -> np.ndarray | None:
    """Return the float tensor that the quantizer made an integer one of."""
    value = floats.get(name.removesuffix("_quantized"))
    return None if value is None else numpy_helper.to_array(value)


def _rows_of(
    model: onnx.ModelProto, sites: Sequence[_Site], batches: Iterable[Mapping[str, np.ndarray]], runs: Runs
) -> dict[str, np.ndarray]:
    """Return rows of each layer's input, (groups, rows, K), rounded as its integers are."""
    some = list(itertools.islice(batches, _MOST_BATCHES))
    if not sites or not some:
        return {}
    watched = onnx.ModelProto()
    watched.CopyFrom(model)
    known = {value.name for value in watched.graph.output}
    for name in dict.fromkeys(site.node.input[0] for site in sites):
        if name not in known:
            watched.graph.output.append(onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None))
    run, random = runs(watched), np.random.default_rng(0)
    parts: dict[str, list[np.ndarray]] = {}
    for batch in some:
        found = run(batch)
        for site in sites:
            count = math.ceil(site.rows / len(some))
            parts.setdefault(site.name, []).append(_sampled(site, found[site.node.input[0]], count, random))
    return {name: np.concatenate(each, axis=1) for name, each in parts.items()}


def _sampled(site: _Site, value: np.ndarray, count: int, random: np.random.Generator) -> np.ndarray:
    node = site.node
    if "Conv" not in node.op_type:
        return kernels.sample_rows(value.T if _attribute(node, "transA", 0) else value, count, random)
    kernel = site.shape[2:]
    strides, dilations = (list(_attribute(node, name, [1] * len(kernel))) for name in ("strides", "dilations"))
    auto_pad = _attribute(node, "auto_pad", b"NOTSET").decode()
    pads = kernels.window_pads(auto_pad, _attribute(node, "pads", []), value.shape[2:], kernel, strides, dilations)
    window = kernels.Window(kernel, strides, pads, dilations, len(site.codes))
    return kernels.sample_patches(value, window, count, random)


def _write(graph: _Graph, site: _Site, codes: np.ndarray, scale: np.ndarray, floats: Floats) -> None:
    """Put integers and scales into a layer, and the bias that goes with them."""
    node = site.node
    maker = _own(graph, node, 1)
    old, old_scale = graph.array(maker.input[0]), graph.array(maker.input[1])
    if old is None or old_scale is None:
        return
    flat = scale.reshape(-1)[: old_scale.size].reshape(old_scale.shape).astype(np.float32)
    _replace(graph, maker, 0, _from_kernel_order(node, codes, old.shape).astype(np.int8))
    bias = graph.dequantized(node.input[2]) if len(node.input) > 2 and node.input[2] else None
    if bias is not None:
        bias = _own(graph, node, 2)
        _write_bias(graph, bias, np.float32(site.step.reshape(-1)[0]) * flat, floats)
    _replace(graph, maker, 1, flat)


def _write_bias(graph: _Graph, maker: onnx.NodeProto, step: np.ndarray, floats: Floats) -> None:
    codes, old_step = graph.array(maker.input[0]), graph.array(maker.input[1])
    if codes is None or old_step is None or codes.dtype != np.int32:
        return
    real = _before_rounding(floats, maker.input[0])
    if real is None or real.shape != codes.shape:
        real = codes * old_step.astype(np.float64)
    step = step.reshape(-1).astype(np.float32)
    step = step.reshape(old_step.shape) if step.size == old_step.size else step
    rounded = np.clip(np.rint(real / step.astype(np.float64)), _INT32.min, _INT32.max)
    _replace(graph, maker, 0, rounded.astype(np.int32).reshape(codes.shape))
    _replace(graph, maker, 1, step)


def _own(graph: _Graph, node: onnx.NodeProto, at: int) -> onnx.NodeProto:
    """Return the DequantizeLinear before an input, made the node's own where others read it too."""
    name = node.input[at]
    maker: onnx.NodeProto = graph.makers[name]
    if graph.readers.get(name, 0) <= 1:
        return maker
    # At the end, as the quantizer's own: the runtime sorts nodes itself.
    copy: onnx.NodeProto = graph.model.graph.node.add()
    copy.CopyFrom(maker)
    copy.name = _free(graph, f"{maker.name}_own")
    copy.output[0] = node.input[at] = _free(graph, f"{name}_own")
    graph.makers[copy.output[0]] = copy
    graph.readers[name] -= 1
    graph.readers[copy.output[0]] = 1
    for word in copy.input:
        graph.readers[word] = graph.readers.get(word, 0) + 1
    return copy


def _replace(graph: _Graph, maker: onnx.NodeProto, at: int, array: np.ndarray) -> None:
    """Give a node another constant, under the old name unless somebody else reads that."""
    name = maker.input[at]
    if graph.readers.get(name, 0) <= 1 and name in graph.initializers:
        graph.values[name].CopyFrom(numpy_helper.from_array(array, name))
        return
    graph.readers[name] = graph.readers.get(name, 1) - 1
    fresh = _free(graph, f"{name}_own")
    graph.model.graph.initializer.append(numpy_helper.from_array(array, fresh))
    graph.values[fresh] = graph.model.graph.initializer[-1]
    graph.initializers.add(fresh)
    graph.readers[fresh] = 1
    maker.input[at] = fresh


def _free(graph: _Graph, name: str) -> str:
    taken = {*graph.values, *graph.makers, *(node.name for node in graph.model.graph.node)}
    numbered = (f"{name}_{number}" for number in itertools.count(2))
    return next(free for free in itertools.chain([name], numbered) if free not in taken)


def _drop_unused(model: onnx.ModelProto) -> None:
    read = {name for node in nodes_of(model.graph) for name in node.input} | {v.name for v in model.graph.output}
    for value in [value for value in model.graph.initializer if value.name not in read]:
        model.graph.initializer.remove(value)
