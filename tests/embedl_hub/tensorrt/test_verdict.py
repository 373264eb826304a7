"""The same verdicts as the device program's, by the same rules."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from embedl_device import measure
from embedl_hub.tensorrt.profiling import throttling
from embedl_hub.tensorrt.verdict import judge, statistics

TIMES = st.lists(st.floats(1, 1e6), min_size=1, max_size=150)


@given(TIMES, st.lists(st.sampled_from(["hot", "capped"]), max_size=1), st.lists(st.just("clocks"), max_size=1))
def test_judges_like_the_device_program(times: list[float], throttled: list[str], unreadable: list[str]) -> None:
    """Whatever the samples."""
    samples = measure.Samples(times[0], [], is_warm=True, times_us=times)
    assert judge(times, throttled, unreadable) == measure.judge(samples, throttled, unreadable)


@given(TIMES)
def test_counts_like_the_device_program(times: list[float]) -> None:
    """The same numbers; ours come in ms."""
    ours, theirs = statistics([time / 1e3 for time in times]), measure.statistics_ms(times)
    assert ours.keys() == theirs.keys()
    for name, value in ours.items():
        assert value == (None if theirs[name] is None else pytest.approx(theirs[name], rel=1e-9, abs=1e-9))


@pytest.mark.parametrize(
    ("bits", "words"),
    [
        ("0x0000000000000000", []),
        ("0x0000000000000001", []),
        ("0x0000000000000004", ["the GPU reports power cap"]),
        ("0x0000000000000048", ["the GPU reports hardware slowdown", "the GPU reports thermal slowdown"]),
        ("Not Supported", []),
    ],
)
def test_reasons_of_the_driver(bits: str, words: list[str]) -> None:
    """Idle is none; heat and power are."""
    assert throttling({"clocks_event_reasons": bits}) == words


def test_a_mean_far_off_the_median_is_noise() -> None:
    """As the device programs judge it."""
    verdict, reason = judge(([100.0] * 24 + [15_000.0]) * 8, [], [])
    assert verdict == "noisy"
    assert "the mean is 0.696 ms, the median 0.1 ms" in reason
