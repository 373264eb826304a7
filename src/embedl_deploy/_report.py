"""What was done to a model, with proofs: data first, then a table; the page is made by `_html`."""

from collections import Counter
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from torch import nn

from embedl_deploy._apply import Done
from embedl_deploy._graph import Network
from embedl_deploy._html import Drawing, draw, page
from embedl_deploy._proof import Proof
from embedl_deploy._table import table
from embedl_deploy._trace import Tracing
from embedl_deploy.pattern import Refusal


@dataclass(frozen=True)
class Report:
    """The record of a transform.

    Attributes:
        title: The model's class.
        route: How it was traced.
        notes: Remarks of the tracing.
        done: Every step carried out, with its proof.
        refusals: Everything that was not done, and why.
        proof: The whole model before and after on the example inputs; `None` without them.
        left: Modules that no pattern took, counted by type.
        seconds: Where the time went: trace, plan, apply, and run (the model itself on the example inputs).
    """

    title: str
    route: str
    notes: tuple[str, ...]
    done: tuple[Done, ...]
    refusals: tuple[Refusal, ...]
    proof: Proof | None
    left: dict[str, int]
    seconds: dict[str, float]
    _networks: tuple[Network, Network] = field(repr=False, compare=False)

    @cached_property
    def before(self) -> Drawing:
        """The graph as it was traced, drawn when first asked for."""
        owner = {name: one.step.number for one in self.done for name in one.step.members}
        return draw(self._networks[0], owner)

    @cached_property
    def after(self) -> Drawing:
        """The graph as it is now, drawn when first asked for."""
        return draw(self._networks[1], {})

    def counts(self) -> dict[str, int]:
        """Count the steps done by pattern."""
        return dict(Counter(one.step.pattern.__name__ for one in self.done))

    def __str__(self) -> str:
        lines = [f"{self.title}, traced by {self.route}", "", self._steps()]
        if self.refusals:
            rows = [(one.pattern, one.place, one.reason) for one in self.refusals]
            lines += ["", "Not done:", table(("pattern", "place", "reason"), rows)]
        if self.left:
            lines += ["", "Left as they are: " + ", ".join(f"{count} {kind}" for kind, count in self.left.items())]
        if self.notes:
            lines += ["", "Tracing:", *(f"- {note}" for note in self.notes)]
        result = "not proved (no example inputs)" if self.proof is None else str(self.proof)
        lines += ["", f"Whole model, before and after: {result}"]
        return "\n".join(lines)

    def _steps(self) -> str:
        """Set the steps as a table."""
        if not self.done:
            return "nothing was changed"
        rows = [
            (
                str(one.step.number),
                one.step.pattern.__name__,
                ", ".join(one.step.layers),
                str(one.proof or "not proved"),
            )
            for one in self.done
        ]
        return table(("row", "pattern", "layers", "proof"), rows)

    def to_html(self) -> str:
        """Return a self-contained page: the steps, the refusals, and the graph before and after."""
        return page(
            title=self.title,
            summary=[
                ("traced by", self.route),
                ("steps", str(len(self.done))),
                ("not done", str(len(self.refusals))),
                ("nodes", f"{len(self.before.rows)} before, {len(self.after.rows)} after"),
                ("whole model", "not proved (no example inputs)" if self.proof is None else str(self.proof)),
            ],
            steps=[
                (one.step.number, one.step.pattern.__name__, one.step.layers, str(one.proof or "not proved"))
                for one in self.done
            ],
            refusals=[(one.pattern, one.place, one.reason) for one in self.refusals],
            notes=self.notes,
            before=self.before,
            after=self.after,
        )

    def save_html(self, path: str | Path) -> Path:
        """Write the page to a file and return its path."""
        target = Path(path)
        target.write_text(self.to_html(), encoding="utf-8")
        return target


def make_report(
    tracing: Tracing,
    network: Network,
    done: tuple[Done, ...],
    refusals: tuple[Refusal, ...],
    proof: Proof | None,
    seconds: dict[str, float],
) -> Report:
    """Gather the record of a transform."""
    return Report(
        title=tracing.network.title,
        route=tracing.route,
        notes=tracing.notes,
        done=done,
        refusals=refusals,
        proof=proof,
        left=_left(network),
        seconds=seconds,
        _networks=(tracing.network, network),
    )


def _left(network: Network) -> dict[str, int]:
    """Count the modules with weights that no pattern took."""
    kinds: Counter[str] = Counter()
    for node in network.graph.nodes:
        module = network.module_of(node)
        if module is not None and "made_by" not in node.meta and _has_weights(module):
            kinds[type(module).__name__] += 1
    return dict(kinds.most_common())


def _has_weights(module: nn.Module) -> bool:
    """Say whether a module has parameters."""
    return next(module.parameters(), None) is not None
