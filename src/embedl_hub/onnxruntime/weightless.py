"""Models without their weights: the kernels that they run, and how fast, do not depend on the numbers in them.

A weight is one element while the quantiser works, which is slow per element, and a ``ConstantOfShape`` in the file,
which the runtime computes when it loads the model. Such a file is a few kilobytes whatever the network.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from embedl_hub.onnxruntime.quantizing import integer_io, quantised_ops, quantized

if TYPE_CHECKING:
    from embedl_hub.onnxruntime.quantizing import Integers

Sizes = dict[str, tuple[int, ...]]

_SMALLEST = 16
# A range from 0 on decides what is fused.
_POSITIVE = {"Relu", "Clip", "Sigmoid", "HardSigmoid", "Softmax"}
_KEEPING_SIGN = {"MaxPool", "AveragePool", "GlobalAveragePool", "Concat", "Flatten", "Transpose"}
_ONE = 0.01


def take_weights(model: onnx.ModelProto) -> Sizes:
    """Make weights single elements, in place, with all shapes inferred before; return their real sizes."""
    graph = model.graph
    large = [value for value in graph.initializer if _is_weight(value)]
    sizes = {value.name: tuple(value.dims) for value in large}
    kept = [value for value in graph.initializer if value.name not in sizes]
    declared = [value for value in graph.input if value.name not in sizes]
    del graph.initializer[:], graph.input[:]
    graph.initializer.extend(kept)
    graph.input.extend(declared)
    graph.input.extend(helper.make_tensor_value_info(name, 1, dims) for name, dims in sizes.items())
    inferred = onnx.shape_inference.infer_shapes(model, data_prop=True)
    del graph.value_info[:], graph.input[:]
    graph.value_info.extend(inferred.graph.value_info)
    graph.input.extend(declared)
    _unshare_biases(graph, sizes)
    for number, (name, dims) in enumerate(sizes.items()):
        # No two alike, or the runtime takes layers that read the same for one.
        one = np.full([1] * len(dims), _ONE * (1 + number / 1000), np.float32)
        graph.initializer.append(numpy_helper.from_array(one, name))
    return sizes


def _unshare_biases(graph: onnx.GraphProto, sizes: Sizes) -> None:
    """Give each layer a bias of its own: the quantiser would, under names that lead nowhere."""
    seen: set[str] = set()
    for node in graph.node:
        if node.op_type in {"Conv", "Gemm"} and len(node.input) > 2 and node.input[2] in sizes:
            name = node.input[2]
            if name in seen:
                node.input[2] = f"{name}/{len(seen)}"
                sizes[node.input[2]] = sizes[name]
            seen.add(node.input[2])


def _is_weight(value: onnx.TensorProto) -> bool:
    return value.data_type == onnx.TensorProto.FLOAT and math.prod(value.dims) >= _SMALLEST


def give_weights(model: onnx.ModelProto, sizes: Sizes) -> onnx.ModelProto:
    """Return the model with weights of their real sizes, all elements alike."""
    made = onnx.ModelProto()
    made.CopyFrom(model)
    graph = made.graph
    values = {value.name: value for value in graph.initializer}
    wanted: Sizes = {name: sizes[name] for name in values if name in sizes}
    for node in graph.node:
        if node.op_type == "DequantizeLinear" and node.input[0] in values:
            wanted.update(_quantised_sizes(node, sizes))
    nodes = []
    for name, dims in wanted.items():
        shape = numpy_helper.from_array(np.array(dims, np.int64), f"{name}/sizes")
        one = numpy_helper.to_array(values[name]).reshape(-1)[:1]
        graph.initializer.remove(values[name])
        graph.initializer.append(shape)
        constant = numpy_helper.from_array(one)
        nodes.append(helper.make_node("ConstantOfShape", [shape.name], [name], f"{name}/made", value=constant))
    rest = list(graph.node)
    del graph.node[:]
    graph.node.extend([*nodes, *rest])
    declared = [value for value in graph.input if value.name not in wanted]
    del graph.input[:]
    graph.input.extend(declared)
    return made


def _quantised_sizes(node: onnx.NodeProto, sizes: Sizes) -> Sizes:
    source = node.input[0].removesuffix("_quantized")
    if source not in sizes:
        return {}
    dims = sizes[source]
    found: Sizes = {node.input[0]: dims}
    axis = next((attribute.i for attribute in node.attribute if attribute.name == "axis"), None)
    if axis is not None:
        found.update(dict.fromkeys(node.input[1:3], (dims[axis],)))
    return found


def int8_of(model: onnx.ModelProto, integers: Integers) -> onnx.ModelProto:
    """Return a model without weights as the quantiser makes it INT8, its ranges made up; the given one is used up."""
    ops = quantised_ops(quantize_io=integers.quantize_io)
    result = quantized(model, integers, ops, _ranges(model.graph))
    if integers.quantize_io:
        integer_io(result)
    return result


def _ranges(graph: onnx.GraphProto) -> Any:  # noqa: ANN401 - the quantiser's own
    from onnxruntime.quantization import CalibrationMethod  # noqa: PLC0415 - only this process needs it
    from onnxruntime.quantization.calibrate import TensorData, TensorsData  # noqa: PLC0415

    low, zero, high = (np.array(value, np.float32) for value in (-1, 0, 1))
    ranges = {value.name: TensorData(lowest=low, highest=high) for value in graph.input}
    positive: set[str] = set()
    for node in graph.node:
        is_positive = node.op_type in _POSITIVE or (
            node.op_type in _KEEPING_SIGN and all(name in positive for name in node.input if name)
        )
        for name in node.output:
            ranges[name] = TensorData(lowest=zero if is_positive else low, highest=high)
            if is_positive:
                positive.add(name)
    return TensorsData(CalibrationMethod.MinMax, ranges)
