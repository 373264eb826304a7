"""Which kernels a model runs, as float and as INT8, on which shapes; in a process of its own.

INT8 is made by the real quantizer with made-up ranges, and the runtime of this machine runs both once with its own
profile on: what it fuses is not guessed. Models have no weights on the way, because the kernels that they run, and how
fast, do not depend on the numbers: a weight is one element while the quantizer works, which is slow per element, and a
``ConstantOfShape`` in the file, which the runtime computes when it loads the model.
"""

from __future__ import annotations

import json
import math
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from embedl_hub.machine.worker import call_worker, serve
from embedl_hub.models.onnx_file import Tensor, inputs_of, read_graph, replace_items
from embedl_hub.quantization.quantize import (
    Integers,
    flat_biases,
    float_model,
    integer_io,
    open_session,
    quantized,
    quantized_ops,
)
from embedl_hub.refusal import RefusedError

Sizes = dict[str, tuple[int, ...]]

_SMALLEST = 16
# A range from 0 on decides what is fused.
_POSITIVE = {"Relu", "Clip", "Sigmoid", "HardSigmoid", "Softmax"}
_KEEPING_SIGN = {"MaxPool", "AveragePool", "GlobalAveragePool", "Concat", "Flatten", "Transpose"}
_ONE = 0.01
_KERNEL = "_kernel_time"


def take_weights(model: onnx.ModelProto) -> Sizes:
    """Make weights single elements, in place, with all shapes inferred before; return their real sizes."""
    graph = model.graph
    floats = [value for value in graph.initializer if value.data_type == onnx.TensorProto.FLOAT]
    sizes = {value.name: tuple(value.dims) for value in floats if math.prod(value.dims) >= _SMALLEST}
    declared = [value for value in graph.input if value.name not in sizes]
    replace_items(graph.initializer, [value for value in graph.initializer if value.name not in sizes])
    weights = [helper.make_tensor_value_info(name, 1, dims) for name, dims in sizes.items()]
    replace_items(graph.input, [*declared, *weights])
    inferred = onnx.shape_inference.infer_shapes(model, data_prop=True)
    # PyTorch's exporter declares weights too, and they are no longer of that shape.
    replace_items(graph.value_info, [value for value in inferred.graph.value_info if value.name not in sizes])
    replace_items(graph.input, declared)
    _unshare_biases(graph, sizes)
    for number, (name, dims) in enumerate(sizes.items()):
        # No two alike, or the runtime takes layers that read the same for one.
        element = np.full([1] * len(dims), _ONE * (1 + number / 1000), np.float32)
        graph.initializer.append(numpy_helper.from_array(element, name))
    return sizes


def _unshare_biases(graph: onnx.GraphProto, sizes: Sizes) -> None:
    """Give each layer a bias of its own: the quantizer would, under names that lead nowhere."""
    seen: set[str] = set()
    for node in graph.node:
        if node.op_type in {"Conv", "Gemm"} and len(node.input) > 2 and node.input[2] in sizes:
            name = node.input[2]
            if name in seen:
                node.input[2] = f"{name}/{len(seen)}"
                sizes[node.input[2]] = sizes[name]
            seen.add(node.input[2])


def give_weights(model: onnx.ModelProto, sizes: Sizes) -> onnx.ModelProto:
    """Return the model with weights of their real sizes, all elements alike."""
    made = onnx.ModelProto()
    made.CopyFrom(model)
    graph = made.graph
    values = {value.name: value for value in graph.initializer}
    wanted: Sizes = {name: sizes[name] for name in values if name in sizes}
    for node in graph.node:
        if node.op_type == "DequantizeLinear" and node.input[0] in values:
            wanted.update(_quantized_sizes(node, sizes))
    nodes = []
    for name, dims in wanted.items():
        shape = numpy_helper.from_array(np.array(dims, np.int64), f"{name}/sizes")
        element = numpy_helper.to_array(values[name]).reshape(-1)[:1]
        graph.initializer.remove(values[name])
        graph.initializer.append(shape)
        constant = numpy_helper.from_array(element)
        nodes.append(helper.make_node("ConstantOfShape", [shape.name], [name], f"{name}/made", value=constant))
    replace_items(graph.node, [*nodes, *graph.node])
    replace_items(graph.input, [value for value in graph.input if value.name not in wanted])
    return made


def _quantized_sizes(node: onnx.NodeProto, sizes: Sizes) -> Sizes:
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
    """Return a model without weights as the quantizer makes it INT8, its ranges made up; the given one is used up."""
    ops = quantized_ops(quantize_io=integers.quantize_io)
    result = quantized(model, integers, ops, _ranges(model.graph))
    if integers.quantize_io:
        integer_io(result)
    return result


def _ranges(graph: onnx.GraphProto) -> Any:  # noqa: ANN401 - the quantizer's own
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


@dataclass(frozen=True)
class WorkloadRequest(Integers):
    """Whose kernels are wanted: a float model with fixed shapes; paths are text, as JSON needs it.

    ``layouts``: whether layouts of this machine's processor family are those of the target.
    """

    model: str
    layouts: bool = True


def workload(request: WorkloadRequest, scratch: Path) -> dict[str, list[dict[str, Any]]]:
    """Return the nodes that run, as float and as INT8: ``op``, ``inputs``, ``outputs``."""
    return call_worker(__name__, request, scratch, "The kernels are unknown")


def workload_here(request: WorkloadRequest, folder: Path) -> dict[str, list[dict[str, Any]]]:
    """Do it in this process."""
    import onnx  # noqa: PLC0415 - only this process needs it

    folder.mkdir()
    model = onnx.load(flat_biases(float_model(Path(request.model), folder)))
    sizes = take_weights(model)
    kinds = {"float": give_weights(model, sizes)}
    kinds["int8"] = give_weights(int8_of(model, request), sizes)
    found = {}
    for kind, made in kinds.items():
        path = folder / f"{kind}.onnx"
        onnx.save(made, path)
        is_signed = request.activations == "int8"
        found[kind] = nodes_run(path, folder / kind, layouts=request.layouts, is_signed=is_signed)
    return found


def nodes_run(model: Path, prefix: Path, *, layouts: bool, is_signed: bool = False) -> list[dict[str, Any]]:
    """Run a model once and return its nodes; the runtime's profile goes to ``prefix``.

    ``layouts``: data may be laid out as this machine's processor likes it. ``is_signed``: signed activations are fused,
    as they are on ARM and not on x86.
    """
    # It runs once: packing weights first would cost more than it saves.
    entries = {"session.disable_prepacking": "1", **({"session.qdqisint8allowed": "1"} if is_signed else {})}
    level = "ENABLE_ALL" if layouts else "ENABLE_EXTENDED"
    session = open_session(model, level, entries, enable_profiling=True, profile_file_prefix=str(prefix))
    feed = {tensor.name: _made_up(tensor) for tensor in inputs_of(read_graph(model))}
    try:
        session.run(None, feed)
    except Exception as error:  # the runtime raises a class of its own per cause
        raise RefusedError(f"ONNX Runtime cannot run the model: {' '.join(str(error).split())[:500]}") from error
    trace = Path(session.end_profiling())
    events = json.loads(trace.read_text(encoding="utf-8", errors="replace"))
    kernels = [event["args"] for event in events if event.get("cat") == "Node" and event["name"].endswith(_KERNEL)]
    return [
        {"op": facts["op_name"], "inputs": facts["input_type_shape"], "outputs": facts["output_type_shape"]}
        for facts in kernels
    ]


def _made_up(tensor: Tensor) -> np.ndarray:
    if tensor.dtype in ("string", "unknown"):
        raise RefusedError(f"Input {tensor.name!r} is of {tensor.dtype}; numbers are needed.")
    # An open size is a batch or a length; 1 runs everywhere.
    return np.zeros([size if isinstance(size, int) and size > 0 else 1 for size in tensor.shape], tensor.dtype)


def has_open_sizes(model: Path) -> bool:
    """Tell whether an input has no fixed shape: the work then depends on data."""
    return not all(tensor.is_fixed for tensor in inputs_of(read_graph(model)))


if __name__ == "__main__":
    sys.exit(serve("onnxruntime", workload_here, WorkloadRequest))
