"""A sweep as a table: models down, targets with their options across, every number and verdict in its place."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

from embedl_hub.fleet._evaluate import EVALUATES
from embedl_hub.fleet._model import StepKind
from embedl_hub.fleet._work import claimed_ms
from embedl_hub.tracking import RunStatus

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from embedl_hub.fleet._model import Cell, Plan
    from embedl_hub.tracking import Run

# Smaller is better for all others.
HIGHER_IS_BETTER = frozenset(
    {"accuracy", "cosine", "top1_agreement", "fps", "quantization_sqnr_db", "calibration_cosine"}
)
# The order in which a reader asks; others follow by name.
_FIRST = ("latency_median", "latency", "accuracy", "top1_agreement", "cosine", "fps", "peak_memory_mb", "model_size_mb")


class Standing(StrEnum):
    """Where a cell stands."""

    DONE = "done"
    FAILED = "failed"
    RUNNING = "running"
    WAITING = "waiting"


@dataclass(frozen=True)
class MatrixCell:
    """One model with one option on one target.

    Attributes:
        reason: Why it failed.
        verdict: What its profile thinks of its own numbers.
        run_ids: The run of each of its steps that has one, in their order.
        metrics: The numbers of all its runs; where two have one name, the later step's.
        is_cached: Whether a step took an earlier result.
    """

    model: str
    option: str
    target: str
    state: Standing
    reason: str | None = None
    verdict: str | None = None
    run_ids: Mapping[StepKind, str] = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)
    is_cached: bool = False

    @property
    def name(self) -> str:
        """What to call it where its place does not tell."""
        return f"{self.model} {self.option}"

    @property
    def run_id(self) -> str | None:
        """The run that a reader wants to see first: the profile, else the last."""
        return self.run_ids.get(StepKind.PROFILE) or next(reversed([*self.run_ids.values()]), None)


@dataclass(frozen=True)
class Slot:
    """A time in which a device was held by one run."""

    run_id: str
    name: str
    from_ms: int
    until_ms: int
    status: RunStatus


@dataclass(frozen=True)
class Point:
    """A cell in a plot of one number against another.

    Attributes:
        on_front: Whether no other cell of the target is at least as good in both and better in one.
    """

    cell: MatrixCell
    x: float
    y: float
    on_front: bool


@dataclass(frozen=True)
class Matrix:
    """A whole sweep; see :func:`matrix_of`."""

    name: str
    models: tuple[str, ...]
    options: tuple[str, ...]
    targets: tuple[str, ...]
    cells: Mapping[tuple[str, str, str], MatrixCell]
    slots: Mapping[str, tuple[Slot, ...]]

    def cell(self, model: str, option: str, target: str) -> MatrixCell | None:
        """Return a cell; None where the sweep has none."""
        return self.cells.get((model, option, target))

    def count(self, state: Standing) -> int:
        """Return how many cells stand there."""
        return sum(cell.state is state for cell in self.cells.values())

    @property
    def metrics(self) -> tuple[str, ...]:
        """The names of all numbers, those that are asked for most first."""
        names = {name for cell in self.cells.values() for name in cell.metrics}
        return (*(name for name in _FIRST if name in names), *sorted(names - set(_FIRST)))

    def front(self, target: str, x: str, y: str) -> tuple[Point, ...]:
        """Return a target's cells that have both numbers, by the first; ties and worse ones are off the front."""
        held = [cell for key, cell in self.cells.items() if key[2] == target and {x, y} <= cell.metrics.keys()]
        held.sort(key=lambda cell: (_cost(x, cell), _cost(y, cell), cell.name))
        points, best = [], float("inf")
        for cell in held:
            # In this order a cell is on the front if it is better in the second number than all before it.
            on_front = _cost(y, cell) < best
            best = min(best, _cost(y, cell))
            points.append(Point(cell, cell.metrics[x], cell.metrics[y], on_front))
        return tuple(points)

    def overlaps(self) -> tuple[tuple[str, Slot, Slot], ...]:
        """Return pairs of slots that held one device at the same time; a fleet whose leases work has none."""
        found = []
        for device, slots in self.slots.items():
            last: Slot | None = None
            for slot in slots:
                if last is not None and slot.from_ms < last.until_ms:
                    found.append((device, last, slot))
                if last is None or slot.until_ms > last.until_ms:
                    last = slot
        return tuple(found)


def matrix_of(plan: Plan, runs: Iterable[Run]) -> Matrix:
    """Put the runs of a sweep where they belong.

    Args:
        plan: The sweep, written out.
        runs: All runs that carry the sweep's tag, with their values.
    """
    runs = list(runs)
    by_step = _by_step(runs)
    cells = {(cell.model, cell.option, cell.target): _cell(plan, cell, by_step) for cell in plan.cells}
    return Matrix(
        name=plan.name,
        models=_order(cell.model for cell in plan.cells),
        options=_order(cell.option for cell in plan.cells),
        targets=_order(cell.target for cell in plan.cells),
        cells=cells,
        slots=_slots(runs),
    )


def _order(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(names))


def _cost(name: str, cell: MatrixCell) -> float:
    return -cell.metrics[name] if name in HIGHER_IS_BETTER else cell.metrics[name]


def _by_step(runs: Sequence[Run]) -> Mapping[str, list[Run]]:
    """Return the runs of each step, oldest first: tries that failed, then the one that counts and what judges it."""
    found: defaultdict[str, list[Run]] = defaultdict(list)
    for run in sorted(runs, key=lambda run: (run.started_ms, run.id)):
        if key := run.tags.get("step") or run.tags.get(EVALUATES):
            found[key].append(run)
    return found


def _cell(plan: Plan, cell: Cell, by_step: Mapping[str, list[Run]]) -> MatrixCell:
    state, reason, verdict, is_cached = Standing.DONE, None, None, False
    run_ids: dict[StepKind, str] = {}
    metrics: dict[str, float] = {}
    for key in cell.steps:
        runs = by_step.get(key, [])
        main = _main(runs)
        if main is None:
            state = Standing.WAITING if not run_ids else Standing.RUNNING
            break
        run_ids[plan.steps[key].kind] = main.id
        for run in (main, *(run for run in runs if run.type == "EVAL" and run.status is RunStatus.FINISHED)):
            metrics |= {metric.name: metric.value for metric in run.metrics}
        is_cached = is_cached or bool(_param(main, "from_cache"))
        verdict = _text(_param(main, "verdict")) or verdict
        if main.status is not RunStatus.FINISHED:
            is_over = main.status in (RunStatus.FAILED, RunStatus.KILLED)
            state = Standing.FAILED if is_over else Standing.RUNNING
            reason = (main.error or f"The {plan.steps[key].kind} step was stopped.") if is_over else None
            break
    return MatrixCell(
        cell.model, cell.option, cell.target, state, reason, verdict, run_ids, metrics, is_cached
    )  # fmt: skip


def _main(runs: Sequence[Run]) -> Run | None:
    """Return the run that stands for a step: the one that finished, else the newest."""
    own = [run for run in runs if run.type != "EVAL"]
    finished = [run for run in own if run.status is RunStatus.FINISHED]
    return (finished or own)[-1] if own else None


def _slots(runs: Sequence[Run]) -> Mapping[str, tuple[Slot, ...]]:
    found: defaultdict[str, list[Slot]] = defaultdict(list)
    for run in runs:
        held = claimed_ms(run)
        if run.device is not None and held is not None:
            name = " ".join(filter(None, (run.type.lower(), run.tags.get("model"))))
            found[run.device].append(Slot(run.id, name, *held, run.status))
    return {device: tuple(sorted(slots, key=lambda slot: slot.from_ms)) for device, slots in sorted(found.items())}


def _param(run: Run, name: str) -> object:
    return run.params[name].value if name in run.params else None


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None
