"""A model under load for minutes to hours: when the board begins to throttle, what is left of the speed, and energy."""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from embedl_device.statistics import Verdict  # noqa: TC001 - a result's fields are resolved when it is built
from embedl_hub.core.component import CompiledModel, Component, ComponentOutput, LoggedArtifact, LoggedMetric, RunType
from embedl_hub.core.profile._verdict import with_verdict
from embedl_hub.errors import NoProviderError

if TYPE_CHECKING:
    import numpy as np

    from embedl_hub.core.context import HubContext
    from embedl_hub.tracking import Run


@dataclass(frozen=True)
class Progress:
    """How far a sustained run is on its device."""

    state: str  # ``loading``, ``under load``, ``done`` and so on, in the device program's words
    at_s: float | None = None  # since the load began; negative before
    seconds: float | None = None  # how long it is to last
    inferences: int | None = None  # so far
    latency_ms: float | None = None  # of the last half second
    temperature_c: float | None = None  # the highest now
    is_alive: bool = True  # whether its process is there

    @property
    def is_over(self) -> bool:
        """Whether nothing more will come."""
        return self.state in {"done", "failed"} or not self.is_alive

    def __str__(self) -> str:
        words = [self.state]
        if self.at_s is not None and self.seconds is not None:
            words.append(f"{max(0.0, self.at_s):.0f} of {self.seconds:.0f} s")
        if self.latency_ms is not None:
            words.append(f"{self.latency_ms:.4g} ms")
        if self.temperature_c is not None:
            words.append(f"{self.temperature_c:.0f} °C")
        return ", ".join(words)


_WATCHER: contextvars.ContextVar[Callable[[Progress], None] | None] = contextvars.ContextVar("_WATCHER", default=None)


@contextlib.contextmanager
def watching(tell: Callable[[Progress], None]) -> Iterator[None]:
    """Have sustained runs of a block tell how far they are."""
    token = _WATCHER.set(tell)
    try:
        yield
    finally:
        _WATCHER.reset(token)


def told(progress: Progress) -> None:
    """Tell whoever watches how far a run is."""
    if (tell := _WATCHER.get()) is not None:
        tell(progress)


@dataclass(frozen=True)
class SustainedResult(ComponentOutput):
    """What is left of a model's speed under lasting load, and what an inference costs."""

    steady_latency: LoggedMetric  # mean time of one inference in the last third of the load, in ms
    fresh_latency: LoggedMetric  # the same in its first seconds, in ms
    steady_ratio: LoggedMetric  # steady over fresh
    # One versioned JSON document: latency, clocks, temperature, throttling and power over time, environment, method.
    output_file: LoggedArtifact
    steady_ratio_low: LoggedMetric | None = None  # the ends of its 95 % interval
    steady_ratio_high: LoggedMetric | None = None
    onset: LoggedMetric | None = None  # the second at which throttling began; None where it did not
    energy: LoggedMetric | None = None  # of one inference, idle power taken off, in mJ
    energy_low: LoggedMetric | None = None  # the ends of its 95 % interval
    energy_high: LoggedMetric | None = None
    idle_power: LoggedMetric | None = None  # in W
    mean_power: LoggedMetric | None = None  # under load, in W
    temperature_start: LoggedMetric | None = None  # the highest before the load, in °C
    temperature_end: LoggedMetric | None = None  # and at its end
    energy_sources: str | None = None  # what was added up, and what it does not cover
    energy_problem: str | None = None  # why there is no energy
    stopped: str | None = None  # why the load ended
    verdict: Verdict | None = None  # ``throttled``, ``drifting``, ``noisy`` or ``stable``
    verdict_reason: str | None = None  # why

    @classmethod
    def from_run(cls, run: Run, **extra: object) -> Self:
        """Build the result of a recorded run again."""
        return super().from_run(run, **with_verdict(run, extra))


class SustainedProfiler(Component):
    """Puts a model under load for minutes to hours: throttling, steady latency, and the energy of an inference.

    For every toolchain with a device program. The load runs on the device by itself: a connection that is lost, or a
    hub that is killed, does not end it, and ``collect`` brings the result afterwards.
    """

    run_type = RunType.PROFILE

    def run(  # noqa: PLR0913 - every one is an option of the command
        self,
        ctx: HubContext,
        model: CompiledModel,
        *,
        device: str | None = None,
        seconds: float = 300.0,
        duty: float = 1.0,
        duty_period: float = 10.0,
        rate: float | None = None,
        idle_seconds: float = 5.0,
        until_steady: bool = False,
        max_temperature: float | None = None,
        power_source: str | None = None,
        input_data: Mapping[str, np.ndarray] | None = None,
        collect: str | None = None,
    ) -> SustainedResult:
        """Put a model under load.

        Args:
            ctx: An open context.
            model: A compiled model.
            device: A device on the context; the first compatible one when not given.
            seconds: How long the load lasts.
            duty: The busy share of each period.
            duty_period: Busy and idle time together, in s.
            rate: Inferences a second; one right after another when not given.
            idle_seconds: Rest before and after, for the idle power.
            until_steady: End as soon as latency and temperature have stopped to change, after a minute at least.
            max_temperature: End when a sensor of the device says so many °C.
            power_source: The source of power or energy to take; the board's own choice when not given.
            input_data: Arrays by input name to run on; made up from the model's shapes when not given.
            collect: The id of a run that was cut off: start nothing, and bring what that one measured.
        """
        raise NoProviderError
