"""A sweep, carried out: what is ready goes to the engine, what is done is in the store, and each cell ends once.

The store is the sweep's only state. Whatever happens to this process, a later one asks the store which steps are done
and goes on with the others.
"""

from __future__ import annotations

import hashlib
import heapq
import queue
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping
from concurrent.futures import CancelledError, Future
from dataclasses import replace
from typing import TYPE_CHECKING

from embedl_hub.errors import ConfigError, TrackingError, WorkerLostError
from embedl_hub.fleet._boards import BoardHealth, Boards
from embedl_hub.fleet._evaluate import Judge
from embedl_hub.fleet._model import (
    Cell,
    CellResult,
    CellState,
    Job,
    Listener,
    Outcome,
    Plan,
    Ranking,
    StepKind,
    Sweep,
    SweepResult,
    Target,
    first_line,
)
from embedl_hub.fleet._plan import (
    PLAN_ARTIFACT,
    PLAN_DIGEST,
    RUN_TYPES,
    SWEEP,
    check_sweep,
    expand,
    find_targets,
    plan_as_json,
)
from embedl_hub.fleet._rank import check_rank, rank_options
from embedl_hub.fleet._threads import Threads
from embedl_hub.fleet._work import FAULT, MODELS_FAULT, OUTCOME_PARAMS, finished_outcome, wait_for_store
from embedl_hub.tracking import ActiveRun, Run, RunStatus, RunType, Store, equal

if TYPE_CHECKING:
    from embedl_hub.core import HubContext
    from embedl_hub.core.device import Pool
    from embedl_hub.fleet._engine import Engine, Workers

_LOOK_EVERY_S = 0.25
# Enough that no device waits for us, few enough that the order of the plan is kept.
_JOBS_PER_DEVICE = 2
_BOARD_WAIT_S = 300.0


def plan_sweep(ctx: HubContext, sweep: Sweep, *, pools: Mapping[str, Pool] | None = None) -> Plan:
    """Write a sweep out for the devices of a context, or say everything that is wrong with it.

    The pools that it may name are those of the home's devices if not given.
    """
    targets, problems = find_targets(ctx, sweep.devices, pools)
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
    health: BoardHealth | None = None,
    board_wait_s: float = _BOARD_WAIT_S,
) -> SweepResult:
    """Carry out a sweep and return how each of its cells ended.

    Args:
        ctx: An open context with a store, and the devices.
        sweep: The sweep, or its plan.
        engine: Who places the work; threads of this process if not given.
        resume: The id of a sweep to go on with: what is done is not done again.
        retry_failed: With ``resume``, run again what failed because of the model.
        listener: Hears how it goes on.
        health: Knows which boards are well; without one, a board that fails three times in a row is left alone.
        board_wait_s: How long cells wait for boards that are out to come back, once nothing else is left to do.
    """
    store = ctx.client.store
    if store is None:
        raise ConfigError("A sweep is kept in a store: open the context with tracking.")
    plan = sweep if isinstance(sweep, Plan) else plan_sweep(ctx, sweep)
    earlier = _earlier_runs(store, resume, ctx.project_name)
    with ctx.client.start_run(RunType.CUSTOM, plan.name[:100], component=SWEEP) as run:
        sweep_id = resume or run.id
        _record(run, plan, sweep_id, earlier)
        done = _done_before(store, plan, earlier, retry_failed=retry_failed)
        driver = _Driver(ctx, plan, sweep_id, done, listener or Listener(), health, board_wait_s)
        with (engine or Threads()).open(ctx, plan.targets) as workers:
            result = driver.drive(workers)
        if plan.settings is not None and plan.settings.rank:
            result = replace(result, rankings=driver.rank())
        if not wait_for_store(store):
            raise TrackingError(f"The sweep {sweep_id} ended, but the store does not answer; resume it when it does.")
        ended = (CellState.DONE, CellState.FAILED, CellState.SKIPPED)
        run.log_batch(metrics=[(f"cells_{state}", float(result.count(state)), None) for state in ended])
    return result


def find_sweep(store: Store, project: str, name: str) -> str:
    """Return the id of the newest sweep of a name in a project."""
    where = f"{equal('component', SWEEP)} and {equal('project', project)} and {equal('name', name[:100])}"
    for run in store.find(where, limit=1).runs:
        return run.tags.get("sweep", run.id)
    raise ConfigError(f"Project {project!r} has no sweep {name!r} to go on with; start it without --resume.")


def _record(run: ActiveRun, plan: Plan, sweep_id: str, earlier: Iterable[Run]) -> None:
    """Keep the plan with the sweep's run; one that goes on with the very same plan needs no second copy."""
    lines = "".join(f"{line}\n" for cell in plan.cells for line in (cell.id, *cell.steps))
    digest = hashlib.sha256(lines.encode()).hexdigest()
    if not any(PLAN_DIGEST in other.params and other.params[PLAN_DIGEST].value == digest for other in earlier):
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
        toolchains = dict.fromkeys(map(plan.settings.toolchain_of, plan.settings.options))
        params |= {"toolchain": ", ".join(toolchains), "timeout_s": plan.settings.timeout_s}
    run.log_batch(params, tags=tags)


def _earlier_runs(store: Store, sweep_id: str | None, project: str) -> list[Run]:
    """Return everything that a sweep has recorded so far."""
    if sweep_id is None:
        return []
    found = store.tagged("sweep", [sweep_id], params=(*OUTCOME_PARAMS, PLAN_DIGEST))
    if not any(run.component == SWEEP for run in found):
        raise ConfigError(f"There is no sweep {sweep_id!r} in {store.home} (project {project!r}) to go on with.")
    if alive := [run.id for run in found if run.component == SWEEP and run.status is RunStatus.RUNNING]:
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
        health: BoardHealth | None,
        board_wait_s: float,
    ) -> None:
        self._ctx = ctx
        self._plan = plan
        self._settings = plan.settings or Sweep(plan.name, "", (), ())
        self._id = sweep_id
        self._listener = listener
        self._boards = Boards(plan.targets, health, listener)
        self._board_wait_s = board_wait_s
        self._held_since: float | None = None
        self._before = frozenset(done)
        self._outcomes = done
        self._skipped: set[str] = set()
        self._attempts: dict[str, int] = defaultdict(int)
        self._avoid: dict[str, set[str]] = defaultdict(set)
        self._order = _in_order(plan)
        self._followers: dict[str, list[str]] = defaultdict(list)
        self._ready: dict[str, list[tuple[int, str]]] = {target.name: [] for target in plan.targets}
        self._flying: dict[str, Future[Outcome]] = {}
        self._ended: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._checking: set[str] = set()
        self._checked: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._open_in_cell = {cell.id: len(set(cell.steps)) for cell in plan.cells}
        self._cells_of_step: dict[str, list[Cell]] = defaultdict(list)
        for cell in plan.cells:
            for key in dict.fromkeys(cell.steps):
                self._cells_of_step[key].append(cell)
        self._judge = Judge(ctx, plan, sweep_id, self._outcomes, listener)

    def drive(self, workers: Workers) -> SweepResult:
        """Go on until every cell has ended."""
        self._listener.began(self._id, self._plan, dict(self._outcomes))
        self._begin()
        while len(self._outcomes) < len(self._plan.steps):
            while not self._checked.empty():
                key = self._checked.get()
                self._checking.remove(key)
                self._queue(key)
            workers.set_devices_out(self._boards.out())
            self._submit(workers)
            self._give_up_on_boards()
            try:
                self._take(self._ended.get(timeout=_LOOK_EVERY_S))
            except queue.Empty:
                continue
        self._judge.judge_rest()
        return SweepResult(self._id, self._plan, tuple(map(self._result, self._plan.cells)), self._before)

    def rank(self) -> tuple[Ranking, ...]:
        """Hold the options of each model against each other, once the engine has let go of the boards."""
        return rank_options(self._ctx, self._plan, self._id, self._outcomes, self._boards.out())

    def _result(self, cell: Cell) -> CellResult:
        outcomes = {self._plan.steps[key].kind: self._outcomes[key] for key in cell.steps}
        scores = {name: value for key in cell.steps for name, value in self._judge.scores.get(key, {}).items()}
        state, reason = CellState.DONE, None
        if failed := next((outcome for outcome in outcomes.values() if outcome.error is not None), None):
            state = CellState.SKIPPED if failed.step in self._skipped else CellState.FAILED
            cause = "" if state is CellState.SKIPPED else f"{self._plan.steps[failed.step].kind} failed: "
            reason = f"{cause}{failed.error}"
        return CellResult(cell, state, reason, outcomes, scores)

    def _begin(self) -> None:
        """Find what is ready from what was done before."""
        for key, step in self._plan.steps.items():
            if step.after is not None:
                self._followers[step.after].append(key)
        for key in list(self._outcomes):
            self._settle(key, self._outcomes[key], is_new=False)
        for key, step in self._plan.steps.items():
            before = None if step.after is None else self._outcomes.get(step.after)
            if key not in self._outcomes and (step.after is None or (before is not None and before.error is None)):
                self._queue(key)

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
            self._boards.count(outcome.device, is_fault=outcome.is_boards_fault)
        may_retry = outcome.is_boards_fault or self._settings.retry_failures
        is_tried_out = outcome.is_stopped or self._attempts[key] > self._settings.retries
        if outcome.error is not None and may_retry and not is_tried_out:
            if outcome.device is not None:
                self._avoid[key].add(outcome.device)
            self._listener.said(f"{step.title} is tried again: {first_line(outcome.error)}")
            # Not before somebody has looked at the board: the next try would meet the same.
            self._checking.add(key)
            self._boards.when_checked(outcome, lambda: self._checked.put(key))
            return
        self._settle(key, outcome)

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
        for cell in self._cells_of_step[key]:
            self._open_in_cell[cell.id] -= 1
            if self._open_in_cell[cell.id] == 0:
                self._listener.cell_ended(self._result(cell))

    def _give_up_on_boards(self) -> None:
        """End the cells of targets without a board, once nothing else is left to do and waiting has had its time."""
        flying = {self._plan.steps[key].target.name for key in self._flying}
        waiting = [target for target in self._plan.targets if self._ready[target.name] or target.name in flying]
        if not waiting or self._checking or not all(map(self._boards.are_all_out, waiting)):
            self._held_since = None
            return
        now = time.monotonic()
        self._held_since = self._held_since or now
        if now - self._held_since >= (self._board_wait_s if self._boards.may_come_back else 0.0):
            for target in waiting:
                self._skip_target(target)

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


def _in_order(plan: Plan) -> dict[str, int]:
    """Return each step's place in the order of work: cell by cell, the reference of each model first."""
    models = {model: place for place, model in enumerate(dict.fromkeys(cell.model for cell in plan.cells))}
    cells = sorted(plan.cells, key=lambda cell: (models[cell.model], cell.option != plan.reference))
    keys = dict.fromkeys(key for cell in cells for key in cell.steps)
    return {key: place for place, key in enumerate(keys)}
