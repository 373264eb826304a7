"""Percentiles and their bounds: LoadGen's answers, and the true percentile where samples are not independent."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import pytest

from embedl_device.statistics import (
    PERCENTS,
    effective_number,
    fewest_samples,
    slowest_of_bound,
    summarize,
    tail_facts,
    tails,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

# mlcommons_loadgen 6.0.17, single stream, on a virtual clock (benchmarks/hub/bench_loadgen.py): which sample, counted
# from the slowest as 1, its early-stopping estimate of p90, p95 and p99 is; 0 where it gives none.
_LOADGEN = {
    63: (0, 0, 0), 64: (1, 0, 0), 65: (1, 0, 0), 100: (3, 0, 0), 129: (5, 0, 0), 130: (5, 1, 0), 200: (10, 3, 0),
    500: (34, 13, 0), 661: (48, 20, 0), 662: (48, 20, 1), 663: (48, 20, 1), 1024: (80, 35, 3), 2000: (168, 77, 9),
    5000: (450, 214, 33), 20000: (1901, 928, 167),
}  # fmt: skip
_Z = {90: 1.2815515655446004, 95: 1.6448536269514722, 99: 2.3263478740408408}


@pytest.mark.parametrize("count", _LOADGEN)
def test_the_bound_is_the_sample_that_loadgen_takes(count: int) -> None:
    """Its answers, recorded; the samples are their own ranks."""
    answers = tuple(slowest_of_bound(count, percent) for percent in PERCENTS)
    assert answers == _LOADGEN[count]
    mixed = np.random.default_rng(count).permutation(count) + 1.0
    bounds = [tail.high for tail in tails(mixed.tolist())]
    assert bounds == [count + 1 - place if place else None for place in answers]


def test_a_million_samples_take_a_moment() -> None:
    """The binomial tail is added up from its largest term."""
    assert slowest_of_bound(1_000_000, 99) == 9768
    assert 0.9 < slowest_of_bound(1_000_000, 90) / 100_000 < 1


def test_a_percentile_needs_its_number_of_samples() -> None:
    """64, 130 and 662; with fewer there is neither the percentile nor its bound, and the reason says how many."""
    assert [fewest_samples(percent) for percent in PERCENTS] == [64, 130, 662]
    values = np.random.default_rng(1).normal(1000, 10, 200).tolist()
    told = summarize(values)
    assert told.p90 is not None
    assert told.p90_high is not None
    assert told.p90 <= told.p90_high
    assert told.p95 is not None
    assert (told.p99, told.p99_high) == (None, None)
    assert tail_facts(values)["p99"] == {
        "samples": 200, "effective": 200, "needed": 662, "reason": "p99 needs 662 samples, there are 200",
    }  # fmt: skip
    assert summarize(values[:63]).p90 is None


def _autoregressive(random: np.random.Generator, count: int, weight: float) -> NDArray[np.float64]:
    """Return normal samples each of which takes a part from the one before."""
    value, values = random.normal(), []
    for step in (random.normal(size=count) * math.sqrt(1 - weight**2)).tolist():
        value = weight * value + step
        values.append(value)
    return np.array(values)


def _switching(random: np.random.Generator, count: int, fast_runs: int, slow_runs: int) -> NDArray[np.float64]:
    """Return samples of a machine that is slow for a while, now and then: 10 or 15, with noise."""
    lengths = random.geometric([1 / fast_runs, 1 / slow_runs], (count, 2)).reshape(-1)
    is_slow = np.repeat(np.tile([False, True], count), lengths)
    start = random.integers(0, 10 * (fast_runs + slow_runs))
    return np.where(is_slow[start : start + count], 15.0, 10.0) + random.normal(0, 0.5, count)


def test_independent_samples_are_not_cut() -> None:
    """Normal, heavy-tailed, of two kinds, and rounded to a coarse clock: all of them count."""
    random = np.random.default_rng(7)
    for _ in range(60):
        count = int(random.integers(64, 3000))
        normal = random.normal(size=count)
        kinds = [normal, random.pareto(1.5, count), np.where(random.random(count) < 0.1, 5.0, 0.0) + normal]
        for values in (*kinds, np.round(random.exponential(2.0, count))):
            for percent in PERCENTS:
                assert effective_number(values.tolist(), percent) == count


@pytest.mark.parametrize("weight", [0.5, 0.8, 0.95])
def test_the_bound_covers_the_truth_of_correlated_samples(weight: float) -> None:
    """Where LoadGen's would not: samples that resemble their neighbors count for fewer."""
    random = np.random.default_rng(3)
    told = missed = missed_by_loadgen = 0
    for _ in range(150):
        values = _autoregressive(random, 3000, weight)
        (tail,) = tails(values.tolist(), [90])
        assert tail.effective < 3000
        if tail.high is not None:
            told, missed = told + 1, missed + (tail.high < _Z[90])
        missed_by_loadgen += np.sort(values)[-slowest_of_bound(3000, 90)] < _Z[90]
    assert told > 100
    assert missed <= 1
    assert missed_by_loadgen > missed or weight < 0.8


def test_slow_stretches_are_noticed() -> None:
    """A machine that is slow in stretches gives too few to tell p99; the reason says about how many are needed."""
    values = _switching(np.random.default_rng(5), 3000, 60, 20).tolist()
    p90, _, p99 = tails(values)
    assert p90.effective < 600
    assert p99.high is None
    assert p99.value is not None
    assert p99.needed > 3000
    assert p99.reason is not None
    assert "slow ones come together" in p99.reason


def test_a_drift_leaves_no_bound() -> None:
    """What is slower in its second half has no one percentile."""
    random = np.random.default_rng(6)
    values = np.linspace(10, 12, 2000) + random.normal(0, 0.2, 2000)
    assert all(tail.high is None for tail in tails(values.tolist()))


def test_equal_samples_have_a_bound() -> None:
    """A coarse clock may show one number only."""
    assert [tail.high for tail in tails([2.0] * 700)] == [2.0, 2.0, 2.0]
    assert [tail.effective for tail in tails([2.0] * 700)] == [700] * 3


def test_a_bound_never_falls_as_the_percentile_rises() -> None:
    """Slow states may leave few independent samples about one percentile and many about a higher one."""
    random = np.random.default_rng(7)
    for seed in range(30):
        slow = np.repeat(random.random(40 + seed) < 0.1, 50)
        values = (1 + random.random(len(slow)) + 10 * slow + 40 * (random.random(len(slow)) < 0.004)).tolist()
        bounds = [tail.high for tail in tails(values)]
        known = [bound for bound in bounds if bound is not None]
        assert known == sorted(known)
        # Where a higher percentile has a bound, a lower one has.
        assert bounds[-1] is None or None not in bounds
