"""A sweep as a page shows it: a heat map of one number, two numbers against each other, who held which device when."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from embedl_hub.core.invoke import is_ruined
from embedl_hub.errors import ConfigError, known
from embedl_hub.fleet import (
    HIGHER_IS_BETTER,
    OUTCOME_PARAMS,
    PLAN_ARTIFACT,
    SWEEP,
    Matrix,
    MatrixCell,
    Standing,
    matrix_of,
    plan_of,
)
from embedl_hub.page._scope import NotHereError, quoted
from embedl_hub.tracking import RunStatus

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from embedl_hub.fleet import Plan, Point
    from embedl_hub.page._scope import Scope
    from embedl_hub.tracking import Run

_MOST_CELLS = 5000
_NEWEST = 100
# Classes of the style sheet: no page may carry colours of its own.
_SHADES = 9
_WIDE = 20.0


@dataclass(frozen=True)
class Choice:
    """What a reader wants to see of a sweep.

    Attributes:
        metric: The number in the heat map.
        x: The first number of the plot.
        y: The second.
        scale: Whether colours compare within a ``model`` or over ``all``.
    """

    metric: str
    x: str
    y: str
    scale: str


@dataclass(frozen=True)
class Shade:
    """A place of the heat map.

    Attributes:
        value: The chosen number of the cell, if it has it.
        shade: 0 for the best to the highest for the worst; None without a colour.
    """

    cell: MatrixCell | None
    value: float | None = None
    shade: int | None = None


@dataclass(frozen=True)
class SweepPage:
    """All that the page of a sweep shows."""

    run: Run
    matrix: Matrix
    choice: Choice
    rows: tuple[tuple[str, tuple[Shade, ...]], ...]
    points: Mapping[str, tuple[Point, ...]]

    @property
    def failed(self) -> list[MatrixCell]:
        """The cells that failed, each with its reason."""
        return [cell for cell in self.matrix.cells.values() if cell.state is Standing.FAILED]

    @property
    def ruined(self) -> list[MatrixCell]:
        """The cells whose answers are too far from float's to be of use."""
        names = ("cosine", "calibration_cosine")
        return [
            cell
            for cell in self.matrix.cells.values()
            if any(is_ruined(cell.metrics[name]) for name in names if name in cell.metrics)
        ]

    def charts(self) -> dict[str, Any]:
        """Return what the charts are drawn from."""
        return {
            "x": self.choice.x,
            "y": self.choice.y,
            "points": {
                target: [[one.cell.name, one.x, one.y, one.on_front, one.cell.run_id, one.cell.verdict] for one in held]
                for target, held in self.points.items()
                if held
            },
            "slots": {
                device: [[slot.name, slot.from_ms, slot.until_ms, slot.run_id, slot.status.value] for slot in slots]
                for device, slots in self.matrix.slots.items()
            },
        }


def sweeps_of(scope: Scope) -> tuple[Run, ...]:
    """Return the newest sweeps."""
    return scope.find([f"component = {quoted(SWEEP)}"], limit=_NEWEST).runs


def sweep_of(scope: Scope, run_id: str, wishes: Mapping[str, str]) -> SweepPage:
    """Return what is known of a sweep."""
    run = scope.run(run_id)
    if run.component != SWEEP:
        raise NotHereError(f"Run {run_id!r} is no sweep.")
    plan = plan_of(_keeper(scope, run))
    if len(plan.cells) > _MOST_CELLS:
        raise ConfigError(
            f"The sweep has {len(plan.cells):,} cells and a page shows at most {_MOST_CELLS:,}; "
            f"its runs are found by the tag sweep = {run_id}, and embedl-hub run table writes them as a table."
        )
    matrix = matrix_of(plan, _runs_of(scope, run, plan))
    choice = _choice(matrix, wishes)
    return SweepPage(
        run=run,
        matrix=matrix,
        choice=choice,
        rows=tuple(_rows(matrix, choice)),
        points={target: matrix.front(target, choice.x, choice.y) for target in matrix.targets},
    )


def _keeper(scope: Scope, run: Run) -> Run:
    """Return the run that keeps the plan: one that went on with the same plan has none of its own."""
    return run if PLAN_ARTIFACT in run.artifacts else scope.run(run.tags.get("sweep", run.id))


def _runs_of(scope: Scope, run: Run, plan: Plan) -> Iterator[Run]:
    """Return what the sweep ran, and what stands in for steps that it did not run itself."""
    own = scope.tagged("sweep", [run.tags.get("sweep", run.id)], params=OUTCOME_PARAMS)
    yield from own
    missing = plan.steps.keys() - {one.tags.get("step") for one in own}
    if missing and run.ended_ms is not None:
        taken = scope.tagged("step", sorted(missing), params=OUTCOME_PARAMS)
        yield from (one for one in taken if one.status is RunStatus.FINISHED and one.started_ms < run.ended_ms)


def _choice(matrix: Matrix, wishes: Mapping[str, str]) -> Choice:
    names = matrix.metrics
    first = names[0] if names else "latency_median"
    judged = next((name for name in names if name in HIGHER_IS_BETTER and name != "fps"), first)
    choice = Choice(
        wishes.get("metric") or first, wishes.get("x") or first, wishes.get("y") or judged, wishes.get("scale", "model")
    )
    for name in (choice.metric, choice.x, choice.y):
        if names and name not in names:
            raise ConfigError(f"No run of this sweep has a number {name!r}; there are: {known(names)}.")
    if choice.scale not in ("model", "all"):
        raise ConfigError(f"scale is {choice.scale!r}; known: 'all', 'model'.")
    return choice


def _rows(matrix: Matrix, choice: Choice) -> Iterator[tuple[str, tuple[Shade, ...]]]:
    every = [cell.metrics.get(choice.metric) for cell in matrix.cells.values()]
    for model in matrix.models:
        cells = [matrix.cell(model, option, target) for target in matrix.targets for option in matrix.options]
        values = [None if cell is None else cell.metrics.get(choice.metric) for cell in cells]
        shades = _shades(
            values, values if choice.scale == "model" else every, is_more=choice.metric in HIGHER_IS_BETTER
        )
        yield model, tuple(map(Shade, cells, values, shades))


def _shades(values: Sequence[float | None], among: Sequence[float | None], *, is_more: bool) -> list[int | None]:
    """Return the colour of each value, by where it lies among others; over a wide range by its order of magnitude."""
    known_values = [value for value in among if value is not None and math.isfinite(value)]
    if not known_values:
        return [None] * len(values)
    low, high = min(known_values), max(known_values)
    by_magnitude = low > 0 and high / low > _WIDE

    def place(value: float) -> float:
        if high == low:
            return 0.0
        if by_magnitude:
            return math.log(value / low) / math.log(high / low)
        return (value - low) / (high - low)

    found: list[int | None] = []
    for value in values:
        if value is None or not math.isfinite(value):
            found.append(None)
        else:
            share = 1 - place(value) if is_more and high != low else place(value)
            found.append(min(_SHADES - 1, int(share * _SHADES)))
    return found
