"""Measuring: warm-up and stop rules, on a clock we control."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator

import pytest

from embedl_device.document import goal_of
from embedl_device.errors import BoardError
from embedl_device.rounds import Plan, take_samples
from embedl_device.statistics import Verdict, judge, tails


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


def random_times(seed: int = 1) -> Iterator[float]:
    """Yield independent times around a millisecond."""
    generator = random.Random(seed)  # noqa: S311 - no secret
    while True:
        yield generator.gauss(1000.0, 20.0)


def in_bursts(seed: int = 2) -> Iterator[float]:
    """Yield times that are slow for about twenty runs, now and then."""
    generator, is_slow = random.Random(seed), False  # noqa: S311 - no secret
    while True:
        is_slow = generator.random() < (0.95 if is_slow else 0.01)
        yield generator.gauss(1500.0 if is_slow else 1000.0, 20.0)


QUICK = Plan(iterations=10, min_seconds=0, max_seconds=600, max_warmup_seconds=0)


@pytest.mark.parametrize(("until", "needed"), [("p90", 64), ("p95", 130), ("p99", 662)])
def test_it_is_measured_until_a_percentile_has_its_bound(until: str, needed: int) -> None:
    """Independent samples are as many as LoadGen needs, and no more."""
    clock = Clock(random_times())
    plan = QUICK.measuring_until(until)
    samples = take_samples(clock.run, plan, clock)
    assert len(samples.times_us) == needed
    goal = goal_of(plan, samples.times_us)
    assert goal is not None
    assert goal["reached"]
    assert goal["text"].startswith(f"{until} is 1.0")
    assert f"({needed} samples)" in goal["text"]
    assert f"a bound of {until}" in plan.method()["stop_rule"]


def test_samples_that_come_together_take_more_and_it_is_said_meanwhile() -> None:
    """Until their effective number is enough; there is a word every ten seconds of a slow model."""
    clock, words = Clock(in_bursts()), list[str]()
    plan = QUICK._replace(min_seconds=1).measuring_until("p90")
    times = take_samples(clock.run, plan, clock, words.append).times_us
    (tail,) = tails(times, [90])
    assert len(times) > 1200
    assert tail.effective >= 64
    assert tail.high is not None
    slow = Clock(1000 * time for time in random_times())
    take_samples(slow.run, QUICK.measuring_until("p90"), slow, words.append)
    assert any("samples of 64" in each and "s of at most 600 s" in each for each in words)


def test_the_time_may_run_out_first() -> None:
    """Then the goal says how many samples are missing."""
    clock = Clock(random_times())
    plan = QUICK._replace(max_seconds=0.3).measuring_until("p99")
    times = take_samples(clock.run, plan, clock).times_us
    goal = goal_of(plan, times)
    assert goal is not None
    assert not goal["reached"]
    missing = 662 - len(times)
    assert goal["text"] == (
        f"the 0.3 s were over before the bound of p99 was supported: about {missing} more samples are needed"
    )


def test_mlperfs_rules_bring_their_numbers() -> None:
    """1,024 queries and 60 s at least, said in the method; a shorter limit is refused."""
    plan = QUICK.measuring_until("mlperf")
    assert (plan.iterations, plan.min_seconds, plan.percent) == (1024, 60.0, 90)
    assert "1,024 queries and 60 s" in plan.method()["rules"]
    clock = Clock(100 * time for time in random_times())
    times = take_samples(clock.run, plan, clock).times_us
    assert len(times) == 1024
    goal = goal_of(plan, times)
    assert goal is not None
    assert goal["text"].startswith("MLPerf single stream: p90 is ")
    fast = Clock(10 * time for time in random_times())
    assert sum(take_samples(fast.run, plan, fast).times_us) == pytest.approx(60e6, rel=0.01)
    with pytest.raises(BoardError, match="ask for 60 s at least, and the measurement may take 30 s"):
        QUICK._replace(max_seconds=30).measuring_until("mlperf")
    with pytest.raises(BoardError, match="until p90, p95, p99, mlperf, not 'p50'"):
        QUICK.measuring_until("p50")
