"""Graphs for a browser: the data that the script draws, the markup it draws into, a file that needs nothing else."""

from __future__ import annotations

import base64
import hashlib
import json
import math
from functools import lru_cache
from html import escape
from pathlib import Path
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from embedl_graph._colorings import compared, precision_coloring
from embedl_graph._model import Coloring, ModelGraph, Tensor

STATIC = Path(__file__).parent / "static"
_MOST_VALUES_SHOWN = 8


class Shown(NamedTuple):
    """A graph as a page shows it: colored, with the layers that its nodes ran in."""

    graph: ModelGraph
    colorings: Tuple[Coloring, ...] = ()
    layers: Mapping[int, int] = {}  # the number in the layer table by the number of the node


def shown(graph: ModelGraph, colorings: Sequence[Coloring] = (), layers: Optional[Mapping[int, int]] = None) -> Shown:
    """Return a graph with all it can be colored by; what was measured comes first."""
    return Shown(graph, (*colorings, *precision_coloring(graph), *graph.colorings), layers or {})


def graph_data(one: Shown, other: Optional[Shown] = None) -> Dict[str, Any]:
    """Return what the script draws: one graph, or two side by side with the nodes that stand for each other."""
    if other is None:
        return {"graphs": [_graph(one)], "pairs": []}
    left, right, pairs = compared(one.graph, other.graph)
    graphs = [
        _graph(one._replace(colorings=(left.colorings[-1], *one.colorings))),
        _graph(other._replace(colorings=(right.colorings[-1], *other.colorings))),
    ]
    return {"graphs": graphs, "pairs": [list(pair) for pair in pairs]}


def _graph(one: Shown) -> Dict[str, Any]:
    graph = one.graph
    modules: Dict[str, int] = {}
    tensors: Dict[str, int] = {}
    rows: List[List[Any]] = []

    def place(name: str) -> int:
        if name not in tensors:
            tensor = graph.tensors.get(name, Tensor(name))
            tensors[name] = len(rows)
            rows.append([name, str(tensor), int(tensor.is_constant)])
        return tensors[name]

    nodes = []
    for number, node in enumerate(graph.nodes):
        module = modules.setdefault(node.module, len(modules)) if node.module else -1
        ends = [[place(name) for name in names if name] for names in (node.inputs, node.outputs)]
        attributes = [list(pair) for pair in node.attributes]
        nodes.append([
            node.name, node.op_type, module, *ends, attributes, node.precision, int(node.is_constant),
            one.layers.get(number, 0),
        ])  # fmt: skip
    return {
        "title": graph.title, "kind": graph.kind, "notes": list(graph.notes), "nodes": nodes,
        "inputs": [place(name) for name in graph.inputs], "outputs": [place(name) for name in graph.outputs],
        "tensors": rows, "modules": list(modules),
        "colorings": [_coloring(coloring, len(nodes)) for coloring in one.colorings],
    }  # fmt: skip


def _coloring(one: Coloring, count: int) -> Dict[str, Any]:
    values = [_plain(one.values.get(number)) for number in range(count)]
    return {"key": one.key, "title": one.title, "unit": one.unit, "note": one.note, "values": values}


def _plain(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def for_script(data: object) -> str:
    """Return JSON that can stand inside a script element, whatever names it holds."""
    text = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    text = text.encode("utf-8", "replace").decode("utf-8")
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def graph_markup(heading: str, *, count: int = 1, address: str = "") -> str:
    """Return the element that the script draws one graph or two into; with an address the data is fetched from it."""
    where = ' data-address="{}"'.format(escape(address)) if address else ""
    views = "".join(_VIEW.format(number=number, of=" {} of {}".format(number + 1, count) if count > 1 else "")
                    for number in range(count))  # fmt: skip
    return _MARKUP.format(heading=escape(heading), where=where, views=views, two=" graph-two" if count > 1 else "")


_VIEW = (
    '<div class="graph-side"><p class="graph-title"></p>'
    '<div class="graph-view" tabindex="0" role="application" aria-roledescription="graph" aria-label="Graph{of}" '
    'aria-describedby="graph-keys"></div></div>'
)
_MARKUP = """<section class="graph{two}" id="graph" aria-label="{heading}"{where}>
<p class="graph-tools" hidden>
<label>Color by <select class="graph-color"></select></label>
<label>Find <input type="search" class="graph-find" autocomplete="off" spellcheck="false"></label>
<button type="button" class="graph-in" aria-label="Zoom in">+</button>
<button type="button" class="graph-out" aria-label="Zoom out">-</button>
<button type="button" class="graph-fit">Fit</button>
<button type="button" class="graph-fold">Fold all</button>
<button type="button" class="graph-unfold">Unfold all</button>
<label class="graph-box"><input type="checkbox" class="graph-constants"> Nodes of weights alone</label>
</p>
<p class="graph-legend" hidden></p>
<p class="graph-notes" hidden></p>
<div class="graph-sides">{views}</div>
<div class="graph-panel" role="status" aria-live="polite"></div>
<p class="hint" id="graph-keys">Drag or scroll to move, Ctrl and scroll to zoom. With the keyboard: arrows go from node
to node, Enter opens or closes a module and leads to the layer, + and - zoom, 0 fits.</p>
</section>
"""


@lru_cache(maxsize=None)
def static_text(name: str) -> str:
    """Return a file that pages need: ``graph.js``, ``graph.css`` or ``dagre.js``."""
    return (STATIC / name).read_text(encoding="utf-8")


def node_table(one: ModelGraph) -> str:
    """Return the nodes as a table: for screen readers, for searching in the page, and without a script."""

    def listed(names: Sequence[str]) -> str:
        known = [name for name in names if name][:_MOST_VALUES_SHOWN]
        return ", ".join("{} {}".format(name, one.tensors.get(name, "")).strip() for name in known)

    rows = []
    for number, node in enumerate(one.nodes, 1):
        ends = (listed(node.inputs), listed(node.outputs))
        cells = (node.op_type, node.module, node.precision, *ends)
        rows.append(
            '<tr><td class="num">{}</td><th scope="row">{}</th>{}</tr>'.format(
                number, escape(node.name), "".join("<td>{}</td>".format(escape(cell)) for cell in cells)
            )
        )
    head = "".join('<th scope="col">{}</th>'.format(title) for title in
                   ("#", "Node", "Operator", "Module", "Precision", "Inputs", "Outputs"))  # fmt: skip
    return (
        '<details class="graph-table"><summary>{} nodes of {} as a table</summary><div class="scroll" tabindex="0" '
        'role="region" aria-label="Nodes of {}"><table class="dense"><thead><tr>{}</tr></thead><tbody>{}</tbody>'
        "</table></div></details>".format(len(one.nodes), escape(one.title), escape(one.title), head, "".join(rows))
    )


def graph_html(one: Shown, other: Optional[Shown] = None) -> str:
    """Return a graph, or two side by side, as one HTML file: no server, no network, no folder."""
    title = one.graph.title if other is None else "{} and {}".format(one.graph.title, other.graph.title)
    graphs = [one.graph] if other is None else [one.graph, other.graph]
    library, script, styles = (
        static_text("dagre.js"),
        static_text("graph.js"),
        static_text("page.css") + static_text("graph.css"),
    )
    policy = "default-src 'none'; script-src '{}' '{}'; style-src '{}'; img-src data:".format(
        _hash(library), _hash(script), _hash(styles)
    )
    facts = "".join("<p class='hint'>{}</p>".format(escape(_facts(graph))) for graph in graphs)
    return _PAGE.format(
        title=escape(title), policy=escape(policy), styles=styles, library=library, script=script, facts=facts,
        graph=graph_markup(title, count=len(graphs)), tables="".join(map(node_table, graphs)),
        data=for_script(graph_data(one, other)),
    )  # fmt: skip


def _facts(graph: ModelGraph) -> str:
    ends = ["; ".join("{} {}".format(name, graph.tensors.get(name, "")) for name in names[:_MOST_VALUES_SHOWN])
            for names in (graph.inputs, graph.outputs)]  # fmt: skip
    words = [graph.title, graph.kind, "{} nodes".format(len(graph.nodes)), "inputs: " + ends[0], "outputs: " + ends[1]]
    return " · ".join(words)


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<title>{title}</title>
<style>{styles}</style>
</head>
<body>
<main>
<h1>{title}</h1>
{facts}
{graph}
{tables}
</main>
<script type="application/json" id="graph-data">{data}</script>
<script>{library}</script>
<script type="module">{script}</script>
</body>
</html>
"""
