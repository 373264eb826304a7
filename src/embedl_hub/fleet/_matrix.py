"""A sweep as a table: models down, targets with their options across, every number and verdict in its place."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from embedl_device.statistics import Verdict
from embedl_hub.core.document import find_metric, in_order
from embedl_hub.core.invoke import is_ruined
from embedl_hub.fleet._evaluate import EVALUATES
from embedl_hub.fleet._model import Cell, CellState, Plan, StepKind
from embedl_hub.fleet._work import claimed_ms
from embedl_hub.tracking import Run, RunStatus

_COSINE = "calibration_cosine"


@dataclass(frozen=True)
class MatrixCell:
    """One model with one option on one target."""

    model: str
    option: str
    target: str
    state: CellState
    reason: str | None = None  # why it failed
    verdict: Verdict | None = None  # what its profile thinks of its own numbers
    # The run of each of its steps that has one, in their order.
    run_ids: Mapping[StepKind, str] = field(default_factory=dict)
    # The numbers of all its runs; where two have one name, the later step's.
    metrics: Mapping[str, float] = field(default_factory=dict)
    is_cached: bool = False  # whether a step took an earlier result
    is_float: bool = False  # whether what was compiled computes in float32, as the model itself does

    @property
    def name(self) -> str:
        """What to call it where its place does not tell."""
        return f"{self.model} {self.option}"

    @property
    def ruined_cosine(self) -> float | None:
        """How far its answers are from float's where that is too far to be of use; None where it is not."""
        found = (self.metrics[name] for name in ("cosine", "calibration_cosine") if name in self.metrics)
        return next((value for value in found if is_ruined(value)), None)

    @property
    def is_usable(self) -> bool:
        """Whether it did not fail, and its answers are not ruined."""
        return self.state is not CellState.FAILED and self.ruined_cosine is None

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
    """A cell in a plot of one number against another."""

    cell: MatrixCell
    x: float
    y: float
    on_front: bool  # whether no other cell of the target is at least as good in both and better in one


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

    def count(self, state: CellState) -> int:
        """Return how many cells stand there."""
        return sum(cell.state is state for cell in self.cells.values())

    @property
    def metrics(self) -> tuple[str, ...]:
        """The names of all numbers, those that are asked for most first."""
        return tuple(in_order({name for cell in self.cells.values() for name in cell.metrics}))

    def front(self, target: str, x: str, y: str) -> tuple[Point, ...]:
        """Return a target's cells that have both numbers, by the first; what is worse or of no use is off the front."""
        held = [cell for key, cell in self.cells.items() if key[2] == target and {x, y} <= cell.metrics.keys()]
        held.sort(key=lambda cell: (_cost(x, cell), _cost(y, cell), cell.name))
        points, best = [], float("inf")
        for cell in held:
            # In this order a cell is on the front if it is better in the second number than all before it.
            on_front = cell.is_usable and _cost(y, cell) < best
            best = min(best, _cost(y, cell)) if cell.is_usable else best
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
    """Put the runs of a sweep, all that carry its tag, where they belong."""
    runs = list(runs)
    by_step = _by_step(runs)
    cells = {(cell.model, cell.option, cell.target): _cell(plan, cell, by_step) for cell in plan.cells}
    cells = _with_float(cells)
    models, options, targets = (tuple(dict.fromkeys(key[place] for key in cells)) for place in range(3))
    return Matrix(plan.name, models, options, targets, cells, _slots(runs))


def _with_float(cells: Mapping[tuple[str, str, str], MatrixCell]) -> dict[tuple[str, str, str], MatrixCell]:
    """Give float the cosine to itself where its model is held against it: nothing is calibrated that would log it."""
    judged = {cell.model for cell in cells.values() if _COSINE in cell.metrics}
    return {
        key: replace(cell, metrics={_COSINE: 1.0, **cell.metrics}) if cell.is_float and cell.model in judged else cell
        for key, cell in cells.items()
    }


def _cost(name: str, cell: MatrixCell) -> float:
    return -cell.metrics[name] if find_metric(name).is_more_better else cell.metrics[name]


def _by_step(runs: Sequence[Run]) -> Mapping[str, list[Run]]:
    """Return the runs of each step, oldest first: tries that failed, then the one that counts and what judges it."""
    by_step: defaultdict[str, list[Run]] = defaultdict(list)
    for run in sorted(runs, key=lambda run: (run.started_ms, run.id)):
        if key := run.tags.get("step") or run.tags.get(EVALUATES):
            by_step[key].append(run)
    return by_step


def _cell(plan: Plan, cell: Cell, by_step: Mapping[str, list[Run]]) -> MatrixCell:
    state, reason, verdict, is_cached, is_float = CellState.DONE, None, None, False, False
    run_ids: dict[StepKind, str] = {}
    metrics: dict[str, float] = {}
    for key in cell.steps:
        runs = by_step.get(key, [])
        # The run that finished stands for a step, else the newest.
        own = [run for run in runs if run.type != "EVAL"]
        if not own:
            state = CellState.WAITING if not run_ids else CellState.RUNNING
            break
        main = ([run for run in own if run.status is RunStatus.FINISHED] or own)[-1]
        run_ids[plan.steps[key].kind] = main.id
        for run in (main, *(run for run in runs if run.type == "EVAL" and run.status is RunStatus.FINISHED)):
            metrics |= {metric.name: metric.value for metric in run.metrics}
        if plan.steps[key].kind is StepKind.COMPILE:
            is_float = main.status is RunStatus.FINISHED and _param(main, "precision") == "float32"
        is_cached = is_cached or bool(_param(main, "from_cache"))
        verdict = Verdict.of(_param(main, "verdict")) or verdict
        if main.status is not RunStatus.FINISHED:
            is_over = main.status in (RunStatus.FAILED, RunStatus.KILLED)
            state = CellState.FAILED if is_over else CellState.RUNNING
            reason = (main.error or f"The {plan.steps[key].kind} step was stopped.") if is_over else None
            break
    return MatrixCell(
        cell.model, cell.option, cell.target, state, reason, verdict, run_ids, metrics, is_cached, is_float
    )  # fmt: skip


def _slots(runs: Sequence[Run]) -> Mapping[str, tuple[Slot, ...]]:
    by_device: defaultdict[str, list[Slot]] = defaultdict(list)
    for run in runs:
        if run.device is not None and (claimed := claimed_ms(run)) is not None:
            name = " ".join(filter(None, (run.type.lower(), run.tags.get("model"))))
            by_device[run.device].append(Slot(run.id, name, *claimed, run.status))
    return {device: tuple(sorted(slots, key=lambda slot: slot.from_ms)) for device, slots in sorted(by_device.items())}


def _param(run: Run, name: str) -> object:
    return run.params[name].value if name in run.params else None
