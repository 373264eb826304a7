"""Runs held against each other."""

from __future__ import annotations

import pytest
from support.recorded import Recorded

from embedl_hub.errors import ConfigError
from embedl_hub.page._comparison import compare


def test_what_differs_comes_first_and_ratios_have_intervals(shown: Recorded) -> None:
    runs = [shown.store.run(shown.ids[name]) for name in ("fast", "slow")]
    compared = compare(runs)
    assert [row.name for row in compared.differences] == ["model"]
    median = next(row for row in compared.metrics if row.name == "latency_median")
    assert median.ratios[0] is None
    ratio = median.ratios[1]
    assert ratio is not None
    assert ratio.value == pytest.approx(3)
    assert ratio.low is not None
    assert ratio.high is not None
    assert ratio.low < 3 < ratio.high
    assert median.conclusion(1) == "slower"
    assert all(row.times_ms[1] == pytest.approx(3 * (row.times_ms[0] or 0)) for row in compared.layers)
    assert compared.cautions == ()


def test_intervals_that_meet_show_no_difference(shown: Recorded) -> None:
    """And a number without an interval shows nothing."""
    fast = shown.store.run(shown.ids["fast"])
    other = shown.store.run(shown.hostile[0])
    compared = compare([fast, other])
    rows = {row.name: row for row in compared.metrics}
    assert rows["latency_median"].conclusion(1) == "no difference shown"
    assert rows["latency_p90"].conclusion(1) == "no uncertainty known"


def test_runs_of_all_kinds_can_stand_side_by_side(shown: Recorded) -> None:
    """What one lacks is left out; a failed one is a caution."""
    runs = [shown.store.run(shown.ids[name]) for name in ("fast", "failed", "train")]
    compared = compare(runs)
    assert any("FAILED" in caution for caution in compared.cautions)
    latency = next(row for row in compared.metrics if row.name == "latency")
    assert latency.values[1:] == (None, None)
    assert latency.conclusion(1) == "not known"


def test_a_run_is_not_held_against_itself(shown: Recorded) -> None:
    run = shown.store.run(shown.ids["fast"])
    with pytest.raises(ConfigError, match="given twice"):
        compare([run, run])
