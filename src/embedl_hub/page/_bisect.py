"""A bisection as a page shows it: the tree of trials, what can be switched and what cannot, and how to read it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from embedl_hub.bisection import BISECTION, BisectionResult, Decision, read_bisection
from embedl_hub.errors import HubError
from embedl_hub.page._scope import NotHereError, Scope, TtlCache
from embedl_hub.tracking import Run, equal

_NEWEST = 100
MOST_NAMED = 3
"""So many of a list are named in a sentence; all are told where they are asked for."""
_WIDTH, _HEIGHT, _GAP_X, _GAP_Y, _EDGE = 250, 62, 44, 14, 6
_LONGEST = 34
_MOST_NODES = 400


@dataclass(frozen=True)
class Node:
    """One decision in the tree."""

    decision: Decision
    title: str  # which switches
    numbers: str  # the ratio with its interval
    x: int
    y: int
    parent: int | None  # its number among the nodes

    @property
    def middle(self) -> int:
        """The height at which lines meet it."""
        return self.y + _HEIGHT // 2


@dataclass(frozen=True)
class BisectionPage:
    """All that the page of a bisection shows."""

    run: Run
    result: BisectionResult
    nodes: tuple[Node, ...]

    @property
    def width(self) -> int:
        """Of the picture."""
        return max((node.x for node in self.nodes), default=0) + _WIDTH + _EDGE

    @property
    def height(self) -> int:
        """Of the picture."""
        return max((node.y for node in self.nodes), default=0) + _HEIGHT + _EDGE

    @property
    def node_width(self) -> int:
        """Of a box."""
        return _WIDTH

    @property
    def node_height(self) -> int:
        """Of a box."""
        return _HEIGHT

    @property
    def lines(self) -> list[str]:
        """The paths of the lines from each box to those that were asked within it."""
        found = []
        for node in self.nodes:
            if node.parent is not None:
                above = self.nodes[node.parent]
                bend = above.x + _WIDTH + _GAP_X // 2
                found.append(f"M{above.x + _WIDTH} {above.middle}H{bend}V{node.middle}H{node.x}")
        return found


@dataclass(frozen=True)
class Asked:
    """A bisection in the list: its two ends by name, and what it answered."""

    run: Run
    good: tuple[str, str]  # id and name; an empty name where the run is not here
    bad: tuple[str, str]
    answer: str


def bisections_of(scope: Scope, cache: TtlCache) -> tuple[Asked, ...]:
    newest = scope.find([equal("component", BISECTION)], limit=_NEWEST).runs
    return tuple(_asked(scope, run, cache) for run in newest)


def _asked(scope: Scope, run: Run, cache: TtlCache) -> Asked:
    def look() -> Asked:
        good, bad = (_end(scope, run, name) for name in ("good", "bad"))
        return Asked(run, good, bad, _answer(scope, run))

    return look() if run.ended_ms is None else cache.keep(("bisection", scope.visible, run.id), look)


def _end(scope: Scope, run: Run, name: str) -> tuple[str, str]:
    run_id = str(run.params[name].value) if name in run.params else ""
    try:
        return run_id, scope.run(run_id).name
    except NotHereError:
        return run_id, ""


def _answer(scope: Scope, run: Run) -> str:
    try:
        result = read_bisection(scope.store, run.id)
    except HubError as error:
        return str(error)
    if result.ended:
        return result.sentence(MOST_NAMED)
    return "not ended yet" if run.ended_ms is None else "ended before it had an answer"


def bisection_of(scope: Scope, run_id: str) -> BisectionPage:
    run = scope.run(run_id)
    if run.component != BISECTION:
        raise NotHereError(f"Run {run_id!r} is no bisection.")
    result = read_bisection(scope.store, run_id)
    return BisectionPage(run, result, tuple(tree_of(result.decisions[:_MOST_NODES])))


def tree_of(decisions: Sequence[Decision]) -> list[Node]:
    """Place decisions: a trial beside the question within which it was asked, in the order they were made."""
    parents = [_parent(decisions, number) for number in range(len(decisions))]
    depths: list[int] = []
    for parent in parents:
        depths.append(0 if parent is None else depths[parent] + 1)
    inside: dict[int | None, list[int]] = {}
    for number, parent in enumerate(parents):
        inside.setdefault(parent, []).append(number)
    rows: dict[int, int] = {}

    # A box stands in the row of the first one inside it; the others inside follow below.
    def place(number: int, row: int) -> int:
        rows[number] = row
        for inner in inside.get(number, ()):
            row = place(inner, row)
        return max(row, rows[number] + 1)

    row = 0
    for number in inside.get(None, ()):
        row = place(number, row)
    return [
        Node(
            decision, _title(decision), _numbers(decision), _EDGE + depths[number] * (_WIDTH + _GAP_X),
            _EDGE + rows[number] * (_HEIGHT + _GAP_Y), parents[number],
        )
        for number, decision in enumerate(decisions)
    ]  # fmt: skip


def _parent(decisions: Sequence[Decision], number: int) -> int | None:
    """Return the last question before, answered with BAD, whose switches hold those of this one."""
    own = decisions[number]
    for earlier in range(number - 1, -1, -1):
        other = decisions[earlier]
        if other.is_bad and other.question in ("differ", "trial") and _holds(other, own):
            return earlier
    return 0 if number else None


def _holds(other: Decision, own: Decision) -> bool:
    if own.question not in ("trial", "needed"):
        return other.question == "differ"
    names = own.trial - own.base
    return all(name in other.trial or _switch_of(name) in other.trial - own.whole for name in names)


def _switch_of(name: str) -> str:
    """Return the switch that a part belongs to; options of a compilation belong to the model."""
    return "model" if name.startswith("compile: ") else name.partition(": ")[0]


def _title(decision: Decision) -> str:
    words = {
        "differ": "GOOD and BAD",
        "rest": "what is left",
        "operators": "layers of both versions",
        "alone": "the operator alone",
    }
    chosen = decision.whole - decision.trial if decision.question == "needed" else decision.trial - decision.base
    names = sorted(name.removeprefix("model: ") for name in chosen)
    if decision.question == "needed":
        names[0] = f"without {names[0]}"
    text = words.get(decision.question) or ", ".join(names)
    if len(text) <= _LONGEST:
        return text
    count = len(names)
    return f"{text[: _LONGEST - 12]}… ({count})" if count > 1 else f"{text[: _LONGEST - 1]}…"


def _numbers(decision: Decision) -> str:
    if decision.low is not None and decision.high is not None and decision.value is not None:
        return f"× {decision.value:.3f} ({decision.low:.3f} to {decision.high:.3f})"
    if decision.share is not None:
        return f"{decision.share:.0%} of the difference"
    return decision.reason if len(decision.reason) <= _LONGEST + 6 else f"{decision.reason[: _LONGEST + 5]}…"
