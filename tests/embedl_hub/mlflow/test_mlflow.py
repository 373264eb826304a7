"""Runs to an MLflow server and back: the same values, once, whatever the server says.

The quick tests hold what we ask against what a real server of the version in the file's name was asked, and read what
it answered. To record anew: EDGEPROOF_RECORD=1 .venv/bin/python -m pytest tests/embedl_hub/mlflow -k test_a_real
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.cli import answer as printed
from support.cli import hub
from support.mlflow_server import (
    PARAMS,
    VERSION,
    Answer,
    add_runs,
    answering,
    passed_on,
    real_server,
    recording,
    repeating,
)

from embedl_hub.errors import ConfigError, TrackingError
from embedl_hub.mlflow import Api, Exported, Server, Taken, export_runs, import_runs
from embedl_hub.mlflow._words import metric_here, name_here, name_there, param_here, param_there
from embedl_hub.tracking import Run, Store

_RECORDED = Path(__file__).parent / f"mlflow-{VERSION}.json"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store(tmp_path / "store") as opened:
        yield opened


@pytest.fixture
def other(tmp_path: Path) -> Iterator[Store]:
    with Store(tmp_path / "other") as opened:
        yield opened


def _facts(run: Run) -> dict[str, Any]:
    """Return everything of a run, its numbers to the last bit."""
    points = [(each.name, each.value.hex(), each.step, each.time_ms) for each in run.metrics]
    files = {
        name: (each.file_name, each.sha256, each.size_bytes, each.is_folder) for name, each in run.artifacts.items()
    }
    names = ("project", "type", "name", "status", "started_ms", "ended_ms", "parent_id", "component", "provider",
             "device", "error", "traceback", "archived", "params", "tags")  # fmt: skip
    return {"metrics": sorted(points, key=str), "artifacts": files, **{name: getattr(run, name) for name in names}}


def _there_and_back(url: str, store: Store, other: Store, ids: list[str]) -> tuple[Exported, Exported, Taken, Taken]:
    with Api(Server.at(url)) as api:
        first, again = export_runs(store, ids, api), export_runs(store, ids, api)
        return first, again, import_runs(other, api, "nets"), import_runs(other, api, "nets")


def _import(store: Store, url: str, **options: Any) -> Taken:
    with Api(Server.at(url)) as api:
        return import_runs(store, api, "nets", **options)


def _check(store: Store, other: Store, ids: list[str], done: tuple[Exported, Exported, Taken, Taken]) -> None:
    first, again, brought, known = done
    assert (list(first.runs), first.known_already, first.left_out) == (ids, {}, {})
    assert (again.runs, again.known_already) == ({}, first.runs)
    assert (brought.runs, brought.refused, brought.left_out) == (ids, {}, {})
    assert (known.runs, known.known_already) == ([], ids)
    for run_id in ids:
        assert _facts(other.run(run_id)) == _facts(store.run(run_id))
    assert [run.id for run in other.lineage(ids[1]).made_from] == [ids[0]]


def test_what_a_real_server_was_asked_and_answered(store: Store, other: Store, tmp_path: Path) -> None:
    """Every question is the recorded one; the answers make the same runs, to the last bit of every number."""
    ids = add_runs(store, tmp_path)
    with repeating(json.loads(_RECORDED.read_text(encoding="utf-8"))) as url:
        done = _there_and_back(url, store, other, ids)
    _check(store, other, ids, done)


@pytest.mark.slow
def test_a_real_server(store: Store, other: Store, tmp_path: Path) -> None:
    """There and back; what was cut off is completed, what was added follows, others' runs come in as they are."""
    ids = add_runs(store, tmp_path)
    with real_server(tmp_path) as url:
        with recording(url) as (proxy, exchanges):
            done = _there_and_back(proxy, store, other, ids)
        _check(store, other, ids, done)
        if os.environ.get("EDGEPROOF_RECORD"):
            text = json.dumps(exchanges, ensure_ascii=False, indent=1)
            _RECORDED.write_text(text + "\n", encoding="utf-8")
        # The paths that are asked are the recorded ones, whatever ids the server gives this time.
        recorded = json.loads(_RECORDED.read_text(encoding="utf-8"))
        assert [_plain(each) for each in exchanges] == [_plain(each) for each in recorded]
        _cut_off_and_completed(url, store, tmp_path)
        with Api(Server.at(url)) as api:
            _others_runs(api, tmp_path)


def _plain(exchange: dict[str, Any]) -> tuple[str, str, int]:
    return exchange["method"], exchange["path"].partition("?")[0].partition("/artifacts/")[0], exchange["status"]


def _cut_off_and_completed(url: str, store: Store, tmp_path: Path) -> None:
    questions = 0

    def broken(method: str, path: str, body: bytes, headers: dict[str, str]) -> Answer:
        nonlocal questions
        questions += 1
        if questions > 5:
            return 403, b'{"message": "enough"}', {}
        return passed_on(url, method, path, body, headers)

    with answering(broken) as proxy, Api(Server.at(proxy)) as api, pytest.raises(TrackingError, match="enough"):
        export_runs(store, ["00000000000a1"], api, experiment="cut off")
    with Api(Server.at(url)) as api:
        _complete(api, store, tmp_path)


def _complete(api: Api, store: Store, tmp_path: Path) -> None:
    done = export_runs(store, ["00000000000a1"], api, experiment="cut off")
    assert list(done.runs) == ["00000000000a1"]
    # A label that came later makes it less than whole again.
    store.label("00000000000a1", "late", "1")
    assert export_runs(store, ["00000000000a1"], api, experiment="cut off").runs == done.runs
    with Store(tmp_path / "completed") as completed:
        assert import_runs(completed, api, "cut off").runs == ["00000000000a1"]
        assert _facts(completed.run("00000000000a1")) == _facts(store.run("00000000000a1"))


def _others_runs(api: Api, tmp_path: Path) -> None:
    experiment = api.post("experiments/create", {"name": "others"})["experiment_id"]
    ids = []
    for name in ("over", "going on"):
        made = api.post("runs/create", {"experiment_id": experiment, "run_name": name, "start_time": 5})["run"]["info"]
        ids.append(made["run_id"])
    batch = {
        "params": [{"key": "lr", "value": "0.01"}, {"key": "exact", "value": "1e-2"}, {"key": "n", "value": "3"}],
        "metrics": [{"key": "m", "value": 1.5, "timestamp": 7, "step": 0}],
        "tags": [{"key": "mlflow.note.content", "value": "hello"}, {"key": "mlflow.parentRunId", "value": ids[1]}],
    }
    api.post("runs/log-batch", {"run_id": ids[0], **batch})
    api.post("runs/update", {"run_id": ids[0], "status": "FAILED", "end_time": 9})
    with Store(tmp_path / "theirs") as theirs:
        done = import_runs(theirs, api, "others")
        assert (done.runs, done.still_running) == ([ids[0]], [ids[1]])
        run = theirs.run(ids[0])
    assert {name: param.value for name, param in run.params.items()} == {"lr": 0.01, "exact": "1e-2", "n": 3}
    assert (run.name, run.status, run.started_ms, run.ended_ms) == ("over", "FAILED", 5, 9)
    assert (run.project, run.parent_id, run.tags["note"]) == ("others", ids[1], "hello")
    assert [(each.value, each.step, each.time_ms) for each in run.metrics] == [(1.5, 0, 7)]


@pytest.mark.parametrize(
    "name", ["plain", "a/b", "$odd %", "../up", "/root", "a//b", ".", "_u24_", "_u24", "ü", "x:y z"]
)
def test_every_name_comes_back(name: str) -> None:
    """As MLflow takes it: a path that leads nowhere else, of letters, digits and a few signs."""
    there = name_there(name)
    assert name_here(there) == name
    assert all(sign.isascii() and (sign.isalnum() or sign in "/_.- :") for sign in there)
    assert not there.startswith(("/", ".."))
    assert "//" not in there


def test_every_parameter_comes_back() -> None:
    """With its kind: MLflow has texts alone. Of others' runs, what would not read the same again stays a text."""
    for value in PARAMS.values():
        back = param_here(param_there(value), is_ours=True)
        assert (back, type(back)) == (value, type(value))
    assert [param_here(text, is_ours=False) for text in ("1", "1.0", "01", "1e3", "true", "9" * 40)] == [
        1, 1.0, "01", "1e3", "true", "9" * 40,
    ]  # fmt: skip
    assert metric_here(-1.7976931348623157e308) == float("-inf")


def _answers(**by_path: Any) -> Any:
    """Return what answers by the last word of a path, with runs of one experiment as far as nothing else is said."""
    run = {"info": {"run_id": "ab" * 16, "status": "FINISHED", "start_time": 1, "end_time": 2,
                    "artifact_uri": "mlflow-artifacts:/1/x/artifacts"}, "data": {}}  # fmt: skip
    known = {"get-by-name": {"experiment": {"experiment_id": "1"}}, "search": {"runs": [run]}, **by_path}

    def answer(_method: str, path: str, _body: bytes, _headers: dict[str, str]) -> Answer:
        found = known.get(path.partition("?")[0].rpartition("/")[2], {})
        return found if isinstance(found, tuple) else (200, json.dumps(found).encode(), {})

    return answer


_RUN = {"run_id": "ab" * 16, "status": "FINISHED", "start_time": 1, "end_time": 2}
HOSTILE: dict[str, tuple[dict[str, Any], str]] = {
    "a path that leads out": ({"list": {"files": [{"path": "../../etc/passwd"}]}}, "it is not inside"),
    "an absolute path": ({"list": {"files": [{"path": "/etc/passwd"}]}}, "it is not inside"),
    "a path of another folder": ({"list": {"files": [{"path": "a\0b"}]}}, "it is not inside"),
    "folders without end": ({"list": {"files": [{"path": "a", "is_dir": True}]}}, "it is not inside"),
    "pages without end": ({"search": {"runs": [], "next_page_token": "x"}}, "have no end"),
    "another host": ({"search": (302, b"", {"Location": "http://evil.example/"})}, "which is not followed"),
    "no JSON": ({"search": (200, b"<html>", {})}, "it is no JSON object"),
    "a list": ({"search": (200, b"[]", {})}, "it is no JSON object"),
    "too deep": ({"search": (200, b"[" * 200_000, {})}, "it is no JSON object"),
    "too large": ({"search": (200, b" " * (33 << 20), {})}, "more than 32 MiB"),
    "a file that is too large": (
        {"list": {"files": [{"path": "f", "file_size": 1}]}, "f": (200, b"x" * (3 << 20), {})}, "larger than the 1 MiB",
    ),
    "a run without an id": ({"search": {"runs": [{"info": {}}]}}, "has no id"),
}  # fmt: skip


@pytest.mark.parametrize("case", HOSTILE)
def test_a_server_that_lies(case: str, store: Store) -> None:
    """Is refused with a reason, within bounds; nothing of it is in the store, and nothing outside."""
    by_path, reason = HOSTILE[case]
    with answering(_answers(**by_path)) as url, pytest.raises(TrackingError, match=reason):
        _import(store, url, most_bytes=1 << 20)
    assert store.count() == 0
    assert [path.name for path in store.home.glob("runs/.*")] == []
    assert not list(store.home.glob(".mlflow-*"))


@pytest.mark.parametrize(
    ("info", "data", "reason"),
    [
        ({"start_time": 10**18}, {}, "time_ms must be"),
        ({"start_time": "12345678901234567890"}, {}, "time_ms must be"),
        ({}, {"tags": [{"key": "edgeproof.run_id", "value": "ab" * 16},
                       {"key": "edgeproof.fact.device", "value": "\x1b[31m"}]}, "device must not hold control"),
    ],
)  # fmt: skip
def test_a_run_that_no_store_can_hold(info: dict[str, Any], data: dict[str, Any], reason: str, store: Store) -> None:
    """Is left there, with the reason, and the others come in."""
    runs = [{"info": {**_RUN, **info}, "data": data}, {"info": {**_RUN, "run_id": "cd" * 16}, "data": {}}]
    with answering(_answers(search={"runs": runs})) as url:
        done = _import(store, url)
    assert done.runs == ["cd" * 16]
    assert reason in done.refused["ab" * 16]


def test_names_that_cannot_be_ours_are_left_out_and_said(store: Store) -> None:
    """A name of MLflow may be longer than one of ours, or hold line ends."""
    data = {
        "params": [{"key": "k" * 250, "value": "1"}, {"key": "ok", "value": "2"}],
        "tags": [{"key": "a\nb", "value": "1"}],
    }
    with answering(_answers(search={"runs": [{"info": _RUN, "data": data}]})) as url:
        done = _import(store, url)
    assert list(store.run(done.runs[0]).params) == ["ok"]
    assert len(done.left_out[done.runs[0]]) == 2


def test_what_opens_a_server_stays_secret(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Never in plain text to another machine, never in an address, never in a message; sent as MLflow sends it."""
    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", "secret-token-123456")
    with pytest.raises(ConfigError, match=r"plain text.*https"):
        Api(Server.at("http://mlflow.example.org"))
    with pytest.raises(ConfigError, match="no place in an address"):
        Server.at("https://me:pass@mlflow.example.org")
    for url in ("ftp://x", "http://", "http://x:y", "http://x/?q=1"):
        with pytest.raises(ConfigError, match="no address of an MLflow server"):
            Server.at(url)
    assert "secret-token" not in repr(Server.at("https://mlflow.example.org"))
    seen: list[str] = []

    def refuse(_method: str, _path: str, _body: bytes, headers: dict[str, str]) -> Answer:
        seen.append(headers["Authorization"])
        return 401, json.dumps({"message": f"not with {headers['Authorization']}"}).encode(), {}

    with answering(refuse) as url:
        with pytest.raises(TrackingError) as caught:
            _import(store, url)
        monkeypatch.delenv("MLFLOW_TRACKING_TOKEN")
        monkeypatch.setenv("MLFLOW_TRACKING_USERNAME", "me")
        monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", "pass")
        with pytest.raises(TrackingError, match="MLFLOW_TRACKING_USERNAME"):
            _import(store, url)
    assert "secret-token" not in str(caught.value)
    assert seen == ["Bearer secret-token-123456", "Basic bWU6cGFzcw=="]


@pytest.mark.slow
def test_the_commands(tmp_path: Path) -> None:
    """As a user types them; what is missing is said with what there is."""
    with Store(tmp_path / "store") as store:
        add_runs(store, tmp_path)
    exchanges = json.loads(_RECORDED.read_text(encoding="utf-8"))
    # Each of the four commands of the recording begins with the experiment; the first makes it in between.
    starts = [place for place, each in enumerate(exchanges) if "experiments/get-by-name" in each["path"]]
    with repeating(exchanges[: starts[1]]) as url:
        words = ("run", "to-mlflow", url, "00000000000a1", "00000000000a2", "00000000000a3")
        done = printed(*words, "--home", tmp_path / "store")
    assert (len(done["runs"]), done["left_out"]) == (3, {})
    with repeating(exchanges[starts[2] : starts[3]]) as url:
        done = printed("run", "from-mlflow", url, "--experiment", "nets", "--home", tmp_path / "back")
    assert len(done["runs"]) == 3
    with answering(_answers(**{"get-by-name": (404, b'{"error_code": "RESOURCE_DOES_NOT_EXIST"}', {}),
                               "search": {"experiments": [{"name": "Default"}]}})) as url:  # fmt: skip
        failed = hub("run", "from-mlflow", url, "--experiment", "none", "--home", tmp_path / "back")
    assert "no experiment 'none'; there are: 'Default'" in failed.stderr
    failed = hub("run", "to-mlflow", "http://127.0.0.1:9", "--project", "nets", "--home", tmp_path / "store")
    assert failed.returncode == 1
    assert "cannot be reached" in failed.stderr
    assert "Name runs, or a project" in hub("run", "to-mlflow", "http://x", "--home", tmp_path / "store").stderr
