"""One job, run to its end: whatever a step does is an outcome, never an exception."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from embedl_device.statistics import Verdict
from embedl_hub.core.component import CLAIMED, Component
from embedl_hub.core.device import Commands, stoppable_commands
from embedl_hub.core.steps import keep_model, model_of, options_of, read_arrays, takes_device
from embedl_hub.errors import HubError, StoreUnusableError, blames_board
from embedl_hub.fleet._model import Job, Outcome, Step, StepKind
from embedl_hub.fleet._plan import component_of
from embedl_hub.tracking import LabeledRuns, Run, RunStatus, Store

if TYPE_CHECKING:
    from embedl_hub.core import HubContext

_LOG = logging.getLogger("embedl_hub")
STORE_WAIT_S = 600.0
_ASK_AGAIN_S = 0.5
OUTCOME_PARAMS = ("verdict", "from_cache", CLAIMED)
"""The parameters of a run that its outcome is made from."""
# The tags that say whose fault a failed step was, and why one was stopped.
FAULT, MODELS_FAULT, BOARDS_FAULT = "fault", "model", "board"
STOPPED = "stopped"


def run_job(
    ctx: HubContext, job: Job, device: str | None, begun: Callable[[Commands, LabeledRuns], None] | None = None
) -> Outcome:
    """Run a job on a device, None for this machine, and return how it ended.

    ``begun`` is called with what can stop its commands and with its runs, for whoever keeps the time.
    """
    tags = {"sweep": job.sweep, "step": job.step.key, "model": job.step.model}
    with stoppable_commands() as commands, ctx.client.labeling(tags) as runs:
        if begun is not None:
            begun(commands, runs)
        while True:
            try:
                _run_step(ctx, job, device)
                error = None
            except StoreUnusableError as unusable:
                if runs.last is None or runs.last.snapshot().status is not RunStatus.FINISHED:
                    # The step itself has not failed: it is done again when its end can be kept.
                    if not commands.is_stopped and wait_for_store(ctx.client.store):
                        continue
                    return Outcome(job.step.key, None, str(unusable), is_stopped=commands.is_stopped, device=device)
                error = None
            except Exception as failed:  # noqa: BLE001 - whatever a step or a provider does must not end the sweep
                error = failed
            return _outcome(ctx, job, device, runs, error, is_stopped=commands.is_stopped)


def wait_for_store(store: Store | None, *, wait_s: float | None = None) -> bool:
    """Wait until a store answers; tell whether it did."""
    if store is None:
        return True
    deadline = time.monotonic() + (STORE_WAIT_S if wait_s is None else wait_s)
    is_logged = False
    while True:
        try:
            store.check()
        except StoreUnusableError as error:
            if time.monotonic() > deadline:
                return False
            if not is_logged:
                _LOG.warning("Waiting for the store, up to %g s: %s", STORE_WAIT_S, error)
                is_logged = True
            time.sleep(_ASK_AGAIN_S)
        else:
            return True


def _run_step(ctx: HubContext, job: Job, device: str | None) -> None:
    component = component_of(job.step.kind, job.step.toolchain)
    values = read_values(component, job.step)
    subject = _subject(ctx, job, component)
    instance: Any = component(name=f"{job.step.kind} {job.step.model}"[:100])
    if takes_device(component):
        values["device"] = device
    instance.run(ctx, subject, **values)


def read_values(component: type[Component], step: Step) -> dict[str, object]:
    """Return a step's values as the component takes them: arrays where it takes no path to them."""
    options = {option.name: option for option in options_of(component)}
    values = dict(step.values)
    for name, value in values.items():
        if isinstance(value, str | Path) and options[name].takes_arrays:
            values[name] = read_arrays((str(value),))
    return values


def _subject(ctx: HubContext, job: Job, component: type[Component]) -> Any:  # noqa: ANN401 - a path or a compiled model
    if job.step.kind is StepKind.COMPILE:
        return job.step.source
    if job.compiled is None:
        # Not the step's own run: that one is what the step's tag leads to.
        with ctx.client.labeling({"sweep": job.sweep}):
            return keep_model(ctx, component, job.step.source)
    assert ctx.client.store is not None  # noqa: S101 - a sweep always tracks
    return model_of(ctx, component, ctx.client.store.run(job.compiled))


def _outcome(
    ctx: HubContext, job: Job, device: str | None, runs: LabeledRuns, error: Exception | None, *, is_stopped: bool
) -> Outcome:
    run = None if runs.last is None else runs.last.snapshot()
    if error is None and run is not None:
        return finished_outcome(job.step, run)
    is_boards_fault = error is not None and blames_board(error)
    text = "The step ended without a run of its own."
    if error is not None:
        # What is not an error of ours is a bug somewhere, and its kind is the first thing to know.
        text = str(error) if isinstance(error, HubError) else f"{type(error).__name__}: {error}"
    failed = Outcome(job.step.key, None, text, is_boards_fault, is_stopped, device=device)
    if run is None:
        return failed
    if not is_stopped:
        _label(ctx, run.id, FAULT, BOARDS_FAULT if is_boards_fault else MODELS_FAULT)
    return replace(failed, run_id=run.id, claimed_ms=claimed_ms(run))


def finished_outcome(step: Step, run: Run, *, is_reused: bool = False) -> Outcome:
    """Return the outcome of a step whose run came to a good end."""
    params = {name: param.value for name, param in run.params.items()}
    metrics = {metric.name: metric.value for metric in run.metrics}
    return Outcome(
        step.key, run.id, is_cached=is_reused or params.get("from_cache") is True, device=run.device,
        claimed_ms=claimed_ms(run), metrics=metrics, verdict=Verdict.of(params.get("verdict")),
    )  # fmt: skip


def claimed_ms(run: Run) -> tuple[int, int] | None:
    """Return from when until when a run had its device, if it is known."""
    times = _claimed(run)
    return (times["from_ms"], times["until_ms"]) if times.keys() >= {"from_ms", "until_ms"} else None


def claimed_from_ms(run: Run) -> int | None:
    """Return since when a run works: on its device, or without it so far; None while it waits for it."""
    times = _claimed(run)
    return times.get("from_ms", None if "waits_from_ms" in times else run.started_ms)


def _claimed(run: Run) -> Mapping[str, int]:
    param = run.params.get(CLAIMED)
    times = param.value if param is not None and isinstance(param.value, dict) else {}
    # A run may come from elsewhere, with anything under that name.
    return {name: int(time) for name, time in times.items() if isinstance(time, int | float)}


def label_stopped(ctx: HubContext, outcome: Outcome, reason: str) -> None:
    """Keep why a step was stopped, which its run cannot know."""
    if outcome.run_id is not None and outcome.error is not None:
        _label(ctx, outcome.run_id, STOPPED, reason)
        if outcome.is_boards_fault:
            _label(ctx, outcome.run_id, FAULT, BOARDS_FAULT)


def _label(ctx: HubContext, run_id: str, name: str, value: str) -> None:
    """Give an ended run a tag, so that a later resume knows; without it the step is tried again."""
    try:
        assert ctx.client.store is not None  # noqa: S101 - a sweep always tracks
        ctx.client.store.label(run_id, name, value)
    except HubError as error:
        _LOG.warning("The tag %s=%s of run %s could not be kept: %s", name, value, run_id, error)
