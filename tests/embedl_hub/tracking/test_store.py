"""The index of all runs: reading, rebuilding, damage, full and read-only disks, several writers."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import sqlite3
import subprocess
import threading
from typing import TYPE_CHECKING, Any

import pytest
from support.debian import require_mount

from embedl_hub.errors import ConfigError, TrackingError
from embedl_hub.tracking import Client, Redactor, Run, RunStatus, RunType, Store, reindex

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


def fill(client: Client, folder: Path) -> list[str]:
    """Log a varied set of runs and return their ids."""
    folder.mkdir()
    (folder / "model").mkdir()
    (folder / "model" / "weights").write_bytes(b"weights")
    (folder / "labels.txt").write_text("größe\n名")
    ids = []
    with client.start_run(RunType.COMPILE, "outer", component="C", provider="local", device="pi") as outer:
        ids.append(outer.id)
        outer.log_param("size", {"h": 3, "w": [1.5, None, True]})
        outer.log_artifact(folder / "model", name="path")
        with contextlib.suppress(ValueError), client.start_run(RunType.PROFILE, "inner") as inner:
            ids.append(inner.id)
            for step in range(5):
                inner.log_metric("loss", 1 / (step + 1), step=step)
            inner.log_metric("odd", float("inf"))
            inner.log_tag("größe", "名 ✓")
            inner.log_artifact(folder / "labels.txt")
            raise ValueError("as planned")
    with contextlib.suppress(KeyboardInterrupt), client.start_run() as stopped:
        ids.append(stopped.id)
        raise KeyboardInterrupt
    return ids


def everything(store: Store) -> dict[str, Run]:
    return {run.id: store.run(run.id) for run in store.runs()}


@pytest.fixture
def filled(home: Path, tmp_path: Path) -> dict[str, Run]:
    """A closed home with runs in it, as the index knows them."""
    with Store(home) as store:
        client = Client("project", store, Redactor({}))
        fill(client, tmp_path / "files")
        client.close()
        return everything(store)


def test_runs_are_listed_newest_first_and_in_pages(client: Client, store: Store) -> None:
    """Runs begun within one millisecond keep their order; a page ends with the id that the next one starts before."""
    ids = []
    for _ in range(20):
        with client.start_run() as outer, client.start_run() as inner:
            ids += [outer.id, inner.id]
    first = [run.id for run in store.find(limit=2).runs]
    rest = [run.id for run in store.find(after=store.find(limit=2).after).runs]
    assert first + rest == ids[::-1]


def test_runs_can_be_chosen(client: Client, store: Store, tmp_path: Path) -> None:
    """By project, status and parent, alone and together."""
    outer, inner, stopped = fill(client, tmp_path / "files")
    other = Client("other", store, Redactor({}))
    with other.start_run(name="elsewhere") as elsewhere:
        pass
    other.close()
    assert [project.name for project in store.projects()] == ["other", "project"]
    assert {run.id for run in store.runs("project = 'project'")} == {outer, inner, stopped}
    assert [run.id for run in store.runs("status = 'FAILED'")] == [inner]
    assert [run.id for run in store.runs(f"parent = '{outer}'")] == [inner]
    assert store.runs("project = 'other' and status = 'FAILED'") == []
    assert [run.id for run in store.runs("project = 'other' and status = 'finished'")] == [elsewhere.id]
    assert store.runs("project = '''; DROP TABLE run; --'") == []


def test_a_run_is_found_by_the_beginning_of_its_id(client: Client, store: Store) -> None:
    """Unambiguous is enough; ambiguous, unknown and empty say so, with the store and the next step."""
    with client.start_run() as one, client.start_run() as two:
        pass
    assert store.run(one.id[:-1]).id == one.id
    shared = one.id[: next(at for at in range(len(one.id)) if one.id[at] != two.id[at])]
    several = f"are several runs ({one.id}, {two.id} ...)"
    for text, which in ((shared, several), ("zzz", "is no run"), ("", "is no run"), ("%", "is no run")):
        with pytest.raises(TrackingError) as caught:
            store.run(text)
        assert f"{which} with an id starting with {text!r}" in str(caught.value)
        assert str(store.home) in str(caught.value)
        assert "run list" in str(caught.value)


def test_a_store_that_is_not_open_says_so(home: Path) -> None:
    """Using a closed store is an error with its folder in it."""
    with pytest.raises(TrackingError, match=f"{home} is not open"):
        Store(home).runs()


def test_applying_records_twice_changes_nothing(filled: dict[str, Run], home: Path) -> None:
    """Recovery and reindexing may repeat what is there."""
    with Store(home) as store:
        before, counts = everything(store), store.counts()
        for run_id in filled:
            records = [json.loads(line) for line in store.manifest(run_id).read_text().splitlines()]
            store.apply({run_id: records})
            store.apply({run_id: records[2:]})
        assert (everything(store), store.counts()) == (before, counts)


def test_a_rebuilt_index_equals_the_original(filled: dict[str, Run], home: Path) -> None:
    """Every field of every run, and where its artifacts are, comes back from the folders alone."""
    for path in home.glob("hub.db*"):
        path.unlink()
    assert reindex(home) == len(filled)
    with Store(home) as store:
        again = everything(store)
        counts = store.counts()
    assert again == filled
    for run_id, run in filled.items():
        for name, artifact in run.artifacts.items():
            assert again[run_id].artifacts[name].local_path == artifact.local_path
    assert counts == {"project": 1, "run": 3, "param": 1, "metric": 6, "tag": 1, "artifact": 2}
    assert reindex(home) == len(filled)


def test_rebuilding_an_empty_home_gives_an_empty_index(home: Path) -> None:
    """No runs are no error."""
    assert reindex(home) == 0


def test_folders_that_are_no_runs_are_passed_over(filled: dict[str, Run], home: Path) -> None:
    """Stray files, empty folders and manifests without a start do not disturb the others."""
    (home / "runs" / "stray.txt").write_text("")
    (home / "runs" / "empty").mkdir()
    (home / "runs" / "headless").mkdir()
    (home / "runs" / "headless" / "manifest.jsonl").write_text('{"seq":1,"kind":"tag","time_ms":1}\n')
    assert reindex(home) == len(filled)


@pytest.mark.parametrize("keep_links", [False, True])
def test_copied_run_folders_bring_their_runs(
    filled: dict[str, Run], home: Path, tmp_path: Path, keep_links: bool
) -> None:
    """A run folder copied to another home and reindexed has its values and its artifacts there, stored once."""
    other = tmp_path / "other"
    (other / "runs").mkdir(parents=True)
    for run_id in filled:
        # cp -a keeps links between files of one folder, cp -r makes each a file of its own.
        option = "-a" if keep_links else "-r"
        subprocess.run(["cp", option, str(home / "runs" / run_id), str(other / "runs" / run_id)], check=True)
    shutil.rmtree(home)
    assert reindex(other) == len(filled)
    with Store(other) as store:
        assert everything(store) == filled
        labels = store.run(next(run.id for run in filled.values() if run.name == "inner")).artifacts["labels.txt"]
        assert labels.local().read_text() == "größe\n名"
        assert labels.local().samefile(store.blobs.path_of(labels.sha256))
        model = store.run(next(run.id for run in filled.values() if run.name == "outer")).artifacts["path"]
        assert (model.local() / "weights").read_bytes() == b"weights"
        assert (model.local() / "weights").is_relative_to(other)


def test_logged_work_in_a_copied_folder_is_taken_up(client: Client, store: Store, tmp_path: Path) -> None:
    """A file that is both work and artifact, linked to each other in the copy, still reaches the content store."""
    with client.start_run() as run:
        (run.artifact_dir / "m").write_bytes(b"graph")
        artifact = run.log_artifact(run.artifact_dir / "m")
    other = tmp_path / "other"
    (other / "runs").mkdir(parents=True)
    subprocess.run(["cp", "-a", str(store.run_dir(run.id)), str(other / "runs")], check=True)
    reindex(other)
    assert Store(other).blobs.path_of(artifact.sha256).read_bytes() == b"graph"


@pytest.mark.parametrize(
    "artifact",
    [
        {"name": "../../../outside", "file_name": "x"},
        {"name": "x", "file_name": "/etc/hostname"},
        {"name": "x", "file_name": ".."},
        {"name": "", "file_name": "x"},
    ],
)
def test_a_foreign_manifest_cannot_point_out_of_its_folder(
    home: Path, artifact: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    """An artifact name that leads elsewhere is refused, with the manifest and the name."""
    write_manifest(home, "evil", {"kind": "artifact", "sha256": "0" * 64, "size_bytes": 1, **artifact})
    assert reindex(home) == 0
    assert re.search(r"evil/manifest\.jsonl holds a record .*artifact name", caplog.text)


def test_a_foreign_folder_cannot_bring_in_files_from_outside(home: Path, tmp_path: Path) -> None:
    """Links and listed names that lead out of a run folder are not followed into the content store."""
    (tmp_path / "private").write_text("private")
    folder = home / "runs" / "evil" / "artifacts" / "a"
    folder.mkdir(parents=True)
    (folder / "link").symlink_to(tmp_path / "private")
    write_manifest(
        home,
        "evil",
        {"kind": "artifact", "name": "a", "file_name": "link", "sha256": "1" * 64, "size_bytes": 7},
        {
            "kind": "artifact", "name": "b", "file_name": "c", "sha256": "2" * 64, "size_bytes": 7,
            "files": [["../../../../../../private", "3" * 64, 7], [str(tmp_path / "private"), "4" * 64, 7]],
        },
    )  # fmt: skip
    assert reindex(home) == 1
    assert not (home / "blobs").exists()


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        ({"kind": "start", "format": 2}, "manifest format 2, known up to 1"),
        ({"kind": "invention"}, "KeyError: 'invention'"),
        ({"kind": "metric", "name": "m", "value": "fast"}, "could not convert string to float"),
        ({"kind": "param", "name": "p"}, "KeyError: 'value'"),
        (
            {"kind": "artifact", "name": "a", "file_name": "b", "sha256": "0", "size_bytes": 1, "files": [["x"]]},
            "not enough values",
        ),
    ],
)
def test_records_of_a_later_version_are_refused_with_the_way_out(
    home: Path, record: dict[str, Any], reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The message names the manifest, what is wrong and both ways out; all other runs are there."""
    write_manifest(home, "well")
    if record["kind"] == "start":
        (home / "runs" / "later").mkdir(parents=True)
        line = {"seq": 0, "time_ms": 1, "project": "p", "type": "CUSTOM", "name": "n", **record}
        (home / "runs" / "later" / "manifest.jsonl").write_text(json.dumps(line) + "\n")
    else:
        write_manifest(home, "later", record)
    assert reindex(home) == 1
    assert "Run 'later' is left out of the index" in caplog.text
    assert "runs/later/manifest.jsonl" in caplog.text
    assert reason in caplog.text
    assert "pip install --upgrade edgeproof-hub" in caplog.text
    with Store(home) as store:
        assert [run.id for run in store.runs()] == ["well"]
        assert store.folders_without_a_run() == [home / "runs" / "later"]
    caplog.clear()
    (home / "runs" / "later").rename(home / "later")
    assert reindex(home) == 1
    assert caplog.text == ""


BAD_RECORDS: list[dict[str, Any]] = [
    {"kind": "end", "status": "EXPLODED"},
    {"kind": "end", "status": ["FINISHED"]},
    {"kind": "end", "status": "FINISHED", "time_ms": 10**18},
    {"kind": "tag", "name": ["a"], "value": {"b": 1}},
    {"kind": "metric", "name": "m", "value": 1, "step": 2**70},
    {"kind": "param", "name": None, "value": 1},
]


@pytest.mark.parametrize("record", BAD_RECORDS, ids=str)
def test_one_bad_run_does_not_take_the_others_along(
    home: Path, record: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever its records hold: the index is made, lists and single runs are there, the bad one is named."""
    write_manifest(home, "well")
    write_manifest(home, "bad", record)
    with Store(home) as store:
        assert [run.id for run in store.runs()] == ["well"]
        assert "Run 'bad' is left out of the index" in caplog.text
        assert store.reindex() == 1
        assert store.run("well").status is RunStatus.KILLED


def test_an_index_of_an_earlier_version_may_hold_a_bad_status(home: Path) -> None:
    """A list of runs does not end there."""
    write_manifest(home, "well")
    with Store(home) as store:
        with store._transaction() as connection:
            connection.execute("UPDATE run SET status = 'EXPLODED' WHERE id = 'well'")
        assert store.run("well").status is RunStatus.KILLED
        assert [run.id for run in store.runs()] == ["well"]


def test_a_manifest_that_is_a_pipe_or_a_link_keeps_nobody_waiting(home: Path, tmp_path: Path) -> None:
    """A folder from elsewhere may hold anything under the manifest's name."""
    write_manifest(home, "well")
    for name in ("pipe", "device", "folder"):
        (home / "runs" / name).mkdir(parents=True)
    os.mkfifo(home / "runs" / "pipe" / "manifest.jsonl")
    (home / "runs" / "device" / "manifest.jsonl").symlink_to("/dev/zero")
    (home / "runs" / "folder" / "manifest.jsonl").symlink_to(tmp_path)
    assert reindex(home) == 1


def write_manifest(home: Path, run_id: str, *records: dict[str, Any]) -> None:
    """Write the folder of a run by hand."""
    start = {"kind": "start", "project": "p", "type": "CUSTOM", "name": "n", "format": 1}
    (home / "runs" / run_id).mkdir(parents=True, exist_ok=True)
    lines = [json.dumps({"seq": seq, "time_ms": 1, **record}) for seq, record in enumerate([start, *records])]
    (home / "runs" / run_id / "manifest.jsonl").write_text("\n".join(lines) + "\n")


def overwrite_header(database: Path) -> None:
    with database.open("r+b") as file:
        file.write(b"this is no database " * 10)


def overwrite_tables(database: Path) -> None:
    size = database.stat().st_size
    with database.open("r+b") as file:
        file.seek(4096)
        file.write(b"\x5a" * (size - 4096))


def cut_in_half(database: Path) -> None:
    os.truncate(database, database.stat().st_size // 2)


def drop_a_table(database: Path) -> None:
    connection = sqlite3.connect(database)
    connection.execute("DROP TABLE metric")
    connection.commit()
    connection.close()


@pytest.mark.parametrize("damage", [overwrite_header, overwrite_tables, cut_in_half, drop_a_table])
def test_a_damaged_index_is_named_and_can_be_rebuilt(
    filled: dict[str, Run], home: Path, damage: Callable[[Path], None]
) -> None:
    """The message says which file, that the runs are safe, and the command that rebuilds; rebuilding mends it."""
    damage(home / "hub.db")
    with pytest.raises(TrackingError) as caught, Store(home) as store:
        everything(store)
    text = str(caught.value)
    assert f"The index {home / 'hub.db'} is damaged" in text
    assert f"safe in {home / 'runs'}" in text
    assert f"embedl-hub reindex --home {home}" in text
    assert reindex(home) == len(filled)
    with Store(home) as store:
        assert everything(store) == filled
    assert list(home.glob("damaged-*-hub.db"))


def test_a_newer_store_is_not_rebuilt_over(filled: dict[str, Run], home: Path) -> None:
    """Reindexing does not bring a newer version's index down to this one."""
    assert filled
    connection = sqlite3.connect(home / "hub.db")
    connection.execute("PRAGMA user_version = 99")
    connection.close()
    with pytest.raises(TrackingError, match="shape 99"):
        reindex(home)


def test_a_run_whose_folder_was_deleted_gets_an_end(client: Client, store: Store, home: Path) -> None:
    """Only the row is left; the next opening marks it and goes on."""
    with pytest.raises(TrackingError), client.start_run() as run:
        store.close()
    shutil.rmtree(home / "runs" / run.id)
    store.open()
    assert store.run(run.id).status == RunStatus.KILLED
    assert store.recover() == []


def test_a_living_run_is_left_alone(client: Client, store: Store, home: Path) -> None:
    """Opening, recovering and reindexing by others do not touch a run that goes on."""
    with client.start_run() as run:
        client.log_param("before", 1)
        with Store(home) as other:
            assert other.run(run.id).status == RunStatus.RUNNING
            assert other.recover() == []
        reindex(home)
        assert store.run(run.id).status == RunStatus.RUNNING
        client.log_param("after", 2)
    assert store.run(run.id).status == RunStatus.FINISHED
    assert sorted(store.run(run.id).params) == ["after", "before"]


def test_a_file_that_is_no_database_leaves_no_connection_open(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python 3.13 complains about one that is dropped."""
    opened: list[sqlite3.Connection] = []
    connect = sqlite3.connect

    def opening(*arguments: Any, **settings: Any) -> sqlite3.Connection:
        opened.append(connect(*arguments, **settings))
        return opened[-1]

    home.mkdir(exist_ok=True)
    (home / "hub.db").write_bytes(b"no database " * 1000)
    monkeypatch.setattr("embedl_hub.tracking._sql.database.sqlite3.connect", opening)
    with pytest.raises(TrackingError, match="is damaged"):
        Store(home).open()
    assert len(opened) == 1
    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        opened[0].execute("SELECT 1")


def test_rebuilding_while_others_log_loses_nothing(client: Client, store: Store, home: Path) -> None:
    """Twenty rebuilds while four threads log: afterwards the index has every run, whole."""
    stop = threading.Event()
    ids: list[str] = []

    def log() -> None:
        while not stop.is_set():
            with client.start_run() as run:
                for number in range(20):
                    run.log_metric("m", number)
            ids.append(run.id)

    threads = [threading.Thread(target=log) for _ in range(4)]
    for thread in threads:
        thread.start()
    for _ in range(20):
        reindex(home)
    stop.set()
    for thread in threads:
        thread.join()
    kept = everything(store)
    assert sorted(kept) == sorted(ids)
    for run in kept.values():
        assert run.status == RunStatus.FINISHED
        assert [metric.value for metric in run.metrics] == list(range(20))


def test_a_durable_store_keeps_the_same(home: Path, tmp_path: Path) -> None:
    """With fsync everything works as without."""
    with Store(home, durable=True) as store:
        client = Client("project", store, Redactor({}))
        ids = fill(client, tmp_path / "files")
        client.close()
        assert sorted(everything(store)) == sorted(ids)
        with store._reading() as connection:
            assert connection.execute("PRAGMA synchronous").fetchone() == (2,)


def test_a_home_that_is_a_file_is_a_clear_error(tmp_path: Path) -> None:
    """The message names the place and how to choose another."""
    (tmp_path / "home").write_text("")
    with pytest.raises(TrackingError, match=r"home cannot be used.*EMBEDL_HUB_HOME or home="):
        Store(tmp_path / "home").open()


@pytest.fixture
def read_only() -> Iterator[Callable[[Path], None]]:
    """Return a function that forbids writing to a folder: by a mount for root, by its mode for anybody else."""
    forbidden: list[Path] = []

    def forbid(folder: Path) -> None:
        if os.geteuid() != 0:
            for path in (*folder.rglob("*"), folder):
                path.chmod(path.stat().st_mode & ~0o222)
        else:
            for options in ("bind", "remount,bind,ro"):
                require_mount(["-o", options, str(folder), str(folder)], "a folder that root cannot write to")
        forbidden.append(folder)

    yield forbid
    for folder in forbidden:
        if os.geteuid() == 0:
            subprocess.run(["umount", "--lazy", str(folder)], check=True)
        else:
            for path in (folder, *folder.rglob("*")):
                path.chmod(path.stat().st_mode | 0o200)


def test_a_read_only_home_is_a_clear_error(
    filled: dict[str, Run], home: Path, read_only: Callable[[Path], None]
) -> None:
    """A store without the right to write can be read; who writes is told so, with the place and the way out."""
    read_only(home)
    with Store(home) as store:
        assert {run.id for run in store.runs()} == set(filled)
        client = Client("project", store)
        with (
            pytest.raises(TrackingError, match=r"home cannot be used: .*writable.*EMBEDL_HUB_HOME or home="),
            client.start_run(),
        ):
            pass
        client.close()


def test_a_read_only_place_for_a_new_home_is_a_clear_error(tmp_path: Path, read_only: Callable[[Path], None]) -> None:
    """Creating a store without the right to write says so, with the place and the way out."""
    (tmp_path / "place").mkdir()
    read_only(tmp_path / "place")
    with pytest.raises(TrackingError, match=r"place/home cannot be used: .*EMBEDL_HUB_HOME or home="):
        Store(tmp_path / "place" / "home").open()


def test_a_dead_run_that_cannot_be_marked_is_no_obstacle(home: Path, read_only: Callable[[Path], None]) -> None:
    """Another user's run folder, which we may not write to: the store opens, and a rebuild takes its values."""
    with Store(home) as store:
        write_manifest(home, "theirs", {"kind": "param", "name": "p", "value": 1})
        start = json.loads(store.manifest("theirs").read_text().splitlines()[0])
        store.apply({"theirs": [start]})
    read_only(home / "runs" / "theirs")
    with Store(home) as store:
        assert store.run("theirs").status == RunStatus.RUNNING
    assert reindex(home) == 1
    with Store(home) as store:
        assert store.run("theirs").params["p"].value == 1


def use_up(disk: Path) -> Path:
    """Write a file until the disk has no byte left."""
    filler = disk / "filler"
    with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
        while True:
            file.write(b"\0" * 4096)
    return filler


def test_a_full_disk_is_a_clear_error_and_logging_goes_on_after_it(small_disk: Path, tmp_path: Path) -> None:
    """What was acknowledged before, during and after is there; what was refused is not; the error says why."""
    home = small_disk / "home"
    (tmp_path / "model").write_bytes(os.urandom(50_000))
    kept: dict[str, str] = {}
    with Store(home) as store:
        client = Client("project", store, Redactor({}))
        with client.start_run() as run:
            run.log_param("before", "x" * 3000)
            filler = use_up(small_disk)
            # The last block of the manifest takes some; the record that does not fit is refused whole.
            with pytest.raises(TrackingError) as caught:  # noqa: PT012 - how many fit is the file system's business
                for number in range(100):
                    run.log_param(f"during-{number}", "y" * 1500)
                    kept[f"during-{number}"] = "y" * 1500
            assert f"The store {home} cannot be used" in str(caught.value)
            assert "No space left on device" in str(caught.value)
            assert "has space" in str(caught.value)
            with pytest.raises(TrackingError, match=r"model could not be stored in .*No space left.*has space"):
                run.log_artifact(tmp_path / "model")
            filler.unlink()
            run.log_param("after", "z" * 3000)
            run.log_artifact(tmp_path / "model")
        client.close()
    kept |= {"before": "x" * 3000, "after": "z" * 3000}
    for _ in range(2):
        with Store(home) as store:
            (only,) = everything(store).values()
        assert only.status == RunStatus.FINISHED
        assert {name: param.value for name, param in only.params.items()} == kept
        assert only.artifacts["model"].local().read_bytes() == (tmp_path / "model").read_bytes()
        reindex(home)
    assert not list(home.rglob("incoming-*"))


def test_a_disk_that_is_full_at_the_end_of_a_run_loses_nothing(small_disk: Path) -> None:
    """The store opens on the full disk, and once there is space the run is marked, with all it logged."""
    home = small_disk / "home"
    with Store(home) as store:
        client = Client("project", store, Redactor({}))
        with pytest.raises(TrackingError, match=r"No space left|full"), client.start_run() as run:  # noqa: PT012 - a run
            for number in range(30):
                run.log_param(f"p{number}", "x" * 1000)
            filler = use_up(small_disk)
            with contextlib.suppress(TrackingError):
                while True:
                    run.log_metric("m", 1.0)
        with contextlib.suppress(TrackingError):
            client.close()
    logged = run.snapshot()
    with Store(home) as store:
        assert store.run(run.id).status in {RunStatus.RUNNING, RunStatus.KILLED}
    filler.unlink()
    with Store(home) as store:
        kept = store.run(run.id)
    assert kept.status == RunStatus.KILLED
    assert (kept.params, kept.metrics) == (logged.params, logged.metrics)


def test_a_full_disk_refuses_a_new_run_and_leaves_no_trace_of_it(small_disk: Path) -> None:
    """start_run raises the clear error; with space again the next run works."""
    home = small_disk / "home"
    with Store(home) as store:
        client = Client("project", store, Redactor({}))
        filler = use_up(small_disk)
        with pytest.raises(TrackingError, match=r"cannot be used: .*has space"), client.start_run():
            pass
        filler.unlink()
        with client.start_run() as run:
            run.log_param("p", 1)
        client.close()
        assert list(everything(store)) == [run.id]
    assert [path.name for path in (home / "runs").iterdir()] == [run.id]


def test_a_new_store_on_a_full_disk_is_a_clear_error(small_disk: Path) -> None:
    """Nothing half-made stays in the way: with space again the same home opens."""
    filler = use_up(small_disk)
    with pytest.raises(TrackingError, match=r"home cannot be used: .*has space"):
        Store(small_disk / "home").open()
    filler.unlink()
    with Store(small_disk / "home") as store:
        assert store.runs() == []


def test_a_refused_artifact_is_no_store_error(client: Client, tmp_path: Path) -> None:
    """What the user can mend in the call is a ConfigError, what is wrong with the store a TrackingError."""
    with client.start_run() as run, pytest.raises(ConfigError):
        run.log_artifact(tmp_path / "absent")


@pytest.mark.parametrize("is_alone", [True, False])
def test_a_store_that_may_only_be_read_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_alone: bool
) -> None:
    """Another user's home: no recovery, nothing written, and a write says why it cannot be."""
    with contextlib.ExitStack() as stack:
        with Store(tmp_path) as store:
            client = Client("p", store)
            with client.start_run("EVAL", "x") as run:
                run.log_metric("m", 1.0)
            client.close()
        if not is_alone:
            stack.enter_context(Store(tmp_path)).counts()
        monkeypatch.setattr("os.access", lambda *_: False)
        before = sorted(path.name for path in tmp_path.iterdir())
        monkeypatch.setattr(Store, "recover", lambda _: pytest.fail("recovery writes"))
        with Store(tmp_path) as store:
            assert store.run(run.id).metric("m") is not None
            assert sorted(path.name for path in tmp_path.iterdir()) == before
            with pytest.raises(TrackingError, match="readonly"):
                store.label(run.id, "a", "b")
