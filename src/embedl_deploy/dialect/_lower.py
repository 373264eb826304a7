"""`lower`: take a model apart, change placement and number formats, put it together again; `relower` for files."""

import copy
import json
import os
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import onnx

from embedl_deploy.dialect._constants import (
    convert_weights,
    integer_biases,
    keep_float_weights,
    lacking,
    unquantize_unsupported_layers,
)
from embedl_deploy.dialect._dialects import PAIR, WEIGHTED, Dialect, get_dialect
from embedl_deploy.dialect._files import check_graph, load, notes_of, raise_opset, relax_opset, save
from embedl_deploy.dialect._float16 import to_float16
from embedl_deploy.dialect._model import (
    DIALECT,
    NOTES,
    ORIGIN,
    PLACED,
    RANGES,
    REMAINDERS,
    REMEDIES,
    QdqModel,
    metadata,
    opset_of,
    read,
    read_entry,
    set_metadata,
    write,
)
from embedl_deploy.dialect._names import renew_modules
from embedl_deploy.dialect._observe import Sample, observe
from embedl_deploy.dialect._origin import record_origin, restore_origin
from embedl_deploy.dialect._portable import RemedyRow, make_additions_exact, make_portable, remedies_of, remedies_text
from embedl_deploy.dialect._qdq_placement import (
    convert_formats,
    convert_types,
    insert_missing_relus,
    nonnegative_tensors,
    place,
    share_scales,
)
from embedl_deploy.dialect._versions import find_version, fit_opset, fit_version
from embedl_deploy.errors import DialectError, ModelFileError, quoted_list
from embedl_kernels import REQUIRES

_MARGIN = 1 / 8  # on either side of an output's range
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
    runtime_version: str = "",
) -> onnx.ModelProto:
    """Return a Q/DQ model in a runtime's dialect; the model given is not changed.

    Args:
        model: A model in the canonical form, in another dialect, or made by another tool.
        dialect: The name of a dialect, or one of your own.
        scales: ``keep`` leaves scales as they were simulated, bit for bit, where the dialect can hold them; ``refit``
            chooses them anew from the observed ranges, so that a range that starts at 0 uses every integer.
        float_type: Type of what is not quantized; ``float16`` for TensorRT 11, which runs what it reads.
        fallback: Whether a tensor whose format the dialect lacks is left in float, with a note, instead of an error.
        samples: Inputs, each as for `verify`: a portable dialect chooses on them what each layer's weights become, and
            one that wants Q behind every weighted operator observes ranges that the model does not tell.
        runtime_version: The version of the dialect's runtime that will read the file; what only newer ones run in
            integers stays float, with a note. The newest when not given.

    Raises:
        DialectError: The dialect is unknown or cannot express what the model says, or the version cannot read it.
        ModelFileError: The model cannot be taken apart.
    """
    target = get_dialect(dialect)
    version = find_version(target.runtime, runtime_version) if runtime_version else None
    _check(model, target, scales, float_type)
    qdq = read(raise_opset(model, target.opset))
    cut = nonnegative_tensors(qdq)
    needed = _needed_opset(qdq, target, float_type)
    qdq = restore_origin(qdq if needed <= qdq.opset else read(raise_opset(model, needed)))
    _refuse(qdq, target, fallback=fallback)
    placed = metadata(model).get(PLACED) == target.name and scales == "keep" and not lacking(qdq, target)
    if samples is not None and target.outputs >= WEIGHTED and not placed:
        samples = list(samples)
        _observe_with_margin(qdq, samples)
    before = copy.deepcopy(qdq)
    if placed:
        # The model in torch rounds where this file does and as it does: what is written is what was judged.
        convert_types(qdq, target)
    else:
        unquantize_unsupported_layers(qdq, target)
        if not target.zero_point:
            insert_missing_relus(qdq, cut)
        place(qdq, target)
        convert_formats(qdq, target, refit=scales == "refit")
        share_scales(qdq, target)
    convert_weights(qdq, target)
    rows: list[RemedyRow] = []
    if target.portable:
        make_additions_exact(qdq, change=not placed)
        decided = {row.weight: row for row in remedies_of(model)} if placed else {}
        rows = make_portable(qdq, target, samples, decided)
    if target.integer_bias:
        integer_biases(qdq)
    if version is not None:
        boundaries = len(qdq.edges)
        fit_version(qdq, version)
        placed = placed and len(qdq.edges) == boundaries
    keep_float_weights(qdq, target)
    lowered = _finish(before, qdq, target, float_type, rows, placed=placed)
    if version is not None:
        fit_opset(lowered, version)
    return lowered


def _observe_with_margin(qdq: QdqModel, samples: list[Sample]) -> None:
    """Observe the ranges that are not known; those of outputs, a few numbers per sample, are widened by a quarter.

    To cut an output off costs more than to round it a little more.
    """
    known = set(qdq.ranges)
    observe(qdq, samples)
    for output in qdq.graph.output:
        if output.name in qdq.ranges and output.name not in known:
            low, high = qdq.ranges[output.name]
            margin = (high - low) * _MARGIN
            qdq.ranges[output.name] = low - margin if low < 0 else low, high + margin if high > 0 else high


def _finish(
    before: QdqModel, qdq: QdqModel, target: Dialect, float_type: str, rows: list[RemedyRow], *, placed: bool
) -> onnx.ModelProto:
    qdq.rename_boundaries()
    lowered = write(qdq)
    if float_type == "float16":
        qdq.notes += to_float16(lowered)
    entries = {DIALECT: target.name, ORIGIN: record_origin(before, qdq), REMAINDERS: "", REQUIRES: target.requires}
    notes = json.dumps(qdq.notes) if qdq.notes else ""
    set_metadata(
        lowered,
        {**entries, NOTES: notes, REMEDIES: remedies_text(rows), PLACED: target.name if placed else ""},
    )
    renew_modules(lowered)
    # Files for other runtimes are tried in ONNX Runtime too.
    relax_opset(lowered)
    return lowered


def _check(model: onnx.ModelProto, target: Dialect, scales: str, float_type: str) -> None:
    if scales not in ("keep", "refit"):
        raise DialectError(f"scales={scales!r} is not known; known are 'keep', 'refit'.")
    if float_type not in target.float_types:
        raise DialectError(
            f"{target.name} takes the rest of the graph in {quoted_list(target.float_types)}, not {float_type!r}.",
            dialect=target.name,
        )
    if not model.graph.node:
        raise ModelFileError("The model has no operators.")
    if not opset_of(model):
        raise ModelFileError("The model names no version of the standard operators.")
    check_graph(model)
    if integer := [node.name or node.op_type for node in model.graph.node if node.op_type in _INTEGER_OPERATORS]:
        raise ModelFileError(
            f"The model has integer operators ({quoted_list(integer[:3])}), and only Q/DQ models can be lowered; "
            "quantize again with the format QDQ."
        )
    types = {value.name: value.data_type for value in model.graph.initializer}
    used = (node.input[1] for node in model.graph.node if node.op_type in PAIR and len(node.input) > 1)
    halves = (onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16)
    if half := next((name for name in used if types.get(name) in halves), ""):
        raise ModelFileError(
            f"The model is in half precision (scale {half!r} is), and its scales were rounded to that; lower the "
            "float32 file it was made of, with float_type='float16' where the runtime wants it."
        )


def _refuse(qdq: QdqModel, target: Dialect, *, fallback: bool) -> None:
    missing = lacking(qdq, target)
    if missing and not fallback:
        first = ", ".join(f"{name!r} ({what})" for name, what in sorted(missing.items())[:4])
        more = f" and {len(missing) - 4} more" if len(missing) > 4 else ""
        raise DialectError(
            f"{target.name} cannot express {first}{more}. Choose another dialect or precision, "
            "or give fallback=True to leave them in float.",
            dialect=target.name,
            places=sorted(missing),
        )


def _needed_opset(qdq: QdqModel, target: Dialect, float_type: str) -> int:
    formats = [*qdq.params.values(), *(weight.params for weight in qdq.weights.values())]
    needed = target.opset
    if float_type == "float16" or any(item.type == "float8e4m3fn" for item in formats):
        needed = max(needed, 19)
    if any(item.block or item.type in ("int4", "uint4", "int16", "uint16") for item in formats):
        needed = max(needed, 21)
    return needed


@dataclass(frozen=True)
class Relowered:
    """What `relower` wrote."""

    path: Path
    dialect: str
    boundaries: int  # how many quantized activations it has
    weights: int  # how many quantized weights it has
    notes: tuple[str, ...]  # what was given up or left in float, a line each
    remedies: tuple[RemedyRow, ...] = ()  # what the layers of a portable file got

    def __str__(self) -> str:
        lines = [f"{self.path}: {self.dialect}, {self.boundaries} quantized activations, {self.weights} weights"]
        if self.remedies:
            counts = Counter(row.remedy for row in self.remedies)
            listed = ", ".join(f"{count} {name}" for name, count in counts.most_common())
            judged = "samples" if self.remedies[0].measured else "weights alone, --data on samples"
            lines.append(f"  portable, no input can saturate {len(self.remedies)} layers: {listed}; judged on {judged}")
        return "\n".join([*lines, *(f"  {note}" for note in self.notes)])


def relower(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    *,
    dialect: str | Dialect,
    scales: Literal["keep", "refit"] = "keep",
    float_type: str = "float32",
    fallback: bool = False,
    samples: Iterable[Sample] | None = None,
    runtime_version: str = "",
) -> Relowered:
    """Write a Q/DQ file in another dialect; scales that the dialect can hold stay, bit for bit.

    Args:
        source: The file: of another dialect, or made by another tool.
        target: Where to write; may be the same file.
        dialect: As for `lower`.
        scales: As for `lower`.
        float_type: As for `lower`.
        fallback: As for `lower`.
        samples: Inputs, each as for `verify`; ranges that the file does not tell and the dialect asks for are observed.
        runtime_version: As for `lower`.

    Raises:
        ModelFileError: The file cannot be read, has no Q/DQ, or cannot be written.
        DialectError: The dialect is unknown or cannot express what the file says.
        InputError: The samples do not fit.
    """
    chosen = get_dialect(dialect)
    model = load(source)
    if samples is not None:
        samples = list(samples)
        qdq = restore_origin(read(model))
        (_observe_with_margin if chosen.outputs >= WEIGHTED else observe)(qdq, samples)
        set_metadata(model, {RANGES: json.dumps({name: list(pair) for name, pair in qdq.ranges.items()})})
    if not any(node.op_type in PAIR for node in model.graph.node):
        raise ModelFileError(
            f"{str(source)!r} has no Q/DQ: there is nothing to lower. Quantize it first.", path=str(source)
        )
    lowered = lower(
        model, chosen, scales=scales, float_type=float_type, fallback=fallback, samples=samples,
        runtime_version=runtime_version,
    )  # fmt: skip
    path = save(lowered, target)
    weights = len(read(lowered).weights) if float_type == "float32" else 0
    boundaries = len(read_entry(lowered, ORIGIN, "{}")["lowered"])
    return Relowered(path, chosen.name, boundaries, weights, notes_of(lowered), remedies_of(lowered))
