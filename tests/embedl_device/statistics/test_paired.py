"""Paired ratios: the interval holds what it promises under drift, spikes, neighbors and loading; rankings too."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.typing import NDArray

from embedl_device.statistics import Ratio, paired_ratio, rank

ROUNDS = 200
LOADED_AT = list(range(0, ROUNDS, 20))
Floats = NDArray[np.float64]


def machine(random: np.random.Generator) -> Floats:
    """Return what a busy machine does to everybody: a drift, a slow wave, and stretches in which it is half as fast."""
    steps = np.arange(ROUNDS)
    busy = np.repeat(random.random(ROUNDS // 10) < 0.3, 10)
    wave = 0.2 * np.sin(steps / random.uniform(5, 50) + random.uniform(0, 6))
    return (1 + 0.3 * steps / ROUNDS + wave) * np.where(busy, 2.0, 1.0)


def own_noise(random: np.random.Generator, *, correlation: float = 0.0, loading: float = 0.0) -> Floats:
    """Return what happens to one model alone: noise, spikes, what neighbors share, and where it lies in memory."""
    noise = random.normal(size=ROUNDS) * 0.02
    for number in range(1, ROUNDS):
        noise[number] += correlation * noise[number - 1]
    spikes = np.where(random.random(ROUNDS) < 0.05, random.exponential(2.0, ROUNDS), 0.0)
    places = np.repeat(random.normal(size=ROUNDS // 20) * loading, 20)
    return np.exp(noise + spikes + places)


def simulated(
    seed: int, truth: float = 1.0, *, correlation: float = 0.0, loading: float = 0.0
) -> tuple[Floats, Floats]:
    random = np.random.default_rng(seed)
    common = machine(random)
    one, two = (common * own_noise(random, correlation=correlation, loading=loading) for _ in range(2))
    return one, two * truth


def held(ratio: Ratio, truth: float) -> bool:
    assert ratio.low is not None
    assert ratio.high is not None
    return ratio.low <= truth <= ratio.high


@pytest.mark.parametrize(("correlation", "loading"), [(0.0, 0.0), (0.5, 0.0), (0.8, 0.0), (0.0, 0.01), (0.5, 0.01)])
@pytest.mark.parametrize("truth", [1.0, 1.05])
def test_the_interval_keeps_its_promise(correlation: float, loading: float, truth: float) -> None:
    """On a machine that drifts and doubles its times: 99 %, less what chance does to 300 tries."""
    tries = 300
    count = 0
    for seed in range(tries):
        one, two = simulated(seed, truth, correlation=correlation, loading=loading)
        count += held(paired_ratio(two.tolist(), one.tolist(), LOADED_AT), truth)
    # Three standard errors of a share of 99 %.
    assert count / tries >= 0.99 - 3 * math.sqrt(0.99 * 0.01 / tries)


def test_the_interval_is_narrow() -> None:
    """Two per cent of noise and 200 rounds: well under the 3 % that are promised, though the machine moved by half."""
    widths = []
    for seed in range(50):
        one, two = simulated(seed)
        ratio = paired_ratio(two.tolist(), one.tolist(), LOADED_AT)
        assert ratio.high is not None
        assert ratio.low is not None
        widths.append(ratio.high - ratio.low)
    assert np.median(widths) < 0.015


def test_loading_is_not_mistaken_for_certainty() -> None:
    """Without knowing when models were loaded the interval would be too narrow."""
    without = sum(held(_ratio(seed, loading=0.02, loaded_at=[]), 1.0) for seed in range(200)) / 200
    told = sum(held(_ratio(seed, loading=0.02, loaded_at=LOADED_AT), 1.0) for seed in range(200)) / 200
    assert without < told
    assert told > 0.9


def _ratio(seed: int, *, loading: float, loaded_at: list[int]) -> Ratio:
    one, two = simulated(seed, loading=loading)
    return paired_ratio(two.tolist(), one.tolist(), loaded_at)


def test_a_common_factor_changes_nothing() -> None:
    """What happens to both is in no ratio."""
    one, two = simulated(1, 1.1)
    factor = np.random.default_rng(9).uniform(0.5, 5, ROUNDS)
    plain = paired_ratio(two.tolist(), one.tolist(), LOADED_AT)
    moved = paired_ratio((two * factor).tolist(), (one * factor).tolist(), LOADED_AT)
    assert moved.value == pytest.approx(plain.value, rel=1e-12)
    assert moved.low == pytest.approx(plain.low, rel=1e-9)


def test_spikes_decide_nothing() -> None:
    """A tenth of the rounds a hundred times as long, on one side only."""
    one, two = np.ones(ROUNDS), np.full(ROUNDS, 1.05)
    two[::10] *= 100
    assert paired_ratio(two.tolist(), one.tolist()).value == pytest.approx(1.05, rel=1e-12)


def test_swapping_the_two_turns_the_ratio_over() -> None:
    """Value and interval."""
    one, two = simulated(3, 1.2)
    there, back = (
        paired_ratio(two.tolist(), one.tolist(), LOADED_AT),
        paired_ratio(one.tolist(), two.tolist(), LOADED_AT),
    )
    assert there.value * back.value == pytest.approx(1.0, rel=1e-12)
    assert there.low is not None
    assert back.high is not None
    assert there.low * back.high == pytest.approx(1.0, rel=1e-12)


def test_few_rounds_have_no_interval() -> None:
    """A handful says nothing of its own spread."""
    assert paired_ratio([2.0] * 5, [1.0] * 5) == Ratio(2.0)


@pytest.mark.parametrize(("samples", "baseline"), [([1.0], [1.0, 2.0]), ([], []), ([0.0], [1.0])])
def test_what_is_no_pair_is_refused(samples: list[float], baseline: list[float]) -> None:
    """Other rounds, no rounds, no times."""
    with pytest.raises(ValueError, match="paired ratio needs times"):
        paired_ratio(samples, baseline)


def test_a_ranking_says_which_neighbors_do_not_differ() -> None:
    """Twins stay twins, whatever chance put first."""
    random = np.random.default_rng(5)
    common = machine(random)
    times = [(common * own_noise(random) * speed).tolist() for speed in (1.2, 1.0, 1.0, 0.8)]
    ranking = rank(times, LOADED_AT)
    assert ranking[0].number == 3
    assert {ranking[1].number, ranking[2].number} == {1, 2}
    assert [each.is_significant for each in ranking] == [True, False, True, None]
    assert ranking[2].to_next is not None
    assert ranking[2].to_next.value == pytest.approx(1.2, rel=0.02)
