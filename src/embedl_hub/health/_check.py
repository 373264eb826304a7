"""One health check of one board: leased, so that it disturbs no measurement, and recorded as a run."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from embedl_hub.errors import BusyError, LeaseError
from embedl_hub.health._look import HealthCheck, HealthLimits, look, reach_device
from embedl_hub.health._state import RUN_NAME, TAG, Health, device_health, health_of
from embedl_hub.tracking import RunStatus, RunType

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from embedl_hub.core import HubContext
    from embedl_hub.core.device import Device

_DEFAULT = HealthLimits()


@dataclass(frozen=True)
class HealthReport:
    """What a check found.

    Attributes:
        device: The device.
        health: Its state from now on; as before when it was busy.
        checks: What was looked at, in order.
        busy: Who is using it, when that is why it could not be checked.
    """

    device: str
    health: Health
    checks: tuple[HealthCheck, ...] = ()
    busy: str = ""

    @property
    def failures(self) -> tuple[HealthCheck, ...]:
        """What takes it out."""
        return tuple(check for check in self.checks if check.verdict == "failed")


def check_device(ctx: HubContext, name: str, limits: HealthLimits = _DEFAULT) -> HealthReport:
    """Check a board and record it: reachable, free, disk, clock, leftovers, heat, and what its provider needs.

    A board in use by somebody else is not disturbed and stays in the state it has; nothing is recorded then.

    Args:
        ctx: An open context with the device.
        name: The device.
        limits: What a healthy board keeps.
    """
    device = ctx.find_device(name)
    before = device_health(ctx.client.store, [name])[name]
    reached = reach_device(device, limits)
    if reached.verdict == "failed":
        return _recorded(ctx, device, before, [reached])
    with contextlib.ExitStack() as claim:
        try:
            claim.enter_context(ctx.claim(name, wait_s=limits.lease_wait_s))
        except BusyError as error:
            return HealthReport(name, before, (reached,), busy=error.holder)
        except LeaseError as error:
            broken = HealthCheck("lease", "failed", str(error), "Without a lease measurements may disturb each other.")
            return _recorded(ctx, device, before, [reached, broken])
        return _recorded(ctx, device, before, _all(ctx, device, reached, limits))


def record_failure(ctx: HubContext, name: str, check: HealthCheck) -> HealthReport:
    """Record that a board failed, where the check itself could not."""
    before = device_health(ctx.client.store, [name])[name]
    return _recorded(ctx, ctx.find_device(name), before, [check])


def _all(ctx: HubContext, device: Device, reached: HealthCheck, limits: HealthLimits) -> Iterator[HealthCheck]:
    yield reached
    yield from look(ctx, device, limits)


def _recorded(ctx: HubContext, device: Device, before: Health, checks: Iterable[HealthCheck]) -> HealthReport:
    client = ctx.client
    with client.start_run(RunType.CUSTOM, RUN_NAME, provider=device.provider_type, device=device.name) as run:
        done = tuple(checks)
        failures = [check for check in done if check.verdict == "failed"]
        is_same = before.state == ("out" if failures else "ok")
        since_ms = before.since_ms if is_same else run.snapshot().started_ms
        params: dict[str, object] = {"since_ms": since_ms}
        for check in done:
            params |= {check.name: check.verdict, f"{check.name}.says": check.reason.removeprefix(f"{check.name}: ")}
        metrics = [(name, value, None) for check in done for name, value in check.metrics.items()]
        run.log_batch(params, metrics, {TAG: "failed" if failures else "ok"})
        if failures:
            run.finish(RunStatus.FAILED, error="; ".join(check.reason for check in failures))
    if is_same and client.store is not None:
        # Kept for whoever asks, but out of lists: what they show of a board's health is its changes.
        client.store.archive(run.id)
    return HealthReport(device.name, health_of(run.snapshot()), done)
