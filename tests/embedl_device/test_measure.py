"""Measuring: warm-up and stop rules, on a clock we control."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pytest

from embedl_device.rounds import Plan, take_samples
from embedl_device.statistics import Verdict, judge


class Clock:
    """Time that passes only when the timed function says so."""

    def __init__(self, times_us: Iterable[float]) -> None:
        self.now_ns = 0
        self._times: Iterator[float] = iter(times_us)

    def __call__(self) -> int:
        return self.now_ns

    def run(self) -> None:
        self.now_ns += int(next(self._times) * 1000)


def endless(first: Iterable[float], then: float) -> Iterator[float]:
    yield from first
    while True:
        yield then


def test_the_first_run_and_the_warm_up_do_not_count() -> None:
    """A slow start stays out of the samples."""
    clock = Clock(endless([9000, 5000, 4000, 3000, 2000], 1000))
    samples = take_samples(clock.run, Plan(iterations=10, min_seconds=0), clock)
    assert samples.first_us == 9000
    assert samples.is_warm
    assert samples.warmup_us[:4] == [5000, 4000, 3000, 2000]
    assert samples.times_us == [1000.0] * 10


def test_warm_up_ends_at_its_limit() -> None:
    """Times that never settle are measured all the same, and marked."""
    clock = Clock(float(1000 + 100 * number) for number in range(10**6))
    samples = take_samples(clock.run, Plan(iterations=10, min_seconds=0, max_warmup_seconds=0.1), clock)
    assert not samples.is_warm
    assert sum(samples.warmup_us) == pytest.approx(100_000, rel=0.1)
    assert judge(samples.times_us, unsettled_after=samples.unsettled_after).verdict is Verdict.DRIFTING


def test_both_the_number_and_the_time_must_be_reached() -> None:
    """A fast model is measured for long enough, a slow one often enough, neither forever."""
    fast = Clock(endless([], 100))
    assert len(take_samples(fast.run, Plan(iterations=10, min_seconds=0.05), fast).times_us) == 500
    slow = Clock(endless([], 1_000_000))
    plan = Plan(iterations=100, min_seconds=1, max_seconds=10, max_warmup_seconds=3)
    assert len(take_samples(slow.run, plan, slow).times_us) == 10
