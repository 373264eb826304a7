"""A report as one self-contained page: tables, and the graph before and after side by side.

A graph is drawn as a column of nodes in the order of execution; a step has one colour on both sides, and an edge that
skips nodes is an arc beside the column. No script and nothing fetched.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

from embedl_deploy._graph import Network

_ROW = 22
_WIDTH = 520
_ARCS = 150


@dataclass(frozen=True)
class Row:
    """One node in a drawing: its name, what it is, and the step it belongs to (0 for none)."""

    name: str
    kind: str
    step: int


@dataclass(frozen=True)
class Drawing:
    """A graph as rows in the order of execution, and edges between row numbers."""

    rows: tuple[Row, ...]
    edges: tuple[tuple[int, int], ...]


def draw(network: Network, owner: Mapping[str, int]) -> Drawing:
    """Lay a network out; `owner` maps node names to steps, new nodes know theirs."""
    index = {}
    rows: list[Row] = []
    edges: list[tuple[int, int]] = []
    for node in network.graph.nodes:
        if node.op in ("get_attr", "output"):
            continue
        module = network.module_of(node)
        what = type(module).__name__ if module is not None else getattr(node.target, "__name__", str(node.target))
        kind = "input" if node.op == "placeholder" else what
        index[node] = len(rows)
        rows.append(Row(network.place_of(node), kind, owner.get(node.name, node.meta.get("made_by", 0))))
        edges += [(index[used], index[node]) for used in node.all_input_nodes if used in index]
    return Drawing(tuple(rows), tuple(edges))


def _colour(step: int, *, weak: bool = False) -> str:
    """Give a step its colour, by turning the hue a golden angle per step."""
    if not step:
        return "#f4f4f4" if weak else "#999999"
    hue = step * 137.508 % 360
    return f"hsl({hue:.0f} 65% {'92' if weak else '40'}%)"


def _svg(drawing: Drawing) -> str:
    """Draw one graph."""
    height = len(drawing.rows) * _ROW + 10
    parts = [f'<svg viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" height="{height}" role="img">']
    right = _WIDTH - _ARCS
    for start, end in drawing.edges:
        if end - start == 1:
            middle = right / 2
            parts.append(
                f'<line x1="{middle}" x2="{middle}" y1="{(start + 1) * _ROW}" y2="{end * _ROW + 4}" class="edge"/>'
            )
            continue
        top, bottom = start * _ROW + 14, end * _ROW + 14
        reach = right + min(_ARCS * 1.25, 16 + (end - start) * 5)
        parts.append(f'<path d="M{right} {top} C{reach} {top} {reach} {bottom} {right} {bottom}" class="edge"/>')
    for number, row in enumerate(drawing.rows):
        top = number * _ROW + 4
        title = f"step {row.step}" if row.step else "no step"
        fill, stroke = _colour(row.step, weak=True), _colour(row.step)
        label = escape(f"{row.step or ''} {row.kind}".strip())
        parts.append(
            f"<g><title>{escape(row.name)}: {title}</title>"
            f'<rect x="4" y="{top}" width="{right - 4}" height="{_ROW - 4}" rx="4" fill="{fill}" stroke="{stroke}"/>'
            f'<text x="12" y="{top + 13}">{label}</text>'
            f'<text x="{right - 8}" y="{top + 13}" class="name">{escape(_short(row.name))}</text></g>'
        )
    return "".join([*parts, "</svg>"])


def _short(name: str, most: int = 34) -> str:
    """Cut a long name at its front: the end tells nodes apart."""
    return name if len(name) <= most else "…" + name[-most + 1 :]


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Set an HTML table from cells that are HTML already."""
    top = "".join(f"<th>{escape(cell)}</th>" for cell in head)
    body = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table>"


_STYLE = """
:root { color-scheme: light; }
body { font: 14px/1.45 system-ui, sans-serif; margin: 2rem auto; max-width: 1180px; padding: 0 1rem; color: #222; }
h1 { font-size: 1.5rem; margin-bottom: .2rem; } h2 { font-size: 1.1rem; margin-top: 2rem; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .1rem 1rem; } dt { color: #666; } dd { margin: 0; }
table { border-collapse: collapse; width: 100%; } th, td { text-align: left; padding: .2rem .6rem .2rem 0;
  border-bottom: 1px solid #e4e4e4; vertical-align: top; } th { color: #666; font-weight: 500; }
.dot { display: inline-block; width: .8em; height: .8em; border-radius: 50%; margin-right: .4em; }
.graphs { display: flex; gap: 2rem; align-items: flex-start; overflow-x: auto; }
svg text { font: 12px ui-monospace, monospace; fill: #222; }
svg .name { text-anchor: end; fill: #666; font-size: 11px; }
svg .edge { fill: none; stroke: #b0b0b0; }
"""


def page(
    *,
    title: str,
    summary: Sequence[tuple[str, str]],
    steps: Sequence[tuple[int, str, Sequence[str], str]],
    refusals: Sequence[tuple[str, str, str]],
    notes: Sequence[str],
    before: Drawing,
    after: Drawing,
) -> str:
    """Set the whole page."""
    facts = "".join(f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in summary)
    done = [
        (f'<span class="dot" style="background:{_colour(number)}"></span>{number}', escape(pattern),
         escape(", ".join(layers)), escape(proof))
        for number, pattern, layers, proof in steps
    ]  # fmt: skip
    parts = [
        "<!doctype html><html lang='en'><head><meta charset='utf-8'>",
        f"<title>{escape(title)}: transform report</title><style>{_STYLE}</style></head><body>",
        f"<h1>{escape(title)}</h1><dl>{facts}</dl>",
        "<h2>Steps</h2>",
        _table(("step", "pattern", "layers", "proof"), done) if done else "<p>Nothing was changed.</p>",
        "<h2>Not done</h2>",
        _table(("pattern", "place", "reason"), [[escape(cell) for cell in row] for row in refusals])
        if refusals
        else "<p>Nothing was refused.</p>",
    ]
    if notes:
        parts.append("<h2>Tracing</h2><ul>" + "".join(f"<li>{escape(note)}</li>" for note in notes) + "</ul>")
    parts.append(
        "<h2>Graph</h2><p>One colour per step; arcs are connections that skip nodes.</p><div class='graphs'>"
        f"<div><h3>Before</h3>{_svg(before)}</div><div><h3>After</h3>{_svg(after)}</div></div></body></html>"
    )
    return "\n".join(parts)
