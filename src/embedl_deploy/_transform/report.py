"""What was done to a model, with proofs: as data, as a table, and as a page with the graph before and after."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from html import escape
from pathlib import Path
from typing import NamedTuple

from torch import fx, nn

from embedl_deploy._graph.network import Network
from embedl_deploy._graph.picture import picture_of
from embedl_deploy._graph.proof import Proof
from embedl_deploy._table import Printed, html_page, html_table, table
from embedl_deploy._transform.plan import Step
from embedl_deploy.pattern import Refusal
from embedl_graph import ModelGraph

WEIGHTED = (nn.Linear, nn.modules.conv._ConvNd)
_ROW = 22
_WIDTH = 520
_ARCS = 150
_LONGEST = 34


class Row(NamedTuple):
    """One node in a drawing: its name, what it is, and the step it belongs to (0 for none)."""

    name: str
    kind: str
    step: int


class Drawing(NamedTuple):
    """A graph as rows in the order of execution, and edges between row numbers; one that skips rows is an arc."""

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


def _color(step: int, *, weak: bool = False) -> str:
    """Give a step its color, by turning the hue a golden angle per step."""
    if not step:
        return "#f4f4f4" if weak else "#999999"
    hue = step * 137.508 % 360
    return f"hsl({hue:.0f} 65% {'92' if weak else '40'}%)"


def _svg(drawing: Drawing) -> str:
    height = len(drawing.rows) * _ROW + 10
    parts = [f'<svg viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" height="{height}" role="img" aria-label="Graph">']
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
        # A long name is cut at its front: its end is what differs between nodes.
        name = row.name if len(row.name) <= _LONGEST else "…" + row.name[1 - _LONGEST :]
        fill, stroke = _color(row.step, weak=True), _color(row.step)
        label = escape(f"{row.step or ''} {row.kind}".strip())
        parts.append(
            f"<g><title>{escape(row.name)}: {title}</title>"
            f'<rect x="4" y="{top}" width="{right - 4}" height="{_ROW - 4}" rx="4" fill="{fill}" stroke="{stroke}"/>'
            f'<text x="12" y="{top + 13}">{label}</text>'
            f'<text x="{right - 8}" y="{top + 13}" class="name">{escape(name)}</text></g>'
        )
    return "".join([*parts, "</svg>"])


_NOT_PROVED = "not proved (no example inputs)"
_STYLE = """
h1 { font-size: 1.5rem; margin-bottom: .2rem; } h2 { font-size: 1.1rem; margin-top: 2rem; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .1rem 1rem; } dd { margin: 0; }
dt { color: var(--soft); }
.graphs { display: flex; gap: 2rem; align-items: flex-start; overflow-x: auto; }
svg text { font: 12px ui-monospace, monospace; fill: #222; }
svg .name { text-anchor: end; fill: #555; font-size: 11px; }
svg .edge { fill: none; stroke: var(--edge); }
"""


@dataclass(frozen=True)
class Done:
    """A step that was applied, with its proof when there were example inputs."""

    step: Step
    proof: Proof | None


@dataclass(frozen=True, repr=False)
class Report(Printed):
    """The record of a transform."""

    title: str
    route: str
    notes: tuple[str, ...]  # remarks of the tracing
    done: tuple[Done, ...]  # every step that was done, with its proof
    refusals: tuple[Refusal, ...]  # everything that was not done, and why
    proof: Proof | None  # the whole model before and after on the example inputs; `None` without them
    left: dict[str, int]  # modules that no pattern took, counted by type
    norms: tuple[Refusal, ...]  # batch norms that stay operators of their own, each with the reason
    # Where the time went: trace, plan, apply, and run (the model itself on the example inputs)
    seconds: dict[str, float]
    _networks: tuple[Network, Network] = field(repr=False, compare=False)

    @cached_property
    def before(self) -> Drawing:
        """The graph as it was traced, drawn when first asked for."""
        owner = {name: done.step.number for done in self.done for name in done.step.members}
        return draw(self._networks[0], owner)

    @cached_property
    def after(self) -> Drawing:
        """The graph as it is now, drawn when first asked for."""
        return draw(self._networks[1], {})

    def pictures(self) -> tuple[ModelGraph, ModelGraph]:
        """Return the graph as it was traced and as it is now, for a page."""
        owner = {name: done.step.number for done in self.done for name in done.step.members}
        before, after = self._networks
        return picture_of(before, f"{self.title}, before", owner), picture_of(after, f"{self.title}, after")

    def counts(self) -> dict[str, int]:
        """Count the steps done by pattern."""
        return dict(Counter(done.step.pattern.__name__ for done in self.done))

    def __str__(self) -> str:
        steps = table(("row", "pattern", "layers", "proof"), self._steps()) if self.done else "nothing was changed"
        lines = [f"{self.title}, traced by {self.route}", "", steps]
        if self.refusals:
            lines += ["", "Not done:", table(("pattern", "place", "reason"), self._refused())]
        if self.left:
            lines += ["", "Left as they are: " + ", ".join(f"{count} {kind}" for kind, count in self.left.items())]
        if self.norms:
            rows = [(norm.place, norm.reason) for norm in self.norms]
            lines += ["", "Batch norms that are not folded:", table(("place", "reason"), rows)]
        if self.notes:
            lines += ["", "Tracing:", *(f"- {note}" for note in self.notes)]
        lines += ["", f"Whole model, before and after: {self.proof or _NOT_PROVED}"]
        return "\n".join(lines)

    def _refused(self) -> list[tuple[str, str, str]]:
        return [(refusal.pattern, refusal.place, refusal.reason) for refusal in self.refusals]

    def _steps(self) -> list[tuple[str, ...]]:
        return [
            (str(step.number), step.pattern.__name__, ", ".join(step.layers), str(done.proof or "not proved"))
            for done, step in ((done, done.step) for done in self.done)
        ]

    def to_html(self) -> str:
        """Return a self-contained page: the steps, the refusals, and the graph before and after."""
        summary = {
            "traced by": self.route,
            "steps": len(self.done),
            "not done": len(self.refusals),
            "nodes": f"{len(self.before.rows)} before, {len(self.after.rows)} after",
            "whole model": self.proof or _NOT_PROVED,
        }
        facts = "".join(f"<dt>{escape(name)}</dt><dd>{escape(str(value))}</dd>" for name, value in summary.items())
        colors = [_color(done.step.number) for done in self.done]
        done = html_table(("step", "pattern", "layers", "proof"), self._steps(), colors=colors)
        refused = html_table(("pattern", "place", "reason"), self._refused())
        norms = html_table(("place", "reason"), [(norm.place, norm.reason) for norm in self.norms])
        notes = "".join(f"<li>{escape(note)}</li>" for note in self.notes)
        body = [
            f"<h1>{escape(self.title)}</h1><dl>{facts}</dl>",
            f"<h2>Steps</h2>{done if self.done else '<p>Nothing was changed.</p>'}",
            f"<h2>Not done</h2>{refused if self.refusals else '<p>Nothing was refused.</p>'}",
            f"<h2>Batch norms that are not folded</h2>{norms}" if self.norms else "",
            f"<h2>Tracing</h2><ul>{notes}</ul>" if notes else "",
            "<h2>Graph</h2><p>One color per step; arcs are connections that skip nodes.</p>",
            "<div class='graphs' tabindex='0' role='region' aria-label='Graphs'>",
            f"<div><h3>Before</h3>{_svg(self.before)}</div>",
            f"<div><h3>After</h3>{_svg(self.after)}</div></div>",
        ]
        return html_page(f"{self.title}: transform report", _STYLE, body)

    def save_html(self, path: str | Path) -> Path:
        """Write the page to a file and return its path."""
        target = Path(path)
        target.write_text(self.to_html(), encoding="utf-8")
        return target


def modules_left(network: Network) -> dict[str, int]:
    """Count the modules with weights that no pattern took."""
    kinds: Counter[str] = Counter()
    for node in network.graph.nodes:
        module = network.module_of(node)
        if module is not None and "made_by" not in node.meta and next(module.parameters(), None) is not None:
            kinds[type(module).__name__] += 1
    return dict(kinds.most_common())


def norms_left(network: Network) -> tuple[Refusal, ...]:
    """List the batch norms that no layer before them takes in, each with the reason."""
    found = []
    for node in network.graph.nodes:
        module = network.module_of(node)
        if module is None:
            alone = node.op == "call_function" and "batch_norm" in getattr(node.target, "__name__", "")
        else:
            parts = list(module.modules())
            alone = any(map(_is_batch_norm, parts)) and not any(isinstance(part, WEIGHTED) for part in parts)
        if alone:
            reason = _norm_reason(network, node)
            found.append(Refusal(reason, "", network.place_of(node)))
    return tuple(found)


def _is_batch_norm(module: nn.Module) -> bool:
    return isinstance(module, nn.modules.batchnorm._BatchNorm)


def _norm_reason(network: Network, node: fx.Node) -> str:
    """Say why a batch norm stands alone."""
    module = network.module_of(node)
    if module is None:
        return "its weights or statistics are computed, so there is nothing to fold"
    norm = next(part for part in module.modules() if _is_batch_norm(part))
    if getattr(norm, "running_mean", None) is None:
        return "it has no running statistics: it normalizes by the data of each call"
    source = node.all_input_nodes[0]
    made = network.module_of(source)
    if source.op == "placeholder":
        what = "reads the model's input"
    elif made is not None and any(isinstance(part, WEIGHTED) for part in made.modules()):
        others = [network.place_of(user) for user in source.users if user is not node]
        if others:
            return f"the result of '{network.place_of(source)}' is also read by '{others[0]}'"
        what = f"follows '{network.place_of(source)}', which ends with an activation or has another layout"
    else:
        kind = type(made).__name__ if made is not None else getattr(source.target, "__name__", str(source.target))
        what = f"follows {kind} ('{network.place_of(source)}'), not a convolution or fully connected layer"
    readers = [network.module_of(user) for user in node.users]
    parts = [part for reader in readers if reader is not None for part in reader.modules()]
    act = getattr(module, "act", None)
    if act is not None:
        return f"it {what}, and an activation ({type(act).__name__}) stands between it and what reads it"
    if len(readers) == 1 and any(isinstance(part, WEIGHTED) for part in parts):
        return f"it {what}, and the layer that reads it pads with zeros, which its shift would not reach"
    return f"it {what}, and no convolution or fully connected layer alone reads it"
