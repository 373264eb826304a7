"""How a sweep went: each cell ended once, and why."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

from embedl_hub.core.invoke import is_ruined

if TYPE_CHECKING:
    from collections.abc import Mapping

    from embedl_hub.fleet._engine import Outcome
    from embedl_hub.fleet._model import Cell, Plan, Step, StepKind


class CellState(StrEnum):
    """How a cell ended."""

    DONE = "done"
    FAILED = "failed"
    SKIPPED = "skipped"


@dataclass(frozen=True)
class CellResult:
    """A cell that has ended.

    Attributes:
        cell: Which.
        state: How it ended.
        reason: Why it failed or was skipped.
        outcomes: What became of its steps.
        scores: How good its answers are: ``accuracy`` where there are labels, ``cosine`` and ``top1_agreement`` with
            the reference option's answers.
    """

    cell: Cell
    state: CellState
    reason: str | None
    outcomes: Mapping[StepKind, Outcome]
    scores: Mapping[str, float] = field(default_factory=dict)

    @property
    def is_ruined(self) -> bool:
        """Whether its answers are too far from the reference option's, or from float's on calibration data."""
        found = [value for name in ("cosine", "calibration_cosine") if (value := self.metric(name)) is not None]
        return any(is_ruined(value) for value in found)

    def metric(self, name: str) -> float | None:
        """Return a number of the cell by its name, whichever step measured it."""
        if name in self.scores:
            return self.scores[name]
        return next((one.metrics[name] for one in self.outcomes.values() if name in one.metrics), None)


@dataclass(frozen=True)
class RankedOption:
    """An option's place among those of a model, the fastest first.

    Attributes:
        option: Its name.
        latency_median: Its median time among the others, in ms.
        ratio_to_next: The next slower one's time over its own; None for the last.
        is_told_apart: Whether it is shown to be faster than the next; None for the last.
    """

    option: str
    latency_median: float
    ratio_to_next: float | None
    is_told_apart: bool | None


@dataclass(frozen=True)
class Ranking:
    """The options of one model on one target, measured in turns.

    Attributes:
        options: The fastest first; empty where it could not be measured.
        run_id: The run with the samples.
        error: Why it could not be measured.
    """

    model: str
    target: str
    options: tuple[RankedOption, ...]
    run_id: str | None
    error: str | None = None


@dataclass(frozen=True)
class SweepResult:
    """A sweep that has ended.

    Attributes:
        id: The sweep's own run; every run of it carries this as the tag ``sweep``.
        plan: What was to be done.
        cells: How each cell ended, in the plan's order.
        reused: The keys of the steps that an earlier driver of this sweep had finished.
        rankings: The options of each model on each target, fastest first, where the sweep ranks.
    """

    id: str
    plan: Plan
    cells: tuple[CellResult, ...]
    reused: frozenset[str] = frozenset()
    rankings: tuple[Ranking, ...] = ()

    def count(self, state: CellState) -> int:
        """Return how many cells ended in a state."""
        return sum(result.state is state for result in self.cells)


class Listener:
    """Hears of a sweep as it goes on; subclass it and take what you need. Called from the sweep's own thread."""

    def began(self, sweep: str, plan: Plan, done: Mapping[str, Outcome]) -> None:
        """Hear that it goes off, and which steps were done before."""

    def step_ended(self, step: Step, outcome: Outcome) -> None:
        """Hear the end of a step."""

    def cell_ended(self, result: CellResult) -> None:
        """Hear the end of a cell."""

    def said(self, text: str) -> None:
        """Hear of something that people should know: a board is out, a step is tried again."""
