"""The engine for one machine: a thread per device, one queue per target.

Threads of our own and not an executor's: a step in pure Python that never ends cannot be stopped, and an executor would
wait for its thread until the end of time. Such a thread is abandoned, its device gets no more work, and that is said.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections import deque
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from embedl_hub.errors import HubError
from embedl_hub.fleet._engine import Outcome
from embedl_hub.fleet._work import carry_out, claimed_from_ms, label_stopped
from embedl_hub.tracking import RunStatus, now_ms

if TYPE_CHECKING:
    from collections.abc import Iterator

    from embedl_hub.core import HubContext
    from embedl_hub.core.device import Commands
    from embedl_hub.fleet._engine import Job
    from embedl_hub.fleet._model import Target
    from embedl_hub.tracking import ActiveRun, LabelledRuns

_LOG = logging.getLogger("embedl_hub")
_LOOK_EVERY_S = 0.25
_LOOK_AT_THE_END_S = 0.02
# From the order to stop: the commands first; then the connection with its lease; then nobody waits any longer.
_CUT_AFTER_S = 6.0
_GIVE_UP_AFTER_S = 15.0


@dataclass(frozen=True)
class Threads:
    """Places jobs on threads of this process.

    Attributes:
        cut_after_s: How long a step that was told to stop may take until its board's connection is cut.
        give_up_after_s: How long until its thread is abandoned.
    """

    cut_after_s: float = _CUT_AFTER_S
    give_up_after_s: float = _GIVE_UP_AFTER_S

    @contextlib.contextmanager
    def open(self, ctx: HubContext, targets: tuple[Target, ...]) -> Iterator[_Workers]:
        """Start a thread for each device; see :class:`Engine`."""
        workers = _Workers(ctx, targets, self)
        workers.start()
        try:
            yield workers
        finally:
            workers.close()


@dataclass(eq=False)
class _Waiting:
    """A job that nobody has begun."""

    job: Job
    future: Future[Outcome]


@dataclass(eq=False)
class _Running:
    """A job under way on one device."""

    waiting: _Waiting
    device: str | None
    started_s: float = field(default_factory=time.monotonic)
    commands: Commands | None = None
    runs: LabelledRuns | None = None
    stopped_s: float | None = None
    reason: str | None = None
    is_cut: bool = False

    def begin(self, commands: Commands, runs: LabelledRuns) -> None:
        """Take what stops the job."""
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


class _Workers:
    """The threads at work. One condition guards all of it; nothing is done while it is held."""

    def __init__(self, ctx: HubContext, targets: tuple[Target, ...], settings: Threads) -> None:
        self._ctx = ctx
        self._settings = settings
        self._condition = threading.Condition()
        self._queues: dict[str, deque[_Waiting]] = {target.name: deque() for target in targets}
        self._targets = {target.name: target for target in targets}
        self._running: dict[str | None, _Running] = {}
        self._out: frozenset[str] = frozenset()
        self._lost: dict[str | None, str] = {}
        self._closing = threading.Event()
        self._devices = dict.fromkeys(device for target in targets for device in (target.devices or (None,)))
        self._threads = [
            threading.Thread(target=self._work, args=(device,), name=f"edgeproof-sweep-{device or 'here'}", daemon=True)
            for device in self._devices
        ]
        self._timekeeper = threading.Thread(target=self._keep_time, name="edgeproof-sweep-time", daemon=True)

    @property
    def has_abandoned(self) -> bool:
        """Whether a thread was left behind that could not be stopped."""
        return bool(self._lost)

    def start(self) -> None:
        """Start the threads."""
        for thread in (*self._threads, self._timekeeper):
            thread.start()

    def submit(self, job: Job) -> Future[Outcome]:
        """Queue a job for its target; see :class:`Workers`."""
        waiting = _Waiting(job, Future())
        with self._condition:
            self._queues[job.step.target.name].append(waiting)
            self._condition.notify_all()
        self._end_hopeless()
        return waiting.future

    def set_devices_out(self, names: frozenset[str]) -> None:
        """Give no work to these devices; see :class:`Workers`."""
        with self._condition:
            self._out = names
            self._condition.notify_all()

    def close(self) -> None:
        """Stop what runs, end what waits, and leave no board leased."""
        with self._condition:
            self._closing.set()
            waiting = [each for queue in self._queues.values() for each in queue]
            for queue in self._queues.values():
                queue.clear()
            running = list(self._running.values())
            self._condition.notify_all()
        for each in waiting:
            each.future.cancel()
        for job in running:
            self._order_stop(job, "The sweep was stopped.")
        for thread in self._threads:
            # The timekeeper goes on until they are free, or abandoned.
            while thread.is_alive() and not self._is_abandoned(thread):
                thread.join(_LOOK_EVERY_S)
        self._timekeeper.join()

    def _work(self, device: str | None) -> None:
        while (waiting := self._take(device)) is not None:
            running = self._running[device]
            outcome = carry_out(self._ctx, waiting.job, device, running.begin)
            if running.reason is not None:
                outcome = _stopped(outcome, running.reason, is_closing=self._closing.is_set())
                label_stopped(self._ctx, outcome, running.reason)
            with self._condition:
                if device in self._lost:
                    return
                del self._running[device]
            _settle(waiting.future, outcome)

    def _take(self, device: str | None) -> _Waiting | None:
        """Return the next job for a device, waiting for one; None at the end."""
        with self._condition:
            while True:
                if self._closing.is_set() or device in self._lost:
                    return None
                found = self._next(device)
                if found is not None:
                    self._running[device] = _Running(found, device)
                    return found
                self._condition.wait()

    def _next(self, device: str | None) -> _Waiting | None:
        if device in self._out:
            return None
        for name, queue in self._queues.items():
            if device not in (self._targets[name].devices or (None,)):
                continue
            for waiting in queue:
                if device not in waiting.job.avoid or not self._others(name, waiting.job.avoid):
                    queue.remove(waiting)
                    # Whoever submitted it may have taken it back.
                    return waiting if waiting.future.set_running_or_notify_cancel() else self._next(device)
        return None

    def _others(self, target: str, avoid: frozenset[str]) -> set[str]:
        """Return the devices of a target that can take what others failed."""
        return set(self._targets[target].devices) - avoid - self._out - set(self._lost)

    def _keep_time(self) -> None:
        """Stop what runs too long, with more force as time goes by."""
        while not (self._closing.is_set() and not self._running):
            for running in list(self._running.values()):
                self._look_at(running)
            if self._closing.wait(_LOOK_EVERY_S):
                # Nobody is to wait longer for the end than it takes.
                time.sleep(_LOOK_AT_THE_END_S)

    def _look_at(self, running: _Running) -> None:
        limit_s = running.waiting.job.timeout_s
        if running.stopped_s is None:
            lease_wait_s = self._ctx.lease_wait_s
            if limit_s is not None and running.time_on_device_s(lease_wait_s) > limit_s:
                self._order_stop(running, f"It was stopped at its time limit of {limit_s:g} s.")
            return
        if running.commands is not None:
            running.commands.stop()
        waited_s = time.monotonic() - running.stopped_s
        if waited_s > self._settings.cut_after_s and not running.is_cut:
            running.is_cut = True
            self._cut(running.device)
        if waited_s > self._settings.give_up_after_s:
            self._abandon(running)

    def _order_stop(self, running: _Running, reason: str) -> None:
        running.reason = running.reason or reason
        running.stopped_s = running.stopped_s or time.monotonic()
        if running.commands is not None:
            running.commands.stop()

    def _cut(self, device: str | None) -> None:
        """End a board's connection; its lease and what runs there end with it."""
        runner = None if device is None else self._ctx.find_device(device).runner
        close = getattr(runner, "close", None)
        if callable(close):
            # Beside the timekeeper: a connection that is just being made may take its time.
            threading.Thread(target=close, name=f"edgeproof-cut-{device}", daemon=True).start()

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
        outcome = Outcome(
            running.waiting.job.step.key,
            None if run is None else run.id,
            error,
            is_boards_fault=True,
            is_stopped=self._closing.is_set(),
            device=device,
        )
        if run is not None:
            _end(run, error)
            label_stopped(self._ctx, outcome, error)
        _settle(running.waiting.future, outcome)
        self._end_hopeless()

    def _end_hopeless(self) -> None:
        """End the jobs of targets that have lost every device."""
        hopeless: list[tuple[_Waiting, str]] = []
        with self._condition:
            for name, queue in self._queues.items():
                devices = self._targets[name].devices or (None,)
                if queue and all(device in self._lost for device in devices):
                    hopeless += [(waiting, self._lost[devices[-1]]) for waiting in queue]
                    queue.clear()
        for waiting, lost in hopeless:
            target = waiting.job.step.target.name
            error = f"No device is left for target {target!r}: an earlier step hung; {lost}."
            _settle(waiting.future, Outcome(waiting.job.step.key, None, error, is_boards_fault=True))

    def _is_abandoned(self, thread: threading.Thread) -> bool:
        return any(
            device in self._lost for device, each in zip(self._devices, self._threads, strict=True) if each is thread
        )


def _stopped(outcome: Outcome, reason: str, *, is_closing: bool) -> Outcome:
    """Return the outcome of a step that was told to stop; one that came to its end all the same stays as it is."""
    if outcome.error is None:
        return outcome
    words = f"{reason} {outcome.error}".strip()
    return Outcome(
        outcome.step, outcome.run_id, words, is_boards_fault=not is_closing, is_stopped=is_closing,
        device=outcome.device, claimed_ms=outcome.claimed_ms,
    )  # fmt: skip


def _end(run: ActiveRun, error: str) -> None:
    """End the run of a thread that was left behind; what it logs later is refused."""
    try:
        run.finish(RunStatus.FAILED, error=error)
    except HubError as failed:
        _LOG.warning("The end of run %s could not be recorded: %s", run.id, failed)


def _settle(future: Future[Outcome], outcome: Outcome) -> None:
    # Whoever waited may have gone away.
    with contextlib.suppress(InvalidStateError):
        future.set_result(outcome)
