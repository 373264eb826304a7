"""Archiving, deleting, collecting and carrying runs."""

from __future__ import annotations

import hashlib
import json
import zipfile
from typing import TYPE_CHECKING

import pytest

from embedl_hub.errors import TrackingError
from embedl_hub.tracking import Client, RunStatus, Store, collect, export_bundle, import_bundle

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def recorded(store: Store, tmp_path: Path) -> list[str]:
    """Two finished runs that share one content and have one each, one of them in a folder."""
    folder = tmp_path / "folder"
    (folder / "deep").mkdir(parents=True)
    (folder / "deep" / "a.txt").write_text("in a folder")
    shared = tmp_path / "shared.bin"
    shared.write_bytes(b"shared")
    own = tmp_path / "own.bin"
    own.write_bytes(b"own")
    client = Client("p", store)
    ids = []
    for source in (folder, own):
        with client.start_run(name=source.name) as run:
            run.log_artifact(shared)
            run.log_artifact(source, name="result")
            run.log_metric("m", 1.5)
            run.log_param("p", "x")
            ids.append(run.id)
    client.close()
    return ids


def contents(store: Store) -> int:
    return len(list(store.blobs.paths()))


def test_an_archived_run_stays_so_when_the_index_is_rebuilt(store: Store, recorded: list[str]) -> None:
    """It is a fact of the run, not of the index."""
    store.archive(recorded[0])
    store.label(recorded[1], "baseline", "yes")
    store.reindex()
    assert [run.id for run in store.runs()] == [recorded[1]]
    assert store.run(recorded[0]).archived
    assert store.run(recorded[0]).status is RunStatus.FINISHED
    assert store.runs("tags.baseline = 'yes'")[0].id == recorded[1]
    store.archive(recorded[0], archived=False)
    assert len(store.runs()) == 2


def test_a_run_that_goes_on_is_neither_archived_nor_deleted(store: Store) -> None:
    """The message says why."""
    client = Client("p", store)
    with client.start_run() as run:
        for act in (store.archive, store.delete):
            with pytest.raises(TrackingError, match="still going on"):
                act(run.id)
    client.close()
    store.delete(run.id)
    assert store.runs() == []


def test_a_deleted_run_is_gone_and_its_contents_are_collected(store: Store, recorded: list[str]) -> None:
    """What another run uses stays; a dry run says the same and removes nothing."""
    before = contents(store)
    store.delete(recorded[1])
    assert [run.id for run in store.runs()] == [recorded[0]]
    assert not store.run_dir(recorded[1]).exists()
    assert store.counts()["artifact"] == 2
    assert collect(store) == collect(store, young_s=3600)
    assert collect(store).kept_young == 1
    planned = collect(store, dry_run=True, young_s=0)
    assert (planned.files, planned.size_bytes, planned.dry_run) == (1, 3, True)
    assert contents(store) == before
    assert collect(store, young_s=0).files == 1
    assert contents(store) == before - 1
    assert store.run(recorded[0]).artifacts["shared.bin"].local().read_bytes() == b"shared"
    assert store.reindex() == 1


def test_a_run_whose_folder_is_gone_can_be_deleted(store: Store, recorded: list[str]) -> None:
    """Somebody removed it by hand."""
    store.run_dir(recorded[0]).rename(store.home / "elsewhere")
    store.delete(recorded[0])
    assert [run.id for run in store.runs()] == [recorded[1]]


def test_a_bundle_carries_runs_to_another_store(store: Store, recorded: list[str], tmp_path: Path) -> None:
    """With every value and content; a second import changes nothing."""
    store.archive(recorded[0])
    told = []
    bundle = tmp_path / "runs.zip"
    assert export_bundle(store, recorded, bundle, progress=lambda *at: told.append(at)) == 3
    assert told == [(1, 2), (2, 2)]
    with Store(tmp_path / "other") as other:
        assert import_bundle(other, bundle).runs == tuple(recorded)
        for run_id in recorded:
            ours, theirs = store.run(run_id), other.run(run_id)
            assert ours == theirs
        assert (other.run(recorded[0]).artifacts["result"].local() / "deep" / "a.txt").read_text() == "in a folder"
        assert other.run(recorded[1]).artifacts["result"].local().read_bytes() == b"own"
        assert import_bundle(other, bundle).known_already == tuple(recorded)
        assert other.reindex() == 2
        assert collect(other, young_s=0).files == 0


def test_a_run_that_was_still_going_on_ends_in_the_copy(store: Store, tmp_path: Path) -> None:
    """The copy will never hear of its end."""
    client = Client("p", store)
    with client.start_run() as run:
        run.log_metric("m", 1)
        export_bundle(store, [run.id], tmp_path / "b.zip")
    client.close()
    with Store(tmp_path / "other") as other:
        import_bundle(other, tmp_path / "b.zip")
        assert other.run(run.id).status is RunStatus.KILLED
        assert "bundled" in str(other.run(run.id).error)


def test_a_bundle_that_lies_is_refused_and_leaves_nothing(store: Store, recorded: list[str], tmp_path: Path) -> None:
    """Hashes, ids and names that lead elsewhere, cut files and files that are no bundle."""
    good = tmp_path / "good.zip"
    export_bundle(store, recorded, good)
    with zipfile.ZipFile(good) as bundle:
        entries = {name: bundle.read(name) for name in bundle.namelist()}
    manifest = f"runs/{recorded[0]}/manifest.jsonl"
    blob = next(name for name in entries if name.startswith("blobs/"))
    bad = {
        "wrong content": {**entries, blob: b"something else"},
        "lost content": {name: data for name, data in entries.items() if name != blob},
        "lost manifest": {name: data for name, data in entries.items() if name != manifest},
        "no head": {name: data for name, data in entries.items() if name != "bundle.json"},
        "id leads out": {**entries, "bundle.json": json.dumps({"format": 1, "runs": ["../../x"]}).encode()},
        "newer": {**entries, "bundle.json": json.dumps({"format": 2, "runs": []}).encode()},
        "name leads out": {**entries, manifest: entries[manifest].replace(b'"name":"result"', b'"name":"../../../x"')},
        "file leads out": {**entries, manifest: entries[manifest].replace(b"deep/a.txt", b"../../../../../a.txt")},
        "empty manifest": {**entries, manifest: b"{}\n"},
    }
    unpacked = sorted(tmp_path.rglob("a.txt"))
    for what, files in bad.items():
        path = tmp_path / f"{what}.zip"
        with zipfile.ZipFile(path, "w") as bundle:
            for name, data in files.items():
                bundle.writestr(name, data)
        home = tmp_path / f"home {what}"
        with Store(home) as other:
            with pytest.raises(TrackingError):
                import_bundle(other, path)
            assert recorded[0] not in [run.id for run in other.runs()], what
            assert list((home / "runs").glob(".incoming*")) == [], what
    assert not (tmp_path / "x").exists()
    assert sorted(tmp_path.rglob("a.txt")) == unpacked
    (tmp_path / "cut.zip").write_bytes(good.read_bytes()[:-100])
    for path in (tmp_path / "cut.zip", tmp_path / "shared.bin", tmp_path / "nowhere.zip"):
        with pytest.raises(TrackingError):
            import_bundle(store, path)


@pytest.mark.parametrize(
    "lie",
    [
        (b'"status":"FINISHED"', b'"status":"EXPLODED"'),
        (b'"kind":"end"', b'"kind":"explosion"'),
        (b'"seq":1,', b'"seq":0,'),
        (b'"value":1.5', b'"value":"fast"'),
        (b'"format":1', b'"format":1,"surprise":1'),
        (b'"project":"p"', b'"project":"\\u001b[2Jp"'),
    ],
    ids=lambda lie: lie[1].decode(),
)
def test_a_bundles_records_are_checked_like_a_clients(
    store: Store, recorded: list[str], tmp_path: Path, lie: tuple[bytes, bytes]
) -> None:
    """A status that there is none of, a time of no calendar: refused before there is a run, and lists go on."""
    export_bundle(store, recorded, tmp_path / "good.zip")
    manifest = f"runs/{recorded[0]}/manifest.jsonl"
    with (
        zipfile.ZipFile(tmp_path / "good.zip") as good,
        zipfile.ZipFile(tmp_path / "bad.zip", "w") as bad,
    ):
        assert lie[0] in good.read(manifest)
        for name in good.namelist():
            bad.writestr(name, good.read(name).replace(*lie) if name == manifest else good.read(name))
    with Store(tmp_path / "other") as other:
        with pytest.raises(TrackingError, match="damaged"):
            import_bundle(other, tmp_path / "bad.zip")
        assert other.runs() == []
        assert list(other.home.glob("runs/*")) == []
        assert other.reindex() == 0
        assert import_bundle(other, tmp_path / "good.zip").runs == tuple(recorded)


def _bomb(path: Path, size: int) -> str:
    """Write a small bundle of one run with one large content, and return the run's id."""
    run_id, zeros = "b" * 16, bytes(1 << 20)
    digest = hashlib.sha256()
    for _ in range(size >> 20):
        digest.update(zeros)
    start = {"seq": 0, "kind": "start", "time_ms": 1, "format": 1, "project": "p", "type": "EVAL", "name": "x"}
    artifact = {"seq": 1, "kind": "artifact", "time_ms": 1, "name": "a", "file_name": "a", "sha256": digest.hexdigest()}
    records = [start, {**artifact, "size_bytes": size}, {"seq": 2, "kind": "end", "time_ms": 2, "status": "FINISHED"}]
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as bundle:
        bundle.writestr("bundle.json", json.dumps({"format": 1, "runs": [run_id]}))
        bundle.writestr(f"runs/{run_id}/manifest.jsonl", "".join(json.dumps(record) + "\n" for record in records))
        with bundle.open(f"blobs/{digest.hexdigest()}", "w") as blob:
            for _ in range(size >> 20):
                blob.write(zeros)
    return run_id


@pytest.mark.slow
def test_a_bundle_does_not_grow_a_thousandfold(tmp_path: Path) -> None:
    """300 kB that become 300 MiB: stopped on the way, and nothing is left; who knows better can allow it."""
    run_id = _bomb(tmp_path / "bomb.zip", 300 << 20)
    assert (tmp_path / "bomb.zip").stat().st_size < 400_000
    with Store(tmp_path / "home") as store:
        with pytest.raises(TrackingError, match=r"unpacks to more than .* run import --largest"):
            import_bundle(store, tmp_path / "bomb.zip")
        assert sum(path.stat().st_size for path in (store.home / "blobs").rglob("*") if path.is_file()) == 0
        assert store.runs() == []
        assert import_bundle(store, tmp_path / "bomb.zip", most_bytes=301 << 20).runs == (run_id,)


def test_a_bundle_takes_along_nothing_that_a_link_leads_to(store: Store, recorded: list[str], tmp_path: Path) -> None:
    """A run folder from elsewhere may hold links; what is behind them is this user's."""
    (tmp_path / "private").write_text("private")
    artifact = store.run(recorded[1]).artifacts["result"]
    store.blobs.path_of(artifact.sha256).unlink()
    artifact.local().unlink()
    store.artifact_path(recorded[1], "result", artifact.file_name).symlink_to(tmp_path / "private")
    with pytest.raises(TrackingError, match="is gone"):
        export_bundle(store, recorded, tmp_path / "b.zip")


def test_another_run_under_the_same_id_is_not_overwritten(store: Store, recorded: list[str], tmp_path: Path) -> None:
    """The bundle's run differs from the one here."""
    export_bundle(store, recorded[:1], tmp_path / "b.zip")
    with Store(tmp_path / "other") as other:
        import_bundle(other, tmp_path / "b.zip")
        manifest = other.manifest(recorded[0])
        manifest.write_bytes(manifest.read_bytes().replace(b'"value":1.5', b'"value":2.5'))
        with pytest.raises(TrackingError, match="is another one"):
            import_bundle(other, tmp_path / "b.zip")


def test_a_content_that_is_gone_is_named(store: Store, recorded: list[str], tmp_path: Path) -> None:
    """The bundle would be useless; no half of it is left."""
    artifact = store.run(recorded[1]).artifacts["result"]
    store.blobs.path_of(artifact.sha256).unlink()
    artifact.local().unlink()
    with pytest.raises(TrackingError, match=r"'result' of run .* is gone"):
        export_bundle(store, recorded, tmp_path / "b.zip")
    assert list(tmp_path.glob("*b.zip*")) == []


@pytest.mark.slow
def test_a_run_without_a_process_is_logged_to_from_many(store: Store, tmp_path: Path) -> None:
    """A shell script's run: started, logged to and finished by commands that come and go."""
    first, second = Client("p", store), Client("p", store)
    run_id = first.start_detached(name="by hand")
    with Store(store.home) as again:
        assert again.run(run_id).status is RunStatus.RUNNING
        assert again.reindex() == 1
        assert again.run(run_id).status is RunStatus.RUNNING
    (tmp_path / "a.txt").write_text("a")
    with first.attach(run_id) as run:
        run.log_param("p", 1)
        run.log_artifact(tmp_path / "a.txt")
    with second.attach(run_id[:15]) as run:
        run.log_metric("m", 2)
        assert run.snapshot().params["p"].value == 1
        with pytest.raises(Exception, match="already has an artifact"):
            run.log_artifact(tmp_path / "a.txt")
    with second.attach(run_id) as run:
        run.finish()
    found = store.run(run_id)
    assert found.status is RunStatus.FINISHED
    assert found.metrics[0].value == 2
    assert found.artifacts["a.txt"].local().read_text() == "a"
    with pytest.raises(TrackingError, match="is FINISHED"), first.attach(run_id):
        pass
    with second.start_run() as alive, pytest.raises(TrackingError), first.attach(alive.id):
        pass
    first.close()
    second.close()
