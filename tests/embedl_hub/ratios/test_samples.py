"""Intervals that hold what they promise, also for samples that resemble their neighbours."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from embedl_hub.ratios import Ratio, centre, error_of, ratio_of, take
from embedl_hub.ratios._samples import correlation_length


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
    """About 95 times in 100, however much the samples resemble their neighbours."""
    held = 0
    for seed in range(100):
        one, other = (_drifting(2 * seed + each, count, memory) for each in (0, 1))
        errors = [error_of("latency", take(values.tolist())) for values in (one, other)]
        ratio = ratio_of(one.mean(), other.mean(), *errors)
        held += not ratio.shows_difference
    assert held >= 86


@pytest.mark.parametrize("name", ["latency", "latency_median", "latency_p90", "fps"])
def test_a_real_difference_is_shown(name: str) -> None:
    """In the direction of the metric."""
    one, other = _drifting(1, memory=0.5), 1.1 * _drifting(2, memory=0.5)
    value = 1 / 1.1 if name == "fps" else 1.1
    ratio = ratio_of(value, 1.0, error_of(name, take(other.tolist())), error_of(name, take(one.tolist())))
    assert ratio.shows_difference
    assert ratio.low is not None
    assert ratio.high is not None
    assert ratio.low < value < ratio.high


def test_without_samples_there_is_no_interval() -> None:
    """Nor for metrics that samples do not tell."""
    assert ratio_of(2, 1, None, None) == Ratio(2)
    assert Ratio(2).shows_difference is None
    assert error_of("latency", take([])) is None
    assert error_of("latency", take([0.0] * 50)) is None
    assert error_of("peak_memory_mb", take([1.0] * 50)) is None
    steady = error_of("latency_median", take([1.0] * 50))
    assert steady is not None
    assert steady.log == 0


def test_the_same_samples_give_the_same_interval() -> None:
    """A report must not change when it is printed again."""
    values = _drifting(1).tolist()
    assert error_of("latency", take(values)) == error_of("latency", take(values))


@pytest.mark.parametrize("name", ["latency", "latency_median", "latency_p90"])
@pytest.mark.parametrize("memory", [0.0, 0.9])
def test_many_samples_are_judged_alike_and_at_once(name: str, memory: float) -> None:
    """Blocks tell the same as drawing, without its cost."""
    values = _drifting(5, 2400, memory).tolist()
    with_blocks, drawn = error_of(name, take(values)), error_of(name, take(values[:2000]))
    assert with_blocks is not None
    assert drawn is not None
    assert 0.5 < with_blocks.log / drawn.log < 2


@given(st.lists(st.floats(0.5, 2.0), min_size=2, max_size=40))
def test_the_middle_lies_among_the_values(values: list[float]) -> None:
    """And the interval is never narrower than what is known of each."""
    middle, reach = centre(values, [0.0] * len(values))
    assert min(values) - 1e-9 <= middle <= max(values) + 1e-9
    wider = centre(values, [0.3] * len(values))[1]
    assert wider >= reach
    assert wider >= 0.3 / math.sqrt(len(values))


def test_one_disturbed_repeat_does_not_decide() -> None:
    """It is left out from five on."""
    assert centre([1.0, 1.01, 0.99, 1.0, 9.0], [0.0] * 5)[0] == pytest.approx(1.0, abs=0.01)
    assert centre([1.0], [0.0]) == (1.0, math.inf)


@pytest.mark.parametrize("count", [3, 6, 12])
def test_the_interval_of_repeats_holds_its_promise(count: int) -> None:
    """99 % for normal noise, within what 400 draws can tell."""
    random = np.random.default_rng(count)
    missed = 0
    for _ in range(400):
        middle, reach = centre(random.normal(0, 1, count).tolist(), [0.0] * count)
        missed += abs(middle) > reach
    assert missed <= 14
