"""The index of all runs: one SQLite file, and every SQL statement of the project.

Facts come from the runs' manifests (see _journal); this file only makes them quick to find. Applying the
same records twice changes nothing, so recovery and reindexing need no bookkeeping of their own.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import math
import socket
import sqlite3
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Self

from embedl_hub.errors import ConfigError, TrackingError, known
from embedl_hub.tracking import _fork, _journal
from embedl_hub.tracking._blobs import Blobs
from embedl_hub.tracking._migrations import MIGRATIONS
from embedl_hub.tracking._models import LoggedArtifact, LoggedMetric, LoggedParam, Run, RunStatus

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Iterator, Mapping

    from embedl_hub.tracking._journal import Record

DATABASE_NAME = "hub.db"
_WAIT_FOR_WRITERS_S = 60.0
_AFTER_ALL = 2**53
_to_json = json.JSONEncoder(ensure_ascii=False).encode
_RUN_COLUMNS = (
    "run.key, run.id, project.name, run.type, run.name, run.status, run.started_ms, run.ended_ms, "
    "run.parent_id, run.component, run.provider, run.device, run.error, run.traceback"
)
_RUN_TABLES = "run JOIN project ON project.key = run.project"


class Store:
    """A home folder: the index ``hub.db``, the run folders ``runs/`` and the contents ``blobs/``."""

    def __init__(self, home: str | os.PathLike[str], *, durable: bool = False) -> None:
        self.home = Path(home).absolute()
        self.durable = durable
        self.blobs = Blobs(self.home / "blobs", durable=durable)
        self._lock = threading.RLock()
        self._connection: sqlite3.Connection | None = None
        self._is_open = False
        _fork.watch(self)

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def open(self) -> None:
        """Open the index, bring it to the current shape and mark the runs of dead processes."""
        try:
            with self.translated(), self._lock:
                self.home.mkdir(parents=True, exist_ok=True)
                self._is_open = True
                with self._reading() as connection:
                    self._migrate(connection)
            self.recover()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the index."""
        with self._lock:
            self._is_open = False
            self._disconnect()

    def before_fork(self) -> None:
        """Close the connection, and let nobody open one until the fork is over."""
        self._lock.acquire()
        self._disconnect()

    def after_fork(self, *, in_child: bool) -> None:  # noqa: ARG002 - the same on both sides
        """Let the next reader connect again."""
        self._lock.release()

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
                _apply_to_run(connection, self.manifest(run_id), list(of_run))

    def recover(self) -> list[str]:
        """Mark runs whose process died, keep everything they logged, and return their ids."""
        with self._reading() as connection:
            alive = [run_id for (run_id,) in connection.execute("SELECT id FROM run WHERE status = 'RUNNING'")]
        recovered = {}
        for run_id in alive:
            try:
                records = _journal.bury(self.manifest(run_id), _end_of_dead_run(self.manifest(run_id)))
            except OSError:
                # Another user's run, or no space for its end: it stays until somebody can mark it; all else works.
                continue
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
        with self._transaction() as connection:
            # Inside the transaction, so that what other processes write meanwhile comes after it and not under it.
            for folder in sorted(self.home.glob("runs/*/")):
                records = _records_of(folder / _journal.MANIFEST_NAME)
                if records and records[0]["kind"] == "start":
                    found[folder.name] = records
            for table in ("param", "metric", "tag", "artifact", "run", "project"):
                connection.execute(f"DELETE FROM {table}")  # noqa: S608 - a fixed list of our own tables
            for run_id, records in found.items():
                _apply_to_run(connection, self.manifest(run_id), records)
        with self.translated():
            for run_id, records in found.items():
                self._adopt_artifacts(run_id, records)
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
            "run.status = ?": None if status is None else _status(status),
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
                which = f"are several runs, {rows[0][1]} among them," if rows else "is no run"
                raise TrackingError(
                    f"There {which} with an id starting with {run_id!r} in {self.home}; "
                    "`embedl-hub run list` shows the ids."
                )
            return self._with_values(connection, rows[0])

    def folders_without_a_run(self) -> list[Path]:
        """Return the folders in ``runs/`` that the index does not know: their manifests could not be read."""
        with self._reading() as connection:
            indexed = {run_id for (run_id,) in connection.execute("SELECT id FROM run")}
        return [folder for folder in sorted(self.home.glob("runs/*/")) if folder.name not in indexed]

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

    def _adopt_artifacts(self, run_id: str, records: list[Record]) -> None:
        folder = self.run_dir(run_id).resolve()
        for record in records:
            if record["kind"] != "artifact":
                continue
            place = self.artifact_path(run_id, record["name"], record["file_name"])
            for name, sha256 in _files_of(record):
                path = place / name
                # A folder from elsewhere may hold links and names that lead out of it; those are left alone.
                if not self.blobs.path_of(sha256).exists() and path.is_file() and folder in path.resolve().parents:
                    self.blobs.adopt(path)

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(
            self.home / DATABASE_NAME, timeout=_WAIT_FOR_WRITERS_S, isolation_level=None, check_same_thread=False
        )
        connection.execute(f"PRAGMA synchronous = {'FULL' if self.durable else 'NORMAL'}")
        return connection

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _migrate(self, connection: sqlite3.Connection) -> None:
        if self._version(connection) == len(MIGRATIONS):
            return
        # Many processes may find a new store at once; one shapes it, the others wait and look again.
        with (self.home / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            applied = self._version(connection)
            if applied == 0:
                connection.execute("PRAGMA journal_mode = WAL")
            with _committed(connection):
                for migration in MIGRATIONS[applied:]:
                    migration(connection)
                connection.execute(f"PRAGMA user_version = {len(MIGRATIONS)}")

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
        with self.translated(), self._lock:
            if not self._is_open:
                raise TrackingError(f"The store {self.home} is not open.")
            if self._connection is None:
                self._connection = self._connect()
            yield self._connection

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with self._reading() as connection, _committed(connection):
            yield connection

    @contextlib.contextmanager
    def translated(self) -> Iterator[None]:
        """Turn what SQLite and the file system say into one error of ours."""
        try:
            yield
        except sqlite3.DatabaseError as error:
            if _is_damage(error):
                raise TrackingError(
                    f"The index {self.home / DATABASE_NAME} is damaged ({error}). The runs are safe in "
                    f"{self.home / 'runs'}: rebuild it with: embedl-hub reindex --home {self.home}"
                ) from error
            raise self.unusable(error) from error
        except OSError as error:
            raise self.unusable(error) from error

    def unusable(self, error: Exception) -> TrackingError:
        """Return the error that says why the store cannot be used, and what to do."""
        return TrackingError(
            f"The store {self.home} cannot be used: {error}. Check that its folder is writable and has space, "
            "or choose another with EMBEDL_HUB_HOME or home=."
        )


def reindex(home: Path) -> int:
    """Rebuild the index of a home from its run folders, a damaged one included; return the number of runs."""
    try:
        with Store(home) as store:
            return store.reindex()
    except TrackingError as error:
        if not _is_damage(error.__cause__):
            raise
    for suffix in ("", "-wal", "-shm"):
        damaged = home / f"{DATABASE_NAME}{suffix}"
        if damaged.exists():
            damaged.rename(home / f"damaged-{_journal.now_ms()}-{damaged.name}")
    with Store(home) as store:
        return store.reindex()


def _status(status: str) -> str:
    try:
        return RunStatus(status.upper()).value
    except ValueError:
        raise ConfigError(f"There is no run status {status!r}; known: {known(RunStatus)}.") from None


def _is_damage(error: BaseException | None) -> bool:
    # SQLITE_ERROR here means that a table or column of ours is not there.
    codes = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR)
    return isinstance(error, sqlite3.DatabaseError) and getattr(error, "sqlite_errorcode", 0) & 0xFF in codes


@contextlib.contextmanager
def _committed(connection: sqlite3.Connection) -> Iterator[None]:
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        # A full disk may have ended the transaction already; an open one would block everything after it.
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def _records_of(manifest: Path) -> list[Record]:
    try:
        records = _journal.bury(manifest, _end_of_dead_run(manifest))
    except OSError:
        records = None
    return _journal.read(manifest) if records is None else records


def _apply_to_run(connection: sqlite3.Connection, manifest: Path, records: list[Record]) -> None:
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


def _apply_new(connection: sqlite3.Connection, run_id: str, key: int | None, records: list[Record]) -> None:
    # Each kind has a table of its own, so that only the order within a kind matters.
    groups: dict[str, list[Record]] = {}
    for record in records:
        groups.setdefault(record["kind"], []).append(record)
    starts, ends = groups.pop("start", []), groups.pop("end", [])
    if key is None and starts:
        key = _insert_run(connection, run_id, starts[0])
    if key is None or len(records) == len(starts):
        return
    for kind, of_kind in groups.items():
        _APPLY[kind](connection, key, of_kind)
    applied = records[-1]["seq"] + 1
    if ends:
        end = ends[-1]
        facts = (end["status"], end["time_ms"], end.get("error"), end.get("traceback"), applied, key)
        connection.execute(
            "UPDATE run SET status = ?, ended_ms = ?, error = ?, traceback = ?, applied = ? WHERE key = ?", facts
        )
    else:
        connection.execute("UPDATE run SET applied = ? WHERE key = ?", (applied, key))


def _insert_run(connection: sqlite3.Connection, run_id: str, record: Record) -> int:
    if record.get("format", 0) > _journal.FORMAT:
        raise ValueError(f"manifest format {record['format']}, known up to {_journal.FORMAT}")
    facts = (
        run_id, record["type"], record["name"], record["time_ms"], record.get("parent_id"), record.get("component"),
        record.get("provider"), record.get("device"), record["seq"] + 1, record["project"],
    )  # fmt: skip
    insert = """INSERT INTO run
        (id, project, type, name, status, started_ms, parent_id, component, provider, device, applied)
        SELECT ?, key, ?, ?, 'RUNNING', ?, ?, ?, ?, ?, ? FROM project WHERE name = ?"""
    cursor = connection.execute(insert, facts)
    if cursor.rowcount == 0:
        project = (record["project"], record["time_ms"])
        connection.execute("INSERT INTO project (name, created_ms) VALUES (?, ?)", project)
        cursor = connection.execute(insert, facts)
    assert cursor.lastrowid is not None  # noqa: S101 - an INSERT always has one
    return cursor.lastrowid


def _apply_params(connection: sqlite3.Connection, key: int, records: list[Record]) -> None:
    rows = [(key, record["name"], _to_json(record["value"])) for record in records]
    connection.executemany("INSERT OR REPLACE INTO param VALUES (?, ?, ?)", rows)


def _apply_metrics(connection: sqlite3.Connection, key: int, records: list[Record]) -> None:
    # SQLite turns NaN into NULL by itself; infinities are kept.
    rows = [
        (key, record["name"], record["seq"], float(record["value"]), record.get("step"), record["time_ms"])
        for record in records
    ]
    connection.executemany("INSERT OR REPLACE INTO metric VALUES (?, ?, ?, ?, ?, ?)", rows)


def _apply_tags(connection: sqlite3.Connection, key: int, records: list[Record]) -> None:
    rows = [(key, record["name"], record["value"]) for record in records]
    connection.executemany("INSERT OR REPLACE INTO tag VALUES (?, ?, ?)", rows)


def _apply_artifacts(connection: sqlite3.Connection, key: int, records: list[Record]) -> None:
    for record in records:
        _files_of(record)
    rows = [
        (
            key, _plain_name(record["name"]), _plain_name(record["file_name"]), record["sha256"],
            record["size_bytes"], "files" in record,
        )
        for record in records
    ]  # fmt: skip
    connection.executemany("INSERT OR REPLACE INTO artifact VALUES (?, ?, ?, ?, ?, ?)", rows)


def _files_of(record: Record) -> list[tuple[str, str]]:
    """Return the files of an artifact: (name inside it, sha256); the name of a single file is empty."""
    return [(str(name), str(sha256)) for name, sha256, _ in record.get("files", [("", record["sha256"], 0)])]


def _plain_name(name: str) -> str:
    # A run folder may come from anywhere; a name in it must not lead out of it.
    if "/" in name or name in {"", ".", ".."}:
        raise ValueError(f"artifact name {name!r}")
    return name


_APPLY = {
    "param": _apply_params,
    "metric": _apply_metrics,
    "tag": _apply_tags,
    "artifact": _apply_artifacts,
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
