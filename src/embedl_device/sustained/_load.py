"""The load itself: inferences for a time at a duty cycle or a rate, and a thread that writes down what happens."""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import Callable, Deque, Dict, List, NamedTuple, Optional, Tuple

from embedl_device.sustained._journal import Bin, Journal, Reading
from embedl_device.sustained._watch import Watch, hottest

_KEPT = 20_000
_NAP_S = 0.25
_MOMENT_S = 1e-6
# Steady: three windows of so long agree in their mean, and the temperature moves by less than a degree.
_STEADY_WINDOW_S, _STEADY_WITHIN, _STEADY_DEGREES = 20.0, 0.02, 1.0


class LoadPlan(NamedTuple):
    """How long and how hard; ``duty`` is the busy share of each ``duty_period_s``, ``rate`` inferences a second."""

    seconds: float = 300.0
    duty: float = 1.0
    duty_period_s: float = 10.0
    rate: Optional[float] = None
    idle_seconds: float = 5.0
    period_s: float = 0.5
    until_steady: bool = False
    max_temperature_c: Optional[float] = None


class Recorder:
    """Takes times from the load and, in a thread of its own, writes them down with what the board says."""

    def __init__(
        self,
        journal: Journal,
        watch: Watch,
        plan: LoadPlan,
        start_s: float,
        tell: Callable[["Recorder"], None] = lambda _: None,
        clock_s: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.journal, self._watch, self.plan, self._tell = journal, watch, plan, tell
        self.start_s, self._clock_s = start_s, clock_s
        self.times_us: List[float] = []
        self._last: Deque[Tuple[float, List[float]]] = deque()
        self._kept = 0
        self.count = 0
        self.latest: Optional[Bin] = None
        self.temperature_c: Optional[float] = None
        self.stop_reason: Optional[str] = None
        self.failure: Optional[BaseException] = None
        self.ended_s: Optional[float] = None
        self._since_s = 0.0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch_on, name="edgeproof-sampler", daemon=True)

    def now_s(self) -> float:
        """Return the time since the load began; negative before."""
        return self._clock_s() - self.start_s

    def start(self) -> None:
        """Begin to watch."""
        self._thread.start()

    def finish(self) -> None:
        """Take the last reading and end the thread."""
        self._ended.set()
        self._thread.join()
        if self.failure is not None:
            raise self.failure

    def _watch_on(self) -> None:
        next_s = self._clock_s()
        try:
            while not self._ended.is_set():
                self.tick()
                next_s += self.plan.period_s
                # After a pause of the whole process the missed readings are not made up for.
                next_s = max(next_s, self._clock_s())
                self._ended.wait(next_s - self._clock_s())
            self.tick()
        except BaseException as error:  # the load must not go on for hours with nobody watching
            self.failure = error
            self.stop_reason = "watching failed: {}".format(error)

    def tick(self) -> None:
        """Read the board once, and sum up the inferences since the last time."""
        values = self._watch.values()
        at_s = self.now_s()
        taken = len(self.times_us)
        times = self.times_us[:taken]
        # The load appends meanwhile; what was taken is at the front.
        del self.times_us[:taken]
        found = None
        if times:
            # A pause on purpose belongs to no bin.
            end_s, busy_s = at_s if self.ended_s is None else self.ended_s, sum(times) / 1e6
            found = _bin_of(times, end_s, min(end_s - self._since_s, max(1.5 * self.plan.period_s, 1.1 * busy_s)))
            self._keep(end_s, times)
            self.count += taken
            self.latest = found
            self._since_s = end_s
        self.journal.add(Reading(at_s, values), found)
        self.temperature_c = hottest(self._watch.channels, values)
        self._decide(at_s)
        self._tell(self)

    def _decide(self, at_s: float) -> None:
        limit = self.plan.max_temperature_c
        if limit is not None and self.temperature_c is not None and self.temperature_c >= limit:
            self.stop_reason = "at {:.1f} s it was {:.1f} °C, the limit is {:g} °C".format(
                at_s, self.temperature_c, limit
            )
        if self.plan.until_steady and self.stop_reason is None and self.is_steady(at_s):
            self.stop_reason = "steady at {:.1f} s".format(at_s)

    def _keep(self, at_s: float, times: List[float]) -> None:
        self._last.append((at_s, times))
        self._kept += len(times)
        while len(self._last) > 1 and self._kept - len(self._last[0][1]) >= _KEPT:
            self._kept -= len(self._last.popleft()[1])

    def last(self) -> Dict[str, List[float]]:
        """Return the last single times with the readings' times at which they were taken."""
        pairs = [(at_s, time_us) for at_s, times in self._last for time_us in times][-_KEPT:]
        return {
            "end_s": [round(at_s, 3) for at_s, _ in pairs],
            "us": [round(time_us, 3) for _, time_us in pairs],
        }

    def is_steady(self, at_s: float) -> bool:
        """Tell whether latency and temperature have stopped to change."""
        if at_s < 3 * _STEADY_WINDOW_S:
            return False
        means, degrees = [], []
        for number in range(3):
            until_s = at_s - number * _STEADY_WINDOW_S
            from_s = until_s - _STEADY_WINDOW_S
            bins = [each for each in self.journal.recording.bins if from_s < each.end_s <= until_s]
            if not bins:
                return False
            means.append(sum(each.busy_us for each in bins) / sum(each.inferences for each in bins))
            readings = [each for each in self.journal.recording.readings if from_s < each.at_s <= until_s]
            hot = [hottest(self._watch.channels, each.values) for each in readings]
            told = [value for value in hot if value is not None]
            degrees += [sum(told) / len(told)] if told else []
        is_calm = not degrees or max(degrees) - min(degrees) < _STEADY_DEGREES
        return is_calm and max(means) <= min(means) * (1 + _STEADY_WITHIN)


def _bin_of(times: List[float], end_s: float, width_s: float) -> Bin:
    import numpy as np

    values = np.sort(np.asarray(times))
    count = len(values)
    ranks = [max(0, -(-count * percent // 100) - 1) for percent in (50, 90)]
    return Bin(
        end_s, max(width_s, 1e-6), count, float(values.sum()), float(values[ranks[0]]), float(values[ranks[1]]),
        float(values[-1]),
    )  # fmt: skip


def put_under_load(
    run: Callable[[], object],
    recorder: Recorder,
    clock_ns: Callable[[], int] = time.perf_counter_ns,
    sleep: Callable[[float], None] = time.sleep,
) -> Dict[str, object]:
    """Run a model by the plan, idle times before and after included; return why it stopped and what it missed."""
    plan = recorder.plan
    _wait(recorder, 0.0, sleep)
    add, missed = recorder.times_us.append, 0
    seconds, period, rate = plan.seconds, plan.duty_period_s, plan.rate
    busy_s, number = plan.duty * period, 0
    while recorder.stop_reason is None:
        now_s = recorder.now_s()
        if now_s >= seconds:
            break
        if plan.duty < 1 and now_s % period >= busy_s:
            _wait(recorder, min(seconds, now_s - now_s % period + period), sleep)
            continue
        if rate is not None:
            due_s = number / rate
            if due_s - now_s > _MOMENT_S:
                _wait(recorder, min(seconds, due_s), sleep)
                continue
            # Those that were due while another one ran are not made up for: a camera does not wait either.
            behind = max(0, int((now_s - due_s) * rate))
            missed += behind
            number += behind + 1
        start = clock_ns()
        run()
        add((clock_ns() - start) / 1e3)
    stopped = recorder.stop_reason or "after {:g} s, as asked".format(seconds)
    ended_s = recorder.ended_s = recorder.now_s()
    recorder.stop_reason = recorder.stop_reason or stopped
    if recorder.failure is None:
        while recorder.now_s() < ended_s + plan.idle_seconds:
            sleep(min(_NAP_S, max(0.0, ended_s + plan.idle_seconds - recorder.now_s())))
    return {"stopped": stopped, "missed": missed if rate is not None else None}


def _wait(recorder: Recorder, until_s: float, sleep: Callable[[float], None]) -> None:
    while recorder.stop_reason is None:
        left_s = until_s - recorder.now_s()
        if left_s <= _MOMENT_S:
            return
        sleep(min(_NAP_S, left_s))
