"""Where a run's records go."""

from __future__ import annotations

import os
import resource
import time
from typing import TYPE_CHECKING, Any

import pytest

from embedl_hub.errors import TrackingError
from embedl_hub.tracking import Client, Redactor, RunStatus, Store
from embedl_hub.tracking._sink import Indexer, MemorySink

if TYPE_CHECKING:
    from pathlib import Path


def start(store: Store, run_id: str) -> None:
    store.apply({run_id: [{"seq": 0, "kind": "start", "time_ms": 1, "project": "p", "type": "CUSTOM", "name": "n"}]})


def tag(seq: int) -> dict[str, Any]:
    return {"seq": seq, "kind": "tag", "time_ms": 1, "name": f"tag-{seq}", "value": "x"}


def wait_for(condition: object, limit_s: float = 10.0) -> None:
    """Wait until a condition holds: what is awaited happens in the indexer's own thread."""
    assert callable(condition)
    until = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < until, "nothing happened in time"
        time.sleep(0.005)


def test_queued_records_reach_the_index_by_themselves(store: Store) -> None:
    """Nobody has to flush: the index follows a long run within moments."""
    start(store, "1")
    indexer = Indexer(store)
    indexer.add("1", tag(1))
    wait_for(lambda: store.run("1").tags)
    indexer.close()


def test_a_full_queue_is_flushed_at_once(store: Store) -> None:
    """After five hundred records the index is up to date without waiting."""
    start(store, "1")
    indexer = Indexer(store)
    for seq in range(1, 501):
        indexer.add("1", tag(seq))
    assert len(store.run("1").tags) == 500
    indexer.close()


def test_a_flush_that_failed_is_repeated(client: Client, store: Store) -> None:
    """Records whose flush failed stay queued, in order, and arrive with the next one."""
    with client.start_run() as run:
        run.log_metric("m", 1)
        store.close()
        assert client._indexer is not None
        with pytest.raises(TrackingError, match="is not open"):
            client._indexer.flush()
        run.log_metric("m", 2)
        store.open()
    assert [metric.value for metric in store.run(run.id).metrics] == [1, 2]


def test_an_index_that_is_away_does_not_stop_logging(client: Client, store: Store) -> None:
    """Past the size of a batch, logging still succeeds: the manifest has the record, the index follows."""
    with client.start_run() as run:
        store.close()
        for number in range(1200):
            run.log_metric("m", number)
        store.open()
    assert [metric.value for metric in store.run(run.id).metrics] == list(range(1200))


def test_records_that_never_came_are_taken_from_the_manifest(client: Client, store: Store) -> None:
    """A gap before the first queued record, as an interrupted flush leaves it, is filled from the run's own file."""
    with client.start_run() as run:
        for number in range(3):
            run.log_param(f"p{number}", number)
        assert client._indexer is not None
        client._indexer._pending.clear()
    assert sorted(store.run(run.id).params) == ["p0", "p1", "p2"]
    assert store.run(run.id).status == RunStatus.FINISHED


def test_a_run_that_cannot_begin_leaves_nothing(home: Path) -> None:
    """If the index refuses the start, start_run raises, no folder stays and the thread has no run."""
    store = Store(home)
    store.open()
    client = Client("project", store, Redactor({}))
    store.close()
    with pytest.raises(TrackingError, match="is not open"), client.start_run():
        pass
    assert not client._stack()
    assert list((home / "runs").iterdir()) == []
    client.close()


def test_a_run_without_a_manifest_leaves_nothing(client: Client, home: Path) -> None:
    """When no more files can be opened, start_run says so, and no folder stays."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest_free = os.dup(0)
    os.close(lowest_free)
    with client.start_run():
        pass
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest_free, before[1]))
    try:
        with pytest.raises(TrackingError, match=r"cannot be used: .*Too many open files"), client.start_run():
            pass
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert len(list((home / "runs").iterdir())) == 1


def test_logged_work_is_kept_once(client: Client, store: Store) -> None:
    """A file of the run's own folder that stays as it was logged becomes a link when the run ends."""
    with client.start_run() as run:
        work = run.artifact_dir / "model.onnx"
        work.write_bytes(b"graph")
        artifact = run.log_artifact(work)
        assert work.stat().st_nlink == 1
    assert work.samefile(store.blobs.path_of(artifact.sha256))
    assert work.samefile(artifact.local())


@pytest.mark.parametrize("keep_time", [False, True])
def test_work_that_changed_after_logging_keeps_its_change(client: Client, store: Store, *, keep_time: bool) -> None:
    """The artifact is what was logged, the file is what was written last, even if its time was set back."""
    with client.start_run() as run:
        work = run.artifact_dir / "model.onnx"
        work.write_bytes(b"first")
        times = (work.stat().st_atime_ns, work.stat().st_mtime_ns)
        run.log_artifact(work)
        work.write_bytes(b"later")
        if keep_time:
            os.utime(work, ns=times)
    assert work.read_bytes() == b"later"
    assert store.run(run.id).artifacts["model.onnx"].local().read_bytes() == b"first"


def test_work_that_looks_unchanged_is_compared_by_content(
    client: Client, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where file times are too coarse to show a change, the bytes decide."""
    monkeypatch.setattr("embedl_hub.tracking._sink._signature", lambda _: (1, 5, time.time_ns(), 0))
    with client.start_run() as run:
        work = run.artifact_dir / "model.onnx"
        work.write_bytes(b"first")
        run.log_artifact(work)
        work.write_bytes(b"later")
    assert work.read_bytes() == b"later"
    assert store.run(run.id).artifacts["model.onnx"].local().read_bytes() == b"first"


def test_work_that_went_away_is_no_obstacle(client: Client, store: Store) -> None:
    """A logged file may be deleted before the run ends."""
    with client.start_run() as run:
        work = run.artifact_dir / "model.onnx"
        work.write_bytes(b"graph")
        run.log_artifact(work)
        work.unlink()
    assert store.run(run.id).status == RunStatus.FINISHED
    assert store.run(run.id).artifacts["model.onnx"].local().read_bytes() == b"graph"


def test_a_memory_run_points_to_the_files_where_they_are(tmp_path: Path) -> None:
    """Without a store a file is described, not copied; the scratch folder is made on first use."""
    made: list[Path] = []

    def make() -> Path:
        made.append(tmp_path / "scratch")
        made[-1].mkdir()
        return made[-1]

    sink = MemorySink(make)
    (tmp_path / "m").write_bytes(b"graph")
    content, place = sink.keep(tmp_path / "m", "path", "m")
    assert (content.size_bytes, place) == (5, tmp_path / "m")
    assert made == []
    assert sink.work_dir() == sink.work_dir() == made[0]
    assert len(made) == 1
    sink.write({})
    sink.close()
