"""Checks boards on a schedule and after failures, each in a thread of its own so that none waits for another."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from embedl_hub.errors import ConfigError, HubError
from embedl_hub.health._check import Health, HealthReport, check_device, device_health, record_failure
from embedl_hub.health._checks import CheckOutcome, HealthCheck, HealthLimits
from embedl_hub.tracking import now_ms

if TYPE_CHECKING:
    from embedl_hub.core import HubContext

_LOG = logging.getLogger("embedl_hub")
_DEFAULT = HealthLimits()
_LEAVE_S = 5.0


@dataclass(frozen=True)
class HealthChange:
    """A board that went out or came back."""

    device: str
    before: Health
    after: Health


@dataclass
class _Watched:
    """One board: how it is, when it is due, whether it is being checked."""

    health: Health
    due: float
    thread: threading.Thread | None = None
    started: float = 0.0
    is_given_up: bool = False
    asked: int = 0
    served: int = 0
    answered: int = 0


class HealthWatch:
    """Keeps boards checked while it is open: ``with HealthWatch(ctx) as watch: ...``. Safe to use from many threads.

    A board whose check fails is out until a later check passes. A board that was never checked counts as in.
    """

    def __init__(
        self,
        ctx: HubContext,
        *,
        every_s: float = 600.0,
        recheck_s: float = 60.0,
        names: Iterable[str] | None = None,
        limits: HealthLimits = _DEFAULT,
        listener: Callable[[HealthChange], None] | None = None,
    ) -> None:
        """Describe a watch; nothing is checked before ``with``.

        Args:
            ctx: An open context; it must stay open longer than the watch.
            every_s: A healthy board is checked this often, counted from its latest check, by whomever.
            recheck_s: One that is out, or was busy when it was due, this often.
            names: The devices to watch; all of the context when not given.
            limits: What a healthy board keeps.
            listener: Told each change of state, one at a time, from the watch's own thread.
        """
        for name, value in (("every_s", every_s), ("recheck_s", recheck_s)):
            if value <= 0:
                raise ConfigError(f"HealthWatch.{name} is {value!r}; it must be a positive number of seconds.")
        self._ctx = ctx
        self._every_s, self._recheck_s, self._limits = every_s, recheck_s, limits
        self._listener = listener
        self._names = tuple(ctx.devices if names is None else (ctx.find_device(name).name for name in names))
        self._lock = threading.Condition()
        self._boards: dict[str, _Watched] = {}
        self._told: list[HealthChange] = []
        self._changes = 0
        self._stops = False
        self._thread = threading.Thread(target=self._work, name="edgeproof-health", daemon=True)

    def __enter__(self) -> Self:
        now, clock_ms = time.monotonic(), now_ms()
        for name, health in device_health(self._ctx.client.store, self._names).items():
            ago_s = (clock_ms - (health.checked_ms or 0)) / 1000
            # A check of a moment ago, of another program perhaps, counts; a board that is out is looked at now.
            wait_s = max(0.0, self._every_s - ago_s) if health.state == "ok" else 0.0
            self._boards[name] = _Watched(health, now + wait_s)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._stops = True
            self._lock.notify_all()
        self._thread.join()
        deadline = time.monotonic() + _LEAVE_S
        for board in self._boards.values():
            if board.thread is not None:
                # One that hangs is left behind: its commands have limits, and its thread ends with the process.
                board.thread.join(max(0.0, deadline - time.monotonic()))

    @property
    def changes(self) -> int:
        """How many changes of state there were so far."""
        with self._lock:
            return self._changes

    def health(self, name: str) -> Health:
        """Return how a watched device is."""
        with self._lock:
            return self._board(name).health

    def is_in(self, name: str) -> bool:
        """Tell whether a device may be used: everything but one whose latest check failed."""
        return self.health(name).state != "out"

    def why_out(self, name: str) -> str:
        """Return what the latest check of a device that is out found."""
        return self.health(name).reason

    def report_failure(self, name: str) -> None:
        """Have a device checked now, because something failed there; call it when its claim has ended.

        Returns at once; :meth:`settled` waits for the answer.
        """
        with self._lock:
            board = self._board(name)
            board.asked += 1
            board.due = time.monotonic()
            self._lock.notify_all()

    def settled(self, name: str, timeout_s: float | None = None) -> Health:
        """Return how a device is once the checks that were asked for have ended, or after ``timeout_s``.

        A check that hangs has ended when it is given up.
        """
        with self._lock:
            board = self._board(name)
            wanted = board.asked
            self._lock.wait_for(lambda: board.answered >= wanted or board.is_given_up or self._stops, timeout_s)
            return board.health

    def wait_for_change(self, timeout_s: float | None = None, *, seen: int | None = None) -> bool:
        """Wait until a device goes out or comes back; tell whether one did.

        Args:
            timeout_s: At most so long.
            seen: The value of :attr:`changes` that the caller acted on, so that no change slips between.
        """
        with self._lock:
            before = self._changes if seen is None else seen
            self._lock.wait_for(lambda: self._changes > before or self._stops, timeout_s)
            return self._changes > before

    def _board(self, name: str) -> _Watched:
        if name not in self._boards:
            # Says which devices there are, when it is none of the context.
            self._ctx.find_device(name)
            raise ConfigError(f"Device {name!r} is not watched, or the watch is not open; watched: {self._names}.")
        return self._boards[name]

    def _work(self) -> None:
        while True:
            with self._lock:
                # Not wait_for: what is due next may come closer while we wait.
                while not (self._stops or self._told or self._until_due_s() <= 0):
                    self._lock.wait(self._until_due_s())
                if self._stops:
                    return
                told, self._told = self._told, []
                overdue = self._start_due()
            for name in overdue:
                self._give_up(name)
            for change in told:
                self._tell(change)

    def _until_due_s(self) -> float:
        """Return how long there is nothing to do; a board that is being checked is due when its check must end."""
        moments = [
            board.due if board.thread is None else board.started + self._limits.whole_s
            for board in self._boards.values()
            if not board.is_given_up
        ]
        return max(0.0, min(moments, default=time.monotonic() + self._every_s) - time.monotonic())

    def _start_due(self) -> list[str]:
        """Start what is due, and return the boards whose check ought to have ended."""
        now, overdue = time.monotonic(), []
        for name, board in self._boards.items():
            if board.thread is None and board.due <= now:
                board.started, board.served = now, board.asked
                board.thread = threading.Thread(
                    target=self._check, args=(name,), name=f"edgeproof-health {name}", daemon=True
                )
                board.thread.start()
            elif board.thread is not None and not board.is_given_up and now >= board.started + self._limits.whole_s:
                overdue.append(name)
        return overdue

    def _check(self, name: str) -> None:
        report: HealthReport | None = None
        try:
            report = check_device(self._ctx, name, self._limits)
        except HubError as error:
            _LOG.warning("Device %r could not be checked: %s", name, error)
        finally:
            with self._lock:
                board = self._boards[name]
                board.thread, board.is_given_up = None, False
                self._take(name, None if report is None or report.busy else report.health)
                well = report is not None and not report.busy and board.health.state == "ok"
                # Asked for once more meanwhile: that failure may be later than what this check saw.
                again = board.asked > board.served
                board.due = time.monotonic() + (0.0 if again else self._every_s if well else self._recheck_s)
                self._lock.notify_all()

    def _give_up(self, name: str) -> None:
        """Take a board out whose check does not end; when it ends after all, its answer counts."""
        message = f"its check did not end within {self._limits.whole_s:g} s."
        health = Health("out", now_ms(), now_ms(), f"hangs: {message}")
        next_step = f"Look at the board, then: embedl-hub device health {name}"
        with contextlib.suppress(HubError):
            check = HealthCheck("hangs", CheckOutcome.FAILED, message, next_step)
            health = record_failure(self._ctx, name, check).health
        with self._lock:
            # It may have ended while this was written down.
            if self._boards[name].thread is not None:
                self._boards[name].is_given_up = True
                self._take(name, health)
                self._lock.notify_all()

    def _take(self, name: str, health: Health | None) -> None:
        """Note what a check found, None when it found nothing, and what that changes."""
        board = self._boards[name]
        board.answered = board.served
        if health is None:
            return
        before, board.health = board.health, health
        # The first good check of a board that counted as in anyway is no news.
        if before.state != health.state and (before.state, health.state) != ("unknown", "ok"):
            self._changes += 1
            self._told.append(HealthChange(name, before, health))

    def _tell(self, change: HealthChange) -> None:
        _LOG.info("Device %r is %s: %s", change.device, change.after.state, change.after.reason or "its check passed")
        if self._listener is None:
            return
        try:
            self._listener(change)
        except Exception:  # noqa: BLE001 - a listener's mistake must not end the watch over the boards
            _LOG.exception("The listener of the health watch failed on the change of device %r.", change.device)
