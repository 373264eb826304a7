"""Layers led back once more: from the nodes of the source to the modules of the network that they were exported from.

An exporter that knows them says so in the model's metadata (``edgeproof.modules`` and beside it; the form is in
docs/reference/module-names.md). It is a remark: one that cannot be read is said, and nothing else changes.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from embedl_hub.toolchain.model import name_nodes, nodes_of, read_graph
from embedl_hub.toolchain.refusal import RefusedError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import onnx

    from embedl_hub.core.component import CompiledModel
    from embedl_hub.core.context import HubContext

FORMAT = "1"
_PREFIX = "edgeproof."
_SENSITIVITY_VERSION = 1
_MOST_CHARACTERS = 32_000_000
_LONGEST_NAME = 500
# What a layer is about, if it does several things: the part with weights, else the first that computes anything.
_WEIGHTED = frozenset({"Conv", "ConvTranspose", "Gemm", "MatMul", "LSTM", "GRU", "RNN", "Attention", "Einsum"})
_MOVING = frozenset({"QuantizeLinear", "DequantizeLinear", "Cast", "Identity", "Reshape", "Transpose", "Flatten",
                     "Squeeze", "Unsqueeze"})  # fmt: skip


@dataclass(frozen=True)
class Modules:
    """What a model's metadata says of the network it was exported from.

    Attributes:
        of_node: The modules that a node comes from, the main one first; an empty name is the network itself.
        precisions: The number format of each module in the file.
        sensitivity: What quantising each module costs: ``method``, ``unit`` and ``modules``; None where nobody asked.
        problem: What could not be read, in words.
    """

    of_node: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    precisions: Mapping[str, str] = field(default_factory=dict)
    sensitivity: Mapping[str, Any] | None = None
    problem: str | None = None


def source_of(ctx: HubContext, model: CompiledModel) -> onnx.ModelProto | None:
    """Return the model that was compiled, with a name on every node, if it is known and ONNX."""
    if model.input is None:
        return None
    try:
        source = read_graph(model.input.to_local(ctx).local())
    except RefusedError:
        return None
    name_nodes(source)
    return source


def read_modules(model: onnx.ModelProto) -> Modules:
    """Return what a model says of its modules; never fails."""
    told = {entry.key.removeprefix(_PREFIX): entry.value for entry in model.metadata_props
            if entry.key.startswith(_PREFIX)}  # fmt: skip
    if "modules" not in told:
        return Modules()
    if told.get("format", FORMAT) != FORMAT:
        return Modules(problem=f"it has format {told['format'][:20]!r}, and this hub reads {FORMAT!r}")
    problems: list[str] = []

    def read(name: str, take: Callable[[Any], Any], otherwise: Any) -> Any:  # noqa: ANN401 - any JSON
        try:
            return take(json.loads(_bounded(told[name])))
        except (ValueError, TypeError, AttributeError, KeyError, RecursionError) as error:
            problems.append(f"{_PREFIX}{name} cannot be read ({type(error).__name__}: {str(error)[:100]})")
            return otherwise

    return Modules(
        of_node=read("modules", _take_nodes, {}),
        precisions=read("precisions", _take_words, {}) if "precisions" in told else {},
        sensitivity=read("sensitivity", _take_sensitivity, None) if "sensitivity" in told else None,
        problem="; ".join(problems) or None,
    )


def _bounded(text: str) -> str:
    if len(text) > _MOST_CHARACTERS:
        raise ValueError(f"it has more than {_MOST_CHARACTERS} characters")
    return text


def _take_nodes(value: dict[str, Any]) -> dict[str, tuple[str, ...]]:
    found = {}
    for node, names in value.items():
        listed = [names] if isinstance(names, str) else names
        if not isinstance(listed, list) or not listed:
            raise TypeError(f"node {node[:60]!r} has no list of names")
        found[node] = tuple(_name(name) for name in listed)
    return found


def _take_words(value: dict[str, Any]) -> dict[str, str]:
    return {_name(name): _name(word) for name, word in value.items()}


def _take_sensitivity(value: dict[str, Any]) -> dict[str, Any]:
    if value.get("version") != _SENSITIVITY_VERSION:
        raise ValueError(f"it has version {value.get('version')!r}, and this hub reads {_SENSITIVITY_VERSION}")
    costs = {_name(name): float(cost) for name, cost in value["modules"].items()}
    if not all(math.isfinite(cost) and cost >= 0 for cost in costs.values()):
        raise ValueError("a cost is no number from 0 on")
    return {"method": _name(value.get("method", "")), "unit": _name(value.get("unit", "")), "modules": costs}


def _name(value: object) -> str:
    """Return a name that can be shown."""
    if not isinstance(value, str) or len(value) > _LONGEST_NAME or not value.isprintable():
        raise TypeError(f"{str(value)[:60]!r} is no name")
    return value


def with_modules(document: Mapping[str, Any], source: onnx.ModelProto | None) -> dict[str, Any]:
    """Return a profile document whose layers name their modules, as far as the source model tells them."""
    if source is None:
        return dict(document)
    modules = read_modules(source)
    if not modules.of_node and modules.problem is None:
        return dict(document)
    kinds = {node.name: node.op_type for node in nodes_of(source.graph)}
    rows = [
        {**row, "modules": list(_modules_of(row.get("source_nodes", ()), modules.of_node, kinds))}
        for row in document["layers"]["rows"]
    ]
    return {
        **document,
        "layers": {**document["layers"], "rows": rows},
        "modules": {
            "precisions": dict(modules.precisions),
            "sensitivity": modules.sensitivity,
            "problem": modules.problem,
        },
    }


def _modules_of(
    nodes: Sequence[str], of_node: Mapping[str, tuple[str, ...]], kinds: Mapping[str, str]
) -> tuple[str, ...]:
    """Return the modules of a layer, that of its main node first."""

    def rank(node: str) -> int:
        kind = kinds.get(node, "")
        return 0 if kind in _WEIGHTED else 2 if kind in _MOVING else 1

    known = [node for node in nodes if node in of_node]
    return tuple(dict.fromkeys(name for node in sorted(known, key=rank) for name in of_node[node]))
