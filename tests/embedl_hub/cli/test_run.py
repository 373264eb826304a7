"""Runs from the command line: found, started by a script, put aside, carried and removed."""

from __future__ import annotations

import csv
import json
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner
from pyarrow import parquet  # type: ignore[import-untyped]

from embedl_hub.cli.main import cli
from embedl_hub.core import HubContext
from embedl_hub.errors import HubError

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Return a store with four runs of two projects."""
    for project in ("a", "b"):
        with HubContext(project, home=tmp_path / "home") as ctx:
            for number in range(2):
                with ctx.client.start_run("PROFILE", f"{project}{number}") as run:
                    run.log_metric("latency", 10.0 - number)
                    run.log_param("precision", "int8" if number else "float32")
                    run.log_tag("stage", "=ci")
                    (tmp_path / "f.bin").write_bytes(f"{project}{number}".encode())
                    run.log_artifact(tmp_path / "f.bin")
    return tmp_path / "home"


def hub(home: Path, *arguments: object, text: str = "") -> str:
    words = list(map(str, arguments))
    done = CliRunner().invoke(cli, [*words, "--home", str(home)], input=text, catch_exceptions=True)
    if done.exception is not None:
        raise done.exception
    return done.stdout


def answer(home: Path, *arguments: object, text: str = "") -> Any:
    return json.loads(hub(home, *arguments, "--json", text=text))


def names(home: Path, *arguments: object) -> list[str]:
    return [run["name"] for run in answer(home, "run", "list", *arguments)["runs"]]


def test_runs_are_found_by_words_and_options(home: Path) -> None:
    """Alone and together, in any order, page by page."""
    assert names(home) == ["b1", "b0", "a1", "a0"]
    assert names(home, "--project", "a", "--where", "metrics.latency < 9.5 or params.precision = 'int4'") == ["a1"]
    assert names(home, "--order", "metrics.latency", "--status", "finished", "--type", "profile")[0] in {"a1", "b1"}
    page = answer(home, "run", "list", "--limit", 3)
    assert names(home, "--after", page["after"]) == ["a0"]
    shown = hub(home, "run", "list", "--limit", 1, "--columns", "metrics.latency,params.precision,tags.stage,tags.x")
    assert "9" in shown
    assert '"int8"' in shown
    assert "--after" in shown
    assert "metrics.latency" in hub(home, "run", "list", "--order", "metrics.latency")
    with pytest.raises(HubError, match="is no column"):
        hub(home, "run", "list", "--columns", "speed")
    assert "projects there: a, b" in hub(home, "run", "list", "--project", "c")


def test_slips_are_answered_with_what_was_meant(home: Path, tmp_path: Path) -> None:
    """A misspelt metric, group or command; a folder that is not there; a report that is no page."""
    assert "No run has metrics.latncy;" in hub(home, "run", "list", "--where", "metrics.latncy < 5 or name = 'x'")
    with pytest.raises(HubError, match="the group is called metrics") as caught:
        hub(home, "run", "list", "--where", "metric.latency < 5", "--project", "a")
    assert "(character 1 of 'metric.latency < 5')" in str(caught.value)
    run_id = answer(home, "run", "list")["runs"][0]["id"]
    for words, hint in {
        ("run", "report", run_id, "-o", str(tmp_path / "no" / "x.html")): "cannot be written",
        ("run", "report", run_id, "-o", str(tmp_path / "x.pdf")): r"name it \.html",
        ("run", "bundle", run_id, "-o", str(tmp_path / "no" / "b.zip")): "There is no folder",
        ("run", "show", run_id[:3]): "are several runs",
    }.items():
        with pytest.raises(HubError, match=hint):
            hub(home, *words)
    done = CliRunner().invoke(cli, ["complie"])
    assert "Did you mean 'compile'?" in done.output
    done = CliRunner().invoke(cli, ["compile", "onxruntime"])
    assert "Did you mean 'onnxruntime'?" in done.output
    done = CliRunner().invoke(cli, ["compile", "caffe"])
    # Other tests may have declared toolchains of their own in this process.
    assert all(name in done.output.partition("Known: ")[2] for name in ("onnxruntime", "tensorrt", "tflite"))
    done = CliRunner().invoke(cli, ["gate", "x", "--baseline", "y", "--tolerance", "5", "--home", str(home)])
    assert "write 5% for per cent" in done.output
    assert "Archived" in hub(home, "run", "archive", run_id)
    assert "Removed" in hub(home, "run", "delete", "--yes", run_id)


def test_a_script_records_a_run(home: Path, tmp_path: Path) -> None:
    """Start, log, batch, finish, label: each a command of its own."""
    run_id = hub(home, "run", "start", "--name", "by hand", "--project", "scripts").strip()
    hub(home, "log", "param", run_id, "layers", "[1, 2]")
    hub(home, "log", "param", run_id, "note", "two words")
    hub(home, "log", "metric", run_id, "loss", "-0.5", "--step", 3)
    hub(home, "log", "tag", run_id, "stage", "dev")
    (tmp_path / "weights.bin").write_bytes(b"w")
    assert answer(home, "log", "artifact", run_id, tmp_path / "weights.bin", "--name", "weights")["size_bytes"] == 1
    lines = 'metric loss 0.25 4\nparam deep true\n# a remark\n\ntag "who is" me\n'
    lines += '{"kind": "param", "name": "j", "value": 1}\n'
    assert answer(home, "batch", run_id, text=lines) == {"run": run_id, "params": 2, "metrics": 1, "tags": 1}
    shown = answer(home, "run", "show", run_id)
    assert shown["status"] == "RUNNING"
    assert shown["params"] == {"layers": [1, 2], "note": "two words", "deep": True, "j": 1}
    assert [(metric["value"], metric["step"]) for metric in shown["metrics"]] == [(-0.5, 3), (0.25, 4)]
    assert shown["tags"] == {"stage": "dev", "who is": "me"}
    assert answer(home, "run", "finish", run_id[:15], "--status", "failed", "--error", "no")["status"] == "FAILED"
    hub(home, "log", "tag", run_id, "seen", "yes")
    shown = answer(home, "run", "show", run_id)
    assert (shown["status"], shown["error"], shown["tags"]["seen"]) == ("FAILED", "no", "yes")
    with pytest.raises(HubError, match="is FAILED"):
        hub(home, "log", "metric", run_id, "late", 1)


@pytest.mark.parametrize(
    "line", ["metric loss high", "metric loss", "speed x 1", "metric loss 1 2 3", "metric loss 1 x", '{"kind": "tag"}',
             "param a b c", '{"kind": 5}', "{", "metric 'open 1"],
)  # fmt: skip
def test_a_batch_is_recorded_whole_or_not_at_all(home: Path, line: str) -> None:
    """The message gives the line's number and how a line is written."""
    run_id = hub(home, "run", "start").strip()
    with pytest.raises(HubError, match="Line 2 cannot be recorded"):
        hub(home, "batch", run_id, text=f"metric good 1\n{line}\n")
    with pytest.raises(HubError):
        hub(home, "batch", run_id, text="metric good 1\nmetric \x01 1\n")
    assert answer(home, "run", "show", run_id)["metrics"] == []


def test_runs_are_put_aside_deleted_and_collected(home: Path) -> None:
    """Archived runs come back; deleted ones do not."""
    ids = {run["name"]: run["id"] for run in answer(home, "run", "list")["runs"]}
    hub(home, "run", "archive", ids["a0"], ids["a1"])
    assert names(home) == ["b1", "b0"]
    assert len(names(home, "--archived")) == 4
    hub(home, "run", "archive", "--undo", ids["a0"])
    assert names(home) == ["b1", "b0", "a0"]
    with pytest.raises(HubError, match="--yes"):
        hub(home, "run", "delete", ids["a0"])
    hub(home, "run", "delete", ids["a0"], "--yes")
    assert names(home) == ["b1", "b0"]
    assert answer(home, "collect", "--dry-run")["kept_young"] == 1
    assert "younger than an hour" in hub(home, "collect")


def test_a_project_travels_as_one_file(home: Path, tmp_path: Path) -> None:
    """Bundled here, taken in there."""
    bundle = tmp_path / "a.zip"
    assert len(answer(home, "run", "bundle", "--project", "a", "-o", bundle)["runs"]) == 2
    there = tmp_path / "there"
    assert "2 runs imported, 0 already present" in hub(there, "run", "import", bundle)
    assert names(there) == ["a1", "a0"]
    for wrong in (["run", "bundle", "-o", bundle], ["run", "bundle", "x", "--project", "a", "-o", bundle]):
        with pytest.raises(SystemExit, match="2"):
            hub(home, *wrong)
    with pytest.raises(HubError, match="no runs of project"):
        hub(home, "run", "bundle", "--project", "nobody's", "-o", bundle)


def test_runs_are_handed_on_as_one_page(home: Path, tmp_path: Path) -> None:
    """One alone, or several side by side."""
    ids = [run["id"] for run in answer(home, "run", "list")["runs"]]
    assert answer(home, "run", "report", ids[0], "-o", tmp_path / "one.html")["runs"] == ids[:1]
    assert "MB" in hub(home, "run", "report", *ids[:2], "-o", tmp_path / "two.html")
    for name in ("one", "two"):
        text = (tmp_path / f"{name}.html").read_text(encoding="utf-8")
        assert "b1" in text
        assert " src=" not in text.partition("</head>")[0]


def test_the_run_table_goes_to_spreadsheets_and_data_frames(home: Path, tmp_path: Path) -> None:
    """One row per run, a column per value; what a spreadsheet would run is text."""
    assert answer(home, "run", "table", "-o", tmp_path / "t.csv", "--where", "metrics.latency = 9")["runs"] == 2
    rows = list(csv.DictReader((tmp_path / "t.csv").read_text(encoding="utf-8").splitlines()))
    assert [row["name"] for row in rows] == ["b1", "a1"]
    assert rows[0]["metrics.latency"] == "9.0"
    assert rows[0]["params.precision"] == "int8"
    assert rows[0]["tags.stage"] == "'=ci"
    hub(home, "run", "table", "-o", tmp_path / "t.parquet")
    frame = parquet.read_table(tmp_path / "t.parquet").to_pydict()
    assert frame["metrics.latency"] == [9.0, 10.0, 9.0, 10.0]
    assert frame["tags.stage"][0] == "=ci"
    with pytest.raises(HubError, match=r"\.csv or \.parquet"):
        hub(home, "run", "table", "-o", tmp_path / "t.xlsx")
    with pytest.raises(HubError, match="cannot be written"):
        hub(home, "run", "table", "-o", tmp_path / "no" / "t.csv")
