"""How far a sweep is, and how long it may still take."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from statistics import fmean
from typing import TYPE_CHECKING

from embedl_hub.fleet._results import Listener

if TYPE_CHECKING:
    from collections.abc import Mapping

    from embedl_hub.fleet._engine import Outcome
    from embedl_hub.fleet._model import Plan, Step, StepKind
    from embedl_hub.fleet._results import CellResult


@dataclass
class TargetProgress:
    """One target: its steps, and how many ended in which way."""

    devices: int
    steps: int = 0
    ended: int = 0
    failed: int = 0
    reused: int = 0


@dataclass
class Progress(Listener):
    """Counts what ended, and estimates what is left from how long steps of the same kind took on the same target."""

    cells: int = 0
    cells_ended: int = 0
    targets: dict[str, TargetProgress] = field(default_factory=dict)
    _open: dict[tuple[str, StepKind], int] = field(default_factory=lambda: defaultdict(int))
    _took_s: dict[tuple[str, StepKind], list[float]] = field(default_factory=lambda: defaultdict(list))

    def began(self, sweep: str, plan: Plan, done: Mapping[str, Outcome]) -> None:  # noqa: ARG002 - the seam's signature
        """Take what there is to do."""
        self.cells = len(plan.cells)
        self.targets = {target.name: TargetProgress(max(1, len(target.devices))) for target in plan.targets}
        for key, step in plan.steps.items():
            place = self.targets[step.target.name]
            place.steps += 1
            if key in done:
                place.ended += 1
                place.reused += 1
                place.failed += done[key].error is not None
            else:
                self._open[step.target.name, step.kind] += 1

    def step_ended(self, step: Step, outcome: Outcome) -> None:
        """Take the end of a step."""
        place, what = self.targets[step.target.name], (step.target.name, step.kind)
        place.ended += 1
        place.failed += outcome.error is not None
        self._open[what] -= 1
        if outcome.claimed_ms is not None:
            self._took_s[what].append((outcome.claimed_ms[1] - outcome.claimed_ms[0]) / 1000)

    def cell_ended(self, result: CellResult) -> None:  # noqa: ARG002 - the seam's signature
        """Take the end of a cell."""
        self.cells_ended += 1

    def left_s(self) -> float | None:
        """Return how long the slowest target still needs; None where nothing is known of what it has to do."""
        estimates = [self._left_s(name, place.devices) for name, place in self.targets.items()]
        return (
            None if any(each is None for each in estimates) else max((each or 0.0 for each in estimates), default=0.0)
        )

    def _left_s(self, target: str, devices: int) -> float | None:
        total_s = 0.0
        for (place, kind), count in self._open.items():
            if place != target or count == 0:
                continue
            # One that has done none of these yet is taken for as fast as the others.
            known_s = self._took_s[place, kind] or [
                took for (_, other), list_s in self._took_s.items() if other == kind for took in list_s
            ]
            if not known_s:
                return None
            total_s += count * fmean(known_s)
        return total_s / devices
