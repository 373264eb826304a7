"""The table of metrics: a row that is added there is all it takes."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
from click.testing import CliRunner
from starlette.testclient import TestClient

from embedl_device.statistics import Judgement, Summary, Verdict, series_of
from embedl_hub import page
from embedl_hub.cli._steps import _show
from embedl_hub.cli.main import cli
from embedl_hub.cli.sweep import _numbers
from embedl_hub.comparison._compare import error_of
from embedl_hub.core import HubContext
from embedl_hub.core.document import METRICS, Better, Metric, ProfileDocument, columns, find_metric, in_order
from embedl_hub.core.document import _metrics as table
from embedl_hub.core.profile import log_document
from embedl_hub.fleet import Cell, CellResult, CellState, Outcome, StepKind
from embedl_hub.tracking import Run, Store

SPARKS = Metric("sparks_mj", "Sparks of one inference", "Sparks", "mJ", Better.HIGHER, headline=True, column=True)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a store with two profiles whose documents have a number that no other file knows."""
    monkeypatch.setattr(table, "METRICS", (*METRICS, SPARKS))
    with HubContext("p", home=tmp_path / "home") as ctx:
        for value in (3.5, 3.0):
            with ctx.client.start_run("PROFILE", f"sparks {value}"):
                judged = Judgement(Verdict.STABLE, "made up")
                log_document(ctx, ProfileDocument(Summary(2.0, 2.0), {"sparks_mj": value}, judgement=judged))
    return tmp_path / "home"


def runs(home: Path) -> list[Run]:
    """Return the runs, the first one first."""
    with Store(home) as store:
        return [store.run(run.id) for run in reversed(store.find("").runs)]


def hub(home: Path, *arguments: object) -> str:
    """Return what a command says."""
    done = CliRunner().invoke(cli, [*map(str, arguments), "--home", str(home)])
    assert done.exit_code == 0, done.output
    return done.stdout


def test_a_new_row_is_on_the_command_line(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """After a step, on a run and in a sweep."""
    first, _ = runs(home)
    _show(first)
    assert "sparks_mj 3.5 mJ" in " ".join(capsys.readouterr().out.split())
    assert "3.5 mJ" in hub(home, "run", "show", first.id)
    outcome = Outcome("s", first.id, metrics={"sparks_mj": 3.5, "latency": 2.0})
    done = CellResult(Cell("m/o/t", "m", "o", "t", ()), CellState.DONE, None, {StepKind.PROFILE: outcome})
    assert _numbers(done) == "2 ms sparks_mj 3.5 mJ"


def test_a_new_row_is_compared_and_gated(home: Path) -> None:
    """With its unit, and the way it gets better."""
    first, second = runs(home)
    assert "3 mJ  × 0.857" in hub(home, "compare", first.id, second.id)
    gated = hub(home, "gate", second.id, "--baseline", first.id, "--metric", "sparks_mj", "--no-repeat")
    assert "cannot tell: sparks_mj × 1.167" in gated


def test_a_new_row_is_on_the_page(home: Path) -> None:
    """At the top of a run, in the head of the run table, in a comparison."""
    first, second = runs(home)
    with Store(home) as store:
        visitor = TestClient(page.app(lambda: store))
        shown = visitor.get(f"/runs/{first.id}").text
        assert "<h2>Sparks of one inference</h2>" in shown
        assert '<span class="big">3.500</span> mJ' in shown
        assert "Sparks, mJ" in visitor.get("/runs").text
        assert '<span class="soft">mJ</span>' in visitor.get(f"/compare?run={first.id}&run={second.id}").text


def test_a_new_row_is_in_the_table_for_other_programs(home: Path, tmp_path: Path) -> None:
    """Under its key."""
    hub(home, "run", "table", "-o", tmp_path / "runs.csv")
    with (tmp_path / "runs.csv").open() as file:
        assert sorted(row["metrics.sparks_mj"] for row in csv.DictReader(file)) == ["3.0", "3.5"]


def test_rows_are_told_apart_and_in_order() -> None:
    """Keys are unique; what the table lacks follows by name; of models in turns each has its own."""
    assert len({metric.key for metric in METRICS}) == len(METRICS)
    assert in_order(["zebra", "fps", "apple", "latency_median"]) == ["latency_median", "fps", "apple", "zebra"]
    assert find_metric("latency_median_2").unit == "ms"
    assert find_metric("apple") == Metric("apple", "apple")
    assert columns(["latency", "peak_memory_mb"]) == ["latency", "peak_memory_mb"]
    assert columns(["latency", "latency_median"]) == ["latency_median"]
    assert error_of("peak_memory_mb", series_of([1.0] * 50)) is None


@pytest.mark.parametrize(
    ("key", "more", "less"),
    [("latency_p99", "slower", "faster"), ("fps", "faster", "slower"), ("load_time", "higher", "lower")],
)
def test_more_of_a_metric_has_its_word(key: str, more: str, less: str) -> None:
    """Only speeds are fast and slow."""
    assert (find_metric(key).difference(is_more=True), find_metric(key).difference(is_more=False)) == (more, less)
