"""Verdicts: one kind of value, with a reason that has the figure."""

from __future__ import annotations

import json

from embedl_device.statistics import Verdict, judge


def test_a_verdict_is_stored_as_its_text() -> None:
    """And an unknown one vouches for nothing."""
    assert json.dumps({"verdict": Verdict.STABLE}) == '{"verdict": "stable"}'
    assert f"{Verdict.NOISY}" == str(Verdict.NOISY) == "noisy"
    assert [each for each in Verdict if each.is_stable] == [Verdict.STABLE]
    assert [each for each in Verdict if not each.is_measured] == [Verdict.ESTIMATED]
    assert Verdict.of("drifting") is Verdict.DRIFTING
    assert Verdict.of(None) is None
    assert Verdict.of("splendid") is Verdict.of(["stable"]) is Verdict.INDICATIVE


def test_steady_samples_are_stable() -> None:
    """The reason says how well the median is known, and what could not be read."""
    verdict, reason = judge([100.0, 101.0, 99.0, 100.0] * 50, [], ["temperature"])
    assert verdict is Verdict.STABLE
    assert "200 samples" in reason
    assert "could not be read: temperature" in reason


def test_a_changing_median_is_drift() -> None:
    """In either direction; the reason has the figure."""
    times = [100.0 + number * 0.1 for number in range(300)]
    assert judge(times) == (Verdict.DRIFTING, "the median of the last third is +19.1% against the first third")
    assert judge(times[::-1]).verdict is Verdict.DRIFTING


def test_wide_samples_are_noise() -> None:
    """Half of them far from each other."""
    verdict, reason = judge([100.0, 150.0, 90.0, 160.0] * 50)
    assert verdict is Verdict.NOISY
    assert "is something else running?" in reason


def test_throttling_goes_before_all_else() -> None:
    """The board's own word counts, whatever the samples look like."""
    assert judge([100.0] * 200, ["cpu0 core_throttle_count rose from 1 to 2"]) == (
        Verdict.THROTTLED,
        "cpu0 core_throttle_count rose from 1 to 2",
    )


def test_a_mean_far_off_the_median_is_noise() -> None:
    """A few very slow samples leave the quartiles alone; the reason names both numbers."""
    verdict, reason = judge(([100.0] * 24 + [15_000.0]) * 8)
    assert verdict is Verdict.NOISY
    assert "the mean is 0.696 ms, the median 0.1 ms" in reason
    assert judge(([100.0] * 24 + [300.0]) * 8).verdict is Verdict.STABLE
