"""Which cells of a sweep are open, and how the others ended."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from embedl_hub.fleet._results import CellResult, CellState

if TYPE_CHECKING:
    from collections.abc import Mapping

    from embedl_hub.fleet._engine import Outcome
    from embedl_hub.fleet._model import Cell, Plan


class Cells:
    """Which cells are open, and how those that are not have ended."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._open = {cell.id: len(set(cell.steps)) for cell in plan.cells}
        self._of_step: dict[str, list[Cell]] = defaultdict(list)
        for cell in plan.cells:
            for key in dict.fromkeys(cell.steps):
                self._of_step[key].append(cell)

    def heard(self, key: str) -> list[Cell]:
        """Take the end of a step and return the cells that ended with it."""
        ended = []
        for cell in self._of_step[key]:
            self._open[cell.id] -= 1
            if self._open[cell.id] == 0:
                ended.append(cell)
        return ended

    def result(
        self,
        cell: Cell,
        outcomes: Mapping[str, Outcome],
        skipped: set[str],
        scores: Mapping[str, Mapping[str, float]],
    ) -> CellResult:
        """Return how a cell ended."""
        own = {self._plan.steps[key].kind: outcomes[key] for key in cell.steps}
        failed = next((outcome for outcome in own.values() if outcome.error is not None), None)
        found = {name: value for key in cell.steps for name, value in scores.get(key, {}).items()}
        if failed is None:
            return CellResult(cell, CellState.DONE, None, own, found)
        state = CellState.SKIPPED if failed.step in skipped else CellState.FAILED
        kind = self._plan.steps[failed.step].kind
        reason = failed.error if state is CellState.SKIPPED else f"{kind} failed: {failed.error}"
        return CellResult(cell, state, reason, own, found)
