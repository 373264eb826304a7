"""Layers led back once more: from the nodes of the source to the modules of the network that they were exported from.

An exporter that knows them says so in the model's metadata (``edgeproof.modules`` and beside it; the form is in
docs/reference/module-names.md). It is a remark: one that cannot be read is said, and nothing else changes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from embedl_device.readers import parse_json
from embedl_hub.core.document import ModuleNotes, Sensitivity
from embedl_hub.models.onnx_file import name_nodes, nodes_of, read_graph
from embedl_hub.refusal import RefusedError

if TYPE_CHECKING:
    import onnx

    from embedl_hub.core.component import CompiledModel
    from embedl_hub.core.context import HubContext
    from embedl_hub.core.document import ProfileDocument

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

    ``of_node`` has the modules that a node comes from, the main one first; an empty name is the network itself.
    """

    of_node: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    notes: ModuleNotes = field(default_factory=ModuleNotes)


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
        problem = f"it has format {told['format'][:20]!r}, and this hub reads {FORMAT!r}"
        return Modules(notes=ModuleNotes(problem=problem))
    problems: list[str] = []

    def read(name: str, take: Callable[[Any], Any], otherwise: Any) -> Any:  # noqa: ANN401 - any JSON
        try:
            return take(parse_json(_bounded(told[name])))
        except (ValueError, TypeError, AttributeError, KeyError, RecursionError) as error:
            problems.append(f"{_PREFIX}{name} cannot be read ({type(error).__name__}: {str(error)[:100]})")
            return otherwise

    nodes = read("modules", _take_nodes, {})
    precisions = read("precisions", _take_precisions, {}) if "precisions" in told else {}
    sensitivity = read("sensitivity", _take_sensitivity, None) if "sensitivity" in told else None
    return Modules(nodes, ModuleNotes(precisions, sensitivity, "; ".join(problems) or None))


def _bounded(text: str) -> str:
    if len(text) > _MOST_CHARACTERS:
        raise ValueError(f"it has more than {_MOST_CHARACTERS} characters")
    return text


def _take_nodes(value: Mapping[str, object]) -> dict[str, tuple[str, ...]]:
    found = {}
    for node, names in value.items():
        listed = [names] if isinstance(names, str) else names
        if not isinstance(listed, list) or not listed:
            raise TypeError(f"node {node[:60]!r} has no list of names")
        found[node] = tuple(_name(name) for name in listed)
    return found


def _take_precisions(value: Mapping[str, object]) -> dict[str, str]:
    return {_name(name): _name(word) for name, word in value.items()}


def _take_sensitivity(value: Mapping[str, Any]) -> Sensitivity:
    if value.get("version") != _SENSITIVITY_VERSION:
        raise ValueError(f"it has version {value.get('version')!r}, and this hub reads {_SENSITIVITY_VERSION}")
    costs = {_name(name): float(cost) for name, cost in value["modules"].items()}
    if not all(math.isfinite(cost) and cost >= 0 for cost in costs.values()):
        raise ValueError("a cost is no number from 0 on")
    return Sensitivity(costs, _name(value.get("unit", "")), _name(value.get("method", "")))


def _name(value: object) -> str:
    """Return a name that can be shown."""
    if not isinstance(value, str) or len(value) > _LONGEST_NAME or not value.isprintable():
        raise TypeError(f"{str(value)[:60]!r} is no name")
    return value


def with_modules(document: ProfileDocument, source: onnx.ModelProto | None) -> ProfileDocument:
    """Return a profile document whose layers name their modules, as far as the source model tells them."""
    modules = Modules() if source is None else read_modules(source)
    if source is None or (not modules.of_node and modules.notes.problem is None):
        return document
    kinds = {node.name: node.op_type for node in nodes_of(source.graph)}
    rows = [replace(row, modules=_modules_of(row.source_nodes, modules.of_node, kinds)) for row in document.rows]
    return replace(document.with_rows(rows), modules=modules.notes)


def _modules_of(
    nodes: Sequence[str], of_node: Mapping[str, tuple[str, ...]], kinds: Mapping[str, str]
) -> tuple[str, ...]:
    """Return the modules of a layer, that of its main node first."""

    def rank(node: str) -> int:
        kind = kinds.get(node, "")
        return 0 if kind in _WEIGHTED else 2 if kind in _MOVING else 1

    known = [node for node in nodes if node in of_node]
    return tuple(dict.fromkeys(name for node in sorted(known, key=rank) for name in of_node[node]))
