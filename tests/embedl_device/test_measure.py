"""Measuring: warm-up, stop rules, statistics and verdicts, on a clock we control."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pytest

from embedl_device.measure import Plan, Samples, judge, median_interval, percentile, statistics_ms, take_samples


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


def warm(times_us: list[float]) -> Samples:
    return Samples(1.0, [1.0] * 15, True, times_us)


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
    assert judge(samples, [], [])[0] == "drifting"


def test_both_the_number_and_the_time_must_be_reached() -> None:
    """A fast model is measured for long enough, a slow one often enough, neither forever."""
    fast = Clock(endless([], 100))
    assert len(take_samples(fast.run, Plan(iterations=10, min_seconds=0.05), fast).times_us) == 500
    slow = Clock(endless([], 1_000_000))
    plan = Plan(iterations=100, min_seconds=1, max_seconds=10, max_warmup_seconds=3)
    assert len(take_samples(slow.run, plan, slow).times_us) == 10


def test_percentiles_are_measured_values() -> None:
    """Nearest rank: hand-computed."""
    times = [5.0, 1.0, 4.0, 2.0, 3.0]
    assert [percentile(times, percent) for percent in (0, 50, 75, 90, 100)] == [1, 3, 4, 5, 5]


def test_statistics_are_in_milliseconds_and_hide_a_p99_of_too_few() -> None:
    """Microseconds come in, milliseconds go out."""
    few = statistics_ms([1000.0, 2000.0, 3000.0])
    assert few["mean"] == few["median"] == 2.0
    assert few["std"] == pytest.approx(1.0, rel=1e-12)
    assert (few["min"], few["max"], few["p99"]) == (1.0, 3.0, None)
    assert statistics_ms([1000.0] * 99 + [7000.0])["p99"] == 1.0
    assert statistics_ms([5.0])["std"] == 0.0


def test_the_medians_interval_narrows_with_samples() -> None:
    """And always holds the median."""
    short, long = [float(n % 10) for n in range(30)], [float(n % 10) for n in range(3000)]
    for times in (short, long):
        low, high = median_interval(times)
        assert low <= percentile(times, 50) <= high
    assert median_interval(long)[1] - median_interval(long)[0] < median_interval(short)[1] - median_interval(short)[0]


def test_steady_samples_are_stable() -> None:
    """The reason says how well the median is known, and what could not be read."""
    verdict, reason = judge(warm([100.0, 101.0, 99.0, 100.0] * 50), [], ["temperature"])
    assert verdict == "stable"
    assert "200 samples" in reason
    assert "could not be read: temperature" in reason


def test_a_changing_median_is_drift() -> None:
    """In either direction; the reason has the figure."""
    times = [100.0 + number * 0.1 for number in range(300)]
    assert judge(warm(times), [], []) == ("drifting", "the median of the last third is +19.1% against the first third")
    assert judge(warm(times[::-1]), [], [])[0] == "drifting"


def test_wide_samples_are_noise() -> None:
    """Half of them far from each other."""
    verdict, reason = judge(warm([100.0, 150.0, 90.0, 160.0] * 50), [], [])
    assert verdict == "noisy"
    assert "is something else running?" in reason


def test_throttling_goes_before_all_else() -> None:
    """The board's own word counts, whatever the samples look like."""
    assert judge(warm([100.0] * 200), ["cpu0 core_throttle_count rose from 1 to 2"], []) == (
        "throttled",
        "cpu0 core_throttle_count rose from 1 to 2",
    )


def test_a_mean_far_off_the_median_is_noise() -> None:
    """A few very slow samples leave the quartiles alone; the reason names both numbers."""
    verdict, reason = judge(warm(([100.0] * 24 + [15_000.0]) * 8), [], [])
    assert verdict == "noisy"
    assert "the mean is 0.696 ms, the median 0.1 ms" in reason
    assert judge(warm(([100.0] * 24 + [300.0]) * 8), [], [])[0] == "stable"
