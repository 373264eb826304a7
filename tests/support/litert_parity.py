"""Integers at every boundary of an INT8 TFLite model: LiteRT's kernels against the arithmetic of Q/DQ.

Each integer operator is taken out of the model and run alone, on the integers that it gets in the whole model: by the
runtime's own kernels, by XNNPACK, and as floats between DQ and Q. What differs is then this operator's alone.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from ai_edge_litert.interpreter import Interpreter, OpResolverType

from embedl_hub.toolchains.tflite.conversion.flat import FLOAT32, INT8, INT32, Flat, Operator

# Steps of the output's scale by which a kernel may differ from Q/DQ: by XNNPACK, by the runtime's own kernels.
BOUNDS: dict[str, tuple[int, int]] = {
    "ADD": (1, 1), "AVERAGE_POOL_2D": (1, 1), "BATCH_MATMUL": (1, 1), "CONV_2D": (1, 1), "DEPTHWISE_CONV_2D": (1, 1),
    "FULLY_CONNECTED": (1, 1), "GELU": (1, 1), "HARD_SWISH": (1, 1), "LEAKY_RELU": (1, 1), "LOGISTIC": (1, 1),
    "MEAN": (1, 1), "MUL": (1, 1), "RESIZE_BILINEAR": (1, 1), "SOFTMAX": (1, 1), "SUB": (1, 1), "TANH": (1, 1),
    "TRANSPOSE_CONV": (1, 1),
}  # fmt: skip
_CONVERSIONS = ("QUANTIZE", "DEQUANTIZE")


class Row(NamedTuple):
    """How far one operator's integers are from those of Q/DQ: the largest difference, and the share that differs."""

    op_type: str
    name: str
    xnnpack: int
    builtin: int
    xnnpack_share: float
    builtin_share: float


def parity(path: Path, feeds: Sequence[Mapping[str, np.ndarray]]) -> list[Row]:
    """Return a row for every integer operator of a model; ``feeds`` are inputs as the model takes them."""
    flat = Flat(path)
    seen = [_tensors(path, feed) for feed in feeds]
    rows = []
    for operator in flat.operators:
        kind, out = flat.op_type(operator), int(operator.outputs[0])
        if kind in _CONVERSIONS or flat.graph.tensors[out].type != INT8:
            continue
        data = [int(index) for index in operator.inputs if index >= 0 and not flat.is_constant(int(index))]
        data = list(dict.fromkeys(data))
        models = _alone(flat, operator, data)
        far: dict[str, list[np.ndarray]] = {"xnnpack": [], "builtin": []}
        for tensors in seen:
            inputs = [tensors[index] for index in data]
            floats = [_dequantized(flat, index, tensors[index]) for index in data]
            exact = _rounded(flat, out, _run(models[1], floats, xnnpack=False))
            for name, values in far.items():
                got = _run(models[0], inputs, xnnpack=name == "xnnpack").astype(np.int32)
                values.append(np.abs(got - exact).reshape(-1))
        steps = {name: np.concatenate(values) for name, values in far.items()}
        worst = [int(steps[name].max(initial=0)) for name in ("xnnpack", "builtin")]
        shares = [float((steps[name] > 0).mean()) for name in ("xnnpack", "builtin")]
        rows.append(Row(kind, flat.name(out), *worst, *shares))
    return rows


def _tensors(path: Path, feed: Mapping[str, np.ndarray]) -> dict[int, np.ndarray]:
    """Return every tensor of a run by the runtime's own kernels."""
    interpreter = Interpreter(
        model_path=str(path), experimental_preserve_all_tensors=True,
        experimental_op_resolver_type=OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES,
    )  # fmt: skip
    interpreter.allocate_tensors()
    for detail in interpreter.get_input_details():
        interpreter.set_tensor(detail["index"], feed[detail["name"]])
    interpreter.invoke()
    found = {}
    for detail in interpreter.get_tensor_details():
        try:
            found[int(detail["index"])] = interpreter.get_tensor(detail["index"]).copy()
        except ValueError:
            continue  # what an operator needs for itself
    return found


def _alone(flat: Flat, operator: Operator, data: list[int]) -> tuple[bytes, bytes]:
    """Return a model of one operator, and the same with floats in the place of integers."""
    whole = flat.model
    graph = flat.graph
    made: list[bytes] = []
    for as_float in (False, True):
        single = flat.schema.ModelT()
        single.version, single.operatorCodes = whole.version, whole.operatorCodes
        single.buffers, single.signatureDefs, single.metadata, single.subgraphs = [flat.schema.BufferT()], [], [], []
        tensors: list[Any] = []
        places: dict[int, int] = {}
        used = [int(index) for index in (*operator.inputs, *operator.outputs) if index >= 0]
        for index in dict.fromkeys(used):
            tensor = copy.copy(graph.tensors[index])
            values = flat.constant(index)
            if values is not None:
                if as_float and tensor.type in (INT8, INT32) and tensor.quantization is not None:
                    values = _of_constant(tensor, values) if _has_scale(tensor) else values
                buffer = flat.schema.BufferT()
                buffer.data = np.frombuffer(np.ascontiguousarray(values).tobytes(), np.uint8)
                single.buffers.append(buffer)
            tensor.buffer = len(single.buffers) - 1 if values is not None else 0
            if as_float and tensor.type in (INT8, INT32) and _has_scale(tensor):
                tensor.type, tensor.quantization = FLOAT32, None
            places[index] = len(tensors)
            tensors.append(tensor)
        own = copy.copy(operator)
        own.inputs = [places[int(index)] if index >= 0 else -1 for index in operator.inputs]
        own.outputs = [places[int(index)] for index in operator.outputs]
        sub = flat.schema.SubGraphT()
        sub.tensors, sub.operators, sub.name = tensors, [own], b"main"
        sub.inputs, sub.outputs = [places[index] for index in data], own.outputs
        single.subgraphs.append(sub)
        made.append(_packed(single))
    return made[0], made[1]


def _packed(model: Any) -> bytes:
    import flatbuffers  # type: ignore[import-untyped]

    builder = flatbuffers.Builder(1 << 16)
    builder.Finish(model.Pack(builder), b"TFL3")
    return bytes(builder.Output())


def _has_scale(tensor: Any) -> bool:
    scheme = tensor.quantization
    return scheme is not None and scheme.scale is not None and len(scheme.scale) > 0


def _of_constant(tensor: Any, values: np.ndarray) -> np.ndarray:
    scale = np.asarray(tensor.quantization.scale, np.float32)
    axis = tensor.quantization.quantizedDimension if scale.size > 1 else 0
    shape = [-1 if at == axis else 1 for at in range(values.ndim)] if scale.size > 1 else [1] * values.ndim
    zero = np.asarray(tensor.quantization.zeroPoint)
    moved = values.astype(np.float32) - (zero.reshape(shape) if zero.size > 1 else float(zero.reshape(-1)[0]))
    return np.asarray(moved * scale.reshape(shape), np.float32)


def _dequantized(flat: Flat, index: int, values: np.ndarray) -> np.ndarray:
    tensor = flat.graph.tensors[index]
    return _of_constant(tensor, values) if values.dtype == np.int8 and _has_scale(tensor) else values


def _rounded(flat: Flat, index: int, values: np.ndarray) -> np.ndarray:
    scheme = flat.graph.tensors[index].quantization
    steps = np.rint(values.astype(np.float32) / np.float32(scheme.scale[0])) + int(scheme.zeroPoint[0])
    return np.asarray(np.clip(steps, -128, 127), np.int32)


def _run(model: bytes, inputs: Sequence[np.ndarray], *, xnnpack: bool) -> np.ndarray:
    kind = OpResolverType.AUTO if xnnpack else OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES
    interpreter = Interpreter(model_content=model, experimental_op_resolver_type=kind)
    interpreter.allocate_tensors()
    for detail, value in zip(interpreter.get_input_details(), inputs, strict=True):
        interpreter.set_tensor(detail["index"], value)
    interpreter.invoke()
    values: np.ndarray = interpreter.get_tensor(interpreter.get_output_details()[0]["index"]).copy()
    return values
