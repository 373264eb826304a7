"""A sweep as a page shows it: a heat map of one number, two numbers against each other, who held which device when."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from embedl_hub.core.document import METRICS, find_metric
from embedl_hub.errors import ConfigError, quoted_list
from embedl_hub.fleet import (
    OUTCOME_PARAMS,
    PLAN_ARTIFACT,
    SWEEP,
    CellState,
    Matrix,
    MatrixCell,
    Plan,
    Point,
    StepKind,
    matrix_of,
    plan_of,
    recorded_rankings,
)
from embedl_hub.page._intervals import NO_ENDS, Ends, document_interval, has_document_interval, logged_interval
from embedl_hub.page._ranking import Standings, standings_of
from embedl_hub.page._scope import NotHereError, Scope, TtlCache
from embedl_hub.tracking import Run, RunStatus, equal

_MOST_CELLS = 5000
_NEWEST = 100
_MOST_READ = 200  # so many profiles are opened for their intervals
# Classes of the style sheet: no page may carry colors of its own.
_SHADES = 9
# So many times the best is dark, and darkest; a smaller gap is not drawn larger than it is.
_DARK, _DARKEST = 1.5, 3.0
_SHARES = frozenset({"accuracy", "top1_agreement", "cosine", "calibration_cosine"})


@dataclass(frozen=True)
class Choice:
    """What a reader wants to see of a sweep: the heat map's number, and the plot's two."""

    metric: str
    x: str
    y: str
    scale: str  # whether colors compare within a ``model`` or over ``all``
    least: float | None = None  # a cell is ranked by ``x`` only if it has so much of ``y``


@dataclass(frozen=True)
class SweepPage:
    """All that the page of a sweep shows."""

    run: Run
    matrix: Matrix
    choice: Choice
    rows: tuple[tuple[str, tuple[Shade, ...]], ...]
    points: Mapping[str, tuple[Point, ...]]
    standings: tuple[Standings, ...] = ()

    @property
    def failed(self) -> list[MatrixCell]:
        """The cells that failed, each with its reason."""
        return [cell for cell in self.matrix.cells.values() if cell.state is CellState.FAILED]

    @property
    def ruined(self) -> list[MatrixCell]:
        """The cells whose answers are too far from float's to be of use."""
        return [cell for cell in self.matrix.cells.values() if cell.ruined_cosine is not None]

    def charts(self) -> dict[str, object]:
        return {
            "x": find_metric(self.choice.x).column_title,
            "y": find_metric(self.choice.y).column_title,
            "x_is_share": self.choice.x in _SHARES,
            "y_is_share": self.choice.y in _SHARES,
            "points": {
                target: [
                    [point.cell.name, point.x, point.y, point.on_front, point.cell.run_id, point.cell.verdict]
                    for point in held
                ]
                for target, held in self.points.items()
                if held
            },
            "slots": {
                device: [[slot.name, slot.from_ms, slot.until_ms, slot.run_id, slot.status.value] for slot in slots]
                for device, slots in self.matrix.slots.items()
            },
        }


@dataclass(frozen=True)
class Shade:
    """A place of the heat map; its shade is 0 for the best to the highest for the worst, None without a color."""

    cell: MatrixCell | None
    value: float | None = None
    shade: int | None = None


def sweeps_of(scope: Scope) -> tuple[Run, ...]:
    return scope.find([equal("component", SWEEP)], limit=_NEWEST).runs


def sweep_of(scope: Scope, run_id: str, wanted: Mapping[str, str], cache: TtlCache) -> SweepPage:
    run = scope.run(run_id)
    if run.component != SWEEP:
        raise NotHereError(f"Run {run_id!r} is no sweep.")
    # A run that went on with the same plan keeps none of its own.
    plan = plan_of(run if PLAN_ARTIFACT in run.artifacts else scope.run(run.tags.get("sweep", run.id)))
    if len(plan.cells) > _MOST_CELLS:
        raise ConfigError(
            f"The sweep has {len(plan.cells):,} cells and a page shows at most {_MOST_CELLS:,}; "
            f"its runs are found by the tag sweep = {run_id}, and embedl-hub run table writes them as a table."
        )
    runs = list(_runs_of(scope, run, plan))
    matrix = matrix_of(plan, runs)
    choice = _choice(matrix, wanted)
    points = {target: matrix.front(target, choice.x, choice.y) for target in matrix.targets}
    front = frozenset(
        (point.cell.model, point.cell.option, point.cell.target)
        for held in points.values()
        for point in held
        if point.on_front and choice.x != choice.y
    )
    standings = standings_of(
        matrix, choice.x, quality=choice.y, least=choice.least, front=front,
        ends_of=lambda cell: _ends_of(scope, matrix, cell, choice.x, cache),
        paired=recorded_rankings(plan, runs, scope.run),
    )  # fmt: skip
    return SweepPage(
        run=run, matrix=matrix, choice=choice, rows=tuple(_rows(matrix, choice)), points=points, standings=standings
    )


def _ends_of(scope: Scope, matrix: Matrix, cell: MatrixCell, key: str, cache: TtlCache) -> Ends:
    """Return the interval of a cell's number; of a median or a mean its profile has it, if they are not too many."""
    ends, profile = logged_interval(cell.metrics, key), cell.run_ids.get(StepKind.PROFILE)
    if ends[0] is not None or profile is None or not has_document_interval(key) or len(matrix.cells) > _MOST_READ:
        return ends
    if cell.state is not CellState.DONE:
        return NO_ENDS
    value = cell.metrics[key]
    return cache.keep(("interval", key, profile), lambda: document_interval(scope.run(profile), key, value))


def _runs_of(scope: Scope, run: Run, plan: Plan) -> Iterator[Run]:
    """Return what the sweep ran, and what stands in for steps that it did not run itself."""
    own = scope.store.tagged("sweep", [run.tags.get("sweep", run.id)], params=OUTCOME_PARAMS)
    yield from own
    missing = plan.steps.keys() - {done.tags.get("step") for done in own}
    if missing and run.ended_ms is not None:
        taken = scope.store.tagged("step", sorted(missing), params=OUTCOME_PARAMS)
        yield from (done for done in taken if done.status is RunStatus.FINISHED and done.started_ms < run.ended_ms)


def _choice(matrix: Matrix, wanted: Mapping[str, str]) -> Choice:
    names = matrix.metrics
    first = names[0] if names else METRICS[0].key
    known = {name: find_metric(name) for name in names}
    judged = next((name for name in names if known[name].is_more_better and not known[name].is_speed), first)
    choice = Choice(
        wanted.get("metric") or first, wanted.get("x") or first, wanted.get("y") or judged,
        wanted.get("scale", "model"), _least(wanted.get("least", "")),
    )  # fmt: skip
    for name in (choice.metric, choice.x, choice.y):
        if names and name not in names:
            raise ConfigError(f"No run of this sweep has a number {name!r}; there are: {quoted_list(names)}.")
    if choice.scale not in ("model", "all"):
        raise ConfigError(f"scale is {choice.scale!r}; known: 'all', 'model'.")
    return choice


def _least(text: str) -> float | None:
    if not text.strip():
        return None
    try:
        least = float(text.replace(",", "."))
    except ValueError:
        least = math.nan
    if not math.isfinite(least):
        raise ConfigError(f"least is {text!r}; it is a number such as 0.7.")
    return least


def _rows(matrix: Matrix, choice: Choice) -> Iterator[tuple[str, tuple[Shade, ...]]]:
    every = [cell.metrics.get(choice.metric) for cell in matrix.cells.values()]
    for model in matrix.models:
        cells = [matrix.cell(model, option, target) for target in matrix.targets for option in matrix.options]
        values = [None if cell is None else cell.metrics.get(choice.metric) for cell in cells]
        shades = _shades(
            values, values if choice.scale == "model" else every, is_more=find_metric(choice.metric).is_more_better
        )
        yield model, tuple(map(Shade, cells, values, shades))


def _shades(values: Sequence[float | None], among: Sequence[float | None], *, is_more: bool) -> list[int | None]:
    """Return the color of each value by how many times the best it is, the same wherever it stands.

    Of values that are not all above 0, by where they lie between the best and the worst.
    """
    known_values = [value for value in among if value is not None and math.isfinite(value)]
    if not known_values:
        return [None] * len(values)
    low, high = min(known_values), max(known_values)

    def shade(value: float | None) -> int | None:
        if value is None or not math.isfinite(value):
            return None
        if low > 0:
            ratio = high / value if is_more else value / low
            return min(_SHADES - 3, int((ratio - 1) / (_DARK - 1) * (_SHADES - 3))) if ratio < _DARK else (
                _SHADES - 2 if ratio < _DARKEST else _SHADES - 1)  # fmt: skip
        place = 0.0 if high == low else (high - value if is_more else value - low) / (high - low)
        return min(_SHADES - 1, int(place * _SHADES))

    return list(map(shade, values))
