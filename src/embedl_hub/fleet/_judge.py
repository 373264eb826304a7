"""Scores the answers of a sweep as they come in."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from embedl_hub.errors import HubError
from embedl_hub.fleet._evaluate import EVALUATES, evaluate
from embedl_hub.fleet._model import StepKind
from embedl_hub.fleet._words import first_line, title
from embedl_hub.tracking import RunStatus

if TYPE_CHECKING:
    from collections.abc import Mapping

    from embedl_hub.core import HubContext
    from embedl_hub.fleet._engine import Outcome
    from embedl_hub.fleet._model import Plan, Step
    from embedl_hub.fleet._results import Listener


class Judge:
    """Scores answers as soon as both they and those they are compared with are there."""

    def __init__(
        self, ctx: HubContext, plan: Plan, sweep_id: str, outcomes: Mapping[str, Outcome], listener: Listener
    ) -> None:
        self._ctx = ctx
        self._plan = plan
        self._id = sweep_id
        self._outcomes = outcomes
        self._listener = listener
        self.scores: dict[str, Mapping[str, float]] = {}
        self._reference = _references(plan)
        self._waiting: dict[str, list[str]] = defaultdict(list)

    def hear(self, step: Step, outcome: Outcome) -> None:
        """Take the end of a step; only answers matter here."""
        if step.kind is not StepKind.INVOKE:
            return
        reference = self._reference.get(step.key)
        if outcome.error is None and reference is not None and reference not in self._outcomes:
            self._waiting[reference].append(step.key)
        elif outcome.error is None:
            self._judge(step)
        for key in self._waiting.pop(step.key, []):
            self._judge(self._plan.steps[key])

    def judge_rest(self) -> None:
        """Score what still waits for answers that never came."""
        for keys in self._waiting.values():
            for key in keys:
                self._judge(self._plan.steps[key])

    def _judge(self, step: Step) -> None:
        labels = self._plan.labels.get(step.model)
        reference = self._reference.get(step.key)
        good = reference if reference is not None and self._outcomes[reference].error is None else None
        if labels is None and good is None:
            return
        store = self._ctx.client.store
        assert store is not None  # noqa: S101 - a sweep always tracks
        try:
            for run in store.tagged(EVALUATES, [step.key]):
                if run.tags.get("sweep") == self._id and run.status is RunStatus.FINISHED:
                    self.scores[step.key] = {metric.name: metric.value for metric in run.metrics}
                    return
            answers = store.run(str(self._outcomes[step.key].run_id))
            right = None if good is None else store.run(str(self._outcomes[good].run_id))
            self.scores[step.key] = evaluate(self._ctx, self._id, step, answers, labels=labels, reference=right)
        except HubError as error:
            self._listener.said(f"The answers of {title(step)} could not be scored: {first_line(str(error))}")


def _references(plan: Plan) -> dict[str, str]:
    """Return, for the answers of each cell, the step whose answers they are compared with."""
    wanted = plan.settings.reference if plan.settings is not None else None
    name = wanted or "float"
    invokes = {
        (cell.model, cell.option, cell.target): key
        for cell in plan.cells
        for key in cell.steps
        if plan.steps[key].kind is StepKind.INVOKE
    }
    found = {}
    for (model, option, target), key in invokes.items():
        reference = invokes.get((model, name, target))
        if option != name and reference is not None and reference != key:
            found[key] = reference
    return found
