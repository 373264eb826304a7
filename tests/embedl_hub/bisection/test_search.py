"""The search against oracles that are simulated: minimal sets, interactions, noise, and trials that cannot be made."""

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from embedl_hub.bisection import Answer, Decision, Switch, search
from embedl_hub.bisection._judge import Sitting, judge_ends, judge_trial, until_clear
from embedl_hub.bisection._search import Names, first_in_order
from embedl_hub.bisection._statistics import LOOKS, share_of


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

    def without(self, base: Names, whole: Names, trial: Names) -> Decision:
        return self._decide(base, whole, trial)

    def parts_of(self, switch: Switch) -> tuple[Sequence[Switch], str | None]:
        return self.parts.get(switch.name, ()), None


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


Noise = Callable[[random.Random], Callable[[], float]]


def _quiet(draws: random.Random) -> Callable[[], float]:
    return lambda: draws.gauss(0.0, 0.02)


def _busy(draws: random.Random) -> Callable[[], float]:
    """Sittings of a busy machine: now and then a burst of work makes values up to ten times as unsure, for a while."""
    left = 0

    def one() -> float:
        nonlocal left
        left = left - 1 if left > 0 else draws.randint(3, 12) if draws.random() < 0.02 else 0
        # Student's t with two degrees: its variance is not even finite.
        tail = draws.gauss(0.0, 1.0) / math.sqrt(draws.expovariate(1.0))
        return tail * (0.15 if left else 0.015)

    return one


class _Noisy(_Sure):
    """Sees effects in sittings with noise, and decides by the same code as a bisection."""

    def __init__(self, effect: Callable[[Names], float], noise: Noise, seed: int, alpha: float) -> None:
        super().__init__(effect)
        self.noise, self.alpha = noise(random.Random(seed)), alpha  # noqa: S311 - no secret
        self.total, self.asked_for, self.sittings = 0.0, 0, 0
        self.open = 0

    def _taken(self, *sets: Names) -> Callable[[int, int], list[Sitting]]:
        # The noise of each variant is its own: what happens to all of them at once falls out of their differences.
        return lambda count, _: [[self.effect(names) + self.noise() for names in sets] for _ in range(count)]

    def _level(self) -> float:
        self.asked_for += 1
        return share_of(self.asked_for, self.alpha)

    def _told(self, question: str, base: Names, whole: Names, trial: Names, taken: object, answer: Answer) -> Decision:
        self.sittings += len(taken)  # type: ignore[arg-type]
        self.open += answer is Answer.OPEN
        return Decision(question, base, trial, whole, answer, "")

    def differ(self, base: Names, whole: Names, *, is_rest: bool) -> Decision:
        least, level = max(0.02, 0.2 * self.total) if is_rest else 0.02, self._level()
        most = 24 if is_rest else LOOKS[-1]
        verdict, taken = until_clear(
            self._taken(base, whole), lambda some, at: judge_ends(some, at, least, is_rest=is_rest), level, most
        )
        self.total = self.total or abs(verdict.shown.mean)
        return self._told("rest" if is_rest else "differ", base, whole, whole, taken, verdict.answer)

    def _decide(self, base: Names, whole: Names, trial: Names, *, steers: bool = True) -> Decision:
        verdict, taken = until_clear(
            self._taken(base, whole, trial),
            lambda some, at: judge_trial(some, at, steers=steers),
            self._level(),
            LOOKS[-1],
        )
        return self._told("trial" if steers else "needed", base, whole, trial, taken, verdict.answer)

    def without(self, base: Names, whole: Names, trial: Names) -> Decision:
        return self._decide(base, whole, trial, steers=False)


def _searched(
    count: int, effect: Callable[[Names], float], noise: Noise, alpha: float, searches: int
) -> list[tuple[set[str], set[str]]]:
    """Return of so many searches which switches are named, and which are undecided."""
    found = []
    for seed in range(searches):
        causes = search(_switches(count), _Noisy(effect, noise, seed, alpha)).causes
        named = {name for cause in causes for name in cause.names}
        found.append((named, {each.name for cause in causes for each in cause.undecided}))
    return found


@pytest.mark.parametrize("noise", [_quiet, _busy])
@pytest.mark.parametrize("needed", [{"s4"}, {"s1", "s7"}])
def test_the_exact_set_is_found_although_the_machine_is_busy(noise: Noise, needed: set[str]) -> None:
    """Of 200 searches, the set is found exactly in 95 % and more, and a harmless switch is named within the error."""
    effect = math.log(1.15)

    found = _searched(10, lambda names: effect if needed <= names else 0.0, noise, 0.05, 200)

    assert sum(named == needed and not undecided for named, undecided in found) >= 190
    assert sum(bool(named - needed) for named, _ in found) <= 10


@pytest.mark.parametrize("noise", [_quiet, _busy])
def test_equal_ends_with_noise_are_blamed_on_nobody(noise: Noise) -> None:
    """Of 300 pairs that differ in harmless switches only, no more are blamed than an error of 1 % allows."""
    found = _searched(6, lambda _: 0.0, noise, 0.01, 300)

    assert sum(bool(named) for named, _ in found) <= 3


def test_what_drowns_in_noise_is_undecided_and_names_nobody_wrongly() -> None:
    """An effect that can hardly be seen leaves switches undecided; a harmless one is named within the error."""

    def loud(draws: random.Random) -> Callable[[], float]:
        one = _busy(draws)
        return lambda: 6 * one()

    found = _searched(6, lambda names: math.log(1.3) if "s2" in names else 0.0, loud, 0.05, 100)

    assert sum(bool(named - {"s2"}) for named, _ in found) <= 5
    assert any(undecided for _, undecided in found)


class _Open(_Sure):
    """Cannot tell what some sets behave like."""

    def __init__(self, effect: Callable[[Names], float], unclear: Callable[[str, Names], bool]) -> None:
        super().__init__(effect)
        self.unclear = unclear

    def _decide(self, base: Names, whole: Names, trial: Names) -> Decision:
        decision = super()._decide(base, whole, trial)
        return replace(decision, answer=Answer.OPEN) if self.unclear("trial", trial) else decision

    def without(self, base: Names, whole: Names, trial: Names) -> Decision:
        decision = super()._decide(base, whole, trial)
        return replace(decision, answer=Answer.OPEN) if self.unclear("needed", trial) else decision


def test_a_harmless_switch_that_stayed_in_is_asked_about_again() -> None:
    """An open trial leaves a harmless switch in the set; the set without it shows that it does nothing."""
    oracle = _Open(lambda names: 1.0 if "s1" in names else 0.0, lambda question, _: question == "trial")

    found = search(_switches(2), oracle)

    assert _names(found) == {frozenset({"s1"})}
    assert found.causes[0].undecided == ()


def test_an_undecided_switch_stands_apart_from_the_cause() -> None:
    """What is neither needed nor harmless by what was measured is told, and not as a cause."""
    oracle = _Open(lambda names: 1.0 if "s1" in names else 0.0, lambda _, trial: trial == {"s1"})

    found = search(_switches(2), oracle)

    assert _names(found) == {frozenset({"s1"})}
    assert [each.name for each in found.causes[0].undecided] == ["s0"]


def test_where_all_are_undecided_none_is_a_cause() -> None:
    """The search still ends, with the switches it could not part."""
    found = search(_switches(2), _Open(lambda names: 1.0 if "s1" in names else 0.0, lambda *_: True))

    assert _names(found) == {frozenset()}
    assert {each.name for each in found.causes[0].undecided} == {"s0", "s1"}


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
