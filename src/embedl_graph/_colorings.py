"""What nodes are colored by: precision, and what a profile or a verification found."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, Dict, Iterable, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from embedl_graph._model import Coloring, ModelGraph, Node, Value


class Layer(NamedTuple):
    """One layer of a profile: its number in the layer table, its time, where it ran, the nodes it stands for."""

    number: int
    name: str
    time_ms: Optional[float] = None
    compute_unit: str = ""
    source_nodes: Tuple[str, ...] = ()


def layers_of(document: Mapping[str, Any]) -> List[Layer]:
    """Return the layers of a profile document, as far as it can be read."""
    table = document.get("layers")
    rows = table.get("rows") if isinstance(table, Mapping) else None
    found = []
    for number, row in enumerate(rows if isinstance(rows, list) else [], 1):
        if not isinstance(row, Mapping):
            continue
        time_ms, nodes = row.get("time_ms"), row.get("source_nodes")
        known_ms = float(time_ms) if isinstance(time_ms, (int, float)) else None
        names = tuple(str(node) for node in nodes) if isinstance(nodes, list) else ()
        found.append(Layer(number, str(row.get("name", "")), known_ms, str(row.get("compute_unit") or ""), names))
    return found


def precision_coloring(graph: ModelGraph) -> Iterator[Coloring]:
    """Yield the coloring by number formats, if any are known."""
    values: Dict[int, Value] = {number: node.precision for number, node in enumerate(graph.nodes) if node.precision}
    if values:
        yield Coloring("precision", "Precision", values, "", "What the file asks for.")


def layer_numbers(graph: ModelGraph, layers: Iterable[Layer]) -> Dict[int, int]:
    """Return the layer of each node by their numbers; a node that several layers name belongs to the first."""
    numbers = graph.numbers()
    found: Dict[int, int] = {}
    for layer in layers:
        for name in layer.source_nodes:
            if name in numbers:
                found.setdefault(numbers[name], layer.number)
    return found


def layer_colorings(graph: ModelGraph, layers: Sequence[Layer]) -> Iterator[Coloring]:
    """Yield the colorings by time and by compute unit, as far as layers name nodes of this graph."""
    of_node, by_number = layer_numbers(graph, layers), {layer.number: layer for layer in layers}
    times: Dict[int, Value] = {}
    units: Dict[int, Value] = {}
    for node, number in of_node.items():
        layer = by_number[number]
        if layer.time_ms is not None and math.isfinite(layer.time_ms):
            times[node] = layer.time_ms
        if layer.compute_unit:
            units[node] = layer.compute_unit
    if times:
        yield Coloring("time", "Time", times, "ms", "Nodes that run as one layer have the time of the layer.")
    if units:
        yield Coloring("placement", "Placement", units, "", "The compute unit that ran the layer.")


def error_coloring(graph: ModelGraph, errors: Mapping[str, float], unit: str, note: str) -> Iterator[Coloring]:
    """Yield the coloring by errors of tensors, as far as nodes of this graph make them."""
    values: Dict[int, Value] = {}
    for number, node in enumerate(graph.nodes):
        known = [errors[name] for name in node.outputs if name in errors and math.isfinite(errors[name])]
        if known:
            values[number] = max(known)
    if values:
        yield Coloring("error", "Error", values, unit, note)


def compared(one: ModelGraph, two: ModelGraph) -> Tuple[ModelGraph, ModelGraph, List[Tuple[int, int]]]:
    """Return two graphs colored by what differs, and the pairs of nodes that stand for each other.

    A pair has the same name, or makes the same tensor, or is the only node of its kind in the same module.
    """
    pairs = _pairs(one.nodes, two.nodes)
    left: Dict[int, Value] = dict.fromkeys(range(len(one.nodes)), "only here")
    right: Dict[int, Value] = dict.fromkeys(range(len(two.nodes)), "only here")
    for first, second in pairs:
        word = "same" if _is_same(one, one.nodes[first], two, two.nodes[second]) else "changed"
        left[first] = right[second] = word

    def colored(graph: ModelGraph, values: Dict[int, Value]) -> ModelGraph:
        return replace(graph, colorings=(*graph.colorings, Coloring("difference", "Difference", values)))

    return colored(one, left), colored(two, right), pairs


def _pairs(one: Sequence[Node], two: Sequence[Node]) -> List[Tuple[int, int]]:
    pairs: Dict[int, int] = {}
    taken = set()

    def join(keys_one: Dict[object, int], keys_two: Dict[object, int]) -> None:
        for key, first in keys_one.items():
            second = keys_two.get(key)
            if second is not None and first not in pairs and second not in taken:
                pairs[first] = second
                taken.add(second)

    def by_name(nodes: Sequence[Node]) -> Dict[object, int]:
        return _unique(((node.name, node.op_type), number) for number, node in enumerate(nodes))

    def by_output(nodes: Sequence[Node]) -> Dict[object, int]:
        return _unique((output, number) for number, node in enumerate(nodes) for output in node.outputs if output)

    def by_module(nodes: Sequence[Node]) -> Dict[object, int]:
        return _unique(((node.module, node.op_type), number) for number, node in enumerate(nodes) if node.module)

    for keys in (by_name, by_output, by_module):
        join(keys(one), keys(two))
    return sorted(pairs.items())


def _unique(keyed: Iterable[Tuple[object, int]]) -> Dict[object, int]:
    found: Dict[object, int] = {}
    double = set()
    for key, number in keyed:
        if key in found:
            double.add(key)
        found[key] = number
    return {key: number for key, number in found.items() if key not in double}


def _is_same(one: ModelGraph, first: Node, two: ModelGraph, second: Node) -> bool:
    def facts(graph: ModelGraph, node: Node) -> object:
        ends = [[str(graph.tensors.get(name, "")) for name in names] for names in (node.inputs, node.outputs)]
        return node.op_type, node.precision, node.attributes, ends

    return facts(one, first) == facts(two, second)
