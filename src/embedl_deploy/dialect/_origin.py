"""What a dialect could not hold, kept beside the graph, so that the way back gives the same bits."""

import base64
import json
import zlib
from typing import Any

import numpy as np
from onnx import helper, numpy_helper

from embedl_deploy.dialect._model import ORIGIN, Parts, Weight, pack, read_entry, unpack
from embedl_deploy.dialect._numbers import Params
from embedl_deploy.errors import ModelFileError


def remember(before: Parts, after: Parts) -> str:
    """Describe a model before lowering, and what it became, as the text for the metadata."""
    record = {
        "boundaries": _boundaries(before),
        "edges": [[node, index, name] for (node, index), name in before.edges.items()],
        "weights": {
            name: {**_params(weight.params), **_values(weight, after.weights.get(name))}
            for name, weight in before.weights.items()
            if name not in after.weights or not _same_weight(weight, after.weights[name])
        },
        "floats": {
            value.name: pack(numpy_helper.to_array(value))
            for value in before.graph.initializer
            if value.name in after.weights
        },
        "lowered": _boundaries(after),
    }
    return json.dumps(record, separators=(",", ":"))


def recall(parts: Parts) -> Parts:
    """Return a model as it was before it was lowered, where its metadata knows; else as it is."""
    record = read_entry(parts.model, ORIGIN, "{}")
    if not record:
        return parts
    try:
        return _recalled(parts, record)
    except (ValueError, KeyError, TypeError, AttributeError, zlib.error) as exc:
        raise ModelFileError(
            f"The metadata {ORIGIN!r} cannot be read ({type(exc).__name__}: {exc}). "
            "Remove it to go on from the file as it is."
        ) from exc


def _recalled(parts: Parts, record: dict[str, Any]) -> Parts:
    if record["lowered"] != _boundaries(parts):
        parts.notes.append("The scales were changed after this file was lowered: its origin is not used.")
        return parts
    _melt(parts, {node for node, _, _ in record["edges"]})
    _restore_outputs(parts, record)
    nodes = {node.name for node in parts.graph.node}
    parts.tensor_of = {name: entry["tensor"] for name, entry in record["boundaries"].items()}
    parts.params = {name: _read_params(entry) for name, entry in record["boundaries"].items()}
    parts.edges = {(node, index): name for node, index, name in record["edges"] if node in nodes}
    _recall_constants(parts, record)
    parts.prune()
    return parts


def _recall_constants(parts: Parts, record: dict[str, Any]) -> None:
    for name, entry in record["weights"].items():
        parts.weights[name] = Weight(_read_values(entry, parts.weights.get(name)), _read_params(entry))
    for name, entry in record["floats"].items():
        parts.weights.pop(name, None)
        parts.graph.initializer.append(numpy_helper.from_array(unpack(entry), name))
    floats = {name for name in record["weights"] if name in parts.constants()}
    kept = [value for value in parts.graph.initializer if value.name not in floats]
    del parts.graph.initializer[:]
    parts.graph.initializer.extend(kept)


def _values(weight: Weight, now: Weight | None) -> dict[str, Any]:
    """Write a weight's integers: what they differ by from those that the file's own weight suggests, if it has one."""
    if now is None or now.values.shape != weight.values.shape or weight.params.type != "int8":
        return {"values": pack(weight.values)}
    change = weight.values.astype(np.int16) - _suggested(now, weight.params)
    return {"change": base64.b64encode(zlib.compress(change.astype("<i2").tobytes(), 9)).decode("ascii")}


def _read_values(entry: dict[str, Any], now: Weight | None) -> np.ndarray:
    """Read a weight's integers."""
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


def _melt(parts: Parts, quantized: set[str]) -> None:
    """Take nodes away that lowering put in: an Identity for an output's Q/DQ, a Relu or Clip before a Q."""
    for node in list(parts.graph.node):
        if node.name == f"output/{node.output[0]}" and node.name not in quantized:
            parts.graph.node.remove(node)
            _rename(parts, node.input[0], node.output[0])
        elif node.name in (f"floor/{node.input[0]}", f"narrow/{node.input[0]}"):
            parts.graph.node.remove(node)
            _rename(parts, node.output[0], node.input[0])


def _restore_outputs(parts: Parts, record: dict[str, Any]) -> None:
    """Put the Identity back before an output that had Q/DQ, under the names it had."""
    nodes = {node.name for node in parts.graph.node}
    made = {name for node in parts.graph.node for name in node.output}
    for name, _, boundary in record["edges"]:
        output, raw = name.removeprefix("output/"), record["boundaries"][boundary]["tensor"]
        if name != f"output/{output}" or name in nodes or output not in made or raw in made:
            continue
        _rename(parts, output, raw)
        node = parts.graph.node.add()
        node.CopyFrom(helper.make_node("Identity", [raw], [output], name=name))


def _rename(parts: Parts, old: str, new: str) -> None:
    for node in parts.graph.node:
        for names in (node.input, node.output):
            for index, held in enumerate(names):
                if held == old:
                    names[index] = new


def _same_weight(one: Weight, other: Weight) -> bool:
    return one.params.same(other.params) and np.array_equal(one.values, other.values)


def _boundaries(parts: Parts) -> dict[str, dict[str, Any]]:
    return {name: {"tensor": parts.tensor_of[name], **_params(params)} for name, params in parts.params.items()}


def _params(params: Params) -> dict[str, Any]:
    """Write a format; a float32 as a double is exact."""
    return {
        "scale": params.scale.astype(np.float64).tolist(),
        "zero_point": params.zero_point.tolist(),
        "type": params.type,
        "axis": params.axis,
        "block": params.block,
    }


def _read_params(entry: dict[str, Any]) -> Params:
    return Params(
        np.asarray(entry["scale"], np.float32),
        np.asarray(entry["zero_point"], np.int64),
        entry["type"],
        entry["axis"],
        entry["block"],
    )
