"""The search against oracles that are simulated: minimal sets, interactions, noise, and trials that cannot be made."""

import math
import random
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from embedl_hub.bisection import Answer, Decision, Switch, search
from embedl_hub.bisection._search import Names, first_in_order
from embedl_hub.bisection._statistics import LOOKS, estimate, level_at, share_of


def _switches(count: int) -> list[Switch]:
    return [Switch(f"s{number}", "good", "bad") for number in range(count)]


class _Sure:
    """Knows the effect of every set of switches; a set may be one that cannot be made."""

    def __init__(self, effect: Callable[[Names], float], invalid: Callable[[Names], bool] = lambda _: False) -> None:
        self.effect, self.invalid = effect, invalid
        self.parts: dict[str, Sequence[Switch]] = {}
        self.asked: list[Names] = []

    def differ(self, base: Names, whole: Names, *, is_rest: bool) -> Decision:
        left = abs(self.effect(whole) - self.effect(base))
        is_much = left > (0.2 * abs(self.effect(whole)) if is_rest else 0.01)
        return Decision("differ", base, whole, whole, Answer.BAD if is_much else Answer.GOOD, "")

    def first_bad(self, base: Names, whole: Names, trials: Sequence[Names]) -> Names | None:
        return first_in_order(trials, lambda trial: self._decide(base, whole, trial))

    def _decide(self, base: Names, whole: Names, trial: Names) -> Decision:
        self.asked.append(trial)
        middle = (self.effect(base) + self.effect(whole)) / 2
        answer = Answer.INVALID if self.invalid(trial) else Answer.BAD if self.effect(trial) > middle else Answer.GOOD
        return Decision("trial", base, trial, whole, answer, "")

    def parts_of(self, switch: Switch) -> tuple[Sequence[Switch], str | None]:
        return self.parts.get(switch.name, ()), None


def _draws(seed: int) -> random.Random:
    return random.Random(seed)  # noqa: S311 - no secret


def _names(found: object) -> set[frozenset[str]]:
    return {cause.names for cause in found.causes}  # type: ignore[attr-defined]


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 24), st.data())
def test_one_interaction_among_many_is_found_exactly(count: int, data: st.DataObject) -> None:
    """Whatever switches are needed together, the set that is found is these and no other."""
    cause = data.draw(st.sets(st.integers(0, count - 1), min_size=1, max_size=min(4, count)))
    needed = frozenset(f"s{number}" for number in cause)

    found = search(_switches(count), _Sure(lambda names: 1.0 if needed <= names else 0.0))

    assert _names(found) == {needed}


def test_two_causes_that_add_up_are_both_found() -> None:
    """A cause that explains most of it does not hide a second one."""
    weights = {"s3": 0.6, "s9": 0.4}

    found = search(_switches(12), _Sure(lambda names: sum(weights.get(name, 0.0) for name in names)))

    assert _names(found) == {frozenset({"s3"}), frozenset({"s9"})}


def test_what_makes_up_less_than_a_fifth_is_not_blamed() -> None:
    """A small rest beside the cause is left alone."""
    weights = {"s3": 0.9, "s9": 0.1}

    found = search(_switches(12), _Sure(lambda names: sum(weights.get(name, 0.0) for name in names)))

    assert _names(found) == {frozenset({"s3"})}


def test_nothing_is_blamed_where_nothing_differs() -> None:
    """Equal ends end the search with its first question."""
    oracle = _Sure(lambda _: 0.0)

    assert search(_switches(9), oracle).causes == ()
    assert oracle.asked == []


def test_a_refused_switch_is_never_set() -> None:
    """What cannot be switched is in no trial, and not at the bad end either."""
    switches = [*_switches(4), Switch("board", "one", "other", refusal="another board")]
    oracle = _Sure(lambda names: 1.0 if "s2" in names else 0.0)

    assert _names(search(switches, oracle)) == {frozenset({"s2"})}
    assert not any("board" in trial for trial in oracle.asked)


def test_trials_that_cannot_be_made_leave_a_coarser_answer() -> None:
    """Switches that only work together are found together, and the search ends."""
    oracle = _Sure(lambda names: 1.0 if "s2" in names else 0.0, lambda names: ("s2" in names) != ("s3" in names))

    assert _names(search(_switches(8), oracle)) == {frozenset({"s2", "s3"})}


def test_a_cause_is_led_back_to_its_parts() -> None:
    """A model that is the cause is taken apart, beside the other switches as they are in GOOD."""
    parts = [Switch(f"model: w{number}", "", "", "part") for number in range(20)]
    oracle = _Sure(lambda names: 1.0 if {"model", "model: w7"} & names else 0.0)
    oracle.parts["model"] = parts

    found = search([Switch("model", "a", "b", "model"), *_switches(5)], oracle)

    assert _names(found) == {frozenset({"model: w7"})}


def test_parts_that_do_not_show_it_leave_the_switch_whole() -> None:
    """What lies in no part, such as a file's version, is not blamed on one."""
    oracle = _Sure(lambda names: 1.0 if "model" in names else 0.0)
    oracle.parts["model"] = [Switch(f"model: w{number}", "", "", "part") for number in range(3)]

    found = search([Switch("model", "a", "b", "model")], oracle)

    assert _names(found) == {frozenset({"model"})}
    assert "stays whole" in found.causes[0].notes[0]


def test_suspicion_orders_and_never_decides() -> None:
    """A wrong suspicion costs a trial and changes nothing; a right one finds the cause with the first."""
    wrong = [Switch(f"s{number}", "", "", suspicion=float(number == 2)) for number in range(16)]
    right = [Switch(f"s{number}", "", "", suspicion=float(number == 5)) for number in range(16)]
    oracles = [_Sure(lambda names: 1.0 if "s5" in names else 0.0) for _ in range(2)]

    assert _names(search(wrong, oracles[0])) == _names(search(right, oracles[1])) == {frozenset({"s5"})}
    assert oracles[1].asked == [frozenset({"s5"})]


class _Noisy(_Sure):
    """Sees effects in sittings with noise, and decides as a bisection does."""

    def __init__(self, effect: Callable[[Names], float], noise: float, draws: random.Random, alpha: float) -> None:
        super().__init__(effect)
        self.noise, self.draws, self.alpha, self.count = noise, draws, alpha, 0

    def _sequential(self, mean: float, least: float) -> Answer:
        self.count += 1
        values = [self.draws.gauss(mean, self.noise) for _ in range(LOOKS[-1])]
        for look, count in enumerate(LOOKS):
            found = estimate(values[:count], level_at(look, share_of(self.count, self.alpha)))
            if found.low > least or (least == 0.0 and found.high < 0):
                return Answer.BAD if found.low > least else Answer.GOOD
        return Answer.OPEN

    def differ(self, base: Names, whole: Names, *, is_rest: bool) -> Decision:
        change = abs(self.effect(whole) - self.effect(base))
        least = 0.2 * abs(self.effect(whole)) if is_rest else 0.02
        return Decision("differ", base, whole, whole, self._sequential(change, least), "")

    def _decide(self, base: Names, whole: Names, trial: Names) -> Decision:
        middle = (self.effect(base) + self.effect(whole)) / 2
        return Decision("trial", base, trial, whole, self._sequential(self.effect(trial) - middle, 0.0), "")


def test_no_harmless_switch_is_blamed_more_often_than_allowed() -> None:
    """Of 200 searches with noise, no more than the share of the error blame a switch that does nothing."""
    wrong = missed = 0
    for seed in range(200):
        oracle = _Noisy(lambda names: math.log(1.2) if "s4" in names else 0.0, 0.02, _draws(seed), 0.05)
        names = {name for cause in search(_switches(10), oracle).causes for name in cause.names}
        wrong += bool(names - {"s4"}) and "s4" not in names
        missed += names != {"s4"}

    assert wrong <= 10
    assert missed <= 10


def test_equal_ends_with_noise_are_blamed_on_nobody() -> None:
    """Of 300 pairs that differ in harmless switches only, none is blamed at an error of 1 %."""
    blamed = sum(
        bool(search(_switches(6), _Noisy(lambda _: 0.0, 0.03, _draws(seed), 0.01)).causes) for seed in range(300)
    )

    assert blamed == 0


def test_the_first_in_order_wins_whatever_was_decided_before() -> None:
    """Boards that decide trials beforehand do not change which one is taken."""
    before: list[Sequence[Names]] = []
    trials = [frozenset({"a"}), frozenset({"b"}), frozenset({"c"})]

    def decide(trial: Names) -> Decision:
        return Decision("trial", frozenset(), trial, trial, Answer.GOOD if trial == trials[0] else Answer.BAD, "")

    assert first_in_order(trials, decide, before.append) == trials[1]
    assert before == [trials]


@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_a_search_needs_no_trial_for_a_single_switch(count: int) -> None:
    """One switch that differs is the cause once the ends are shown to differ."""
    oracle = _Sure(lambda names: 1.0 if names else 0.0)

    assert len(search(_switches(count), oracle).causes[0].switches) == 1
    assert len(oracle.asked) <= 2 * count
