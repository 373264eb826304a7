"""Windows in which all models ran: which inferences count."""

from __future__ import annotations

from embedl_device.concurrent import _common, _described, _Window


def window(begun: list[float], time_us: float) -> _Window:
    return _Window(begun, [time_us] * len(begun), [1.0] * len(begun))


def test_only_inferences_count_during_which_all_ran() -> None:
    """The first began alone; the last of the slow one ended alone."""
    fast, slow = window([0, 10, 20, 30], 10), window([5, 25, 45], 20)
    first, second = _common([fast, slow])
    assert first.begun_us == [10, 20, 30]
    assert second.begun_us == [5]
    assert first.waited_us == [1.0] * 3


def test_a_window_with_nothing_in_common_counts_whole() -> None:
    """Rather a number that says too little interference than none: the rounds decide together."""
    first, second = _common([window([0], 10), window([50], 10)])
    assert first.times_us == second.times_us == [10]


def test_inferences_per_second_are_those_of_the_windows() -> None:
    """Not those of the time between windows."""
    told = _described([window([0, 100, 200, 300], 100), window([9_000, 9_100], 100)])
    assert told["per_second"] == 10_000
    assert told["window_means_us"] == [100, 100]
    assert told["waiting_share"] == 0.01
