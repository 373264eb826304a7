"""What a dialect could not hold, kept beside the graph, so that the way back gives the same bits."""

import base64
import json
import zlib
from typing import Any, TypedDict, cast

import numpy as np
from onnx import helper, numpy_helper

from embedl_deploy.dialect._model import (
    ORIGIN,
    PackedArray,
    QdqModel,
    Weight,
    pack,
    read_entry,
    rename_tensor,
    replace_all,
    unpack,
)
from embedl_deploy.dialect._numbers import Params
from embedl_deploy.errors import ModelFileError


class _Format(TypedDict):
    """A number format as JSON-able data; a float32 as a double is exact."""

    scale: Any
    zero_point: Any
    type: str
    axis: int | None
    block: int


class _Boundary(_Format):
    tensor: str


class _Constant(_Format, total=False):
    """A weight: its integers, or what they differ by from those that the file's own weight suggests."""

    values: PackedArray
    change: str


class _Record(TypedDict):
    """A model before it was lowered, and the boundaries it has since."""

    boundaries: dict[str, _Boundary]
    edges: list[tuple[str, int, str]]
    weights: dict[str, _Constant]
    floats: dict[str, PackedArray]
    lowered: dict[str, _Boundary]


def record_origin(before: QdqModel, after: QdqModel) -> str:
    """Describe a model before lowering, and what it became, as the text for the metadata."""
    record: _Record = {
        "boundaries": _boundaries(before),
        "edges": [(node, index, name) for (node, index), name in before.edges.items()],
        "weights": {
            name: _constant(weight, now)
            for name, weight in before.weights.items()
            if not (now := after.weights.get(name))
            or not (weight.params.same(now.params) and np.array_equal(weight.values, now.values))
        },
        "floats": {
            value.name: pack(numpy_helper.to_array(value))
            for value in before.graph.initializer
            if value.name in after.weights
        },
        "lowered": _boundaries(after),
    }
    return json.dumps(record, separators=(",", ":"))


def restore_origin(qdq: QdqModel) -> QdqModel:
    """Return a model as it was before it was lowered, where its metadata knows; else as it is."""
    record = read_entry(qdq.model, ORIGIN, "{}")
    if not record:
        return qdq
    try:
        return _restored(qdq, record)
    except (ValueError, KeyError, TypeError, AttributeError, zlib.error) as exc:
        raise ModelFileError(
            f"The metadata {ORIGIN!r} cannot be read ({type(exc).__name__}: {exc}). "
            "Remove it to go on from the file as it is."
        ) from exc


def _restored(qdq: QdqModel, record: _Record) -> QdqModel:
    if record["lowered"] != _boundaries(qdq):
        qdq.notes.append("The scales were changed after this file was lowered: its origin is not used.")
        return qdq
    _remove_inserted_nodes(qdq, {node for node, _, _ in record["edges"]})
    _restore_outputs(qdq, record)
    nodes = {node.name for node in qdq.graph.node}
    qdq.tensor_of = {name: entry["tensor"] for name, entry in record["boundaries"].items()}
    qdq.params = {name: _read_params(entry) for name, entry in record["boundaries"].items()}
    qdq.edges = {(node, index): name for node, index, name in record["edges"] if node in nodes}
    _restore_constants(qdq, record)
    qdq.prune()
    return qdq


def _restore_constants(qdq: QdqModel, record: _Record) -> None:
    for name, entry in record["weights"].items():
        qdq.weights[name] = Weight(_read_values(entry, qdq.weights.get(name)), _read_params(entry))
    for name, packed in record["floats"].items():
        qdq.weights.pop(name, None)
        qdq.graph.initializer.append(numpy_helper.from_array(unpack(packed), name))
    floats = {name for name in record["weights"] if name in qdq.constants()}
    replace_all(qdq.graph.initializer, [value for value in qdq.graph.initializer if value.name not in floats])


def _constant(weight: Weight, now: Weight | None) -> _Constant:
    if now is None or now.values.shape != weight.values.shape or weight.params.type != "int8":
        return cast("_Constant", {**_format(weight.params), "values": pack(weight.values)})
    change = (weight.values.astype(np.int16) - _suggested(now, weight.params)).astype("<i2")
    text = base64.b64encode(zlib.compress(change.tobytes(), 9)).decode("ascii")
    return cast("_Constant", {**_format(weight.params), "change": text})


def _read_values(entry: _Constant, now: Weight | None) -> np.ndarray:
    if "values" in entry:
        return unpack(entry["values"])
    if now is None:
        raise ValueError("a weight that others were told by is gone")
    suggested = _suggested(now, _read_params(entry))
    # Never more than the weight itself needs: what a file says of its own size is not believed.
    reader = zlib.decompressobj()
    data = reader.decompress(base64.b64decode(entry["change"]), 2 * suggested.size)
    change = np.frombuffer(data, "<i2").reshape(suggested.shape)
    return np.asarray(suggested + change, np.int8)


def _suggested(now: Weight, params: Params) -> np.ndarray:
    """Return the integers that a weight would have in another format."""
    scale, zero = params.spread(now.values.shape)
    safe = np.where(scale == 0, np.float32(1), scale)
    return np.asarray(np.clip(np.rint(now.real / safe) + zero, -128, 127), np.int16)


def _remove_inserted_nodes(qdq: QdqModel, quantized: set[str]) -> None:
    """Take nodes away that lowering put in: an Identity for an output's Q/DQ, a Relu or Clip before a Q."""
    for node in list(qdq.graph.node):
        if node.name == f"output/{node.output[0]}" and node.name not in quantized:
            qdq.graph.node.remove(node)
            rename_tensor(qdq.graph.node, node.input[0], node.output[0])
        elif node.name in (f"inserted_relu/{node.input[0]}", f"reduced/{node.input[0]}"):
            qdq.graph.node.remove(node)
            rename_tensor(qdq.graph.node, node.output[0], node.input[0])


def _restore_outputs(qdq: QdqModel, record: _Record) -> None:
    """Put the Identity back before an output that had Q/DQ, under the names it had."""
    nodes = {node.name for node in qdq.graph.node}
    made = {name for node in qdq.graph.node for name in node.output}
    for name, _, boundary in record["edges"]:
        output, raw = name.removeprefix("output/"), record["boundaries"][boundary]["tensor"]
        if name != f"output/{output}" or name in nodes or output not in made or raw in made:
            continue
        rename_tensor(qdq.graph.node, output, raw)
        node = qdq.graph.node.add()
        node.CopyFrom(helper.make_node("Identity", [raw], [output], name=name))


def _boundaries(qdq: QdqModel) -> dict[str, _Boundary]:
    return {name: {"tensor": qdq.tensor_of[name], **_format(params)} for name, params in qdq.params.items()}


def _format(params: Params) -> _Format:
    scale, zero = params.scale.astype(np.float64).tolist(), params.zero_point.tolist()
    return {"scale": scale, "zero_point": zero, "type": params.type, "axis": params.axis, "block": params.block}


def _read_params(entry: _Format) -> Params:
    scale, zero = np.asarray(entry["scale"], np.float32), np.asarray(entry["zero_point"], np.int64)
    return Params(scale, zero, entry["type"], entry["axis"], entry["block"])
