"""A sweep, carried out: what is ready goes to the engine, what is done is in the store, and each cell ends once.

The store is the sweep's only state. Whatever happens to this process, a later one asks the store which steps are done
and goes on with the others.
"""

from __future__ import annotations

import hashlib
import heapq
import json
import queue
import time
from collections import defaultdict
from concurrent.futures import CancelledError, Future
from typing import TYPE_CHECKING, Protocol

from embedl_hub.errors import ConfigError, HubError, TrackingError, WorkerLostError
from embedl_hub.fleet._check import RUN_TYPES, check_sweep
from embedl_hub.fleet._engine import Job, Outcome
from embedl_hub.fleet._evaluate import EVALUATES, evaluate
from embedl_hub.fleet._expand import expand
from embedl_hub.fleet._model import Plan, Step, StepKind, Sweep
from embedl_hub.fleet._rank import check_rank
from embedl_hub.fleet._results import CellResult, CellState, Listener, SweepResult
from embedl_hub.fleet._targets import find_targets
from embedl_hub.fleet._threads import Threads
from embedl_hub.fleet._work import FAULT, MODELS_FAULT, OUTCOME_PARAMS, finished_outcome, wait_for_store
from embedl_hub.tracking import RunStatus, RunType, equal

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from embedl_hub.core import HubContext
    from embedl_hub.fleet._engine import Engine, Workers
    from embedl_hub.fleet._model import Cell, Target
    from embedl_hub.tracking import ActiveRun, Run, Store

COMPONENT = "Sweep"
"""The component that a sweep's own runs name."""
PLAN_ARTIFACT, PLAN_DIGEST = "plan", "plan_digest"
_LOOK_EVERY_S = 0.25
# Enough that no device waits for us, few enough that the order of the plan is kept.
_JOBS_PER_DEVICE = 2
# Without a watch over the boards' health: one that fails this often in a row is left alone.
_MOST_FAULTS = 3
_BOARD_WAIT_S = 300.0


class Health(Protocol):
    """Whoever knows which boards are well."""

    def report_failure(self, name: str) -> object:
        """Hear that a step failed on a board through no fault of its model."""
        ...

    def is_in(self, name: str) -> bool:
        """Tell whether a board may get work."""
        ...


def plan_sweep(ctx: HubContext, sweep: Sweep) -> Plan:
    """Write a sweep out for the devices of a context, or say everything that is wrong with it."""
    targets, problems = find_targets(ctx, sweep.devices)
    if sweep.rank:
        problems += check_rank(sweep)
    check_sweep(sweep, problems)
    return expand(sweep, targets)


def run_sweep(
    ctx: HubContext,
    sweep: Sweep | Plan,
    *,
    engine: Engine | None = None,
    resume: str | None = None,
    retry_failed: bool = False,
    listener: Listener | None = None,
    health: Health | None = None,
    board_wait_s: float = _BOARD_WAIT_S,
) -> SweepResult:
    """Carry out a sweep and return how each of its cells ended.

    Args:
        ctx: An open context with a store, and the devices.
        sweep: The sweep, or its plan.
        engine: Who places the work; threads of this process if not given.
        resume: The id of a sweep to go on with: what is done is not done again.
        retry_failed: With ``resume``, try again what failed on the model's own account.
        listener: Hears how it goes on.
        health: Knows which boards are well; without one, a board that fails three times in a row is left alone.
        board_wait_s: How long cells wait for boards that are out to come back, once nothing else is left to do.
    """
    store = ctx.client.store
    if store is None:
        raise ConfigError("A sweep is kept in a store: open the context with tracking.")
    plan = sweep if isinstance(sweep, Plan) else plan_sweep(ctx, sweep)
    told = listener or Listener()
    earlier = _earlier_runs(store, resume, ctx.project_name)
    with ctx.client.start_run(RunType.CUSTOM, plan.name[:100], component=COMPONENT) as run:
        sweep_id = resume or run.id
        _record(run, plan, sweep_id, earlier)
        done = _done_before(store, plan, earlier, retry_failed=retry_failed)
        driver = _Driver(ctx, plan, sweep_id, done, told, health, board_wait_s)
        with (engine or Threads()).open(ctx, plan.targets) as workers:
            result = driver.drive(workers)
        if not wait_for_store(store):
            raise TrackingError(f"The sweep {sweep_id} ended, but the store does not answer; resume it when it does.")
        run.log_batch(metrics=[(f"cells_{state}", float(result.count(state)), None) for state in CellState])
    return result


def find_sweep(store: Store, project: str, name: str) -> str:
    """Return the id of the newest sweep of a name in a project."""
    where = f"{equal('component', COMPONENT)} and {equal('project', project)} and {equal('name', name[:100])}"
    for run in store.find(where, limit=1).runs:
        return run.tags.get("sweep", run.id)
    raise ConfigError(f"Project {project!r} has no sweep {name!r} to go on with; start it without --resume.")


def plan_as_json(plan: Plan) -> str:
    """Return a plan as the document that its sweep's run keeps."""
    steps = {
        key: {
            "kind": step.kind, "toolchain": step.toolchain, "model": step.model, "source": str(step.source),
            "values": dict(step.values), "target": step.target.name, "after": step.after,
        }
        for key, step in plan.steps.items()
    }  # fmt: skip
    cells = [
        {"id": cell.id, "model": cell.model, "option": cell.option, "target": cell.target, "steps": cell.steps}
        for cell in plan.cells
    ]
    targets = {target.name: target.devices for target in plan.targets}
    document = {"format": 1, "name": plan.name, "targets": targets, "cells": cells, "steps": steps}
    return json.dumps(document, default=str)


def _record(run: ActiveRun, plan: Plan, sweep_id: str, earlier: Iterable[Run]) -> None:
    """Keep the plan with the sweep's run; one that goes on with the very same plan needs no second copy."""
    digest = _plan_digest(plan)
    if not any(_param(each, PLAN_DIGEST) == digest for each in earlier):
        path = run.artifact_dir / "plan.json"
        path.write_text(plan_as_json(plan), encoding="utf-8")
        run.log_artifact(path, name=PLAN_ARTIFACT)
    tags = {"sweep": sweep_id} | ({"resumes": sweep_id} if sweep_id != run.id else {})
    params: dict[str, object] = {
        PLAN_DIGEST: digest,
        "cells": len(plan.cells),
        "steps": len(plan.steps),
        "targets": [target.name for target in plan.targets],
    }
    if plan.settings is not None:
        params |= {"toolchain": plan.settings.toolchain, "timeout_s": plan.settings.timeout_s}
    run.log_batch(params, tags=tags)


def _plan_digest(plan: Plan) -> str:
    digest = hashlib.sha256()
    for cell in plan.cells:
        digest.update("\n".join((cell.id, *cell.steps, "")).encode())
    return digest.hexdigest()


def _param(run: Run, name: str) -> object:
    return run.params[name].value if name in run.params else None


def _earlier_runs(store: Store, sweep_id: str | None, project: str) -> list[Run]:
    """Return everything that a sweep has recorded so far."""
    if sweep_id is None:
        return []
    found = store.tagged("sweep", [sweep_id], params=(*OUTCOME_PARAMS, PLAN_DIGEST))
    if not any(run.component == COMPONENT for run in found):
        raise ConfigError(f"There is no sweep {sweep_id!r} in {store.home} (project {project!r}) to go on with.")
    if alive := [run.id for run in found if run.component == COMPONENT and run.status is RunStatus.RUNNING]:
        raise ConfigError(f"The sweep {sweep_id} is still going on (run {alive[0]}); wait for its end, or end it.")
    return found


def _done_before(store: Store, plan: Plan, earlier: Iterable[Run], *, retry_failed: bool) -> dict[str, Outcome]:
    """Return the outcomes of the steps that need not be done: ended in this sweep, or measured before where asked."""
    done: dict[str, Outcome] = {}
    for run in sorted(earlier, key=lambda run: run.started_ms):
        step = plan.steps.get(run.tags.get("step", ""))
        if step is None or run.type != RUN_TYPES[step.kind]:
            continue
        if run.status is RunStatus.FINISHED:
            done[step.key] = finished_outcome(step, run)
        elif run.status is RunStatus.FAILED and run.tags.get(FAULT) == MODELS_FAULT and not retry_failed:
            done.setdefault(step.key, Outcome(step.key, run.id, run.error, device=run.device))
    if plan.settings is not None and plan.settings.reuse_measurements:
        wanted = [key for key, step in plan.steps.items() if key not in done and step.kind is not StepKind.COMPILE]
        for run in store.tagged("step", wanted, params=OUTCOME_PARAMS):
            step = plan.steps[run.tags["step"]]
            if run.status is RunStatus.FINISHED and run.type == RUN_TYPES[step.kind]:
                done[step.key] = finished_outcome(step, run, is_reused=True)
    return done


class _Driver:
    """Takes a plan through to its end."""

    def __init__(
        self,
        ctx: HubContext,
        plan: Plan,
        sweep_id: str,
        done: dict[str, Outcome],
        listener: Listener,
        health: Health | None,
        board_wait_s: float,
    ) -> None:
        self._ctx = ctx
        self._plan = plan
        self._settings = plan.settings or Sweep(plan.name, "", (), ())
        self._id = sweep_id
        self._listener = listener
        self._boards = _Boards(plan.targets, health, listener)
        self._board_wait_s = board_wait_s
        self._held_since: float | None = None
        self._before = frozenset(done)
        self._outcomes = done
        self._skipped: set[str] = set()
        self._attempts: dict[str, int] = defaultdict(int)
        self._avoid: dict[str, set[str]] = defaultdict(set)
        self._order = {key: place for place, key in enumerate(_in_order(plan, self._settings))}
        self._followers: dict[str, list[str]] = defaultdict(list)
        self._ready: dict[str, list[tuple[int, str]]] = {target.name: [] for target in plan.targets}
        self._flying: dict[str, Future[Outcome]] = {}
        self._ended: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._cells = _Cells(plan)
        self._judge = _Judge(ctx, plan, sweep_id, self._outcomes, listener)

    def drive(self, workers: Workers) -> SweepResult:
        """Go on until every cell has ended."""
        self._listener.began(self._id, self._plan, dict(self._outcomes))
        self._begin()
        while self._open_steps():
            workers.set_devices_out(self._boards.out())
            self._submit(workers)
            self._give_up_on_boards()
            try:
                self._take(self._ended.get(timeout=_LOOK_EVERY_S))
            except queue.Empty:
                continue
        self._judge.judge_rest()
        return SweepResult(self._id, self._plan, tuple(map(self._result, self._plan.cells)), self._before)

    def _result(self, cell: Cell) -> CellResult:
        return self._cells.result(cell, self._outcomes, self._skipped, self._judge.scores)

    def _open_steps(self) -> bool:
        return len(self._outcomes) < len(self._plan.steps)

    def _begin(self) -> None:
        """Find what is ready from what was done before."""
        for key, step in self._plan.steps.items():
            if step.after is not None:
                self._followers[step.after].append(key)
        for key in list(self._outcomes):
            self._settle(key, self._outcomes[key], is_new=False)
        for key, step in self._plan.steps.items():
            if key not in self._outcomes and (step.after is None or self._is_good(step.after)):
                self._queue(key)

    def _is_good(self, key: str) -> bool:
        return key in self._outcomes and self._outcomes[key].error is None

    def _queue(self, key: str) -> None:
        heapq.heappush(self._ready[self._plan.steps[key].target.name], (self._order[key], key))

    def _submit(self, workers: Workers) -> None:
        flying: dict[str, int] = defaultdict(int)
        for key in self._flying:
            flying[self._plan.steps[key].target.name] += 1
        for target in self._plan.targets:
            ready = self._ready[target.name]
            most = _JOBS_PER_DEVICE * max(1, len(target.devices))
            while ready and flying[target.name] < most and not self._boards.are_all_out(target):
                _, key = heapq.heappop(ready)
                flying[target.name] += 1
                self._send(workers, key)

    def _send(self, workers: Workers, key: str) -> None:
        step = self._plan.steps[key]
        self._attempts[key] += 1
        compiled = None if step.after is None else self._outcomes[step.after].run_id
        job = Job(self._id, step, self._attempts[key], compiled, self._settings.timeout_s, frozenset(self._avoid[key]))
        future = workers.submit(job)
        self._flying[key] = future
        future.add_done_callback(lambda _: self._ended.put(key))

    def _take(self, key: str) -> None:
        """Take the end of a job: try again, or let its step end."""
        future = self._flying.pop(key)
        step = self._plan.steps[key]
        try:
            outcome = future.result()
        except CancelledError:
            return
        except WorkerLostError as error:
            outcome = Outcome(key, None, str(error), is_boards_fault=True)
        if outcome.device is not None:
            self._boards.heard(outcome.device, is_fault=outcome.is_boards_fault)
        if outcome.error is not None and self._may_try_again(key, outcome):
            if outcome.device is not None:
                self._avoid[key].add(outcome.device)
            self._listener.said(f"{_title(step)} is tried again: {_first_line(outcome.error)}")
            self._queue(key)
            return
        self._settle(key, outcome)

    def _may_try_again(self, key: str, outcome: Outcome) -> bool:
        again = outcome.is_boards_fault or self._settings.retry_failures
        return again and not outcome.is_stopped and self._attempts[key] <= self._settings.retries

    def _settle(self, key: str, outcome: Outcome, *, is_new: bool = True) -> None:
        """Let a step end, and with it what cannot go on without it."""
        step = self._plan.steps[key]
        self._outcomes[key] = outcome
        if is_new:
            self._listener.step_ended(step, outcome)
        self._judge.hear(step, outcome)
        for follower in self._followers[key]:
            if follower in self._outcomes:
                continue
            if outcome.error is None:
                if is_new:
                    self._queue(follower)
            else:
                if key in self._skipped:
                    self._skipped.add(follower)
                self._settle(follower, Outcome(follower, None, f"{step.kind} failed: {outcome.error}"))
        for cell in self._cells.heard(key):
            self._listener.cell_ended(self._result(cell))

    def _give_up_on_boards(self) -> None:
        """End the cells of targets without a board, once nothing else is left to do and waiting has had its time."""
        held = [target for target in self._plan.targets if self._boards.are_all_out(target) and self._waits_for(target)]
        busy = [key for key in self._flying if self._plan.steps[key].target not in held]
        if not held or busy or any(self._ready[name.name] for name in self._plan.targets if name not in held):
            self._held_since = None
            return
        now = time.monotonic()
        self._held_since = self._held_since or now
        if now - self._held_since < (self._board_wait_s if self._boards.may_come_back else 0.0):
            return
        for target in held:
            self._skip_target(target)

    def _waits_for(self, target: Target) -> bool:
        return bool(self._ready[target.name]) or any(self._plan.steps[key].target == target for key in self._flying)

    def _skip_target(self, target: Target) -> None:
        keys = [key for _, key in self._ready[target.name]]
        self._ready[target.name].clear()
        # What is under way on a board that is out ends by itself; what waits for one is taken back.
        for key, future in list(self._flying.items()):
            if self._plan.steps[key].target == target and future.cancel():
                keys.append(key)
        reason = f"No device of target {target.name!r} may be used: {self._boards.why_out(target)}."
        for key in keys:
            if key not in self._outcomes:
                self._skipped.add(key)
                self._settle(key, Outcome(key, None, reason, is_boards_fault=True))


class _Boards:
    """Which boards may get work."""

    def __init__(self, targets: tuple[Target, ...], health: Health | None, listener: Listener) -> None:
        self._names = frozenset(name for target in targets for name in target.devices)
        self._health = health
        self._listener = listener
        self._faults: dict[str, int] = defaultdict(int)
        self._out: frozenset[str] = frozenset()

    @property
    def may_come_back(self) -> bool:
        """Whether anybody looks after boards that are out."""
        return self._health is not None

    def out(self) -> frozenset[str]:
        """Return the boards that are to get no work now."""
        if self._health is None:
            out = frozenset(name for name in self._names if self._faults[name] >= _MOST_FAULTS)
        else:
            out = frozenset(name for name in self._names if not self._health.is_in(name))
        for name in sorted(out - self._out):
            self._listener.said(f"Device {name!r} gets no more work: {self._why(name)}.")
        for name in sorted(self._out - out):
            self._listener.said(f"Device {name!r} is back.")
        self._out = out
        return out

    def heard(self, name: str, *, is_fault: bool) -> None:
        """Take note of how a job on a board ended."""
        self._faults[name] = self._faults[name] + 1 if is_fault else 0
        if is_fault and self._health is not None:
            self._health.report_failure(name)

    def are_all_out(self, target: Target) -> bool:
        """Tell whether a target has no board left; this machine is never out."""
        return bool(target.devices) and self._out.issuperset(target.devices)

    def why_out(self, target: Target) -> str:
        """Return why the boards of a target get no work."""
        return "; ".join(f"{name!r} {self._why(name)}" for name in target.devices if name in self._out)

    def _why(self, name: str) -> str:
        if self._health is not None:
            return "did not pass its health check"
        return f"failed {self._faults[name]} times in a row"


class _Cells:
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


class _Judge:
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
            self._listener.said(f"The answers of {_title(step)} could not be scored: {_first_line(str(error))}")


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


def _in_order(plan: Plan, settings: Sweep) -> list[str]:
    """Return the steps in the order in which they are wanted: cell by cell, the reference of each model first."""
    name = settings.reference or "float"
    models = {model: place for place, model in enumerate(dict.fromkeys(cell.model for cell in plan.cells))}
    cells = sorted(plan.cells, key=lambda cell: (models[cell.model], cell.option != name))
    return list(dict.fromkeys(key for cell in cells for key in cell.steps))


def _title(step: Step) -> str:
    return f"{step.kind} of {step.model!r} on {step.target.name!r}"


def _first_line(text: str) -> str:
    return text.strip().partition("\n")[0][:300]
