"""The index's rows: written from a manifest's records, which changes nothing the second time, and read as runs."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from embedl_hub.errors import TrackingError
from embedl_hub.tracking import _journal
from embedl_hub.tracking._models import LoggedArtifact, LoggedMetric, LoggedParam, Run, RunStatus
from embedl_hub.tracking._sql.find import RUN_COLUMNS, in_groups, run_of
from embedl_hub.tracking._sql.migrations import LONGEST_INDEXED

if TYPE_CHECKING:
    from embedl_hub.tracking._filter import Field
    from embedl_hub.tracking._sql.database import Connection

TABLES = ("param", "metric", "tag", "artifact", "run", "project")
"""In the order in which they can be emptied."""
_REPLACE = (
    "INSERT INTO {0} (run, name, value) VALUES (?, ?, ?) ON CONFLICT (run, name) DO UPDATE SET value = excluded.value"
)
_to_json = json.JSONEncoder(ensure_ascii=False).encode
_ALL = "1 = 1"
_IS_INPUT = "CASE WHEN {0}.name IN ('input', 'reference') OR substr({0}.name, 1, 6) = 'input_' THEN 1 ELSE 0 END"
"""Names under which a run logs what it read (``input_data``, ``input_2`` ...); everything else it made."""


def apply_to_run(connection: Connection, manifest: Path, records: Sequence[_journal.Record]) -> None:
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


def applied(connection: Connection, run_id: str) -> int:
    """Return the number of the next record that the index wants of a run; 0 for a run that it does not know."""
    row = connection.execute("SELECT applied FROM run WHERE id = ?", (run_id,)).fetchone()
    return 0 if row is None else int(row[0])


def clear(connection: Connection) -> None:
    for table in TABLES:
        connection.execute(f"DELETE FROM {table}")  # noqa: S608 - our own tables


def remove_run(connection: Connection, run_id: str) -> None:
    for table in ("param", "metric", "tag", "artifact"):
        connection.execute(f"DELETE FROM {table} WHERE run = (SELECT key FROM run WHERE id = ?)", (run_id,))  # noqa: S608 - our own tables
    connection.execute("DELETE FROM run WHERE id = ?", (run_id,))


def files_of(record: _journal.Record) -> list[tuple[str, str]]:
    """Return the files of an artifact: (name inside it, sha256); the name of a single file is empty."""
    return [(str(name), str(sha256)) for name, sha256, _ in record.get("files", [("", record["sha256"], 0)])]


def _apply_new(connection: Connection, run_id: str, key: int | None, records: list[_journal.Record]) -> None:
    # Each kind has a table of its own, so that only the order within a kind matters.
    groups: dict[str, list[_journal.Record]] = {}
    for record in records:
        if not 0 <= record["time_ms"] <= _journal.LATEST_MS:
            raise ValueError(f"the time {record['time_ms']}")
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
        RunStatus(end["status"])
        changes |= {"status": end["status"], "ended_ms": end["time_ms"], "error": end.get("error")}
        changes["traceback"] = end.get("traceback")
    if archived:
        changes["archived"] = int(bool(archived[-1]["archived"]))
    columns = ", ".join(f"{name} = ?" for name in changes)
    connection.execute(f"UPDATE run SET {columns} WHERE key = ?", (*changes.values(), key))  # noqa: S608 - our own names


def _insert_run(connection: Connection, run_id: str, record: _journal.Record) -> int:
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


def _apply_params(connection: Connection, key: int, records: list[_journal.Record]) -> None:
    values = [(key, record["name"], _to_json(record["value"])) for record in records]
    connection.executemany(_REPLACE.format("param"), values)


def _apply_tags(connection: Connection, key: int, records: list[_journal.Record]) -> None:
    connection.executemany(_REPLACE.format("tag"), [(key, record["name"], record["value"]) for record in records])


def _apply_metrics(connection: Connection, key: int, records: list[_journal.Record]) -> None:
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


def _apply_artifacts(connection: Connection, key: int, records: list[_journal.Record]) -> None:
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


_APPLY = {"param": _apply_params, "metric": _apply_metrics, "tag": _apply_tags, "artifact": _apply_artifacts}


@dataclass(frozen=True)
class Scope:
    """Which projects may be seen, by name; None for all."""

    projects: tuple[str, ...] | None = None

    def condition(self, column: str) -> tuple[str, tuple[str, ...]]:
        """Return the condition that a column holds the name of a project that may be seen, with its values."""
        if self.projects is None:
            return _ALL, ()
        marks = ", ".join("?" * len(self.projects))
        return (f"{column} IN ({marks})" if marks else "1 = 0"), self.projects


def check(connection: Connection) -> None:
    """Ask anything, so that a database that does not answer says so."""
    connection.execute("SELECT count(*) FROM project").fetchone()


def run_ids(connection: Connection, status: str | None = None) -> list[str]:
    condition, values = (_ALL, ()) if status is None else ("status = ?", (status,))
    return [run_id for (run_id,) in connection.execute(f"SELECT id FROM run WHERE {condition}", values)]  # noqa: S608 - fixed words


def counts(connection: Connection) -> dict[str, int]:
    return {
        table: connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0]  # noqa: S608 - fixed list
        for table in reversed(TABLES)
    }


def is_logged(connection: Connection, field: Field) -> bool:
    """Tell whether any run has a parameter, metric or tag of that name."""
    indexed = "latest = 1" if field.group == "metrics" else f"length(value) <= {LONGEST_INDEXED}"
    statement = f"SELECT 1 FROM {field.group[:-1]} WHERE name = ? AND {indexed} LIMIT 1"  # noqa: S608 - our own tables
    return connection.execute(statement, (field.name,)).fetchone() is not None


def projects(connection: Connection, scope: Scope) -> list[tuple[str, int, int | None]]:
    """Return name, number of runs and newest start of each project, by name."""
    # One short walk of an index for each project, not one over all runs.
    condition, names = scope.condition("project.name")
    statement = f"""SELECT name, (SELECT count(*) FROM run WHERE run.project = project.key),
        (SELECT started_ms FROM run WHERE run.project = project.key ORDER BY id DESC LIMIT 1)
        FROM project WHERE {condition} ORDER BY name"""  # noqa: S608 - our own words
    return connection.execute(statement, names).fetchall()


def devices(connection: Connection, scope: Scope) -> list[tuple[str, int, int, int]]:
    """Return name, number of runs, of failed ones, and newest start of each device, by name."""
    condition, names = scope.condition("project.name")
    statement = f"""SELECT device, count(*), sum(CASE WHEN status = 'FAILED' THEN 1 ELSE 0 END), max(started_ms)
        FROM run WHERE device IS NOT NULL AND run.project IN (SELECT key FROM project WHERE {condition})
        GROUP BY device ORDER BY device"""  # noqa: S608 - our own words
    return [(row[0], row[1], int(row[2]), row[3]) for row in connection.execute(statement, names)]


def value_names(connection: Connection, scope: Scope, project: str | None, newest: int) -> list[tuple[str, ...]]:
    """Return the names of parameters, metrics and tags that the newest runs logged."""
    condition, names = scope.condition("name")
    if project is not None:
        condition, names = f"{condition} AND name = ?", (*names, project)
    only = "" if condition == _ALL else f"WHERE project IN (SELECT key FROM project WHERE {condition})"  # noqa: S608 - our own words
    recent = f"(SELECT key FROM run {only} ORDER BY id DESC LIMIT ?)"  # noqa: S608 - our own words
    statement = "SELECT DISTINCT name FROM {} WHERE run IN " + recent + " ORDER BY name"  # noqa: S608 - our own words
    rows = [connection.execute(statement.format(table), (*names, newest)) for table in ("param", "metric", "tag")]
    return [tuple(name for (name,) in of_table.fetchall()) for of_table in rows]


def runs_starting_with(connection: Connection, scope: Scope, beginning: str) -> list[tuple[object, ...]]:
    """Return the rows of some runs whose id starts so; of the one only whose id it is."""
    condition, names = scope.condition("project.name")
    statement = (
        f"SELECT {RUN_COLUMNS} FROM run CROSS JOIN project WHERE project.key = run.project AND {condition} "  # noqa: S608 - fixed words
        "AND run.id >= ? AND run.id < ? ORDER BY run.id LIMIT 5"
    )
    rows = connection.execute(statement, (*names, beginning, beginning + "\U0010ffff")).fetchall() if beginning else []
    return [row for row in rows if row[1] == beginning] or rows


def with_values(connection: Connection, row: tuple[object, ...], path_of: Callable[[str, str, str], Path]) -> Run:
    """Return the run of a row with everything it logged; ``path_of`` tells where an artifact is."""
    key, run_id = row[0], str(row[1])
    params = connection.execute("SELECT name, value FROM param WHERE run = ? ORDER BY name", (key,))
    tags = connection.execute("SELECT name, value FROM tag WHERE run = ? ORDER BY name", (key,))
    metrics = connection.execute("SELECT name, value, step, time_ms FROM metric WHERE run = ? ORDER BY seq", (key,))
    artifacts = connection.execute(
        "SELECT name, file_name, size_bytes, sha256, is_folder FROM artifact WHERE run = ? ORDER BY name", (key,)
    )
    return run_of(
        row,
        params={name: LoggedParam(name, json.loads(value)) for name, value in params},
        tags=dict(tags.fetchall()),
        metrics=tuple(
            LoggedMetric(name, math.nan if value is None else value, step, time_ms)
            for name, value, step, time_ms in metrics
        ),
        artifacts={
            name: LoggedArtifact(
                name, file_name, size, sha256, bool(is_folder), run_id, local_path=path_of(run_id, name, file_name)
            )
            for name, file_name, size, sha256, is_folder in artifacts
        },
    )


def with_artifacts(
    connection: Connection, runs: Sequence[tuple[object, Run]], names: Sequence[str],
    path_of: Callable[[str, str, str], Path],
) -> list[Run]:  # fmt: skip
    """Return runs, each given behind its key, with those of their artifacts that are named."""
    found: dict[object, dict[str, LoggedArtifact]] = {key: {} for key, _ in runs}
    ids = {key: run.id for key, run in runs}
    named = ", ".join("?" * len(names)) or "NULL"
    for keys, marks in in_groups([key for key, _ in runs]):
        statement = f"""SELECT run, name, file_name, size_bytes, sha256, is_folder FROM artifact
            WHERE run IN ({marks}) AND name IN ({named})"""  # noqa: S608 - question marks
        for key, name, file_name, size, sha256, is_folder in connection.execute(statement, (*keys, *names)):
            place = path_of(ids[key], name, file_name)
            found[key][name] = LoggedArtifact(
                name, file_name, size, sha256, bool(is_folder), ids[key], local_path=place
            )
    return [replace(run, artifacts=found[key]) for key, run in runs]


def relatives(connection: Connection, run_id: str, most: int) -> tuple[list[str], list[str], list[str], list[str]]:
    """Return the ids of the runs that a run was made from, of those that use it, of its parent and of its parts."""
    statement = f"""SELECT DISTINCT other_run.id FROM artifact AS own
        CROSS JOIN artifact AS other CROSS JOIN run AS other_run CROSS JOIN run AS own_run
        WHERE own_run.id = ? AND own.run = own_run.key AND other.sha256 = own.sha256
        AND other.run <> own.run AND other_run.key = other.run AND other_run.id {{}} own_run.id
        AND {_IS_INPUT.format("own")} = ? AND {_IS_INPUT.format("other")} = ? ORDER BY other_run.id LIMIT ?"""  # noqa: S608 - our own words
    made_from = connection.execute(statement.format("<"), (run_id, 1, 0, most)).fetchall()
    used_by = connection.execute(statement.format(">"), (run_id, 0, 1, most)).fetchall()
    parent = connection.execute("SELECT parent_id FROM run WHERE id = ? AND parent_id IS NOT NULL", (run_id,))
    parts = connection.execute("SELECT id FROM run WHERE parent_id = ? ORDER BY id LIMIT ?", (run_id, most))
    made, used, above, below = ([other for (other,) in found] for found in (made_from, used_by, parent, parts))
    return made, used, above, below
