"""Models in turns: orders, warm-up, loading anew, waiting and verdicts, on clocks we control."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from embedl_device.rounds import Plan, Rounds, Turns, judge_rounds, orders, own_times, queue_clock, take_rounds


class Machine:
    """Time that passes only when a function runs; some of it in the queue."""

    def __init__(self, *times_us: float, load_us: float = 0, queued_us: float = 0) -> None:
        self.now_ns = 0
        self.queued_ns = 0
        self.ran: list[int] = []
        self.loaded: list[list[int]] = []
        self._times = times_us
        self._load_us = load_us
        self._queued_us = queued_us

    def clock(self) -> int:
        return self.now_ns

    def queue(self) -> int:
        return self.queued_ns

    def load(self, order: Sequence[int]) -> list[Callable[[], None]]:
        self.loaded.append(list(order))
        self.now_ns += int(self._load_us * 1000)
        return [lambda number=number: self._run(number) for number in range(len(self._times))]  # type: ignore[misc]

    def _run(self, number: int) -> None:
        self.ran.append(number)
        self.now_ns += int((self._times[number] + self._queued_us) * 1000)
        self.queued_ns += int(self._queued_us * 1000)

    def take(self, turns: Turns, *, with_queue: bool = True) -> Rounds:
        return take_rounds(self.load, len(self._times), turns, self.clock, self.queue if with_queue else None)


def quick(rounds: int, *, max_seconds: float = 60, loads: int = 10, lead_in: int = 1) -> Turns:
    return Turns(Plan(rounds, 0.0, max_seconds, 1.0), lead_in, loads)


@given(count=st.integers(2, 6), rounds=st.integers(1, 40))
def test_every_order_comes_with_its_mirror_image(count: int, rounds: int) -> None:
    """So that over two rounds nobody is earlier than anybody else, and the orders are the same each time."""
    taken = list(itertools.islice(orders(count), 2 * rounds))
    assert taken == list(itertools.islice(orders(count), 2 * rounds))
    for one, two in zip(taken[::2], taken[1::2], strict=True):
        assert sorted(one) == list(range(count))
        assert two == one[::-1]


def test_both_orders_lead_as_often() -> None:
    """And by chance, not in a pattern that something else on the machine might keep step with."""
    firsts = [order[0] for order in itertools.islice(orders(2), 400)]
    assert Counter(firsts) == {0: 200, 1: 200}
    assert firsts[::2] != [firsts[0]] * 200


def test_samples_are_aligned_by_round_and_keep_their_model() -> None:
    """Whatever the order of a round."""
    rounds = Machine(100.0, 250.0, 70.0).take(quick(40))
    assert rounds.times_us == [[100.0] * 40, [250.0] * 40, [70.0] * 40]
    assert len(rounds.order) == 40
    assert {tuple(order) for order in rounds.order} > {(0, 1, 2)}
    assert rounds.first_us == [100.0, 250.0, 70.0]
    assert rounds.is_warm == [True, True, True]


def test_each_timed_run_follows_one_of_its_own() -> None:
    """The lead-in; without it a run follows another model's."""
    machine = Machine(100.0, 100.0)
    machine.take(quick(2, loads=1))
    ran = machine.ran[2:]
    assert ran[::2] == ran[1::2]
    bare = Machine(100.0, 100.0)
    bare.take(quick(2, loads=1, lead_in=0))
    assert len(bare.ran) - 2 == (len(machine.ran) - 2) / 2


def test_models_are_loaded_anew_in_both_orders() -> None:
    """Who is loaded first may lie better in memory."""
    machine = Machine(100.0, 100.0)
    rounds = machine.take(quick(200))
    assert rounds.loaded_at == list(range(0, 200, 20))
    assert len(machine.loaded) == 10
    assert machine.loaded[1] == machine.loaded[0][::-1]


def test_what_takes_long_to_load_is_loaded_once() -> None:
    """Rather than a few times; the verdict says so."""
    rounds = Machine(100.0, 100.0, load_us=20e6).take(quick(200, max_seconds=30))
    assert rounds.loaded_at == [0]
    assert "loaded once" in judge_rounds(rounds, [], [])[1]


def test_slow_models_end_at_the_longest_time() -> None:
    """With both orders of the last round."""
    rounds = Machine(1e6, 1e6).take(quick(200, max_seconds=40))
    assert len(rounds.order) == 20
    assert rounds.loaded_at == list(range(0, 20, 2))


def test_waiting_for_a_processor_is_kept_apart() -> None:
    """The times stay as they were; the models' own come without it."""
    rounds = Machine(100.0, 200.0, queued_us=900.0).take(quick(20))
    assert rounds.times_us == [[1000.0] * 20, [1100.0] * 20]
    assert own_times(rounds) == [[100.0] * 20, [200.0] * 20]
    unknown = Machine(100.0, 200.0, queued_us=900.0).take(quick(20), with_queue=False)
    assert unknown.waited_us is None
    assert own_times(unknown) == unknown.times_us


def test_the_queue_is_read_from_the_thread(tmp_path: Path) -> None:
    """And nobody knows where there is no such file, or another one."""
    file = tmp_path / "schedstat"
    file.write_text("12 345 6\n")
    with queue_clock(str(file)) as read:
        assert read is not None
        assert read() == 345
    file.write_text("")
    with queue_clock(str(file)) as read:
        assert read is None
    with queue_clock(str(tmp_path / "missing")) as read:
        assert read is None


def judged(first: list[float], second: list[float], **changes: object) -> tuple[str, str]:
    rounds = Rounds([1.0, 1.0], [[1.0], [1.0]], [True, True], [first, second], [[0, 1]] * len(first), [0, 5])
    return judge_rounds(rounds._replace(**changes), [], [])  # type: ignore[arg-type]


def test_a_drift_of_all_is_no_drift() -> None:
    """The ratio stands still; that is the point."""
    drift = [100.0 + number for number in range(300)]
    assert judged(drift, [1.05 * value for value in drift])[0] == "stable"
    verdict, reason = judged([100.0] * 300, drift)
    assert verdict == "drifting"
    assert "model 2" in reason


@pytest.mark.parametrize(("spread", "verdict"), [(0.02, "stable"), (0.3, "noisy")])
def test_wide_ratios_are_noise(spread: float, verdict: str) -> None:
    """Half of them far from each other."""
    assert judged([100.0] * 200, [100.0, 100.0 * (1 + spread)] * 100)[0] == verdict


def test_the_boards_own_word_comes_first() -> None:
    """And what had not settled, or cannot be read, is named."""
    rounds = Rounds([1.0, 1.0], [[], []], [True, False], [[1.0] * 20, [1.0] * 20], [[0, 1]] * 20, [0, 10])
    assert judge_rounds(rounds, ["count rose"], []) == ("throttled", "count rose")
    verdict, reason = judge_rounds(rounds, [], ["clocks"])
    assert verdict == "stable"
    assert "the times of model 2 had not settled" in reason
    assert reason.endswith("could not be read: clocks")
