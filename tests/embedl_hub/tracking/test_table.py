"""Runs as tables, both ways: what was written comes back, and a slip in a cell is named by row and column."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow as pa  # type: ignore[import-not-found,import-untyped,unused-ignore]
import pytest
from pyarrow import parquet  # type: ignore[import-not-found,import-untyped,unused-ignore]

from embedl_hub.errors import ConfigError, TrackingError
from embedl_hub.tracking import (
    LoggedMetric,
    LoggedParam,
    Run,
    RunStatus,
    Store,
    Value,
    import_table,
    series_columns,
    write_columns,
    write_table,
)

_TIME = 1_763_000_000_000
PARAMS: dict[str, Value] = {
    "=formula": "=1+1", "-dash": "-5", "text": "'quoted", "twice": "''=x", "number": -5, "float": 0.1, "flag": True,
    "list": [1, {"a": None}], 'comma, "quote"': 'a,b\n"c"', "line": "one\r\ntwo\u2028three",
}  # fmt: skip


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store(tmp_path / "store") as opened:
        yield opened


def _runs() -> list[Run]:
    params = {name: LoggedParam(name, value) for name, value in PARAMS.items()}
    numbers = (0.1, math.nan, -math.inf, 5e-324)
    metrics = tuple(LoggedMetric(f"m{place}", value, None, _TIME) for place, value in enumerate(numbers))
    whole = Run(
        "00000000000b1", "p", "PROFILE", "@name", RunStatus.FAILED, _TIME, _TIME + 5, parent_id="00000000000b2",
        component="C", provider="local", device="d", error="=bad", params=params, metrics=metrics, tags={"t": "+1"},
    )  # fmt: skip
    return [whole, Run("00000000000b2", "p", "CUSTOM", "empty", RunStatus.FINISHED, _TIME, _TIME)]


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_runs_come_back_as_they_were(suffix: str, store: Store, tmp_path: Path) -> None:
    """Every value of every kind, to the last bit; a second import changes nothing."""
    path = tmp_path / f"runs.{suffix}"
    write_table(_runs(), path)
    done = import_table(store, path)
    assert (done.runs, done.known_already) == (("00000000000b1", "00000000000b2"), ())
    for run in _runs():
        back = store.run(run.id)
        assert [each.value.hex() for each in back.metrics] == [each.value.hex() for each in run.metrics]
        assert replace(back, metrics=()) == replace(run, metrics=())
    assert import_table(store, path).known_already == done.runs


def test_a_spreadsheet_runs_nothing(tmp_path: Path) -> None:
    """No cell, the heads of columns included, begins with what a spreadsheet takes for a formula."""
    write_table(_runs()[:1], tmp_path / "runs.csv")
    text = (tmp_path / "runs.csv").read_text(encoding="utf-8")
    assert "'=1+1" in text
    assert "'@name" in text
    assert not any(f",{sign}" in text.replace(",-5,", "").replace(",-inf", "") for sign in ("=", "+", "@", "\t"))


def test_a_table_by_hand(store: Store, tmp_path: Path) -> None:
    """As a spreadsheet saves it: a mark in front, semicolons, cells without a value, rows without an id."""
    path = tmp_path / "runs.csv"
    path.write_text("\ufeffname;metrics.loss;params.lr;params.exact;started\na;0.5;0.01;1e-2;2026-01-01\nb;;3;007;\n\n")
    done = import_table(store, path, project="by hand")
    first, second = (store.run(run_id) for run_id in done.runs)
    assert (first.project, first.name, first.status, first.started_ms) == ("by hand", "a", "FINISHED", 1767225600000)
    assert {name: each.value for name, each in first.params.items()} == {"lr": 0.01, "exact": "1e-2"}
    assert {name: each.value for name, each in second.params.items()} == {"lr": 3, "exact": "007"}
    assert second.metrics == ()
    assert import_table(store, path, project="by hand").runs == ()


SLIPS = {
    "name,metrics.loss\na,0.5\nb,half\n": r"row 3, column 'metrics.loss': 'half' is no number\. Nothing",
    "name,status\na,DONE\n": r"row 2, column 'status': 'DONE' is none of SCHEDULED, RUNNING, FINISHED",
    "name,started\na,yesterday\n": r"row 2, column 'started': 'yesterday' is no time such as",
    "name,started,ended\na,2026-01-02,2026-01-01\n": r"row 2, column 'ended'.*is before the start",
    "id,name\nABC,a\n": r"row 2, column 'id': 'ABC' is no id of a run",
    "id,name\n00000000000b1,a\n00000000000b1,b\n": r"row 3, column 'id': row 2 is the same run",
    "name,loss\na,1\n": r"has a column 'loss'; a column is called: id, project.*metrics\.NAME.*Rename it",
    "name,name\na,b\n": "two columns 'name'",
    "name,type\na\n": "row 2 has 1 cells, and the head 2",
    f"name\n{'x' * 300}\n": "row 2, column 'name'.*is no name",
    "params.\x07\n1\n": "control characters",
    "": "no head",
}


@pytest.mark.parametrize("text", SLIPS)
def test_a_slip_is_named_and_nothing_comes_in(text: str, store: Store, tmp_path: Path) -> None:
    """By row, as a spreadsheet counts, and column; the rows before it stay out too."""
    (tmp_path / "runs.csv").write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match=SLIPS[text]):
        import_table(store, tmp_path / "runs.csv")
    assert store.count() == 0
    assert not list(store.home.glob("runs/.*"))


def test_what_is_no_table(store: Store, tmp_path: Path) -> None:
    """Is one error, whatever it is."""
    for name, content in (
        ("a.csv", b"\xff\xfe\x00"),
        ("b.csv", b'name\n"open'),
        ("c.parquet", b"PAR1 no"),
        ("d.parquet", b""),
    ):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(TrackingError, match="cannot be read as a table"):
            import_table(store, tmp_path / name)
    with pytest.raises(TrackingError, match="There is no file"):
        import_table(store, tmp_path / "none.csv")
    parquet.write_table(pa.table({"metrics.m": [[1.0], [2.0]]}), tmp_path / "e.parquet")
    with pytest.raises(ConfigError, match=r"row 2, column 'metrics.m': \[1.0\] is no number"):
        import_table(store, tmp_path / "e.parquet")


def test_series_have_a_row_for_each_number(tmp_path: Path) -> None:
    """With step and time, for data frames."""
    metrics = (
        LoggedMetric("loss", 0.5, 1, _TIME),
        LoggedMetric("loss", 0.25, 2, _TIME + 1),
        LoggedMetric("f", 1.0, None, _TIME),
    )
    write_columns(series_columns([replace(_runs()[1], metrics=metrics)]), tmp_path / "m.parquet")
    frame = parquet.read_table(tmp_path / "m.parquet").to_pydict()
    assert (frame["metric"], frame["step"], frame["value"]) == (["loss", "loss", "f"], [1, 2, None], [0.5, 0.25, 1.0])
    assert frame["time"][1] == "2025-11-13T02:13:20.001+00:00"
