"""One health check of one board: leased, so that it disturbs no measurement, and recorded as a run."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from embedl_hub.errors import BusyError, LeaseError
from embedl_hub.health._checks import CheckOutcome, HealthCheck, HealthLimits, reach_device, run_checks
from embedl_hub.tracking import Run, RunStatus, RunType, Store, equal

if TYPE_CHECKING:
    from embedl_hub.core import HubContext
    from embedl_hub.core.device import Device

_DEFAULT = HealthLimits()
RUN_NAME = "health"
TAG = "health"
WORDS = ("ok", "failed")
State = Literal["ok", "out", "unknown"]


@dataclass(frozen=True)
class HealthReport:
    """What a check found."""

    device: str
    health: Health  # the device's state from now on; as before when it was busy
    checks: tuple[HealthCheck, ...] = ()
    busy: str = ""  # who is using it, when that is why it could not be checked

    @property
    def failures(self) -> tuple[HealthCheck, ...]:
        """What takes it out."""
        return tuple(check for check in self.checks if check.outcome is CheckOutcome.FAILED)


def check_device(ctx: HubContext, name: str, limits: HealthLimits = _DEFAULT) -> HealthReport:
    """Check a board and record it: reachable, free, disk, clock, leftovers, heat, and what its provider needs.

    A board in use by somebody else is not disturbed and stays in the state it has; nothing is recorded then.
    """
    device = ctx.find_device(name)
    before = device_health(ctx.client.store, [name])[name]
    reached = reach_device(device, limits)
    if reached.outcome is CheckOutcome.FAILED:
        return _recorded(ctx, device, before, [reached])
    with contextlib.ExitStack() as claim:
        try:
            claim.enter_context(ctx.claim(name, wait_s=limits.lease_wait_s))
        except BusyError as error:
            return HealthReport(name, before, (reached,), busy=error.holder)
        except LeaseError as error:
            next_step = "Without a lease measurements may disturb each other."
            broken = HealthCheck("lease", CheckOutcome.FAILED, str(error), next_step)
            return _recorded(ctx, device, before, [reached, broken])
        return _recorded(ctx, device, before, itertools.chain([reached], run_checks(ctx, device, limits)))


def record_failure(ctx: HubContext, name: str, check: HealthCheck) -> HealthReport:
    """Record that a board failed, where the check itself could not."""
    before = device_health(ctx.client.store, [name])[name]
    return _recorded(ctx, ctx.find_device(name), before, [check])


def _recorded(ctx: HubContext, device: Device, before: Health, checks: Iterable[HealthCheck]) -> HealthReport:
    client = ctx.client
    with client.start_run(RunType.CUSTOM, RUN_NAME, provider=device.provider_type, device=device.name) as run:
        done = tuple(checks)
        failures = [check for check in done if check.outcome is CheckOutcome.FAILED]
        is_same = before.state == ("out" if failures else "ok")
        since_ms = before.since_ms if is_same else run.snapshot().started_ms
        params: dict[str, object] = {"since_ms": since_ms}
        for check in done:
            params[check.name] = check.outcome.value
            params[f"{check.name}.says"] = check.reason.removeprefix(f"{check.name}: ")
        metrics = [(name, value, None) for check in done for name, value in check.metrics.items()]
        run.log_batch(params, metrics, {TAG: "failed" if failures else "ok"})
        if failures:
            run.finish(RunStatus.FAILED, error="; ".join(check.reason for check in failures))
    if is_same and client.store is not None:
        # Kept for whoever asks, but out of lists: what they show of a board's health is its changes.
        client.store.archive(run.id)
    return HealthReport(device.name, health_of(run.snapshot()), done)


@dataclass(frozen=True)
class Health:
    """How a device is."""

    state: State = "unknown"  # ``ok``; ``out`` when its latest check failed; ``unknown`` when it was never checked
    since_ms: int | None = None
    checked_ms: int | None = None
    reason: str = ""  # why it is out
    run_id: str | None = None  # the latest check


def device_health(store: Store | None, names: Iterable[str]) -> dict[str, Health]:
    """Return how devices are, by name: two short questions to the index for each."""
    return {name: Health() if store is None else _latest(store, name) for name in names}


def _latest(store: Store, name: str) -> Health:
    check = " and ".join([equal("device", name), equal("type", RunType.CUSTOM), equal("name", RUN_NAME)])
    # One question for each word: an equality that few runs meet is where the index starts, however many runs a device
    # has had since.
    pages = [store.find(f"{equal('tags', word, name=TAG)} and {check}", archived=None, limit=1) for word in WORDS]
    latest = max((run for page in pages for run in page.runs), key=lambda run: run.id, default=None)
    return Health() if latest is None else health_of(latest)


def health_of(run: Run) -> Health:
    """Return the state that a health run stands for."""
    since = run.params.get("since_ms")
    since_ms = since.value if since is not None and isinstance(since.value, int) else run.started_ms
    is_ok = run.tags.get(TAG) == "ok"
    return Health("ok" if is_ok else "out", since_ms, run.started_ms, "" if is_ok else run.error or "", run.id)
