"""Changes over many runs: how often nothing is called one, and that a real one is found."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from embedl_hub.comparison import ALPHA, FEWEST, Change, Measured, find_changes

_DAY_MS = 86_400_000
_MINUTE_MS = 60_000


def _line(
    random: np.random.Generator, days: int, *, noise: float = 0.03, step: float = 1.0, at: int = 0, runs: int = 1,
    inner: float = 0.0, spread: float = 0.0, heavy: bool = False,
) -> list[Measured]:  # fmt: skip
    """Return a line of so many runs a day, whose days differ by noise and whose runs of a day differ by less."""
    made = []
    for day in range(days):
        drawn = random.standard_t(3) if heavy else random.normal()
        level = 10.0 * (step if day >= at else 1.0) * np.exp(noise * drawn)
        for number in range(runs):
            value = float(level * np.exp(inner * random.normal()))
            ends = (value * (1 - spread), value * (1 + spread)) if spread else (None, None)
            made.append(Measured(day * _DAY_MS + number * _MINUTE_MS, value, *ends))
    return made


_WITHOUT_CHANGE: dict[str, Callable[[np.random.Generator], list[list[Measured]]]] = {
    "a run a day": lambda random: [_line(random, 20)],
    "days that are far off now and then": lambda random: [_line(random, 30, heavy=True)],
    "five runs a day that share its noise": lambda random: [_line(random, 16, noise=0.05, runs=5, inner=0.005)],
    "six lines of one chart": lambda random: [_line(random, 14, spread=0.01) for _ in range(6)],
}


def _share_marked(make: Callable[[np.random.Generator], list[list[Measured]]], charts: int) -> float:
    random = np.random.default_rng(11)
    return sum(any(find_changes(make(random))) for _ in range(charts)) / charts


@pytest.mark.parametrize("what", _WITHOUT_CHANGE)
def test_charts_without_a_change_are_rarely_marked(what: str) -> None:
    """At most the stated share; 150 charts of each kind may be off by so much."""
    charts = 150
    assert _share_marked(_WITHOUT_CHANGE[what], charts) <= ALPHA + 3 * (ALPHA * (1 - ALPHA) / charts) ** 0.5


@pytest.mark.slow
@pytest.mark.parametrize("what", _WITHOUT_CHANGE)
def test_the_stated_share_holds_over_many_charts(what: str) -> None:
    """With an error of the simulation of half a percent."""
    charts = 4000
    assert _share_marked(_WITHOUT_CHANGE[what], charts) <= ALPHA + 3 * (ALPHA * (1 - ALPHA) / charts) ** 0.5


@pytest.mark.parametrize(("days", "at", "noise"), [(24, 12, 0.03), (36, 30, 0.03), (14, 7, 0.015)])
def test_a_step_of_ten_percent_is_found(days: int, at: int, noise: float) -> None:
    """Once, at its place, with its size."""
    random = np.random.default_rng(5)
    found = [
        find_changes([_line(random, days, noise=noise, step=1.1, at=at, spread=0.005)])[0] for _ in range(25)
    ]  # fmt: skip
    one = [changes[0] for changes in found if len(changes) == 1]

    assert len(one) >= 0.9 * len(found)
    assert np.median([change.first for change in one]) == at
    assert 1.08 < float(np.median([change.ratio for change in one if change.ratio])) < 1.12


def test_two_steps_are_two_changes() -> None:
    random = np.random.default_rng(2)
    line = [
        Measured(each.time_ms, each.value * (0.8 if 20 <= day < 40 else 1.0))
        for day, each in enumerate(_line(random, 60))
    ]
    (changes,) = find_changes([line])

    assert [change.first for change in changes] == [20, 40]
    assert [change.after < change.before for change in changes] == [True, False]
    assert all(change.p <= ALPHA for change in changes)


def test_what_a_record_does_not_know_is_no_change() -> None:
    """A step that is smaller than the intervals of the runs is none, however many runs there are."""
    random = np.random.default_rng(3)
    narrow, wide = (_line(random, 60, noise=0.002, step=1.02, at=30, spread=spread) for spread in (0.002, 0.1))

    assert len(find_changes([narrow])[0]) == 1
    assert find_changes([wide]) == [()]


def test_the_noise_of_a_session_is_no_change() -> None:
    """Thirty runs of two afternoons that differ are two sessions; thirty of one afternoon are runs of their own."""
    random = np.random.default_rng(4)
    values = [float(10 * (1.1 if number >= 15 else 1.0) * np.exp(0.005 * random.normal())) for number in range(30)]
    afternoons = [Measured(number // 15 * _DAY_MS + number * _MINUTE_MS, value) for number, value in enumerate(values)]
    one = [Measured(number * _MINUTE_MS, value) for number, value in enumerate(values)]

    assert find_changes([afternoons]) == [()]
    assert [change.first for change in find_changes([one])[0]] == [15]


def test_one_value_that_is_off_is_no_change() -> None:
    line = [Measured(day * _DAY_MS, 30.0 if day == 25 else 10 + day % 3 * 0.1) for day in range(30)]
    assert find_changes([line]) == [()]


@pytest.mark.parametrize("days", [0, 1, 2 * FEWEST - 1, 2 * FEWEST])
def test_few_runs_tell_nothing(days: int) -> None:
    assert find_changes([_line(np.random.default_rng(1), days, step=2.0, at=days // 2)]) == [()]


def test_equal_values_tell_nothing_and_the_answer_is_always_the_same() -> None:
    random = np.random.default_rng(9)
    line = _line(random, 30, step=1.06, at=14)
    assert find_changes([[Measured(day * _DAY_MS, 0.5) for day in range(40)]]) == [()]
    assert find_changes([line]) == find_changes([line])


def test_a_ratio_of_nothing_is_not_told() -> None:
    assert Change(3, 0.0, 1.0, 0.001).ratio is None
