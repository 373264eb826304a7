"""The life of a run, and what it logs."""

from __future__ import annotations

import math
import os
import signal
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from embedl_hub.errors import ConfigError, TrackingError
from embedl_hub.tracking import Client, LoggedArtifact, Redactor, RunStatus, RunType, Store


@pytest.fixture
def memory_client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Client:
    """A client without a store, with every place where a store or a file could go under watch."""
    for variable in ("HOME", "XDG_DATA_HOME", "EMBEDL_HUB_HOME", "TMPDIR"):
        monkeypatch.setenv(variable, str(tmp_path / variable))
    (tmp_path / "TMPDIR").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.chdir(tmp_path)
    return Client("project", redactor=Redactor({}))


def fail(message: str) -> None:
    raise ValueError(message)


def test_a_run_that_returns_is_finished(client: Client, store: Store) -> None:
    """The store has the run's facts, its times in order and no error."""
    with client.start_run(RunType.COMPILE, "tiny", component="C", provider="local", device="pi") as run:
        assert store.run(run.id).status == RunStatus.RUNNING
        assert store.run(run.id).ended_ms is None
    kept = store.run(run.id)
    assert (kept.project, kept.type, kept.name) == ("project", "COMPILE", "tiny")
    assert (kept.component, kept.provider, kept.device) == ("C", "local", "pi")
    assert (kept.status, kept.error, kept.traceback) == (RunStatus.FINISHED, None, None)
    assert kept.ended_ms is not None
    assert kept.started_ms <= kept.ended_ms


def test_a_run_that_raises_is_failed_and_the_exception_goes_on(client: Client, store: Store) -> None:
    """Error and traceback are kept; the caller gets the very same exception."""
    error = ValueError("größer als 3")
    with pytest.raises(ValueError, match="größer") as caught, client.start_run() as run:
        raise error
    assert caught.value is error
    kept = store.run(run.id)
    assert (kept.status, kept.error) == (RunStatus.FAILED, "ValueError: größer als 3")
    assert "Traceback (most recent call last)" in str(kept.traceback)
    assert "test_client.py" in str(kept.traceback)
    assert kept.ended_ms is not None


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_a_run_that_is_interrupted_is_killed(client: Client, store: Store, error: type[BaseException]) -> None:
    """Ctrl-C and exit end a run as KILLED, and go on."""
    with pytest.raises(error), client.start_run() as run:
        raise error
    assert store.run(run.id).status == RunStatus.KILLED


def test_ctrl_c_kills_the_run_and_keeps_what_it_logged(client: Client, store: Store) -> None:
    """A real SIGINT while logging loses nothing that was acknowledged."""
    logged = 0
    with pytest.raises(KeyboardInterrupt), client.start_run() as run:  # noqa: PT012 - the signal comes in the loop
        while True:
            run.log_metric("tick", logged, step=logged)
            logged += 1
            if logged == 50:
                os.kill(os.getpid(), signal.SIGINT)
    client.close()
    kept = store.run(run.id)
    assert kept.status == RunStatus.KILLED
    assert [metric.step for metric in kept.metrics][:logged] == list(range(logged))


def test_a_long_traceback_keeps_its_end(client: Client, store: Store) -> None:
    """The last 100,000 characters are kept, where the cause stands."""
    with pytest.raises(ValueError, match="x"), client.start_run() as run:
        fail("x" * 150_000 + " the cause")
    assert len(str(store.run(run.id).traceback)) == 100_000
    assert str(store.run(run.id).traceback).rstrip().endswith("the cause")


def test_an_error_that_is_not_text_is_kept(client: Client, store: Store) -> None:
    """Odd bytes in a message, as from a file name, are spelled out."""
    with pytest.raises(ValueError, match="odd"), client.start_run() as run:
        fail("odd \udcff byte")
    assert store.run(run.id).error == "ValueError: odd \\udcff byte"


def test_a_store_that_fails_at_the_end_does_not_hide_the_error(client: Client, store: Store) -> None:
    """The caller's own exception goes on, with a note about the store; the next opening marks the run."""
    with pytest.raises(ValueError, match="mine") as caught, client.start_run() as run:  # noqa: PT012 - a run's block
        store.close()
        fail("mine")
    assert any(run.id in note and "is not open" in note for note in caught.value.__notes__)
    store.open()
    assert store.run(run.id).status == RunStatus.FAILED


def test_a_store_that_fails_at_the_end_of_a_good_run_is_an_error(client: Client, store: Store) -> None:
    """Nothing is lost: the run is found finished when the store opens again."""
    with pytest.raises(TrackingError, match="is not open"), client.start_run() as run:
        store.close()
    store.open()
    assert store.run(run.id).status == RunStatus.FINISHED


def test_only_the_first_end_counts(client: Client, store: Store) -> None:
    """A run that was ended by hand stays as it was ended."""
    with client.start_run() as run:
        run.finish(RunStatus.FAILED, error="by hand")
    assert (store.run(run.id).status, store.run(run.id).error) == (RunStatus.FAILED, "by hand")


def test_nothing_can_be_logged_after_the_end(client: Client, tmp_path: Path) -> None:
    """Every kind of record is refused, with the run's id."""
    with client.start_run() as run:
        pass
    for log in (
        lambda: run.log_param("a", 1),
        lambda: run.log_metric("a", 1),
        lambda: run.log_tag("a", "b"),
        lambda: run.log_artifact(tmp_path),
    ):
        with pytest.raises(TrackingError, match=f"{run.id} has ended"):
            log()


def test_closing_the_client_ends_what_is_alive(client: Client, store: Store) -> None:
    """A run left open is KILLED, with the reason."""
    block = client.start_run()
    run = block.__enter__()
    client.close()
    assert store.run(run.id).status == RunStatus.KILLED
    assert "context closed" in str(store.run(run.id).error)


def test_the_snapshot_is_what_the_store_will_say(client: Client, store: Store, tmp_path: Path) -> None:
    """During and after the run, the value in memory and the value in the store are equal, times included."""
    (tmp_path / "m").write_bytes(b"x")
    with pytest.raises(ValueError, match="why"), client.start_run(device="pi") as run:  # noqa: PT012 - a run's block
        run.log_param("a", [1, {"b": None}])
        run.log_metric("m", 1.5, step=2)
        run.log_tag("t", "x")
        run.log_artifact(tmp_path / "m")
        assert client._indexer is not None
        client._indexer.flush()
        assert run.snapshot() == store.run(run.id)
        fail("why")
    assert run.snapshot() == store.run(run.id)
    assert run.snapshot().status == RunStatus.FAILED


def test_runs_inside_runs_are_children(client: Client, store: Store) -> None:
    """A run started inside another has it as parent, at any depth; the next one beside it does not."""
    with client.start_run(name="outer") as outer:
        with client.start_run(name="inner") as inner:
            assert client.run is inner
            with client.start_run(name="innermost") as innermost:
                client.log_param("where", "innermost")
        assert client.run is outer
        client.log_param("where", "outer")
    with client.start_run(name="beside") as beside:
        pass
    parents = {run.name: run.parent_id for run in store.runs()}
    assert parents == {"outer": None, "inner": outer.id, "innermost": inner.id, "beside": None}
    assert [run.id for run in store.runs(f"parent = '{outer.id}'")] == [inner.id]
    assert store.run(innermost.id).params["where"].value == "innermost"
    assert store.run(outer.id).params["where"].value == "outer"
    assert beside.id != inner.id


def test_a_child_that_fails_leaves_its_parent_to_decide(client: Client, store: Store) -> None:
    """A caught failure of the inner run does not fail the outer one."""
    with client.start_run() as outer:
        with pytest.raises(ValueError, match="inner"), client.start_run() as inner:
            fail("inner")
        assert client.run is outer
    assert store.run(inner.id).status == RunStatus.FAILED
    assert store.run(outer.id).status == RunStatus.FINISHED


@pytest.mark.parametrize("name", ["", "a\x00b", "x" * 201])
def test_a_bad_project_name_is_refused(name: str) -> None:
    """The message says that it is the project's name."""
    with pytest.raises(ConfigError, match="project name"):
        Client(name)


@pytest.mark.parametrize("field", ["name", "component", "provider", "device"])
def test_bad_names_of_a_run_are_refused_before_it_begins(client: Client, store: Store, field: str) -> None:
    """The message says which of the run's names is wrong; no run is made."""
    arguments: dict[str, Any] = {field: "a\nb"}
    with (
        pytest.raises(ConfigError, match=f"run's {field} must not hold control characters"),
        client.start_run(**arguments),
    ):
        pass
    assert store.runs() == []


def test_eight_threads_each_have_their_own_run(client: Client, store: Store, tmp_path: Path) -> None:
    """On one client, every thread's values are on its own run, all of them, in order."""
    (tmp_path / "shared").write_bytes(b"same for all")
    together = threading.Barrier(8)

    def work(number: int) -> list[str]:
        together.wait()
        ids = []
        for turn in range(10):
            with client.start_run(name=f"thread-{number}") as run:
                assert client.run is run
                (run.artifact_dir / "mine").write_text(f"{number} {turn}")
                for step in range(10):
                    client.log_param(f"p{step}", [number, turn, step])
                    client.log_metric("m", number * 1000 + step, step=step)
                client.log_tag("number", number)
                client.log_artifact(run.artifact_dir / "mine")
                client.log_artifact(tmp_path / "shared")
            ids.append(run.id)
        return ids

    with ThreadPoolExecutor(8) as pool:
        ids_by_thread = list(pool.map(work, range(8)))

    assert store.counts() == {"project": 1, "run": 80, "param": 800, "metric": 800, "tag": 80, "artifact": 160}
    for number, ids in enumerate(ids_by_thread):
        for turn, run_id in enumerate(ids):
            run = store.run(run_id)
            assert (run.name, run.status, run.parent_id) == (f"thread-{number}", RunStatus.FINISHED, None)
            assert {name: param.value for name, param in run.params.items()} == {
                f"p{step}": [number, turn, step] for step in range(10)
            }
            assert [metric.value for metric in run.metrics] == [number * 1000 + step for step in range(10)]
            assert run.artifacts["mine"].local().read_text() == f"{number} {turn}"


def test_eight_threads_can_log_to_one_run(client: Client, store: Store) -> None:
    """Handed to threads, a run takes everything."""
    with client.start_run() as run, ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda number: run.log_metric("m", number, step=number), range(800)))
    assert sorted(metric.value for metric in store.run(run.id).metrics) == list(range(800))


def test_another_thread_has_no_run_and_is_told_how_to_get_one(client: Client, store: Store) -> None:
    """The message names the thread and the way out, and the way out works."""
    errors: list[TrackingError] = []

    def work() -> None:
        try:
            client.log_metric("m", 1)
        except TrackingError as error:
            errors.append(error)
        run.log_metric("m", 2)

    with client.start_run() as run:
        thread = threading.Thread(target=work, name="my-worker")
        thread.start()
        thread.join()
    assert len(errors) == 1
    assert "No run is active in thread 'my-worker'" in str(errors[0])
    assert "run = ctx.client.run; run.log_metric(...)" in str(errors[0])
    assert [metric.value for metric in store.run(run.id).metrics] == [2]


def test_without_a_run_every_log_call_says_so(client: Client, tmp_path: Path) -> None:
    """Outside of a run nothing is logged silently."""
    assert not client._stack()
    for log in (
        lambda: client.log_param("a", 1),
        lambda: client.log_metric("a", 1),
        lambda: client.log_tag("a", "b"),
        lambda: client.log_artifact(tmp_path),
    ):
        with pytest.raises(TrackingError, match="No run is active in thread 'MainThread'"):
            log()


@dataclass(frozen=True)
class Shape:
    height: int
    width: int


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        (None, None),
        (True, True),
        (3, 3),
        (2**100, 2**100),
        (0.1, 0.1),
        (-0.0, -0.0),
        ("", ""),
        ("ü名✓", "ü名✓"),
        ("nul\x00 and\nline", "nul\x00 and\nline"),
        ("\udcff", "\\udcff"),
        (float("nan"), "nan"),
        (float("inf"), "inf"),
        (RunType.EVAL, "EVAL"),
        (Shape(2, 3), {"height": 2, "width": 3}),
        ([1, [2.5, None]], [1, [2.5, None]]),
        ({"a": {"b": ()}}, {"a": {"b": []}}),
        (np.float32(0.25), 0.25),
        (np.int8(-3), -3),
        (np.bool_(False), False),
        (Path("x/y"), "x/y"),
    ],
)
def test_params_come_back_with_their_type(client: Client, store: Store, given: object, kept: object) -> None:
    """What log_param returns and what the store says later are the same plain value, also after a rebuild."""
    with client.start_run() as run:
        returned = client.log_param("$p", given)
    for _ in range(2):
        value = store.run(run.id).params["$p"].value
        assert value == returned.value == kept
        assert type(value) is type(kept)
        store.reindex()


@pytest.mark.parametrize(
    "given",
    [0, -1.5, True, 1e308, 5e-324, math.inf, -math.inf, math.nan, np.float32(0.1), np.int64(7), np.array(2.5), "3.5"],
)
def test_metrics_come_back_bit_for_bit(client: Client, store: Store, given: Any) -> None:
    """Any number, finite or not, is the same float afterwards, also after a rebuild."""
    with client.start_run() as run:
        client.log_metric("m", given, step=None)
    for _ in range(2):
        (metric,) = store.run(run.id).metrics
        assert math.isnan(metric.value) if math.isnan(float(given)) else metric.value == float(given)
        assert metric.step is None
        store.reindex()


def test_a_series_comes_back_in_the_order_it_was_logged(client: Client, store: Store) -> None:
    """Steps may repeat and go back; the order is the order of logging."""
    with client.start_run() as run:
        for step in (3, 1, 1, None):
            run.log_metric("loss", 0.5, step)
            run.log_metric("acc", 0.5, step)
    kept = [metric.step for metric in store.run(run.id).metrics if metric.name == "loss"]
    assert kept == [3, 1, 1, None]


@pytest.mark.parametrize("value", ["fast", None, [1], 1j, pytest.param(10**400, id="huge")])
def test_a_metric_that_is_no_number_is_refused(client: Client, store: Store, value: Any) -> None:
    """The message names the metric and points to log_param; the run goes on."""
    with client.start_run() as run:
        with pytest.raises(ConfigError, match=r"Metric 'speed' must be a number.*log_param"):
            run.log_metric("speed", value)
        run.log_metric("speed", 1)
    assert len(store.run(run.id).metrics) == 1


def test_a_second_value_replaces_params_and_tags(client: Client, store: Store) -> None:
    """The last value under a name is the value, of any type."""
    with client.start_run() as run:
        for value in (1, "two", [3]):
            run.log_param("p", value)
            run.log_tag("t", value)
    assert store.run(run.id).params["p"].value == [3]
    assert store.run(run.id).tags == {"t": "[3]"}


def test_tags_are_text(client: Client, store: Store) -> None:
    """Whatever is given, a tag is its text."""
    with client.start_run() as run:
        for name, value in {"s": "größe", "i": 3, "e": RunType.EVAL, "b": True, "n": None}.items():
            run.log_tag(name, value)
    assert store.run(run.id).tags == {"s": "größe", "i": "3", "e": "EVAL", "b": "True", "n": "None"}


@pytest.mark.parametrize("log", ["log_param", "log_metric", "log_tag"])
@pytest.mark.parametrize("name", ["", "a\x00b", "tab\there", "x" * 201, None])
def test_bad_names_of_values_are_refused(client: Client, log: str, name: Any) -> None:
    """Every kind of record checks its name."""
    with client.start_run() as run, pytest.raises(ConfigError, match="name must"):
        getattr(run, log)(name, 1)


def test_a_bad_value_does_not_spoil_what_follows(client: Client, store: Store) -> None:
    """After every refusal the run still takes values and ends well."""
    with client.start_run() as run:
        for bad in (2**70, "x"):
            with pytest.raises(ConfigError):
                run.log_metric("m", 1.0, bad)  # type: ignore[arg-type]
        run.log_param("odd", {"\udcff": "\ud800"})
        run.log_param("after", 1)
    assert store.run(run.id).params["after"].value == 1
    assert store.run(run.id).params["odd"].value == {"\\udcff": "\\ud800"}


def test_an_artifact_is_kept_as_it_was_logged(client: Client, store: Store, tmp_path: Path) -> None:
    """The run has its own name for the file; changing or deleting the source changes nothing."""
    source = tmp_path / "größe 名.onnx"
    source.write_bytes(b"graph")
    with client.start_run() as run:
        logged = client.log_artifact(source, name="path")
        source.write_bytes(b"changed during the run")
    source.unlink()
    kept = store.run(run.id).artifacts["path"]
    assert kept == logged
    assert (kept.file_name, kept.size_bytes, kept.is_folder, kept.run_id) == ("größe 名.onnx", 5, False, run.id)
    assert kept.local() == logged.local()
    assert kept.local().read_bytes() == b"graph"


def test_a_folder_is_one_artifact(client: Client, store: Store, tmp_path: Path) -> None:
    """An ONNX model with external data stays together."""
    folder = tmp_path / "model.onnx"
    (folder / "data").mkdir(parents=True)
    (folder / "model.onnx").write_bytes(b"graph")
    (folder / "data" / "weights").write_bytes(b"w" * 100)
    with client.start_run() as run:
        client.log_artifact(str(folder), name="input", file_name="renamed")
    kept = store.run(run.id).artifacts["input"]
    assert (kept.is_folder, kept.size_bytes, kept.file_name) == (True, 105, "renamed")
    assert (kept.local() / "data" / "weights").read_bytes() == b"w" * 100


def test_another_runs_artifact_can_be_logged(client: Client, store: Store, tmp_path: Path) -> None:
    """The output of one run is the input of the next, under its own name there, stored once."""
    (tmp_path / "m.onnx").write_bytes(b"graph")
    with client.start_run() as first:
        output = client.log_artifact(tmp_path / "m.onnx", name="path")
    with client.start_run() as second:
        logged = client.log_artifact(output, name="input")
    assert (logged.file_name, logged.sha256, logged.run_id) == ("m.onnx", output.sha256, second.id)
    assert store.run(first.id).artifacts["path"].local().samefile(store.run(second.id).artifacts["input"].local())


def test_an_artifact_from_elsewhere_is_brought_by_the_context(client: Client, tmp_path: Path) -> None:
    """With a context it is fetched; without one the error says how."""
    (tmp_path / "m.onnx").write_bytes(b"graph")
    remote = LoggedArtifact("path", "m.onnx", 5, "00" * 32)

    class Context:
        def bring_here(self, artifact: LoggedArtifact) -> Path:
            return tmp_path / artifact.file_name

        def send_to(self, artifact: LoggedArtifact, device_name: str) -> Any:
            raise NotImplementedError

    with client.start_run() as run:
        assert run.log_artifact(remote, name="input", ctx=Context()).size_bytes == 5
        with pytest.raises(TrackingError, match=r"to_local\(ctx\)"):
            run.log_artifact(remote, name="again")


def test_a_name_can_be_used_once(client: Client, store: Store, tmp_path: Path) -> None:
    """The message names the artifact, the file it has, and everything logged; the first one stays."""
    for name in ("a.onnx", "b.onnx"):
        (tmp_path / name).write_text(name)
    with client.start_run() as run:
        run.log_artifact(tmp_path / "a.onnx", name="path")
        run.log_artifact(tmp_path / "a.onnx", name="input")
        with pytest.raises(ConfigError, match=r"'path' \(a\.onnx\).*another name.*'input', 'path'"):
            run.log_artifact(tmp_path / "b.onnx", name="path")
    assert store.run(run.id).artifacts["path"].local().read_text() == "a.onnx"


@pytest.mark.parametrize("argument", ["name", "file_name"])
@pytest.mark.parametrize(
    "bad", ["..", ".", "../x", "/etc/passwd", "a/b", "a\\b", "a\x00b", "a\nb", "x" * 201, "\udcff"]
)
def test_names_that_could_do_harm_are_refused(
    client: Client, home: Path, tmp_path: Path, argument: str, bad: str
) -> None:
    """Nothing is written for a refused name, and the message says which name it was."""
    (tmp_path / "m").write_text("x")
    with client.start_run() as run:
        arguments: dict[str, Any] = {argument: bad}
        with pytest.raises(ConfigError, match="artifact name" if argument == "name" else "file name"):
            run.log_artifact(tmp_path / "m", **arguments)
    assert not (home / "blobs").exists()
    assert sorted(path.name for path in (home / "runs" / run.id).iterdir()) == ["manifest.jsonl"]


@pytest.mark.parametrize("name", ["-rf", "$(touch x)", "a b;c", "*", "'\"", "名 ü", "...", ".hidden"])
def test_odd_names_are_kept_intact(client: Client, store: Store, tmp_path: Path, name: str) -> None:
    """Spaces, quotes, shell characters and non-ASCII are only names."""
    (tmp_path / name).write_text(name)
    with client.start_run() as run:
        client.log_artifact(tmp_path / name)
    assert store.run(run.id).artifacts[name].local().read_text() == name


def test_what_cannot_be_stored_leaves_the_run_going(client: Client, store: Store, tmp_path: Path) -> None:
    """A pipe, a loop and a missing file are refused; the same name works afterwards."""
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "a").write_text("first")
    (folder / "loop").symlink_to(".")
    os.mkfifo(tmp_path / "pipe")
    with client.start_run() as run:
        for bad in (folder, tmp_path / "pipe", tmp_path / "absent"):
            with pytest.raises(ConfigError):
                run.log_artifact(bad, name="path")
        (folder / "loop").unlink()
        (folder / "a").write_text("second")
        run.log_artifact(folder, name="path")
    assert (store.run(run.id).artifacts["path"].local() / "a").read_text() == "second"


def test_without_a_store_nothing_is_written(memory_client: Client, tmp_path: Path) -> None:
    """A run in memory has everything it logged, and touches no home, no data folder and no working folder."""
    (tmp_path / "m").write_bytes(b"x")
    with memory_client.start_run(RunType.PROFILE) as run:
        memory_client.log_param("p", 1)
        memory_client.log_metric("m", 2.0)
        memory_client.log_tag("t", "x")
        memory_client.log_artifact(tmp_path / "m", name="input")
        assert memory_client.run.snapshot() == run.snapshot()
    snapshot = run.snapshot()
    assert (snapshot.status, snapshot.params["p"].value, snapshot.tags) == (RunStatus.FINISHED, 1, {"t": "x"})
    assert snapshot.artifacts["input"].local() == tmp_path / "m"
    memory_client.close()
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["TMPDIR", "m"]


def test_without_a_store_files_go_when_the_client_closes(memory_client: Client, tmp_path: Path) -> None:
    """Each run has its own folder while the client lives."""
    with memory_client.start_run() as first, memory_client.start_run() as second:
        assert first.artifact_dir != second.artifact_dir
        (first.artifact_dir / "x").write_text("x")
        assert first.artifact_dir.is_relative_to(tmp_path / "TMPDIR")
    assert (first.artifact_dir / "x").exists()
    memory_client.close()
    assert list((tmp_path / "TMPDIR").iterdir()) == []


def test_without_a_store_failures_are_known_too(memory_client: Client) -> None:
    """A failed run in memory has its error."""
    with pytest.raises(ValueError, match="why"), memory_client.start_run() as run:
        fail("why")
    assert (run.snapshot().status, run.snapshot().error) == (RunStatus.FAILED, "ValueError: why")


def test_threads_share_the_folder_of_a_run(memory_client: Client) -> None:
    """Asked from eight threads at once, a run has one folder."""
    together = threading.Barrier(8)

    def ask(_: int) -> Path:
        together.wait()
        return run.artifact_dir

    with memory_client.start_run() as run, ThreadPoolExecutor(8) as pool:
        assert len(set(pool.map(ask, range(8)))) == 1
    memory_client.close()


def test_a_batch_is_recorded_whole_or_not_at_all(client: Client, store: Store) -> None:
    """One wrong value among many leaves nothing of them."""
    with client.start_run() as run:
        with pytest.raises(ConfigError, match="'loss' must be a number"):
            run.log_batch({"p": 1}, [("loss", 0.5, 1), ("loss", "x", 2)], {"t": "x"})  # type: ignore[list-item]
        assert run.snapshot().params == {}
        run.log_batch({"p": 1}, [("loss", 0.5, 1), ("loss", 0.25, 2)], {"t": "x"})
        run.log_batch()
        assert run.snapshot().tags == {"t": "x"}
    found = store.run(run.id)
    assert [(metric.value, metric.step) for metric in found.metrics] == [(0.5, 1), (0.25, 2)]
    assert found.params["p"].value == 1


def test_a_batch_takes_numbers_by_name(client: Client) -> None:
    """Who has a dictionary of numbers logs it as it is; what is no metric is said."""
    with client.start_run() as run:
        run.log_batch(metrics={"m": 1.5})
        assert [(each.name, each.value, each.step) for each in run.snapshot().metrics] == [("m", 1.5, None)]
        with pytest.raises(ConfigError, match="takes numbers by name"):
            run.log_batch(metrics=[("m", 1.5)])  # type: ignore[list-item]
