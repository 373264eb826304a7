"""The seam between a sweep and whoever places its work. An engine places; the board's lease stays the lock."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Mapping
    from concurrent.futures import Future
    from contextlib import AbstractContextManager

    from embedl_hub.core import HubContext
    from embedl_hub.fleet._model import Step, Target


@dataclass(frozen=True)
class Job:
    """One step to be carried out now, plain data that an engine may send anywhere.

    Attributes:
        sweep: The id of the sweep's own run; every run of a step carries it as the tag ``sweep``.
        step: What to do; its key becomes the tag ``step``.
        attempt: 1 for the first try.
        compiled: The run that compiled the model, for steps that take a compiled one. It is in the store of the
            context that the engine was opened with; an engine that works elsewhere brings it there.
        timeout_s: The step is stopped after this long on its device.
        avoid: Devices that it failed on; they get it only where the target has no other.
    """

    sweep: str
    step: Step
    attempt: int = 1
    compiled: str | None = None
    timeout_s: float | None = None
    avoid: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Outcome:
    """How a job ended.

    Attributes:
        run_id: Its run, which is in the store of the context; None when it never began.
        error: Why it failed, in words for people; None when it did not.
        is_stopped: Whether it was ended from outside, as the engine closed: it says nothing about model or board.
        is_boards_fault: Whether the board rather than the model is to blame (no connection, lost lease, time limit):
            worth a health check, and another try elsewhere.
        is_cached: Whether the result was taken from an earlier run.
        device: The device that carried it out.
        claimed_ms: The time in which the device was its own: from, until.
        metrics: The run's numbers by name.
        verdict: What a profile thinks of its own numbers.
    """

    step: str
    run_id: str | None
    error: str | None = None
    is_boards_fault: bool = False
    is_stopped: bool = False
    is_cached: bool = False
    device: str | None = None
    claimed_ms: tuple[int, int] | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)
    verdict: str | None = None


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
    """A way to place jobs: threads on this machine, Ray on many."""

    def open(self, ctx: HubContext, targets: tuple[Target, ...]) -> AbstractContextManager[Workers]:
        """Get ready to work on these targets; leaving stops what still runs and leaves no board leased."""
        ...
