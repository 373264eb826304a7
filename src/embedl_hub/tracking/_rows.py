"""From a manifest's records to the index's rows. Applying the same records twice changes nothing."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING

from embedl_hub.errors import TrackingError
from embedl_hub.tracking import _journal

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from embedl_hub.tracking._database import Connection
    from embedl_hub.tracking._journal import Record

TABLES = ("param", "metric", "tag", "artifact", "run", "project")
"""In the order in which they can be emptied."""
_to_json = json.JSONEncoder(ensure_ascii=False).encode


def apply_to_run(connection: Connection, manifest: Path, records: Sequence[Record]) -> None:
    """Bring one run's records into the index; what it holds already is passed over."""
    run_id = manifest.parent.name
    row = connection.execute("SELECT key, applied FROM run WHERE id = ?", (run_id,)).fetchone()
    key, applied = row or (None, 0)
    new = [record for record in records if record["seq"] >= applied]
    if new and new[0]["seq"] > applied:
        # Something acknowledged did not come this way (an interrupted flush, a rebuilt index): the manifest has it.
        new = [record for record in _journal.read(manifest) if record["seq"] >= applied] or new
    try:
        _apply_new(connection, run_id, key, new)
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise TrackingError(
            f"{manifest} holds a record that this version cannot read ({type(error).__name__}: {error}). Update with: "
            "pip install --upgrade edgeproof-hub; or move that run's folder away and rebuild the index with: "
            "embedl-hub reindex"
        ) from error


def remove_run(connection: Connection, run_id: str) -> None:
    """Take a run and all it logged out of the index."""
    for table in ("param", "metric", "tag", "artifact"):
        connection.execute(f"DELETE FROM {table} WHERE run = (SELECT key FROM run WHERE id = ?)", (run_id,))  # noqa: S608 - our own tables
    connection.execute("DELETE FROM run WHERE id = ?", (run_id,))


def files_of(record: Record) -> list[tuple[str, str]]:
    """Return the files of an artifact: (name inside it, sha256); the name of a single file is empty."""
    return [(str(name), str(sha256)) for name, sha256, _ in record.get("files", [("", record["sha256"], 0)])]


def _apply_new(connection: Connection, run_id: str, key: int | None, records: list[Record]) -> None:
    # Each kind has a table of its own, so that only the order within a kind matters.
    groups: dict[str, list[Record]] = {}
    for record in records:
        groups.setdefault(record["kind"], []).append(record)
    starts, ends, archived = (groups.pop(kind, []) for kind in ("start", "end", "archive"))
    if key is None and starts:
        key = _insert_run(connection, run_id, starts[0])
    if key is None or len(records) == len(starts):
        return
    for kind, of_kind in groups.items():
        _APPLY[kind](connection, key, of_kind)
    changes: dict[str, object] = {"applied": records[-1]["seq"] + 1}
    if ends:
        end = ends[-1]
        changes |= {"status": end["status"], "ended_ms": end["time_ms"]}
        changes |= {"error": end.get("error"), "traceback": end.get("traceback")}
    if archived:
        changes["archived"] = int(bool(archived[-1]["archived"]))
    columns = ", ".join(f"{name} = ?" for name in changes)
    connection.execute(f"UPDATE run SET {columns} WHERE key = ?", (*changes.values(), key))  # noqa: S608 - our own names


def _insert_run(connection: Connection, run_id: str, record: Record) -> int:
    if record.get("format", 0) > _journal.FORMAT:
        raise ValueError(f"manifest format {record['format']}, known up to {_journal.FORMAT}")
    facts = (
        run_id, record["type"], record["name"], record["time_ms"], record.get("parent_id"), record.get("component"),
        record.get("provider"), record.get("device"), record["seq"] + 1,
    )  # fmt: skip
    project = connection.execute("SELECT key FROM project WHERE name = ?", (record["project"],)).fetchone()
    if project is None:
        # Somebody else may make it at this very moment; theirs is as good.
        connection.execute(
            "INSERT INTO project (name, created_ms) VALUES (?, ?) ON CONFLICT (name) DO NOTHING",
            (record["project"], record["time_ms"]),
        )
        project = connection.execute("SELECT key FROM project WHERE name = ?", (record["project"],)).fetchone()
    insert = """INSERT INTO run
        (id, type, name, status, started_ms, parent_id, component, provider, device, applied, project)
        VALUES (?, ?, ?, 'RUNNING', ?, ?, ?, ?, ?, ?, ?) RETURNING key"""
    return int(connection.execute(insert, (*facts, project[0])).fetchone()[0])


def _apply_params(connection: Connection, key: int, records: list[Record]) -> None:
    rows = [(key, record["name"], _to_json(record["value"])) for record in records]
    connection.executemany(_REPLACE.format("param"), rows)


def _apply_tags(connection: Connection, key: int, records: list[Record]) -> None:
    rows = [(key, record["name"], record["value"]) for record in records]
    connection.executemany(_REPLACE.format("tag"), rows)


_REPLACE = (
    "INSERT INTO {0} (run, name, value) VALUES (?, ?, ?) ON CONFLICT (run, name) DO UPDATE SET value = excluded.value"
)


def _apply_metrics(connection: Connection, key: int, records: list[Record]) -> None:
    last = {record["name"]: record["seq"] for record in records}
    if connection.execute("SELECT 1 FROM metric WHERE run = ? LIMIT 1", (key,)).fetchone():
        connection.executemany(
            "UPDATE metric SET latest = 0 WHERE run = ? AND name = ? AND latest = 1", [(key, name) for name in last]
        )
    rows = [
        (
            key, record["name"], record["seq"], _number(record["value"]), record.get("step"), record["time_ms"],
            int(last[record["name"]] == record["seq"]),
        )
        for record in records
    ]  # fmt: skip
    connection.executemany(
        "INSERT INTO metric (run, name, seq, value, step, time_ms, latest) VALUES (?, ?, ?, ?, ?, ?, ?)", rows
    )


def _number(value: object) -> float | None:
    # What is not a number has no place in an order; infinities have.
    number = float(value)  # type: ignore[arg-type]  # a manifest may hold anything; what is no number raises
    return None if math.isnan(number) else number


def _apply_artifacts(connection: Connection, key: int, records: list[Record]) -> None:
    for record in records:
        files_of(record)
    rows = [
        (
            key, plain_name(record["name"]), plain_name(record["file_name"]), record["sha256"],
            record["size_bytes"], int("files" in record),
        )
        for record in records
    ]  # fmt: skip
    connection.executemany(
        """INSERT INTO artifact (run, name, file_name, sha256, size_bytes, is_folder) VALUES (?, ?, ?, ?, ?, ?)
        ON CONFLICT (run, name) DO UPDATE SET file_name = excluded.file_name, sha256 = excluded.sha256,
        size_bytes = excluded.size_bytes, is_folder = excluded.is_folder""",
        rows,
    )


def plain_name(name: str) -> str:
    """Refuse a name that leads out of its run folder, which may come from anywhere."""
    if "/" in name or name in {"", ".", ".."}:
        raise ValueError(f"artifact name {name!r}")
    return name


_APPLY = {
    "param": _apply_params,
    "metric": _apply_metrics,
    "tag": _apply_tags,
    "artifact": _apply_artifacts,
}
