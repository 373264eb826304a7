"""Graphs for a browser: what the script gets, colorings, comparisons, and files that no name can break out of."""

from __future__ import annotations

import json
import re
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest
from support.models import residual_net, save
from support.recorded import HOSTILE

from embedl_graph import (
    STATIC,
    Layer,
    ModelGraph,
    Node,
    Tensor,
    compared,
    error_coloring,
    graph_data,
    graph_html,
    layer_colorings,
    layer_numbers,
    layers_of,
    read_graph,
    shown,
)

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tools"))

from vendored import as_toml, vendored  # noqa: E402 - found by the line above


def two_nodes(name: str = "b", op_type: str = "Relu", precision: str = "") -> ModelGraph:
    """Return a graph of two nodes, the second with other facts."""
    tensors = {"x": Tensor("x", "float32", (1, None)), "t": Tensor("t", "float32", (1, 2))}
    nodes = (Node("a", "Conv", ("x",), ("t",), "m.0", "int8"), Node(name, op_type, ("t",), ("y",), "m.1", precision))
    return ModelGraph("net", "ONNX", nodes, tensors, ("x",), ("y",))


def test_layers_give_their_nodes_time_and_place() -> None:
    """And lead from a node to the row of the layer; a node of two layers belongs to the first."""
    layers = [Layer(1, "one", 0.5, "CPU", ("a",)), Layer(2, "two", None, "NPU", ("b", "a", "none"))]
    assert layer_numbers(two_nodes(), layers) == {0: 1, 1: 2}
    time, placement = layer_colorings(two_nodes(), layers)
    assert (time.key, time.unit, time.values) == ("time", "ms", {0: 0.5})
    assert (placement.key, placement.values) == ("placement", {0: "CPU", 1: "NPU"})
    assert not list(layer_colorings(two_nodes(), [Layer(1, "other", 1.0, "CPU", ("z",))]))


def test_layers_of_a_profile_document() -> None:
    """As the documented example has them; whatever else a document holds is passed over."""
    document = json.loads((ROOT / "docs/reference/profile-example.json").read_text())
    rows = document["layers"]["rows"]
    assert [(layer.number, layer.name, layer.time_ms) for layer in layers_of(document)] == [
        (number, row["name"], row["time_ms"]) for number, row in enumerate(rows, 1)
    ]
    assert layers_of({}) == layers_of({"layers": 3}) == layers_of({"layers": {"rows": [3]}}) == []


def test_errors_of_tensors_color_who_makes_them() -> None:
    (coloring,) = error_coloring(two_nodes(), {"y": 2.5, "z": 1.0, "t": float("inf")}, "steps", "")
    assert coloring.values == {1: 2.5}
    assert not list(error_coloring(two_nodes(), {}, "steps", ""))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, "same"),
        ({"name": "other"}, "same"),  # makes the same tensor
        ({"op_type": "Clip"}, "changed"),
        ({"precision": "int8"}, "changed"),
    ],
)
def test_two_graphs_are_compared_node_by_node(changes: dict[str, str], words: str) -> None:
    one, two, pairs = compared(two_nodes(), two_nodes(**changes))
    assert pairs == [(0, 0), (1, 1)]
    assert one.colorings[-1].values == two.colorings[-1].values == {0: "same", 1: words}


def test_a_node_without_a_partner_is_only_here() -> None:
    """A fused node stands for the one of its module and operator."""
    alone = ModelGraph("net", "ONNX", (Node("fused", "Conv", ("x",), ("y2",), "m.0", "int8"),))
    one, two, pairs = compared(two_nodes(), alone)
    assert pairs == [(0, 0)]
    assert one.colorings[-1].values == {0: "changed", 1: "only here"}
    assert two.colorings[-1].values == {0: "changed"}


def test_the_script_gets_numbers_for_names(tmp_path: Path) -> None:
    """Every number leads somewhere, and each coloring has a value or none for each node."""
    data = graph_data(shown(read_graph(save(residual_net(), tmp_path / "m.onnx"))))
    (graph,) = data["graphs"]
    for node in graph["nodes"]:
        assert all(place < len(graph["tensors"]) for place in node[3] + node[4])
        assert node[2] < len(graph["modules"])
    assert [coloring["key"] for coloring in graph["colorings"]] == ["precision"]
    assert all(len(coloring["values"]) == len(graph["nodes"]) for coloring in graph["colorings"])


class Elements(HTMLParser):
    """Collects the elements of a page, with the names of their attributes."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, tuple[str, ...]]] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, tuple(name for name, _ in attrs)))


def named(text: str) -> ModelGraph:
    """Return a graph in which everything has this name."""
    node = Node(text, text, (text,), (text + "o",), text, text, ((text, text),))
    return ModelGraph(text, text, (node,), {text: Tensor(text, text)}, (text,), (text + "o",), notes=(text,))


@pytest.mark.parametrize("text", HOSTILE)
def test_no_name_becomes_markup(text: str) -> None:
    """In a file with one graph and in one with two: the elements are those of harmless names."""
    for count in (1, 2):
        page, plain = (graph_html(*[shown(named(name))] * count) for name in (text, "x"))
        assert Elements(page).found == Elements(plain).found


def test_our_files_hold_no_end_of_an_element() -> None:
    """They stand inside elements of the page that is written."""
    for name in ("dagre.js", "graph.js", "graph.css", "page.css"):
        assert not re.search(r"</(script|style)", (STATIC / name).read_text(), re.IGNORECASE)


def test_files_of_others_are_as_they_came() -> None:
    """With the license beside them; the table says so in the form that the tool writes."""
    for one in vendored():
        assert [file.path for file in one.files if file.found != file.sha256] == []
        assert any("LICENSE" in file.path for file in one.files)
    assert as_toml(vendored()) == (ROOT / "requirements/vendored.toml").read_text()
