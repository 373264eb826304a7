"""`lower`: take a model apart, change placement and number formats, put it together again."""

import copy
import json
from collections.abc import Iterable
from typing import Literal

import onnx

from embedl_deploy.dialect._constants import convert_weights, free_layers, integer_biases, lacking
from embedl_deploy.dialect._dialects import Dialect, get_dialect
from embedl_deploy.dialect._files import check_graph
from embedl_deploy.dialect._half import halve
from embedl_deploy.dialect._islands import keep_float
from embedl_deploy.dialect._model import (
    DIALECT,
    NOTES,
    ORIGIN,
    REMAINDERS,
    REMEDIES,
    Parts,
    opset_of,
    read,
    set_metadata,
    write,
)
from embedl_deploy.dialect._names import renew_modules
from embedl_deploy.dialect._observe import Sample
from embedl_deploy.dialect._opset import raise_opset, relax_opset
from embedl_deploy.dialect._origin import recall, remember
from embedl_deploy.dialect._place import convert_formats, cut_at_zero, place, share_scales, show_floors
from embedl_deploy.dialect._portable import RemedyRow, make_portable, remedies_text
from embedl_deploy.dialect._sums import exact_sums
from embedl_deploy.errors import DialectError, ModelFileError, known
from embedl_kernels import REQUIRES

_INTEGER_OPERATORS = frozenset({"QLinearConv", "QLinearMatMul", "ConvInteger", "MatMulInteger", "QGemm"})


def is_integer_operator(op_type: str) -> bool:
    """Tell whether an operator computes on integers by itself, without Q/DQ around it."""
    return op_type in _INTEGER_OPERATORS or op_type.startswith("QLinear")


def lower(
    model: onnx.ModelProto,
    dialect: str | Dialect,
    *,
    scales: Literal["keep", "refit"] = "keep",
    float_type: str = "float32",
    fallback: bool = False,
    samples: Iterable[Sample] | None = None,
) -> onnx.ModelProto:
    """Return a Q/DQ model in a runtime's dialect; the model given is not changed.

    Args:
        model: A model in the canonical form, in another dialect, or made by another tool.
        dialect: The name of a dialect, or one of your own.
        scales: ``keep`` leaves scales as they were simulated, bit for bit, where the dialect can hold them; ``refit``
            chooses them anew from the observed ranges, so that a range that starts at 0 uses every integer.
        float_type: Type of what is not quantised; ``float16`` for TensorRT 11, which runs what it reads.
        fallback: Whether a tensor whose format the dialect lacks is left in float, with a note, instead of an error.
        samples: Inputs, each as for `verify`: a portable dialect chooses on them what each layer's weights become.

    Raises:
        DialectError: The dialect is unknown or cannot express what the model says.
        ModelFileError: The model cannot be taken apart.
    """
    target = get_dialect(dialect)
    _check(model, target, scales, float_type)
    parts = read(raise_opset(model, target.opset))
    cut = cut_at_zero(parts)
    needed = _needed_opset(parts, target, float_type)
    parts = recall(parts if needed <= parts.opset else read(raise_opset(model, needed)))
    _refuse(parts, target, fallback=fallback)
    before = copy.deepcopy(parts)
    free_layers(parts, target)
    if not target.zero_point:
        show_floors(parts, cut)
    place(parts, target)
    convert_formats(parts, target, refit=scales == "refit")
    share_scales(parts, target)
    convert_weights(parts, target)
    rows: list[RemedyRow] = []
    if target.portable:
        exact_sums(parts)
        rows = make_portable(parts, target, samples)
    if target.integer_bias:
        integer_biases(parts)
    keep_float(parts, target)
    return _finish(before, parts, target, float_type, rows)


def _finish(before: Parts, parts: Parts, target: Dialect, float_type: str, rows: list[RemedyRow]) -> onnx.ModelProto:
    parts.settle()
    lowered = write(parts)
    if float_type == "float16":
        parts.notes += halve(lowered)
    set_metadata(
        lowered,
        {
            DIALECT: target.name,
            ORIGIN: remember(before, parts),
            NOTES: json.dumps(parts.notes) if parts.notes else "",
            REMEDIES: remedies_text(rows),
            REMAINDERS: "",
            REQUIRES: target.requires,
        },
    )
    renew_modules(lowered)
    if target.name.startswith("onnxruntime"):
        relax_opset(lowered)
    return lowered


def _check(model: onnx.ModelProto, target: Dialect, scales: str, float_type: str) -> None:
    if scales not in ("keep", "refit"):
        raise DialectError(f"scales={scales!r} is not known; known are 'keep', 'refit'.")
    if float_type not in target.float_types:
        raise DialectError(
            f"{target.name} takes the rest of the graph in {known(target.float_types)}, not {float_type!r}.",
            dialect=target.name,
        )
    if not model.graph.node:
        raise ModelFileError("The model has no operators.")
    if not opset_of(model):
        raise ModelFileError("The model names no version of the standard operators.")
    check_graph(model)
    integer = [node.name or node.op_type for node in model.graph.node if node.op_type in _INTEGER_OPERATORS]
    if integer:
        raise ModelFileError(
            f"The model has integer operators ({known(integer[:3])}), and only Q/DQ models can be lowered; "
            "quantise again with the format QDQ."
        )
    if half := _half_scale(model):
        raise ModelFileError(
            f"The model is in half precision (scale {half!r} is), and its scales were rounded to that; lower the "
            "float32 file it was made of, with float_type='float16' where the runtime wants it."
        )


def _half_scale(model: onnx.ModelProto) -> str:
    """Return a scale that is stored in half precision, or nothing."""
    types = {value.name: value.data_type for value in model.graph.initializer}
    halves = (onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16)
    pairs = [node for node in model.graph.node if node.op_type in ("QuantizeLinear", "DequantizeLinear")]
    return next((node.input[1] for node in pairs if len(node.input) > 1 and types.get(node.input[1]) in halves), "")


def _refuse(parts: Parts, target: Dialect, *, fallback: bool) -> None:
    """Refuse what the dialect cannot express, unless it may become float."""
    found = lacking(parts, target)
    if found and not fallback:
        first = ", ".join(f"{name!r} ({what})" for name, what in sorted(found.items())[:4])
        more = f" and {len(found) - 4} more" if len(found) > 4 else ""
        raise DialectError(
            f"{target.name} cannot express {first}{more}. Choose another dialect or precision, "
            "or give fallback=True to leave them in float.",
            dialect=target.name,
            places=sorted(found),
        )


def _needed_opset(parts: Parts, target: Dialect, float_type: str) -> int:
    """Return the version that has every type the file needs."""
    formats = [*parts.params.values(), *(weight.params for weight in parts.weights.values())]
    needed = target.opset
    if float_type == "float16" or any(item.type == "float8e4m3fn" for item in formats):
        needed = max(needed, 19)
    if any(item.block or item.type in ("int4", "uint4", "int16", "uint16") for item in formats):
        needed = max(needed, 21)
    return needed
