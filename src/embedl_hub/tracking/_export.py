"""Runs as one portable file: a zip of manifests and contents that any store can take in.

    bundle.json                  {"format": 1, "runs": [ids]}
    runs/<id>/manifest.jsonl     as in the home folder
    blobs/<sha256>               each content once

A bundle comes from elsewhere, so nothing in it is believed: records are checked as a server checks them, contents are
hashed and counted while they are written, and a name in a manifest never becomes a path outside its run folder.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import zipfile
import zlib
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Self

from embedl_hub.errors import TrackingError
from embedl_hub.paths import is_plain, replacing
from embedl_hub.tracking import _journal
from embedl_hub.tracking._records import RUN_ID, check_record
from embedl_hub.tracking._sql.rows import files_of, plain_name

if TYPE_CHECKING:
    from embedl_hub.tracking._store import Store

_FORMAT = 1
_HEAD = "bundle.json"
_LARGEST_HEAD = 16 << 20
_LARGEST_MANIFEST = 256 << 20
_MOST_FILES = 200_000
# Weights seldom shrink to less than a half; a bundle that grows a thousandfold was made to.
_LARGEST_RATIO = 100
_SLACK_BYTES = 64 << 20


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
    """Write runs and their contents into one file, which appears when it is whole; return how many contents it holds.

    Contents of ``known`` hashes, which whoever takes the bundle in has, are left out. ``progress`` is told after each
    run how many of all are in.
    """
    if not path.absolute().parent.is_dir():
        raise TrackingError(f"There is no folder {path.absolute().parent} to write {path.name} into.")
    contents, left_out = set[str](), frozenset(known)
    with (
        store.translated(),
        replacing(path) as part,
        zipfile.ZipFile(part, "x", zipfile.ZIP_DEFLATED, compresslevel=1) as bundle,
    ):
        bundle.writestr(_HEAD, json.dumps({"format": _FORMAT, "runs": list(run_ids)}))
        for done, run_id in enumerate(run_ids, start=1):
            records = _journal.read(store.manifest(run_id))
            bundle.writestr(f"runs/{run_id}/{_journal.MANIFEST_NAME}", b"".join(map(_journal.encode, records)))
            for source, sha256 in _contents(store, run_id, records):
                if sha256 not in contents and sha256 not in left_out:
                    contents.add(sha256)
                    bundle.write(source, f"blobs/{sha256}")
            progress(done, len(run_ids))
    return len(contents)


def _contents(store: Store, run_id: str, records: Iterable[_journal.Record]) -> Iterable[tuple[Path, str]]:
    for record in records:
        if record["kind"] != "artifact":
            continue
        place = store.artifact_path(run_id, record["name"], record["file_name"])
        for name, sha256 in files_of(record):
            # A run folder from elsewhere may hold links; what they lead to is not for a bundle.
            source = next(
                (path for path in (store.blobs.path_of(sha256), place / name) if is_plain(path, store.home)), None
            )
            if source is None:
                raise TrackingError(
                    f"Artifact {record['name']!r} of run {run_id} is gone from {store.home}; the run cannot be bundled."
                )
            yield source, sha256


def import_bundle(store: Store, path: Path, *, most_bytes: int | None = None) -> Imported:
    """Take the runs of a bundle in; a run that is here already is left as it is.

    Args:
        store: Where to.
        path: The bundle.
        most_bytes: How much it may bring; a hundred times its own size and 64 MiB if not given.

    Raises:
        TrackingError: The file is no bundle, is damaged, brings more than it may, or holds a run that differs from the
            one here.
    """
    brought: list[str] = []
    known: list[str] = []
    try:
        allowed = _SLACK_BYTES + _LARGEST_RATIO * path.stat().st_size if most_bytes is None else most_bytes
        with zipfile.ZipFile(path) as bundle, _Incoming(store, bundle, allowed) as incoming:
            for run_id in incoming.run_ids():
                (brought if incoming.take(run_id) else known).append(run_id)
    except FileNotFoundError:
        raise TrackingError(f"There is no file {path}.") from None
    except (
        zipfile.BadZipFile, zlib.error, KeyError, ValueError, TypeError, EOFError, NotImplementedError, RuntimeError,
        OSError,
    ) as error:  # fmt: skip
        raise TrackingError(f"{path} is no bundle, or it is damaged: {error}") from error
    return Imported(tuple(brought), tuple(known))


class _Incoming:
    """A bundle on its way into a store: nothing in it is believed, and what it brings is counted as it is written."""

    def __init__(self, store: Store, bundle: zipfile.ZipFile, allowed_bytes: int) -> None:
        self._store = store
        self._bundle = bundle
        self._allowed = allowed_bytes
        self._written = 0
        self._files = 0
        self._received: list[Path] = []
        if len(bundle.infolist()) > _MOST_FILES:
            raise ValueError(f"it holds {len(bundle.infolist())} files, and may hold {_MOST_FILES}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            for blob in self._received:
                # What a run that was taken in uses has a second link.
                with contextlib.suppress(OSError):
                    if blob.stat().st_nlink == 1:
                        blob.unlink()

    def run_ids(self) -> list[str]:
        head = json.loads(self._read(_HEAD, _LARGEST_HEAD))
        if head["format"] > _FORMAT:
            raise TrackingError(
                f"The bundle has format {head['format']}, this version knows {_FORMAT}; "
                "update with: pip install --upgrade edgeproof-hub"
            )
        ids = [str(run_id) for run_id in head["runs"]]
        if wrong := [run_id for run_id in ids if not RUN_ID.fullmatch(run_id)]:
            raise ValueError(f"run id {wrong[0]!r:.100}")
        return ids

    def take(self, run_id: str) -> bool:
        store, name = self._store, f"runs/{run_id}/{_journal.MANIFEST_NAME}"
        records = self._records(name)
        if _is_here(store, run_id, records):
            return False
        incoming = store.home / "runs" / f".incoming-{secrets.token_hex(8)}"
        with store.translated():
            incoming.mkdir(parents=True)
            try:
                # As it was read and checked: what could not be read is left behind.
                (incoming / _journal.MANIFEST_NAME).write_bytes(b"".join(map(_journal.encode, records)))
                for record in records:
                    if record["kind"] == "artifact":
                        self._unpack(incoming, record)
                incoming.rename(store.run_dir(run_id))
            finally:
                shutil.rmtree(incoming, ignore_errors=True)
            if not _journal.has_ended(records):
                # Its process is elsewhere and this copy will never hear of its end.
                error = f"The run was still going on when it was bundled; this copy ends here (process {os.getpid()})."
                end = {"kind": "end", "time_ms": _journal.now_ms(), "status": "KILLED", "error": error}
                records = _journal.bury(store.manifest(run_id), end) or records
        store.apply({run_id: records})
        return True

    def _records(self, name: str) -> list[_journal.Record]:
        """Return a manifest's records, each as good as one that a server takes."""
        lines = self._read(name, _LARGEST_MANIFEST).split(b"\n")
        records = [record for record in map(_journal.decode, lines) if record is not None]
        if not records or records[0]["kind"] != "start":
            raise ValueError(f"{name} does not start a run")
        last = -1
        for record in records:
            check_record(record)
            if record["seq"] <= last:
                raise ValueError(f"{name} holds record {record['seq']} after {last}")
            last = record["seq"]
        return records

    def _unpack(self, incoming: Path, record: _journal.Record) -> None:
        blobs = self._store.blobs
        place = incoming / "artifacts" / plain_name(record["name"]) / plain_name(record["file_name"])
        for name, sha256 in files_of(record):
            self._files += 1
            if self._files > _MOST_FILES:
                raise ValueError(f"its runs hold more than {_MOST_FILES} files")
            target = place.joinpath(*(name.split("/") if name else ()))
            target.parent.mkdir(parents=True, exist_ok=True)
            blob = blobs.path_of(sha256)
            if not blob.exists():
                with self._bundle.open(f"blobs/{sha256}") as source:
                    blobs.receive(_Counted(source, self._spend), sha256)
                self._received.append(blob)
            blobs.link(sha256, target)
            if target.stat().st_nlink == 1:
                # Links are used up, or not to be had here: it is a copy.
                self._spend(target.stat().st_size)
        if "files" in record:
            place.mkdir(parents=True, exist_ok=True)

    def _read(self, name: str, most: int) -> bytes:
        with self._bundle.open(name) as file:
            content = file.read(most + 1)
        if len(content) > most:
            raise ValueError(f"{name} is larger than {most} bytes")
        self._spend(len(content))
        return content

    def _spend(self, size: int) -> None:
        self._written += size
        if self._written > self._allowed:
            raise TrackingError(
                f"The bundle unpacks to more than {self._allowed} bytes, which is much for its size; the rest of it is "
                "left alone. If you know where it comes from, allow more with: embedl-hub run import --largest MIB"
            )


@dataclass(frozen=True)
class _Counted:
    """A file that tells how much is read from it."""

    file: IO[bytes]
    spend: Callable[[int], None]

    def read(self, size: int) -> bytes:
        chunk = self.file.read(size)
        self.spend(len(chunk))
        return chunk


def _is_here(store: Store, run_id: str, records: list[_journal.Record]) -> bool:
    if not store.run_dir(run_id).exists():
        return False
    own = _journal.read(store.manifest(run_id))
    shared = min(len(own), len(records))
    if own[:shared] != records[:shared]:
        raise TrackingError(f"Run {run_id} is here already and is another one than in the bundle; nothing was changed.")
    return True
