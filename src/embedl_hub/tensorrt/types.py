"""The number formats a model asks for by itself, and how its tensors lie in an engine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from onnx import TensorProto

from embedl_hub.tensorrt.options import ModelTypes
from embedl_hub.toolchain.model import nodes_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    import onnx

    from embedl_hub.core.context import HubContext

_FLOATS = {TensorProto.FLOAT16: "float16", TensorProto.BFLOAT16: "bfloat16"}
_QUANTIZED = {
    TensorProto.INT8: "int8", TensorProto.UINT8: "int8", TensorProto.FLOAT8E4M3FN: "fp8",
    TensorProto.FLOAT8E5M2: "fp8",
}  # fmt: skip
# What TensorRT prints for its types, and what NumPy calls them.
_NUMPY = {
    "fp32": "float32", "fp16": "float16", "int8": "int8", "int32": "int32", "int64": "int64", "bool": "bool",
    "uint8": "uint8",
}  # fmt: skip


def model_types(model: onnx.ModelProto) -> ModelTypes:
    """Return what a model asks for beyond float32."""
    kinds = {value.name: value.data_type for value in model.graph.initializer}
    floats = {_FLOATS[kind] for kind in kinds.values() if kind in _FLOATS}
    floats |= {
        _FLOATS[value.type.tensor_type.elem_type]
        for value in (*model.graph.input, *model.graph.output)
        if value.type.tensor_type.elem_type in _FLOATS
    }
    quantized = set()
    for node in nodes_of(model.graph):
        if node.op_type in {"QuantizeLinear", "DequantizeLinear"}:
            # Without a zero point the quantised type is uint8, which TensorRT takes as int8.
            zero = node.input[2] if len(node.input) > 2 else ""
            quantized.add(_QUANTIZED.get(kinds.get(zero, TensorProto.INT8), "int8"))
    return ModelTypes(frozenset(floats), frozenset(quantized))


def numpy_name(tensorrt_name: str) -> str | None:
    """Return NumPy's name for a type as trtexec prints it; None where NumPy has none."""
    return _NUMPY.get(tensorrt_name)


def engine_dtype(dtype: str, version: tuple[int, int, int]) -> str:
    """Return the type a tensor of the model has in an engine: double is never there, 64-bit integers from 10 on."""
    if dtype == "float64":
        return "float32"
    if dtype == "int64" and version[0] < 10:
        return "int32"
    return dtype


def as_engine_array(array: np.ndarray, dtype: str) -> np.ndarray:
    """Return an array as the engine reads it, or refuse numbers that it cannot hold."""
    if array.dtype.name == dtype:
        return np.ascontiguousarray(array)
    converted = array.astype(dtype)
    if array.dtype.kind in "iu" and not np.array_equal(converted.astype(array.dtype), array):
        raise OverflowError(f"numbers beyond {dtype}, which is all this TensorRT has")
    return np.ascontiguousarray(converted)


def tensor_facts(name: str, dtype: str, shape: tuple[object, ...]) -> Mapping[str, object]:
    """Return a tensor for recording."""
    return {"name": name, "dtype": dtype, "shape": list(shape)}


def log_precision(ctx: HubContext, engine: Mapping[str, Any]) -> None:
    """Log the number format that every toolchain logs, and what it means here; an old engine may not tell."""
    for name, key in (("precision", "number_format"), ("precision_meaning", "precision")):
        if engine.get(key) is not None:
            ctx.client.log_param(name, engine[key])
