"""Intervals that hold what they promise, also for samples that resemble their neighbors."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from embedl_device.statistics import Ratio, log_error, ratio_of, series_of, trimmed_mean
from embedl_device.statistics._ratios import correlation_length


def _drifting(seed: int, count: int = 300, memory: float = 0.9) -> NDArray[np.float64]:
    """Return samples of mean 1000 that remember the ones before."""
    random = np.random.default_rng(seed)
    value, found = 0.0, []
    for step in random.normal(0, 10, count):
        value = memory * value + step
        found.append(1000 + value)
    return np.asarray(found)


def test_independent_samples_know_nothing_of_each_other() -> None:
    """And samples with a memory are found out."""
    assert correlation_length(np.random.default_rng(3).normal(size=500).tolist()) < 2
    assert correlation_length(_drifting(3, 500).tolist()) > 6


@pytest.mark.parametrize(("memory", "count"), [(0.0, 300), (0.9, 300), (0.9, 2400)])
def test_intervals_of_equal_samples_hold_one(memory: float, count: int) -> None:
    """About 95 times in 100, however much the samples resemble their neighbors."""
    held = 0
    for seed in range(100):
        one, other = (_drifting(2 * seed + each, count, memory) for each in (0, 1))
        errors = [log_error(series_of(values.tolist()), None) for values in (one, other)]
        ratio = ratio_of(one.mean(), other.mean(), *errors)
        held += not ratio.shows_difference
    assert held >= 86


@pytest.mark.parametrize(("percent", "value"), [(None, 1.1), (50.0, 1.1), (90.0, 1.1), (None, 1 / 1.1)])
def test_a_real_difference_is_shown(percent: float | None, value: float) -> None:
    """In either direction."""
    one, other = _drifting(1, memory=0.5), 1.1 * _drifting(2, memory=0.5)
    errors = [log_error(series_of(values.tolist()), percent) for values in (other, one)]
    ratio = ratio_of(value, 1.0, *errors)
    assert ratio.shows_difference
    assert ratio.low is not None
    assert ratio.high is not None
    assert ratio.low < value < ratio.high


def test_without_samples_there_is_no_interval() -> None:
    """Nor with too few, or with what is no time."""
    assert ratio_of(2, 1, None, None) == Ratio(2)
    assert Ratio(2).shows_difference is None
    assert log_error(series_of([]), None) is None
    assert log_error(series_of([0.0] * 50), None) is None
    steady = log_error(series_of([1.0] * 50), 50.0)
    assert steady is not None
    assert steady.log == 0


def test_the_same_samples_give_the_same_interval() -> None:
    """A report must not change when it is printed again."""
    values = _drifting(1).tolist()
    assert log_error(series_of(values), None) == log_error(series_of(values), None)


@pytest.mark.parametrize("percent", [None, 50.0, 90.0])
@pytest.mark.parametrize("memory", [0.0, 0.9])
def test_many_samples_are_judged_alike_and_at_once(percent: float | None, memory: float) -> None:
    """Blocks tell the same as drawing, without its cost."""
    values = _drifting(5, 2400, memory).tolist()
    with_blocks, drawn = log_error(series_of(values), percent), log_error(series_of(values[:2000]), percent)
    assert with_blocks is not None
    assert drawn is not None
    assert 0.5 < with_blocks.log / drawn.log < 2


@given(st.lists(st.floats(0.5, 2.0), min_size=2, max_size=40))
def test_the_middle_lies_among_the_values(values: list[float]) -> None:
    """And the interval is never narrower than what is known of each."""
    middle, reach = trimmed_mean(values, [0.0] * len(values))
    assert min(values) - 1e-9 <= middle <= max(values) + 1e-9
    wider = trimmed_mean(values, [0.3] * len(values))[1]
    assert wider >= reach
    assert wider >= 0.3 / math.sqrt(len(values))


def test_one_disturbed_repeat_does_not_decide() -> None:
    """It is left out from five on."""
    assert trimmed_mean([1.0, 1.01, 0.99, 1.0, 9.0], [0.0] * 5)[0] == pytest.approx(1.0, abs=0.01)
    assert trimmed_mean([1.0], [0.0]) == (1.0, math.inf)


@pytest.mark.parametrize("count", [3, 6, 12])
def test_the_interval_of_repeats_holds_its_promise(count: int) -> None:
    """99 % for normal noise, within what 400 draws can tell."""
    random = np.random.default_rng(count)
    missed = 0
    for _ in range(400):
        middle, reach = trimmed_mean(random.normal(0, 1, count).tolist(), [0.0] * count)
        missed += abs(middle) > reach
    assert missed <= 14
