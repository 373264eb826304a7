"""Runs as one portable file: a zip of manifests and contents that any store can take in.

    bundle.json                  {"format": 1, "runs": [ids]}
    runs/<id>/manifest.jsonl     as in the home folder
    blobs/<sha256>               each content once

A bundle comes from elsewhere, so nothing in it is believed: ids and hashes are checked, contents are hashed
while they are read, and a name in a manifest never becomes a path outside its run folder.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import zipfile
from dataclasses import dataclass
from typing import TYPE_CHECKING

from embedl_hub.errors import TrackingError
from embedl_hub.tracking import _journal
from embedl_hub.tracking._rows import files_of, plain_name

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence
    from pathlib import Path

    from embedl_hub.tracking._journal import Record
    from embedl_hub.tracking._store import Store

_FORMAT = 1
_HEAD = "bundle.json"
_RUN_ID = re.compile(r"[0-9a-f]{8,64}")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_LARGEST_MANIFEST = 1 << 30


@dataclass(frozen=True)
class Imported:
    """What a bundle brought."""

    runs: tuple[str, ...]
    known_already: tuple[str, ...]


def export_bundle(
    store: Store,
    run_ids: Sequence[str],
    path: Path,
    *,
    known: Collection[str] = (),
    progress: Callable[[int, int], None] = lambda _done, _all: None,
) -> int:
    """Write runs and all their contents into one file and return how many contents it holds.

    Args:
        store: An open store.
        run_ids: Which runs.
        path: The file to write; it appears when it is whole.
        known: Hashes of contents to leave out, because whoever takes the bundle in has them.
        progress: Told after each run how many of all are in.
    """
    if not path.absolute().parent.is_dir():
        raise TrackingError(f"There is no folder {path.absolute().parent} to write {path.name} into.")
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    contents: set[str] = set()
    left_out = frozenset(known)
    try:
        with store.translated(), zipfile.ZipFile(temporary, "x", zipfile.ZIP_DEFLATED, compresslevel=1) as bundle:
            bundle.writestr(_HEAD, json.dumps({"format": _FORMAT, "runs": list(run_ids)}))
            for done, run_id in enumerate(run_ids, start=1):
                records = _journal.read(store.manifest(run_id))
                bundle.writestr(f"runs/{run_id}/{_journal.MANIFEST_NAME}", b"".join(map(_journal.encode, records)))
                for source, sha256 in _contents(store, run_id, records):
                    if sha256 not in contents and sha256 not in left_out:
                        contents.add(sha256)
                        bundle.write(source, f"blobs/{sha256}")
                progress(done, len(run_ids))
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    return len(contents)


def _contents(store: Store, run_id: str, records: Iterable[Record]) -> Iterable[tuple[Path, str]]:
    for record in records:
        if record["kind"] != "artifact":
            continue
        place = store.artifact_path(run_id, record["name"], record["file_name"])
        for name, sha256 in files_of(record):
            source = next((path for path in (store.blobs.path_of(sha256), place / name) if path.is_file()), None)
            if source is None:
                raise TrackingError(
                    f"Artifact {record['name']!r} of run {run_id} is gone from {store.home}; the run cannot be bundled."
                )
            yield source, sha256


def import_bundle(store: Store, path: Path) -> Imported:
    """Take the runs of a bundle in; a run that is here already is left as it is.

    Raises:
        TrackingError: The file is no bundle, is damaged, or holds a run that differs from the one here.
    """
    brought: list[str] = []
    known: list[str] = []
    try:
        with zipfile.ZipFile(path) as bundle:
            for run_id in _run_ids(bundle):
                (brought if _take(store, bundle, run_id) else known).append(run_id)
    except FileNotFoundError:
        raise TrackingError(f"There is no file {path}.") from None
    except (zipfile.BadZipFile, KeyError, ValueError, TypeError, EOFError, NotImplementedError) as error:
        raise TrackingError(f"{path} is no bundle, or it is damaged: {error}") from error
    return Imported(tuple(brought), tuple(known))


def _run_ids(bundle: zipfile.ZipFile) -> list[str]:
    head = json.loads(bundle.read(_HEAD))
    if head["format"] > _FORMAT:
        raise TrackingError(
            f"The bundle has format {head['format']}, this version knows {_FORMAT}; "
            "update with: pip install --upgrade edgeproof-hub"
        )
    ids = [str(run_id) for run_id in head["runs"]]
    for run_id in ids:
        if not _RUN_ID.fullmatch(run_id):
            raise ValueError(f"run id {run_id!r:.100}")
    return ids


def _take(store: Store, bundle: zipfile.ZipFile, run_id: str) -> bool:
    name = f"runs/{run_id}/{_journal.MANIFEST_NAME}"
    if bundle.getinfo(name).file_size > _LARGEST_MANIFEST:
        raise ValueError(f"{name} is larger than {_LARGEST_MANIFEST} bytes")
    incoming = store.home / "runs" / f".incoming-{secrets.token_hex(8)}"
    manifest = incoming / _journal.MANIFEST_NAME
    with store.translated():
        incoming.mkdir(parents=True)
        try:
            manifest.write_bytes(bundle.read(name))
            records = _journal.read(manifest)
            if not records or records[0]["kind"] != "start":
                raise ValueError(f"{name} does not start a run")
            if _is_here(store, run_id, records):
                return False
            for record in records:
                if record["kind"] == "artifact":
                    _unpack(store, bundle, incoming, record)
            incoming.rename(store.run_dir(run_id))
        finally:
            shutil.rmtree(incoming, ignore_errors=True)
        if not _journal.has_ended(records):
            # Its process is elsewhere and this copy will never hear of its end.
            records = _journal.bury(store.manifest(run_id), _end_of_copy()) or records
    store.apply({run_id: records})
    return True


def _is_here(store: Store, run_id: str, records: list[Record]) -> bool:
    if not store.run_dir(run_id).exists():
        return False
    own = _journal.read(store.manifest(run_id))
    shared = min(len(own), len(records))
    if own[:shared] != records[:shared]:
        raise TrackingError(f"Run {run_id} is here already and is another one than in the bundle; nothing was changed.")
    return True


def _unpack(store: Store, bundle: zipfile.ZipFile, incoming: Path, record: Record) -> None:
    place = incoming / "artifacts" / plain_name(record["name"]) / plain_name(record["file_name"])
    for name, sha256 in files_of(record):
        parts = name.split("/") if name else []
        if not _SHA256.fullmatch(sha256) or any(part in {"", ".", ".."} or "\0" in part for part in parts):
            raise ValueError(f"artifact {record['name']!r:.100} holds {name!r:.100} with hash {sha256!r:.100}")
        target = place.joinpath(*parts)
        target.parent.mkdir(parents=True, exist_ok=True)
        if not store.blobs.path_of(sha256).exists():
            with bundle.open(f"blobs/{sha256}") as source:
                store.blobs.receive(source, sha256)
        store.blobs.link(sha256, target)
    if "files" in record:
        place.mkdir(parents=True, exist_ok=True)


def _end_of_copy() -> Record:
    return {
        "kind": "end",
        "time_ms": _journal.now_ms(),
        "status": "KILLED",
        "error": f"The run was still going on when it was bundled; this copy ends here (process {os.getpid()}).",
    }
