"""A sustained load on the page: what is drawn, what is said, and documents that are not whole."""

from __future__ import annotations

from typing import Any

import pytest

from embedl_hub.core.document import ProfileDocument
from embedl_hub.page._sustained import chart_of

_DOCUMENT: dict[str, Any] = {
    "kind": "sustained",
    "onset_s": 1.25,
    "sustained": {
        "bins": {"end_s": [0.5, 1.0, 1.5], "median_ms": [5, 5, 9], "p90_ms": [6, 6, 12], "mean_ms": [5, 5, 10]},
        "readings": {
            "at_s": [-0.5, 0.5, 1.5],
            "channels": [
                {"kind": "clock_mhz", "name": "cpu0", "values": [1800, 1800, 1200]},
                {"kind": "temperature_c", "name": "0:soc", "values": [40, 50, 60]},
                {"kind": "energy_j", "name": "RAPL package-0", "values": [0, 4, 16]},
                {"kind": "counter", "name": "quota", "values": [0, 0, 4]},
                {"kind": "power_w", "name": "dead", "values": [None, None, None]},
            ],
        },
        "throttled": {"at_s": [1.5], "what": ["quota rose"]},
        "onset": {"low_s": 1.0, "high_s": 1.5, "evidence": ["quota rose"]},
        "fresh": {"from_s": 0.0, "until_s": 1.0},
        "steady": {"from_s": 1.0, "until_s": 1.5},
        "energy": {"covers": "RAPL package-0", "idle": "4 W over 2 s before", "method": "the sensors' own counters"},
        "stopped": "after 2 s, as asked",
    },
}


def test_all_that_is_known_is_one_picture() -> None:
    """A panel for latency, clocks, temperature and power; a counter of energy is shown as the power it means."""
    chart = chart_of(ProfileDocument.from_json(_DOCUMENT))
    assert chart is not None
    assert [(panel.title, panel.unit, len(panel.lines)) for panel in chart.panels] == [
        ("Latency", "ms", 3), ("Clock", "MHz", 1), ("Temperature", "°C", 1), ("Power", "W", 1),
    ]  # fmt: skip
    assert chart.panels[3].lines[0].y == (None, 4.0, 12.0)
    assert (chart.onset_s, chart.throttled_s, chart.steady_s) == ((1.0, 1.5), (1.5,), (1.0, 1.5))
    assert chart.words == (
        "Throttling began at 1.2 s: quota rose.",
        "Energy is of RAPL package-0, by the sensors' own counters; idle power is taken off: 4 W over 2 s before.",
        "The load ended after 2 s, as asked.",
    )


@pytest.mark.parametrize(
    "changes",
    [
        {"bins": None}, {"bins": []}, {"readings": 5},
        {"bins": {"end_s": "x"}, "readings": {"at_s": [1], "channels": 7}},
        {"bins": {}, "readings": {"at_s": [1], "channels": [5, {"kind": "clock_mhz"}, {"values": ["x", None]}]}},
        {"onset": 5, "fresh": [], "steady": {"from_s": "x"}, "throttled": {"at_s": {"a": 1}}},
    ],
)  # fmt: skip
def test_a_document_that_is_not_whole_is_drawn_as_far_as_it_goes(changes: dict[str, Any]) -> None:
    """It may come from anywhere; the page of the run is shown all the same."""
    document = {**_DOCUMENT, "sustained": {**_DOCUMENT["sustained"], **changes}}
    chart = chart_of(ProfileDocument.from_json(document))
    assert chart is None or all(panel.lines for panel in chart.panels)


def test_another_document_has_no_such_picture() -> None:
    """A profile is shown as ever."""
    assert chart_of(ProfileDocument.from_json({"kind": "paired"})) is None
