"""Charts over many runs: lines, intervals, axes, changes, what is left out, and who may see what."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from starlette.testclient import TestClient
from support.recorded import record_history

from embedl_hub import page
from embedl_hub.page import _charts
from embedl_hub.tracking import Store


def _values(base: float, count: int = 24, *, step: float = 1.0, seed: int = 1) -> list[float]:
    random = np.random.default_rng(seed)
    return [float(base * (step if day >= count // 2 else 1) * np.exp(0.02 * random.normal())) for day in range(count)]


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A model that became slower on one of its devices, and what else a chart can hold."""
    with Store(tmp_path_factory.mktemp("history") / "home") as store:
        record_history(store, _values(12, step=1.1), spread=0.01, number=1)
        record_history(store, _values(20, seed=2), number=2, precision="float32")
        record_history(store, _values(6, 5, seed=3), number=3, device="jetson", project="other")
        record_history(store, [0.7, 0.9, 0.95], number=4, metric="accuracy")
        record_history(store, [0.001, 40.0], number=5, metric="load_time")
        record_history(store, [31.0, 33.0], number=6, metric="quantization_sqnr_db")
        yield store


def _drawn(visitor: TestClient, query: str) -> dict[str, Any]:
    html = visitor.get(f"/charts?{query}").text
    data = re.search(r'<script type="application/json" id="chart-data">(.*?)</script>', html, re.DOTALL)
    assert data is not None
    drawn: dict[str, Any] = json.loads(data[1])
    return drawn


def test_a_line_is_a_model_a_device_and_a_precision(history: Store) -> None:
    """With the interval of each point, and the change that is there in one of them."""
    visitor = TestClient(page.app(lambda: history))
    lines = {line["device"] + " " + line["precision"]: line for line in visitor.get("/charts.json").json()["lines"]}

    assert {name: len(line["runs"]) for name, line in lines.items()} == {
        "pi int8": 24,
        "pi float32": 24,
        "jetson int8": 5,
    }
    slower, steady = lines["pi int8"]["runs"], lines["pi float32"]["runs"]
    assert [number for number, run in enumerate(slower) if run["change"]] == [12]
    assert slower[12]["change"]["ratio"] == pytest.approx(1.1, rel=0.02)
    assert slower[0]["low"] == pytest.approx(slower[0]["value"] * 0.99)
    assert [run["change"] for run in steady] == [None] * 24
    assert steady[0]["low"] is None
    html = visitor.get("/charts").text
    assert "said-slower" in html
    assert f'href="/runs/{slower[12]["run_id"]}"' in html
    assert html.count("<tr>") > 24 + 24 + 5


def test_one_machine_has_one_line(tmp_path: Path) -> None:
    """Whether a command gave this machine a name or not."""
    with Store(tmp_path) as store:
        for number, device in enumerate(("here", "this machine", None)):
            record_history(store, [1.0, 2.0], number=number, device=device)
        lines = TestClient(page.app(lambda: store)).get("/charts.json").json()["lines"]
    assert [(line["device"], len(line["runs"])) for line in lines] == [("this machine", 6)]


def test_runs_are_narrowed_as_in_the_run_table(history: Store) -> None:
    visitor = TestClient(page.app(lambda: history))
    for query, count in (("project=other", 1), ("device=jetson", 1), ("q=params.precision %3D 'float32'", 1), ("", 3)):
        assert len(visitor.get(f"/charts.json?metric=latency_median&{query}").json()["lines"]) == count, query
    refused = visitor.get("/charts?q=metrics.latency <")
    assert refused.status_code == 400
    assert "a value is expected" in refused.text
    nothing = visitor.get("/charts?metric=latency_median&q=name %3D 'none'")
    assert "No run matches the filter and has <code>latency_median</code>." in nothing.text


def test_a_number_that_nobody_logged_is_told_with_those_there_are(history: Store) -> None:
    answer = TestClient(page.app(lambda: history)).get("/charts?metric=latncy")
    assert answer.status_code == 400
    assert "No run that is shown has a number &#39;latncy&#39;; there are:" in answer.text
    assert "latency_median" in answer.text


@pytest.mark.parametrize(
    ("metric", "title", "is_log", "low", "high"),
    [
        ("latency_median", "Median latency, ms", False, 0.0, 30.0),
        ("accuracy", "Accuracy", False, 0.6, 1.02),
        ("load_time", "Time to load, ms, logarithmic", True, None, None),
        ("quantization_sqnr_db", "Signal to quantization noise, dB", False, None, None),
    ],
)
def test_axes_end_where_they_mislead_nobody(
    history: Store, metric: str, title: str, is_log: bool, low: float | None, high: float | None
) -> None:
    """Times begin at nothing, a share ends at 1, and what is far apart is logarithmic."""
    axis = _drawn(TestClient(page.app(lambda: history)), f"metric={metric}")["axis"]
    assert (axis["title"], axis["log"]) == (title, is_log)
    if low is None or high is None:
        assert axis["ends"] is None
    else:
        assert axis["ends"][0] == pytest.approx(low, abs=0.06)
        assert axis["ends"][1] <= high


def test_what_is_not_drawn_is_said(history: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Older runs, and lines beyond the most that one chart has."""
    monkeypatch.setattr(_charts, "MOST_POINTS", 30)
    monkeypatch.setattr(_charts, "MOST_LINES", 1)
    visitor = TestClient(page.app(lambda: history))
    data, html = visitor.get("/charts.json").json(), visitor.get("/charts").text

    assert data["is_cut"]
    assert sum(len(line["runs"]) for line in data["lines"]) < 30
    assert data["left_out"] == ["net.onnx, int8, pi"]
    assert "older ones are left out" in html
    assert "1 line with fewer runs is left out" in html


def test_a_visitor_sees_the_lines_of_his_projects(history: Store) -> None:
    visitor = TestClient(page.app(lambda: history, projects=lambda _: ["other"]))
    assert [line["device"] for line in visitor.get("/charts.json").json()["lines"]] == ["jetson"]
    assert "nightly 20" not in visitor.get("/charts").text


@pytest.mark.parametrize(("verdict", "changes"), [("noisy", 1), ("estimated", 0)])
def test_what_was_measured_counts_and_an_estimate_does_not(tmp_path: Path, verdict: str, changes: int) -> None:
    """Noisy values scatter, and a change is held against that; an estimate is drawn and tells nothing."""
    with Store(tmp_path / "home") as store:
        record_history(store, _values(12, step=1.5), verdict=verdict)
        (line,) = TestClient(page.app(lambda: store)).get("/charts.json").json()["lines"]
    assert len(line["runs"]) == 24
    assert sum(run["change"] is not None for run in line["runs"]) == changes


def test_a_store_without_numbers_has_an_empty_chart(tmp_path: Path) -> None:
    with Store(tmp_path / "home") as store:
        assert "No run has logged a number yet." in TestClient(page.app(lambda: store)).get("/charts").text


def test_a_chart_is_one_file(history: Store) -> None:
    """Without links, filters or anything from elsewhere."""
    html = TestClient(page.app(lambda: history)).get("/charts/export?metric=latency_median").text
    assert 'id="chart-trends"' in html
    assert 'href="/' not in html
    assert "<form" not in html


def test_the_newest_runs_that_have_a_number(history: Store) -> None:
    """The store's own question: newest first, with what was asked for and no more, rare or not."""
    runs = history.having("latency_median", "device = 'pi'", params=("precision",), artifacts=("input",), limit=5)
    assert [run.started_ms for run in runs] == sorted((run.started_ms for run in runs), reverse=True)
    assert {tuple(run.params) for run in runs} == {("precision",)}
    assert {tuple(run.artifacts) for run in runs} == {("input",)}
    assert history.having("accuracy", "metrics.accuracy > 0.8", limit=9)[0].metrics[0].value == 0.95
    assert history.having("none", limit=3) == []
    assert history.having("accuracy", "tags.stage = 'ci'", limit=3) == []
