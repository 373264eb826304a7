"""The seam between a sweep and whoever places its work. An engine places; the board's lease stays the lock."""

from __future__ import annotations

import threading
from collections import deque
from concurrent.futures import Future
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from embedl_hub import plugins
from embedl_hub.errors import ConfigError

if TYPE_CHECKING:
    from embedl_hub.core import HubContext
    from embedl_hub.fleet._model import Job, Outcome, Target


class Workers(Protocol):
    """An engine at work."""

    def submit(self, job: Job) -> Future[Outcome]:
        """Begin a job as soon as one of its target's devices is free.

        The future never raises for what a step did: that is an outcome. It raises ``WorkerLostError`` when whoever
        carried it out is gone, so that nothing is known of it.
        """
        ...

    def set_devices_out(self, names: frozenset[str]) -> None:
        """Give no work to these devices until told otherwise; pools go on with the rest."""
        ...


@runtime_checkable
class Engine(Protocol):
    """A way to place jobs: threads on this machine, Ray on many hosts."""

    def open(self, ctx: HubContext, targets: tuple[Target, ...]) -> AbstractContextManager[Workers]:
        """Get ready to work on these targets; leaving stops what still runs and leaves no board leased."""
        ...


@dataclass(eq=False)
class QueuedJob:
    """A job that nobody has begun."""

    job: Job
    future: Future[Outcome] = field(default_factory=Future)


class JobQueues:
    """One queue per target, which the devices' threads take from. One condition guards all of it."""

    def __init__(self, targets: tuple[Target, ...]) -> None:
        self._condition = threading.Condition()
        self._targets = {target.name: target for target in targets}
        self._queues: dict[str, deque[QueuedJob]] = {target.name: deque() for target in targets}
        self._out: frozenset[str] = frozenset()
        self._lost: dict[str | None, str] = {}
        self._closing = threading.Event()

    def submit(self, job: Job) -> Future[Outcome]:
        """Queue a job for its target; see :class:`Workers`."""
        queued = QueuedJob(job)
        with self._condition:
            self._queues[job.step.target.name].append(queued)
            self._condition.notify_all()
        return queued.future

    def set_devices_out(self, names: frozenset[str]) -> None:
        """Give no work to these devices; see :class:`Workers`."""
        with self._condition:
            self._out = names
            self._condition.notify_all()

    def _cancel_queued(self) -> None:
        """Cancel what waits, and give no more work to any device."""
        with self._condition:
            self._closing.set()
            queued = [each for queue in self._queues.values() for each in queue]
            for queue in self._queues.values():
                queue.clear()
            self._condition.notify_all()
        for each in queued:
            each.future.cancel()

    def _take(self, device: str | None) -> QueuedJob | None:
        """Return the next job for a device, waiting for one; None at the end."""
        with self._condition:
            while not self._closing.is_set() and device not in self._lost:
                if (queued := self._next(device)) is not None:
                    return queued
                self._condition.wait()
            return None

    def _next(self, device: str | None) -> QueuedJob | None:
        if device in self._out:
            return None
        for name, queue in self._queues.items():
            devices = self._targets[name].devices
            if device not in (devices or (None,)):
                continue
            for queued in list(queue):
                others = set(devices) - queued.job.avoid - self._out - set(self._lost)
                if device in queued.job.avoid and others:
                    continue
                queue.remove(queued)
                # Whoever submitted it may have taken it back.
                if queued.future.set_running_or_notify_cancel():
                    return queued
        return None


def find_engine(name: str) -> Engine:
    """Return an engine by name, ready to open; what an entry point names is called without arguments."""
    make = plugins.load(plugins.ENGINES, name)
    try:
        engine = make()
    except ImportError as error:
        raise ConfigError(
            f"The engine {name!r} needs a package that is not installed ({error}): pip install 'edgeproof-hub[{name}]'"
        ) from error
    if not isinstance(engine, Engine):
        raise ConfigError(f"The engine {name!r} ({make!r}) has no open(ctx, targets).")
    return engine
