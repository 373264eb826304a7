"""What a profile run adds up to, also when its document is damaged."""

from __future__ import annotations

import json
import statistics
from pathlib import Path

import pytest
from support import recorded
from support.recorded import Recorded

from embedl_device.statistics import Interval
from embedl_hub.page._profile import TailRow, profile_of
from embedl_hub.tracking import Client, RunType, Store


def test_groups_add_up_to_the_whole(shown: Recorded) -> None:
    profile = profile_of(shown.store.run(shown.ids["fast"]))
    assert profile is not None
    rows = recorded.EXAMPLE["layers"]["rows"]
    assert sum(group.count for group in profile.by_op_type) == len(rows)
    assert sum(group.time_ms or 0 for group in profile.by_op_type) == pytest.approx(sum(row["time_ms"] for row in rows))
    assert sum(group.share or 0 for group in profile.by_op_type) == pytest.approx(1)
    assert [group.time_ms for group in profile.by_op_type] == sorted(
        (group.time_ms for group in profile.by_op_type), key=lambda time: -(time or 0)
    )
    assert profile.top_unit is not None
    assert (profile.top_unit.name, profile.top_unit.count) == ("CPU", len(rows))


def test_the_mean_lies_in_its_interval_and_the_samples_decide_its_width(shown: Recorded) -> None:
    profile = profile_of(shown.store.run(shown.ids["slow"]))
    assert profile is not None
    mean = {each.metric.key: each.number for each in profile.headlines}["latency"]
    assert mean.low is not None
    assert mean.high is not None
    assert mean.low < mean.value < mean.high
    spread = statistics.stdev(profile.samples_ms)
    assert mean.high - mean.low < 2 * spread


def test_percentiles_come_with_bounds_or_with_the_reason(tmp_path: Path) -> None:
    """What was measured until something has its percentile among the headlines."""
    content = {
        "latency_ms": {"p90": 2.0, "p90_high": 2.5, "p99": 4.0},
        "tails": {
            "p90": {"samples": 700, "effective": 700, "needed": 64, "reason": None},
            "p95": "nonsense",
            "p99": {"samples": 700, "effective": 300, "needed": 1600, "reason": "slow ones come together"},
        },
        "goal": {"until": "mlperf", "metric": "latency_p90", "reached": True, "text": "p90 is 2 ms"},
    }
    with Store(tmp_path / "home") as store:
        client = Client("p", store)
        (tmp_path / "profile.json").write_text(json.dumps(content))
        with client.start_run(RunType.PROFILE, "profile") as run:
            run.log_artifact(tmp_path / "profile.json", name="output_file")
            run.log_metric("latency_p90", 2.0)
            run.log_metric("latency_p99", 4.0)
        client.close()
        profile = profile_of(store.run(run.id))
    assert profile is not None
    assert profile.tails == (
        TailRow("p90", 2.0, 2.5, 700, 700),
        TailRow("p99", 4.0, None, 700, 300, "slow ones come together"),
    )
    (headline,) = profile.headlines
    assert (headline.metric.key, headline.note) == ("latency_p90", "at most 2.5 ms with 99 % confidence")


def test_a_run_that_is_no_profile_has_none(shown: Recorded) -> None:
    assert profile_of(shown.store.run(shown.ids["train"])) is None


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("", "cannot be read"), ("[" * 100_000, "cannot be read"), ("[]", "no object"), ("{}", "holds no layers"),
        ('{"layers": 3, "samples_us": "x", "latency_ms": [], "environment": null}', "holds no layers"),
        ('{"layers": {"rows": [1, {}, null]}}', "holds no layers"),
    ],
)  # fmt: skip
def test_a_damaged_document_is_said_and_the_rest_shown(tmp_path: Path, content: str, why: str) -> None:
    """The metrics are still there."""
    with Store(tmp_path / "home") as store:
        client = Client("p", store)
        (tmp_path / "profile.json").write_text(content)
        with client.start_run(RunType.PROFILE, "profile") as run:
            run.log_artifact(tmp_path / "profile.json", name="output_file")
            run.log_metric("latency", 2.0)
        client.close()
        profile = profile_of(store.run(run.id))
    assert profile is not None
    assert [(each.metric.key, each.number) for each in profile.headlines] == [("latency", Interval(2.0))]
    assert why in str(profile.missing)


def test_layers_without_times_are_counted(tmp_path: Path) -> None:
    """A tool that tells no times still tells where."""
    with Store(tmp_path / "home") as store:
        client = Client("p", store)
        rows = '[{"name": "a", "op_type": "Conv", "compute_unit": "NPU", "time_ms": null}, {"name": "b"}]'
        (tmp_path / "profile.json").write_text('{"layers": {"rows": ' + rows + "}}")
        with client.start_run(RunType.PROFILE, "profile") as run:
            run.log_artifact(tmp_path / "profile.json", name="output_file")
        client.close()
        profile = profile_of(store.run(run.id))
    assert profile is not None
    assert {(group.name, group.count, group.time_ms) for group in profile.by_unit} == {
        ("NPU", 1, None),
        ("not told", 1, None),
    }
