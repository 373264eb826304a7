"""The index of all runs: one SQLite file, and every SQL statement of the project.

Facts come from the runs' manifests (see _journal); this file only makes them quick to find. Applying the
same records twice changes nothing, so recovery and reindexing need no bookkeeping of their own.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import math
import os
import socket
import sqlite3
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Self

from embedl_hub.errors import TrackingError
from embedl_hub.tracking import _journal
from embedl_hub.tracking._blobs import Blobs
from embedl_hub.tracking._migrations import MIGRATIONS
from embedl_hub.tracking._models import LoggedArtifact, LoggedMetric, LoggedParam, Run, RunStatus

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from embedl_hub.tracking._journal import Record

DATABASE_NAME = "hub.db"
_WAIT_FOR_WRITERS_S = 60.0
_AFTER_ALL = 2**53
_RUN_COLUMNS = (
    "run.key, run.id, project.name, run.type, run.name, run.status, run.started_ms, run.ended_ms, "
    "run.parent_id, run.component, run.provider, run.device, run.error, run.traceback"
)
_RUN_TABLES = "run JOIN project ON project.key = run.project"


class Store:
    """A home folder: the index ``hub.db``, the run folders ``runs/`` and the contents ``blobs/``."""

    def __init__(self, home: Path, *, durable: bool = False) -> None:
        self.home = home
        self.durable = durable
        self.blobs = Blobs(home / "blobs", durable=durable)
        self._lock = threading.RLock()
        self._connection: sqlite3.Connection | None = None
        self._owner = os.getpid()

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def open(self) -> None:
        """Open the index, bring it to the current shape and mark the runs of dead processes."""
        with self._translated(), self._lock:
            self.home.mkdir(parents=True, exist_ok=True)
            self._connection = self._connect()
            self._owner = os.getpid()
            self._migrate()
        self.recover()

    def close(self) -> None:
        """Close the index."""
        with self._lock:
            if self._connection is not None and self._owner == os.getpid():
                self._connection.close()
            self._connection = None

    def run_dir(self, run_id: str) -> Path:
        """Return the folder of a run."""
        return self.home / "runs" / run_id

    def manifest(self, run_id: str) -> Path:
        """Return the manifest of a run."""
        return self.run_dir(run_id) / _journal.MANIFEST_NAME

    def apply(self, records: Mapping[str, Iterable[Record]]) -> None:
        """Bring manifest records of any number of runs into the index, in one transaction."""
        with self._transaction() as connection:
            for run_id, of_run in records.items():
                _apply_to_run(connection, run_id, of_run)

    def recover(self) -> list[str]:
        """Mark runs whose process died, keep everything they logged, and return their ids."""
        with self._reading() as connection:
            alive = [run_id for (run_id,) in connection.execute("SELECT id FROM run WHERE status = 'RUNNING'")]
        recovered = {}
        for run_id in alive:
            records = _journal.bury(self.manifest(run_id), _end_of_dead_run(self.manifest(run_id)))
            if records is not None:
                # A run folder that somebody deleted leaves only the row; it still needs an end.
                recovered[run_id] = records or [{**_end_of_dead_run(self.manifest(run_id)), "seq": _AFTER_ALL}]
        if recovered:
            self.apply(recovered)
        return sorted(recovered)

    def reindex(self) -> int:
        """Rebuild the index from the run folders and return how many runs it holds now.

        Run folders copied in from another home are taken up, their artifacts included.
        """
        found: dict[str, list[Record]] = {}
        runs = self.home / "runs"
        for folder in sorted(runs.iterdir()) if runs.is_dir() else ():
            manifest = folder / _journal.MANIFEST_NAME
            if not manifest.is_file():
                continue
            records = _journal.bury(manifest, _end_of_dead_run(manifest))
            if records is None:
                records = _journal.read(manifest)
            if records and records[0]["kind"] == "start":
                found[folder.name] = records
                self._adopt_artifacts(folder)
        with self._transaction() as connection:
            for table in ("param", "metric", "tag", "artifact", "run", "project"):
                connection.execute(f"DELETE FROM {table}")  # noqa: S608 - a fixed list of our own tables
            for run_id, records in found.items():
                _apply_to_run(connection, run_id, records)
        return len(found)

    def projects(self) -> list[str]:
        """Return the names of all projects."""
        with self._reading() as connection:
            return [name for (name,) in connection.execute("SELECT name FROM project ORDER BY name")]

    def runs(
        self,
        *,
        project: str | None = None,
        status: str | None = None,
        parent_id: str | None = None,
        before: str | None = None,
        limit: int = 100,
    ) -> list[Run]:
        """Return runs without their values, newest first; page on with ``before=<last id>``."""
        conditions = {
            "project.name = ?": project,
            "run.status = ?": status,
            "run.parent_id = ?": parent_id,
            "run.id < ?": before,
        }
        used = {condition: value for condition, value in conditions.items() if value is not None}
        where = f" WHERE {' AND '.join(used)}" if used else ""
        query = f"SELECT {_RUN_COLUMNS} FROM {_RUN_TABLES}{where} ORDER BY run.id DESC LIMIT ?"  # noqa: S608 - fixed words
        with self._reading() as connection:
            return [_run(row) for row in connection.execute(query, (*used.values(), limit))]

    def run(self, run_id: str) -> Run:
        """Return one run with everything it logged; an unambiguous beginning of the id is enough."""
        query = f"SELECT {_RUN_COLUMNS} FROM {_RUN_TABLES} WHERE run.id >= ? AND run.id < ? LIMIT 2"  # noqa: S608 - fixed words
        with self._reading() as connection:
            rows = connection.execute(query, (run_id, run_id + "\U0010ffff")).fetchall() if run_id else []
            rows = [row for row in rows if row[1] == run_id] or rows
            if len(rows) != 1:
                which = "several runs" if rows else "no run"
                raise TrackingError(
                    f"There is {which} with an id starting with {run_id!r} in {self.home}; "
                    "`embedl-hub run list` shows the ids."
                )
            return self._with_values(connection, rows[0])

    def counts(self) -> dict[str, int]:
        """Return the number of rows per table."""
        tables = ("project", "run", "param", "metric", "tag", "artifact")
        with self._reading() as connection:
            return {
                table: connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0]  # noqa: S608 - fixed list
                for table in tables
            }

    def _with_values(self, connection: sqlite3.Connection, row: tuple[object, ...]) -> Run:
        key, run_id = row[0], str(row[1])
        params = connection.execute("SELECT name, value FROM param WHERE run = ? ORDER BY name", (key,))
        tags = connection.execute("SELECT name, value FROM tag WHERE run = ? ORDER BY name", (key,))
        metrics = connection.execute("SELECT name, value, step, time_ms FROM metric WHERE run = ? ORDER BY seq", (key,))
        artifacts = connection.execute(
            "SELECT name, file_name, size_bytes, sha256, is_folder FROM artifact WHERE run = ? ORDER BY name", (key,)
        )
        return _run(
            row,
            params={name: LoggedParam(name, json.loads(value)) for name, value in params},
            tags=dict(tags.fetchall()),
            metrics=tuple(
                LoggedMetric(name, math.nan if value is None else value, step, time_ms)
                for name, value, step, time_ms in metrics
            ),
            artifacts={
                name: LoggedArtifact(
                    name, file_name, size, sha256, bool(is_folder), run_id,
                    local_path=self.artifact_path(run_id, name, file_name),
                )
                for name, file_name, size, sha256, is_folder in artifacts
            },
        )  # fmt: skip

    def artifact_path(self, run_id: str, name: str, file_name: str) -> Path:
        """Return where a run's artifact is, inside its run folder."""
        return self.run_dir(run_id) / "artifacts" / name / file_name

    def _adopt_artifacts(self, folder: Path) -> None:
        for root, _, files in os.walk(folder / "artifacts"):
            for file in files:
                path = Path(root) / file
                # A file with one link came by copy; linked ones are in the store already.
                if path.is_file() and not path.is_symlink() and path.stat().st_nlink == 1:
                    self.blobs.adopt(path)

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(
            self.home / DATABASE_NAME, timeout=_WAIT_FOR_WRITERS_S, isolation_level=None, check_same_thread=False
        )
        connection.execute(f"PRAGMA synchronous = {'FULL' if self.durable else 'NORMAL'}")
        return connection

    def _migrate(self) -> None:
        connection = self._connection
        assert connection is not None  # noqa: S101 - set by open() on the line before
        if self._version(connection) == len(MIGRATIONS):
            return
        # Many processes may find a new store at once; one shapes it, the others wait and look again.
        with (self.home / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            applied = self._version(connection)
            if applied == 0:
                connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("BEGIN IMMEDIATE")
            for migration in MIGRATIONS[applied:]:
                migration(connection)
            connection.execute(f"PRAGMA user_version = {len(MIGRATIONS)}")
            connection.execute("COMMIT")

    def _version(self, connection: sqlite3.Connection) -> int:
        version = int(connection.execute("PRAGMA user_version").fetchone()[0])
        if version > len(MIGRATIONS):
            raise TrackingError(
                f"The store {self.home} has shape {version}, this version knows {len(MIGRATIONS)}; "
                "update with: pip install --upgrade edgeproof-hub"
            )
        return version

    @contextlib.contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        with self._translated(), self._lock:
            if self._owner != os.getpid():
                # A forked child must not use its parent's connection: SQLite forbids it.
                self._connection = self._connect()
                self._owner = os.getpid()
            if self._connection is None:
                raise TrackingError(f"The store {self.home} is not open.")
            yield self._connection

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with self._reading() as connection:
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield connection
            except BaseException:
                connection.execute("ROLLBACK")
                raise
            connection.execute("COMMIT")

    @contextlib.contextmanager
    def _translated(self) -> Iterator[None]:
        """Turn what SQLite and the file system say into one error of ours."""
        try:
            yield
        except sqlite3.OperationalError as error:
            raise TrackingError(
                f"The store {self.home} cannot be used: {error}. Check that its folder is writable and has space."
            ) from error
        except sqlite3.DatabaseError as error:
            raise TrackingError(
                f"The index {self.home / DATABASE_NAME} is damaged ({error}). The runs are safe in "
                f"{self.home / 'runs'}: rebuild it with: embedl-hub reindex --home {self.home}"
            ) from error
        except PermissionError as error:
            raise TrackingError(
                f"The store {self.home} cannot be written: {error}. Choose another with EMBEDL_HUB_HOME or home=."
            ) from error


def reindex(home: Path) -> int:
    """Rebuild the index of a home from its run folders, a damaged one included; return the number of runs."""
    store = Store(home)
    try:
        store.open()
    except TrackingError as error:
        if not isinstance(error.__cause__, sqlite3.DatabaseError) or isinstance(
            error.__cause__, sqlite3.OperationalError
        ):
            raise
        store.close()
        for suffix in ("", "-wal", "-shm"):
            damaged = home / f"{DATABASE_NAME}{suffix}"
            if damaged.exists():
                damaged.rename(home / f"damaged-{_journal.now_ms()}-{damaged.name}")
        store.open()
    with store:
        return store.reindex()


def _apply_to_run(connection: sqlite3.Connection, run_id: str, records: Iterable[Record]) -> None:
    row = connection.execute("SELECT key, applied FROM run WHERE id = ?", (run_id,)).fetchone()
    key, applied = row or (None, 0)
    last = applied - 1
    for record in records:
        if record["seq"] < applied:
            continue
        if record["kind"] == "start":
            key = _insert_run(connection, run_id, record)
        elif key is not None:
            _APPLY[record["kind"]](connection, key, record)
        last = record["seq"]
    if key is not None:
        connection.execute("UPDATE run SET applied = ? WHERE key = ?", (last + 1, key))


def _insert_run(connection: sqlite3.Connection, run_id: str, record: Record) -> int:
    connection.execute(
        "INSERT INTO project (name, created_ms) VALUES (?, ?) ON CONFLICT (name) DO NOTHING",
        (record["project"], record["time_ms"]),
    )
    cursor = connection.execute(
        """INSERT INTO run
        (id, project, type, name, status, started_ms, parent_id, component, provider, device, applied)
        SELECT ?, key, ?, ?, 'RUNNING', ?, ?, ?, ?, ?, 1 FROM project WHERE name = ?""",
        (
            run_id, record["type"], record["name"], record["time_ms"], record.get("parent_id"),
            record.get("component"), record.get("provider"), record.get("device"), record["project"],
        ),
    )  # fmt: skip
    assert cursor.lastrowid is not None  # noqa: S101 - an INSERT always has one
    return cursor.lastrowid


def _apply_param(connection: sqlite3.Connection, key: int, record: Record) -> None:
    value = json.dumps(record["value"], ensure_ascii=False)
    connection.execute("INSERT OR REPLACE INTO param VALUES (?, ?, ?)", (key, record["name"], value))


def _apply_metric(connection: sqlite3.Connection, key: int, record: Record) -> None:
    # SQLite turns NaN into NULL by itself; infinities are kept.
    connection.execute(
        "INSERT OR REPLACE INTO metric VALUES (?, ?, ?, ?, ?, ?)",
        (key, record["name"], record["seq"], float(record["value"]), record.get("step"), record["time_ms"]),
    )


def _apply_tag(connection: sqlite3.Connection, key: int, record: Record) -> None:
    connection.execute("INSERT OR REPLACE INTO tag VALUES (?, ?, ?)", (key, record["name"], record["value"]))


def _apply_artifact(connection: sqlite3.Connection, key: int, record: Record) -> None:
    connection.execute(
        "INSERT OR REPLACE INTO artifact VALUES (?, ?, ?, ?, ?, ?)",
        (
            key, record["name"], record["file_name"], record["sha256"], record["size_bytes"],
            bool(record.get("files") is not None),
        ),
    )  # fmt: skip


def _apply_end(connection: sqlite3.Connection, key: int, record: Record) -> None:
    connection.execute(
        "UPDATE run SET status = ?, ended_ms = ?, error = ?, traceback = ? WHERE key = ?",
        (record["status"], record["time_ms"], record.get("error"), record.get("traceback"), key),
    )


_APPLY = {
    "param": _apply_param,
    "metric": _apply_metric,
    "tag": _apply_tag,
    "artifact": _apply_artifact,
    "end": _apply_end,
}


def _end_of_dead_run(manifest: Path) -> Record:
    """Return the end of a run whose process did not write one; it ended when it last wrote."""
    try:
        last_sign_ms = manifest.stat().st_mtime_ns // 1_000_000
    except OSError:
        last_sign_ms = _journal.now_ms()
    return {
        "kind": "end",
        "time_ms": last_sign_ms,
        "status": RunStatus.KILLED.value,
        "error": f"The process ended without finishing the run (noticed on {socket.gethostname()}).",
    }


def _run(row: tuple[object, ...], **values: object) -> Run:
    _, run_id, project, run_type, name, status, *rest = row
    return Run(str(run_id), str(project), str(run_type), str(name), RunStatus(str(status)), *rest, **values)  # type: ignore[arg-type]
