"""Percentiles, headline numbers and intervals: hand-computed."""

from __future__ import annotations

import pytest

from embedl_device.statistics import Interval, mean_interval, median_interval, percentile, summarize


def test_percentiles_are_measured_values() -> None:
    """Nearest rank: hand-computed."""
    times = [5.0, 1.0, 4.0, 2.0, 3.0]
    assert [percentile(times, percent) for percent in (0, 50, 75, 90, 100)] == [1, 3, 4, 5, 5]


def test_statistics_are_in_milliseconds_and_hide_a_p99_of_too_few() -> None:
    """Microseconds come in, milliseconds go out."""
    few = summarize([1000.0, 2000.0, 3000.0], 1e3)
    assert few.mean == few.median == 2.0
    assert few.std == pytest.approx(1.0, rel=1e-12)
    assert (few.min, few.max, few.p99) == (1.0, 3.0, None)
    assert (few.p90, few.p95) == (None, None)
    assert summarize([1000.0] * 995 + [7000.0] * 5, 1e3).p99 == 1.0
    assert summarize([5.0], 1e3).std == 0.0


def test_the_medians_interval_narrows_with_samples() -> None:
    """And always holds the median."""
    short, long = [float(n % 10) for n in range(30)], [float(n % 10) for n in range(3000)]
    for times in (short, long):
        low, high = median_interval(times)
        assert low <= percentile(times, 50) <= high
    assert median_interval(long)[1] - median_interval(long)[0] < median_interval(short)[1] - median_interval(short)[0]


def test_the_means_interval_comes_from_ten_stretches() -> None:
    """Stretches of means 1 to 10: their standard error is 0.957, times Student's t of nine degrees."""
    samples = [float(number // 3 + 1) for number in range(30)]
    assert mean_interval(5.5, samples[:29]) == Interval(5.5)
    interval = mean_interval(5.5, samples)
    assert interval.low == pytest.approx(5.5 - 2.262 * 0.95743, rel=1e-4)
    assert interval.high == pytest.approx(5.5 + 2.262 * 0.95743, rel=1e-4)
