"""Ranks the options of each model on each target: measured in turns on one board, so that what happens there cancels.

From this process and not by the engine: a turn needs all compiled models at once, in one claim of one board.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from embedl_hub.core.device import stoppable_commands
from embedl_hub.core.profile import PairedResult
from embedl_hub.core.steps import model_of
from embedl_hub.core.toolchain import paired_profiler
from embedl_hub.errors import ConfigError, HubError, quoted_list
from embedl_hub.fleet._model import Outcome, Plan, RankedOption, Ranking, StepKind, Sweep, Target
from embedl_hub.tracking import RunStatus

if TYPE_CHECKING:
    from embedl_hub.core import HubContext
    from embedl_hub.tracking import Run

_LOG = logging.getLogger("embedl_hub")
RANKS = "ranks"  # the tag of a ranking's run: which compiled models it held against each other, and where


def check_rank(sweep: Sweep) -> list[str]:
    """Return what keeps a sweep from ranking; nothing where it can."""
    problems = []
    if StepKind.COMPILE not in sweep.steps:
        problems.append("rank = true needs the step 'compile': what is ranked are compiled models")
    if len(sweep.options) < 2:
        problems.append(f"rank = true needs two options or more; there is {len(sweep.options)}")
    toolchains = sorted({sweep.toolchain_of(option) for option in sweep.options})
    if len(toolchains) > 1:
        problems.append(
            f"rank = true measures in turns within one process, and the options are of {quoted_list(toolchains)}; "
            "leave it out, or make one sweep of each"
        )
        return problems
    try:
        paired_profiler(*toolchains)
    except ConfigError as error:
        problems.append(f"rank = true: {error}")
    return problems


def rank_options(
    ctx: HubContext, plan: Plan, sweep_id: str, outcomes: Mapping[str, Outcome], out: frozenset[str]
) -> tuple[Ranking, ...]:
    """Measure the options of each model in turns, all targets at once, and return them fastest first.

    Options whose compile failed are left out, and so are devices that are ``out``.
    """
    with ThreadPoolExecutor(max(1, len(plan.targets)), thread_name_prefix="edgeproof-rank") as threads:
        work = [threads.submit(_rank_target, ctx, plan, sweep_id, outcomes, target, out) for target in plan.targets]
        return tuple(ranking for future in work for ranking in future.result())


def _rank_target(
    ctx: HubContext, plan: Plan, sweep_id: str, outcomes: Mapping[str, Outcome], target: Target, out: frozenset[str]
) -> list[Ranking]:
    device = next((name for name in target.devices if name not in out), None)
    found = []
    for model in dict.fromkeys(cell.model for cell in plan.cells):
        compiled = _compiled(plan, model, target, outcomes)
        if len(compiled) < 2:
            continue
        if device is None and target.devices:
            found.append(Ranking(model, target.name, (), None, "No device of the target may be used."))
        else:
            found.append(_rank(ctx, plan, sweep_id, model, target, device, compiled))
    return found


def _compiled(plan: Plan, model: str, target: Target, outcomes: Mapping[str, Outcome]) -> dict[str, Outcome]:
    """Return the compiled models of a model by option, one of those that are the same."""
    compiled: dict[str, Outcome] = {}
    for cell in plan.cells:
        if (cell.model, cell.target) == (model, target.name):
            key = next(key for key in cell.steps if plan.steps[key].kind is StepKind.COMPILE)
            if outcomes[key].error is None and outcomes[key] not in compiled.values():
                compiled[cell.option] = outcomes[key]
    return compiled


def _rank(
    ctx: HubContext,
    plan: Plan,
    sweep_id: str,
    model: str,
    target: Target,
    device: str | None,
    compiled: Mapping[str, Outcome],
) -> Ranking:
    assert plan.settings is not None  # noqa: S101 - ranking is one of its settings
    component = paired_profiler(plan.settings.toolchain_of(plan.settings.options[0]))
    store = ctx.client.store
    assert store is not None  # noqa: S101 - a sweep always tracks
    key = _key(target, [outcome.step for outcome in compiled.values()])
    try:
        for run in store.tagged(RANKS, [key]):
            if run.tags.get("sweep") == sweep_id and run.status is RunStatus.FINISHED:
                return _ranking(model, target, tuple(compiled), run.id, PairedResult.from_run(store.run(run.id)))
        models = [model_of(ctx, component, store.run(str(outcome.run_id))) for outcome in compiled.values()]
        instance: Any = component(name=f"rank {model}"[:100])
        tags = {"sweep": sweep_id, RANKS: key, "model": model}
        with ctx.client.labeling(tags) as runs, _limited(plan.settings.timeout_s):
            result: PairedResult = instance.run(ctx, models, device=device)
        return _ranking(model, target, tuple(compiled), None if runs.last is None else runs.last.id, result)
    except HubError as error:
        _LOG.info("The options of %r could not be ranked on %r: %s", model, target.name, error)
        return Ranking(model, target.name, (), None, str(error))


def recorded_rankings(plan: Plan, runs: Iterable[Run], read: Callable[[str], Run]) -> tuple[Ranking, ...]:
    """Return what a sweep measured in turns, from the runs that carry its tag.

    Args:
        plan: The sweep's.
        runs: All of its runs, as a list gives them.
        read: Returns a run whole.
    """
    done = [run for run in runs if run.status is RunStatus.FINISHED]
    compiled = {run.tags.get("step") for run in done}
    by_key = {run.tags[RANKS]: run for run in done if RANKS in run.tags}
    found = []
    for model, target in dict.fromkeys((cell.model, cell.target) for cell in plan.cells):
        steps: dict[str, str] = {}  # the option by its compile step, the first of those that share one
        for cell in plan.cells:
            if (cell.model, cell.target) == (model, target):
                keys = [key for key in cell.steps if plan.steps[key].kind is StepKind.COMPILE]
                steps |= {key: cell.option for key in keys if key in compiled and key not in steps}
        place = next(each for each in plan.targets if each.name == target)
        run = by_key.get(_key(place, list(steps)))
        if run is not None:
            with contextlib.suppress(HubError):
                found.append(_ranking(model, place, tuple(steps.values()), run.id, PairedResult.from_run(read(run.id))))
    return tuple(found)


def _key(target: Target, steps: Sequence[str]) -> str:
    """Return what a ranking's run is found by."""
    return hashlib.sha256("\n".join((target.name, *steps)).encode()).hexdigest()[:32]


@contextlib.contextmanager
def _limited(timeout_s: float | None) -> Iterator[None]:
    if timeout_s is None:
        yield
        return
    with stoppable_commands() as commands:
        timer = threading.Timer(timeout_s, commands.stop)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()


def _ranking(model: str, target: Target, options: tuple[str, ...], run_id: str | None, result: PairedResult) -> Ranking:
    ranked = []
    for place in result.ranking:
        ratio = None if place.to_next is None else place.to_next.value
        median = result.models[place.number].latency_median
        ranked.append(RankedOption(options[place.number], median, ratio, place.is_significant))
    return Ranking(model, target.name, tuple(ranked), run_id)
