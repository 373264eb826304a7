"""Runs as one portable file: a zip of manifests and contents that any store can take in.

    bundle.json                  {"format": 1, "runs": [ids]}
    runs/<id>/manifest.jsonl     as in the home folder
    blobs/<sha256>               each content once

A bundle comes from elsewhere, so nothing in it is believed: ids and hashes are checked, contents are hashed
while they are read, and a name in a manifest never becomes a path outside its run folder.
"""

from __future__ import annotations

import csv
import json
import os
import re
import secrets
import shutil
import zipfile
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from embedl_hub.errors import ConfigError, TrackingError
from embedl_hub.paths import replacing
from embedl_hub.tracking import _journal
from embedl_hub.tracking._sql.rows import files_of, plain_name

if TYPE_CHECKING:
    from embedl_hub.tracking._models import Run
    from embedl_hub.tracking._store import Store

_FORMAT = 1
_HEAD = "bundle.json"
_RUN_ID = re.compile(r"[0-9a-f]{8,64}")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_LARGEST_MANIFEST = 1 << 30
_FACTS = ("id", "project", "type", "name", "status", "device", "component", "provider", "parent_id", "error")
# What a spreadsheet would take for a formula.
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


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
    if wrong := [run_id for run_id in ids if not _RUN_ID.fullmatch(run_id)]:
        raise ValueError(f"run id {wrong[0]!r:.100}")
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
            error = f"The run was still going on when it was bundled; this copy ends here (process {os.getpid()})."
            end = {"kind": "end", "time_ms": _journal.now_ms(), "status": "KILLED", "error": error}
            records = _journal.bury(store.manifest(run_id), end) or records
    store.apply({run_id: records})
    return True


def _is_here(store: Store, run_id: str, records: list[_journal.Record]) -> bool:
    if not store.run_dir(run_id).exists():
        return False
    own = _journal.read(store.manifest(run_id))
    shared = min(len(own), len(records))
    if own[:shared] != records[:shared]:
        raise TrackingError(f"Run {run_id} is here already and is another one than in the bundle; nothing was changed.")
    return True


def _unpack(store: Store, bundle: zipfile.ZipFile, incoming: Path, record: _journal.Record) -> None:
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


def write_table(runs: Sequence[Run], path: Path) -> None:
    """Write one row per run, with a column per parameter, metric and tag; the file's ending says the format."""
    if path.suffix not in {".csv", ".parquet"}:
        raise ConfigError(f"A table is written to a file that ends in .csv or .parquet, not {path.name!r}.")
    try:
        with replacing(path) as part:
            (_write_csv if path.suffix == ".csv" else _write_parquet)(_columns(runs), part)
    except OSError as error:
        raise TrackingError(f"{path} cannot be written: {error}") from error


def _columns(runs: Sequence[Run]) -> dict[str, list[object]]:
    columns: dict[str, list[object]] = {name: [getattr(run, name) for run in runs] for name in _FACTS}
    columns["status"] = [run.status.value for run in runs]
    columns |= {name: [_moment(getattr(run, f"{name}_ms")) for run in runs] for name in ("started", "ended")}
    for group in ("params", "metrics", "tags"):
        values = [_values(run, group) for run in runs]
        for name in sorted({name for of_run in values for name in of_run}):
            columns[f"{group}.{name}"] = [of_run.get(name) for of_run in values]
    return columns


def _values(run: Run, group: str) -> dict[str, object]:
    if group == "metrics":
        return {metric.name: metric.value for metric in run.metrics}
    if group == "tags":
        return dict(run.tags)
    values = {name: param.value for name, param in run.params.items()}
    return {
        name: json.dumps(value, ensure_ascii=False) if isinstance(value, list | dict) else value
        for name, value in values.items()
    }


def _moment(time_ms: int | None) -> str | None:
    return None if time_ms is None else datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(timespec="milliseconds")


def _write_csv(columns: dict[str, list[object]], path: Path) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([_cell(title) for title in columns])
        writer.writerows([_cell(cell) for cell in row] for row in zip(*columns.values(), strict=True))


def _cell(value: object) -> object:
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULA) else value


def _write_parquet(columns: dict[str, list[object]], path: Path) -> None:
    try:
        import pyarrow as pa  # type: ignore[import-not-found,import-untyped,unused-ignore]  # noqa: PLC0415 - an extra
        from pyarrow import parquet  # type: ignore[import-not-found,import-untyped,unused-ignore]  # noqa: PLC0415
    except ImportError as error:
        raise ConfigError(
            "Parquet needs a library that is not installed: pip install 'edgeproof-hub[parquet]'"
        ) from error
    # A parameter may be a number here and text there; a column holds one kind.
    kinds = {title: {type(cell) for cell in cells if cell is not None} for title, cells in columns.items()}
    plain = {
        title: cells if len(kinds[title]) <= 1 else [None if cell is None else str(cell) for cell in cells]
        for title, cells in columns.items()
    }
    parquet.write_table(pa.table(plain), path)
