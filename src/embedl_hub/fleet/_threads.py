"""The engine for one machine: a thread per device, one queue per target.

Threads of our own and not an executor's: a step in pure Python that never ends cannot be stopped, and an executor would
wait for its thread until the end of time. Such a thread is abandoned, its device gets no more work, and that is said.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from embedl_hub.errors import HubError
from embedl_hub.fleet._engine import JobQueues, QueuedJob
from embedl_hub.fleet._model import Job, Outcome, Target
from embedl_hub.fleet._work import claimed_from_ms, label_stopped, run_job
from embedl_hub.tracking import LabeledRuns, RunStatus, now_ms

if TYPE_CHECKING:
    from embedl_hub.core import HubContext
    from embedl_hub.core.device import Commands

_LOG = logging.getLogger("embedl_hub")
_LOOK_EVERY_S = 0.25
_LOOK_AT_THE_END_S = 0.02
# From the order to stop: the commands first; then the connection with its lease; then nobody waits any longer.
_CUT_AFTER_S = 6.0
_GIVE_UP_AFTER_S = 15.0


@dataclass(frozen=True)
class Threads:
    """Places jobs on threads of this process."""

    # How long a step that was told to stop may take until its board's connection is cut.
    cut_after_s: float = _CUT_AFTER_S
    give_up_after_s: float = _GIVE_UP_AFTER_S  # how long until its thread is abandoned

    @contextlib.contextmanager
    def open(self, ctx: HubContext, targets: tuple[Target, ...]) -> Iterator[_Workers]:
        """Start a thread for each device; see :class:`Engine`."""
        workers = _Workers(ctx, targets, self)
        try:
            yield workers
        finally:
            workers.close()


@dataclass(eq=False)
class _Running:
    """A job under way on one device."""

    queued: QueuedJob
    device: str | None
    started_s: float = field(default_factory=time.monotonic)
    commands: Commands | None = None
    runs: LabeledRuns | None = None
    stopped_s: float | None = None
    reason: str | None = None
    is_cut: bool = False

    def begin(self, commands: Commands, runs: LabeledRuns) -> None:
        """Keep what stops the job."""
        self.commands, self.runs = commands, runs

    def time_on_device_s(self, lease_wait_s: float) -> float:
        """Return how long it has had its device; waiting for somebody else's lease does not count."""
        passed_s = time.monotonic() - self.started_s
        if self.device is None:
            return passed_s
        run = None if self.runs is None else self.runs.last
        from_ms = None if run is None else claimed_from_ms(run.snapshot())
        # Of the wait itself only what nobody would wait for.
        return passed_s - lease_wait_s if from_ms is None else (now_ms() - from_ms) / 1000


class _Workers(JobQueues):
    """The threads at work."""

    def __init__(self, ctx: HubContext, targets: tuple[Target, ...], settings: Threads) -> None:
        super().__init__(targets)
        self._ctx = ctx
        self._settings = settings
        self._running: dict[str | None, _Running] = {}
        devices = dict.fromkeys(device for target in targets for device in (target.devices or (None,)))
        self._threads = {
            device: threading.Thread(
                target=self._work, args=(device,), name=f"edgeproof-sweep-{device or 'here'}", daemon=True
            )
            for device in devices
        }
        self._timekeeper = threading.Thread(target=self._keep_time, name="edgeproof-sweep-time", daemon=True)
        for thread in (*self._threads.values(), self._timekeeper):
            thread.start()

    @property
    def has_abandoned(self) -> bool:
        """Whether a thread was left behind that could not be stopped."""
        return bool(self._lost)

    def submit(self, job: Job) -> Future[Outcome]:
        """Queue a job; one whose target has lost every device ends at once."""
        future = super().submit(job)
        self._end_hopeless()
        return future

    def close(self) -> None:
        """Stop what runs, end what waits, and leave no board leased."""
        self._cancel_queued()
        with self._condition:
            running = list(self._running.values())
        for job in running:
            self._order_stop(job, "The sweep was stopped.")
        for device, thread in self._threads.items():
            # The timekeeper goes on until they are free, or abandoned.
            while thread.is_alive() and device not in self._lost:
                thread.join(_LOOK_EVERY_S)
        self._timekeeper.join()

    def _work(self, device: str | None) -> None:
        while (queued := self._take(device)) is not None:
            running = self._running[device]
            outcome = run_job(self._ctx, queued.job, device, running.begin)
            if running.reason is not None:
                outcome = _stopped(outcome, running.reason, is_closing=self._closing.is_set())
                label_stopped(self._ctx, outcome, running.reason)
            with self._condition:
                if device in self._lost:
                    return
                del self._running[device]
            _settle(queued.future, outcome)

    def _next(self, device: str | None) -> QueuedJob | None:
        if (queued := super()._next(device)) is not None:
            self._running[device] = _Running(queued, device)
        return queued

    def _keep_time(self) -> None:
        """Stop what runs too long, with more force as time goes by."""
        while not (self._closing.is_set() and not self._running):
            for running in list(self._running.values()):
                self._look_at(running)
            if self._closing.wait(_LOOK_EVERY_S):
                # Nobody is to wait longer for the end than it takes.
                time.sleep(_LOOK_AT_THE_END_S)

    def _look_at(self, running: _Running) -> None:
        limit_s = running.queued.job.timeout_s
        if running.stopped_s is None:
            lease_wait_s = self._ctx.lease_wait_s
            if limit_s is not None and running.time_on_device_s(lease_wait_s) > limit_s:
                self._order_stop(running, f"It was stopped at its time limit of {limit_s:g} s.")
            return
        if running.commands is not None:
            running.commands.stop()
        waited_s = time.monotonic() - running.stopped_s
        if waited_s > self._settings.cut_after_s and not running.is_cut:
            # A board's lease and what runs there end with its connection.
            running.is_cut = True
            runner = None if running.device is None else self._ctx.find_device(running.device).runner
            if callable(close := getattr(runner, "close", None)):
                # Beside the timekeeper: a connection that is just being made may take its time.
                threading.Thread(target=close, name=f"edgeproof-cut-{running.device}", daemon=True).start()
        if waited_s > self._settings.give_up_after_s:
            self._abandon(running)

    def _order_stop(self, running: _Running, reason: str) -> None:
        running.reason = running.reason or reason
        running.stopped_s = running.stopped_s or time.monotonic()
        if running.commands is not None:
            running.commands.stop()

    def _abandon(self, running: _Running) -> None:
        device = running.device
        place = "this machine" if device is None else f"device {device!r}"
        lost = f"it could not be stopped, so its thread was left behind and {place} gets no more work"
        with self._condition:
            if self._running.get(device) is not running:
                return
            del self._running[device]
            self._lost[device] = lost
            self._condition.notify_all()
        _LOG.warning("A step on %s did not end: %s.", place, lost)
        run = None if running.runs is None else running.runs.last
        error = f"{(running.reason or 'It hung.').rstrip('.')}; {lost}."
        run_id, is_closing = None if run is None else run.id, self._closing.is_set()
        outcome = Outcome(running.queued.job.step.key, run_id, error, True, is_closing, device=device)
        if run is not None:
            # What the thread that was left behind logs later is refused.
            try:
                run.finish(RunStatus.FAILED, error=error)
            except HubError as failed:
                _LOG.warning("The end of run %s could not be recorded: %s", run.id, failed)
            label_stopped(self._ctx, outcome, error)
        _settle(running.queued.future, outcome)
        self._end_hopeless()

    def _end_hopeless(self) -> None:
        """End the jobs of targets that have lost every device."""
        hopeless: list[tuple[QueuedJob, str]] = []
        with self._condition:
            for name, queue in self._queues.items():
                devices = self._targets[name].devices or (None,)
                if queue and all(device in self._lost for device in devices):
                    hopeless += [(queued, self._lost[devices[-1]]) for queued in queue]
                    queue.clear()
        for queued, lost in hopeless:
            step = queued.job.step
            error = f"No device is left for target {step.target.name!r}: an earlier step hung; {lost}."
            _settle(queued.future, Outcome(step.key, None, error, is_boards_fault=True))


def _stopped(outcome: Outcome, reason: str, *, is_closing: bool) -> Outcome:
    """Return the outcome of a step that was told to stop; one that came to its end all the same stays as it is."""
    if outcome.error is None:
        return outcome
    error = f"{reason} {outcome.error}".strip()
    return replace(outcome, error=error, is_boards_fault=not is_closing, is_stopped=is_closing)


def _settle(future: Future[Outcome], outcome: Outcome) -> None:
    # Whoever waited may have gone away.
    with contextlib.suppress(InvalidStateError):
        future.set_result(outcome)
