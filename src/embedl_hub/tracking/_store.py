"""The index of all runs and the folders it stands for.

Facts come from the runs' manifests (see _journal); the database only makes them quick to find. Applying the
same records twice changes nothing, so recovery and reindexing need no bookkeeping of their own.
"""

from __future__ import annotations

import contextlib
import copy
import json
import math
import shutil
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Self

from embedl_hub.errors import StoreUnusableError, TrackingError
from embedl_hub.tracking import _journal
from embedl_hub.tracking._blobs import Blobs
from embedl_hub.tracking._database import open_database
from embedl_hub.tracking._filter import named_fields, parse
from embedl_hub.tracking._find import LARGEST_PAGE, Finder, Page, Query, run_columns, run_of
from embedl_hub.tracking._migrations import LONGEST_INDEXED, MIGRATIONS
from embedl_hub.tracking._models import LoggedArtifact, LoggedMetric, LoggedParam, Run, RunStatus
from embedl_hub.tracking._pool import Pool
from embedl_hub.tracking._rows import TABLES, apply_to_run, files_of, remove_run

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from embedl_hub.tracking._database import Connection
    from embedl_hub.tracking._journal import Record

DATABASE_NAME = "hub.db"
SERVED_NAME = "served"
_AFTER_ALL = 2**53
_ALL = "1 = 1"
_RUN_TABLES = "run CROSS JOIN project"
_IS_INPUT = "CASE WHEN {0}.name IN ('input', 'reference') OR substr({0}.name, 1, 6) = 'input_' THEN 1 ELSE 0 END"
"""Names under which a run logs what it read (``input_data``, ``input_2`` ...); everything else it made."""


@dataclass(frozen=True)
class ProjectSummary:
    """A project at a glance."""

    name: str
    runs: int
    last_started_ms: int | None


@dataclass(frozen=True)
class DeviceSummary:
    """A device that runs were made on, at a glance."""

    name: str
    runs: int
    failed: int
    last_started_ms: int


@dataclass(frozen=True)
class ValueNames:
    """What the runs of a project logged: the columns a table can have."""

    params: tuple[str, ...]
    metrics: tuple[str, ...]
    tags: tuple[str, ...]


@dataclass(frozen=True)
class Lineage:
    """Where a run stands among others, by the contents they share.

    Attributes:
        made_from: Runs that made what this one read.
        used_by: Runs that read what this one made.
        parent: The run that this one is a part of.
        parts: The runs that are parts of this one.
    """

    made_from: tuple[Run, ...] = ()
    used_by: tuple[Run, ...] = ()
    parent: Run | None = None
    parts: tuple[Run, ...] = ()


class Store:
    """A home folder: the index ``hub.db``, the run folders ``runs/`` and the contents ``blobs/``.

    Args:
        home: The folder.
        durable: Also survive a power cut.
        database: The address of a PostgreSQL database to keep the index in, instead of ``hub.db``.
        recovers: Whether runs of dead processes are marked on opening; a server's runs live elsewhere.
    """

    def __init__(
        self,
        home: str | os.PathLike[str],
        *,
        durable: bool = False,
        database: str | None = None,
        recovers: bool = True,
    ) -> None:
        self.home = Path(home).absolute()
        self.durable = durable
        self.blobs = Blobs(self.home / "blobs", durable=durable)
        self._recovers = recovers
        self._database = open_database(database, self.home / DATABASE_NAME, durable=durable)
        self._pool = Pool(self._database, lambda: TrackingError(f"The store {self.home} is not open."))
        self._only: tuple[str, ...] | None = None

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def open(self) -> None:
        """Open the index, bring it to the current shape and mark the runs of dead processes."""
        try:
            with self.translated():
                self.home.mkdir(parents=True, exist_ok=True)
                self._pool.open()
                with self._reading() as connection:
                    is_new = self._migrate(connection)
            if is_new and any(self.home.glob(f"runs/*/{_journal.MANIFEST_NAME}")):
                # Somebody removed the index or copied only run folders here: the runs are what counts.
                self.reindex()
            if self._recovers and not self.is_served and not self._database.is_read_only:
                self.recover()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the index."""
        self._pool.close()

    def check(self) -> None:
        """Raise StoreUnusableError unless the index answers and may be written."""
        with self._transaction() as connection:
            connection.execute("SELECT count(*) FROM project").fetchone()

    @property
    def is_served(self) -> bool:
        """Whether this is a server's home: its runs go on in processes elsewhere, whatever this machine knows."""
        return (self.home / SERVED_NAME).exists()

    def mark_served(self) -> None:
        """Say that this home is a server's, to every program that opens it from now on."""
        with self.translated():
            (self.home / SERVED_NAME).touch()

    def for_projects(self, names: Iterable[str]) -> Store:
        """Return the same store as if it held these projects only; close the first one, not this."""
        view = copy.copy(self)
        view._only = tuple(names)  # noqa: SLF001 - same class
        return view

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
                apply_to_run(connection, self.manifest(run_id), list(of_run))

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
                records = self._records_of(folder / _journal.MANIFEST_NAME)
                if records and records[0]["kind"] == "start":
                    found[folder.name] = records
            for table in TABLES:
                connection.execute(f"DELETE FROM {table}")  # noqa: S608 - a fixed list of our own tables
            for run_id, records in found.items():
                apply_to_run(connection, self.manifest(run_id), records)
        with self.translated():
            for run_id, records in found.items():
                self.adopt_artifacts(run_id, records)
        return len(found)

    def find(
        self,
        where: str = "",
        *,
        order: str = "-started",
        archived: bool | None = False,
        after: str | None = None,
        limit: int = 50,
        offset: int = 0,
    ) -> Page:
        """Return a page of runs with their values, each metric with its last one.

        Args:
            where: Conditions such as ``metrics.latency < 5 and tags.stage = 'ci'``; all runs if empty.
            order: A field, largest first with a minus in front; runs that do not have it come last.
            archived: False leaves archived runs out, True shows only those, None shows both.
            after: The ``after`` of the page before, to go on from there.
            limit: At most so many, up to 500.
            offset: Pass over so many first; ``after`` is quicker.
        """
        with self._reading() as connection:
            finder = Finder(connection, self._database.words)
            return finder.page(Query(where, order, archived, self._only), after=after, limit=limit, offset=offset)

    def runs(self, where: str = "", *, order: str = "-started", archived: bool | None = False) -> list[Run]:
        """Return all runs that meet the conditions, as :meth:`find` gives them by the page."""
        runs: list[Run] = []
        page = self.find(where, order=order, archived=archived, limit=LARGEST_PAGE)
        runs += page.runs
        while page.after is not None:
            page = self.find(where, order=order, archived=archived, limit=LARGEST_PAGE, after=page.after)
            runs += page.runs
        return runs

    def tagged(self, name: str, values: Iterable[str], *, params: Sequence[str] = ()) -> list[Run]:
        """Return all runs, archived ones too, whose tag has one of these values, oldest first.

        Made for many at once: they come with their tags and last metrics, without artifacts, and of their parameters
        only with those named.
        """
        with self._reading() as connection:
            finder = Finder(connection, self._database.words)
            return finder.tagged(name, values, params=params, projects=self._only)

    def count(self, where: str = "", *, archived: bool | None = False) -> int:
        """Return how many runs meet the conditions."""
        with self._reading() as connection:
            return Finder(connection, self._database.words).count(Query(where, archived=archived, projects=self._only))

    def unknown_names(self, where: str) -> list[str]:
        """Return the parameters, metrics and tags of a filter that no run has: most likely slips of the pen."""
        unknown = []
        with self._reading() as connection:
            for field in sorted(named_fields(parse(where)), key=str):
                indexed = "latest = 1" if field.group == "metrics" else f"length(value) <= {LONGEST_INDEXED}"
                statement = f"SELECT 1 FROM {field.group[:-1]} WHERE name = ? AND {indexed} LIMIT 1"  # noqa: S608 - our own tables
                if connection.execute(statement, (field.name,)).fetchone() is None:
                    unknown.append(f"{field.group}.{field.name}")
        return unknown

    def projects(self) -> list[ProjectSummary]:
        """Return all projects by name."""
        # One short walk of an index for each project, not one over all runs.
        condition, names = self._in_sight("project.name")
        statement = f"""SELECT name, (SELECT count(*) FROM run WHERE run.project = project.key),
            (SELECT started_ms FROM run WHERE run.project = project.key ORDER BY id DESC LIMIT 1)
            FROM project WHERE {condition} ORDER BY name"""  # noqa: S608 - our own words
        with self._reading() as connection:
            return [ProjectSummary(*row) for row in connection.execute(statement, names)]

    def devices(self) -> list[DeviceSummary]:
        """Return the devices that runs were made on, by name."""
        condition, names = self._in_sight("project.name")
        statement = f"""SELECT device, count(*), sum(CASE WHEN status = 'FAILED' THEN 1 ELSE 0 END), max(started_ms)
            FROM run WHERE device IS NOT NULL AND run.project IN (SELECT key FROM project WHERE {condition})
            GROUP BY device ORDER BY device"""  # noqa: S608 - our own words
        with self._reading() as connection:
            return [DeviceSummary(row[0], row[1], int(row[2]), row[3]) for row in connection.execute(statement, names)]

    def value_names(self, project: str | None = None, *, newest: int = 1000) -> ValueNames:
        """Return the names under which the newest runs logged values."""
        condition, names_in_sight = self._in_sight("name")
        if project is not None:
            condition, names_in_sight = f"{condition} AND name = ?", (*names_in_sight, project)
        only = "" if condition == _ALL else f"WHERE project IN (SELECT key FROM project WHERE {condition})"  # noqa: S608 - our own words
        recent = f"(SELECT key FROM run {only} ORDER BY id DESC LIMIT ?)"  # noqa: S608 - our own words
        values = (*names_in_sight, newest)
        with self._reading() as connection:
            names = [
                tuple(
                    name
                    for (name,) in connection.execute(
                        f"SELECT DISTINCT name FROM {table} WHERE run IN {recent} ORDER BY name",  # noqa: S608 - our own tables
                        values,
                    )
                )
                for table in ("param", "metric", "tag")
            ]
        return ValueNames(*names)

    def run(self, run_id: str) -> Run:
        """Return one run with everything it logged; an unambiguous beginning of the id is enough."""
        condition, names = self._in_sight("project.name")
        query = (
            f"SELECT {run_columns()} FROM {_RUN_TABLES} WHERE project.key = run.project AND {condition} "  # noqa: S608 - fixed words
            "AND run.id >= ? AND run.id < ? ORDER BY run.id LIMIT 5"
        )
        with self._reading() as connection:
            values = (*names, run_id, run_id + "\U0010ffff")
            rows = connection.execute(query, values).fetchall() if run_id else []
            rows = [row for row in rows if row[1] == run_id] or rows
            if len(rows) != 1:
                which = f"are several runs ({', '.join(row[1] for row in rows)} ...)" if rows else "is no run"
                raise TrackingError(
                    f"There {which} with an id starting with {run_id!r} in {self.home}; "
                    "`embedl-hub run list` shows the ids."
                )
            return self._with_values(connection, rows[0])

    def lineage(self, run_id: str) -> Lineage:
        """Return the runs that a run was made from and that use what it made."""
        ids = f"""SELECT DISTINCT other_run.id FROM artifact AS own
            CROSS JOIN artifact AS other CROSS JOIN run AS other_run CROSS JOIN run AS own_run
            WHERE own_run.id = ? AND own.run = own_run.key AND other.sha256 = own.sha256
            AND other.run <> own.run AND other_run.key = other.run
            AND {_IS_INPUT.format("own")} = ? AND {_IS_INPUT.format("other")} = ? ORDER BY other_run.id"""  # noqa: S608 - our own words
        with self._reading() as connection:
            made_from = [row[0] for row in connection.execute(ids, (run_id, 1, 0))]
            used_by = [row[0] for row in connection.execute(ids, (run_id, 0, 1))]
            parts = connection.execute("SELECT id FROM run WHERE parent_id = ? ORDER BY id", (run_id,)).fetchall()
            parent = connection.execute("SELECT parent_id FROM run WHERE id = ?", (run_id,)).fetchone()
            found = (
                self._known(connection, [other for other in made_from if other < run_id]),
                self._known(connection, [other for other in used_by if other > run_id]),
                self._known(connection, [parent[0]] if parent else []),
                self._known(connection, [part for (part,) in parts]),
            )
            return Lineage(found[0], found[1], next(iter(found[2]), None), found[3])

    def archive(self, run_id: str, *, archived: bool = True) -> None:
        """Put a finished run aside, or back: it stays, and lists leave it out."""
        self.annotate(run_id, {"kind": "archive", "archived": archived})

    def label(self, run_id: str, name: str, value: str) -> None:
        """Give a finished run a tag."""
        self.annotate(run_id, {"kind": "tag", "name": name, "value": value})

    def annotate(self, run_id: str, record: Record) -> None:
        """Add a record to a run that has ended."""
        with self.translated(), self._owned(run_id) as journal:
            records = _journal.read(self.manifest(run_id))
            if not _journal.has_ended(records):
                raise TrackingError(f"Run {run_id} has not ended; finish it first: embedl-hub run finish {run_id}")
            record = {"seq": records[-1]["seq"] + 1, "time_ms": _journal.now_ms(), **record}
            journal.append(record)
            journal.sync()
        self.apply({run_id: [record]})

    def delete(self, run_id: str) -> None:
        """Remove a run that is not alive: its rows, its manifest and its folder. Contents go with ``collect``."""
        run = self.run(run_id)
        folder = self.run_dir(run.id)
        gone = folder.with_name(f".deleted-{folder.name}")
        with self.translated():
            if self.manifest(run.id).exists():
                with self._owned(run.id):
                    # Renamed first: a process killed half way leaves nothing that looks like a run.
                    shutil.rmtree(gone, ignore_errors=True)
                    folder.rename(gone)
            with self._transaction() as connection:
                remove_run(connection, run.id)
            shutil.rmtree(gone, ignore_errors=True)
            # There is nothing left to send to any server.
            for mark in self.home.glob(f"outbox/*/{run.id}*"):
                mark.unlink(missing_ok=True)

    def manifests(self) -> Iterator[tuple[str, list[Record]]]:
        """Yield every run folder's id with its records."""
        for folder in sorted(self.home.glob("runs/[!.]*/")):
            yield folder.name, _journal.read(folder / _journal.MANIFEST_NAME)

    def folders_without_a_run(self) -> list[Path]:
        """Return the folders in ``runs/`` that the index does not know: their manifests could not be read."""
        with self._reading() as connection:
            indexed = {run_id for (run_id,) in connection.execute("SELECT id FROM run")}
        return [folder for folder in sorted(self.home.glob("runs/[!.]*/")) if folder.name not in indexed]

    def counts(self) -> dict[str, int]:
        """Return the number of rows per table."""
        with self._reading() as connection:
            return {
                table: connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0]  # noqa: S608 - fixed list
                for table in reversed(TABLES)
            }

    def artifact_path(self, run_id: str, name: str, file_name: str) -> Path:
        """Return where a run's artifact is, inside its run folder."""
        return self.run_dir(run_id) / "artifacts" / name / file_name

    def folder_files(self, run_id: str) -> dict[str, list[tuple[str, str, int]]]:
        """Return the files of a run's artifacts that are folders: by artifact, (name inside it, sha256, size)."""
        return {
            record["name"]: [(str(name), str(sha256), int(size)) for name, sha256, size in record["files"]]
            for record in _journal.read(self.manifest(run_id))
            if record["kind"] == "artifact" and "files" in record
        }

    def adopt_artifacts(self, run_id: str, records: list[Record]) -> None:
        """Take the artifacts of a run folder that came from elsewhere into the contents."""
        folder = self.run_dir(run_id).resolve()
        for record in records:
            if record["kind"] != "artifact":
                continue
            place = self.artifact_path(run_id, record["name"], record["file_name"])
            for name, sha256 in files_of(record):
                path = place / name
                # A folder from elsewhere may hold links and names that lead out of it; those are left alone.
                if not self.blobs.path_of(sha256).exists() and path.is_file() and folder in path.resolve().parents:
                    self.blobs.adopt(path)

    def _with_values(self, connection: Connection, row: tuple[object, ...]) -> Run:
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
                    name, file_name, size, sha256, bool(is_folder), run_id,
                    local_path=self.artifact_path(run_id, name, file_name),
                )
                for name, file_name, size, sha256, is_folder in artifacts
            },
        )  # fmt: skip

    def _known(self, connection: Connection, run_ids: Iterable[str | None]) -> tuple[Run, ...]:
        """Return those of the runs that there are, as far as they are in sight."""
        condition, names = self._in_sight("project.name")
        statement = f"SELECT 1 FROM {_RUN_TABLES} WHERE project.key = run.project AND {condition} AND run.id = ?"  # noqa: S608 - our own words
        return tuple(
            self.run(run_id)
            for run_id in run_ids
            if run_id is not None and connection.execute(statement, (*names, run_id)).fetchone()
        )

    def _in_sight(self, column: str) -> tuple[str, tuple[str, ...]]:
        """Return the condition that a project's name may be seen here, with its values."""
        if self._only is None:
            return _ALL, ()
        marks = ", ".join("?" * len(self._only))
        return (f"{column} IN ({marks})" if marks else "1 = 0"), self._only

    @contextlib.contextmanager
    def _owned(self, run_id: str) -> Iterator[_journal.Journal]:
        """Hold a run's manifest, as its process does; refuse while that one lives."""
        if not self.manifest(run_id).exists():
            raise TrackingError(f"The folder of run {run_id} is gone from {self.home / 'runs'}.")
        try:
            journal = _journal.Journal(self.manifest(run_id), durable=self.durable)
        except BlockingIOError:
            raise TrackingError(f"Run {run_id} is still going on in another process; wait for its end.") from None
        try:
            yield journal
        finally:
            journal.close()

    def _records_of(self, manifest: Path) -> list[Record]:
        if not self._recovers or self.is_served:
            return _journal.read(manifest)
        try:
            records = _journal.bury(manifest, _end_of_dead_run(manifest))
        except OSError:
            records = None
        return _journal.read(manifest) if records is None else records

    def _migrate(self, connection: Connection) -> bool:
        """Bring the database to the current shape; tell whether it was empty before."""
        if self._version(connection) == len(MIGRATIONS):
            return False
        # Many processes may find a new store at once; one shapes it, the others wait and look again.
        with self._database.shaping(connection):
            applied = self._version(connection)
            with self._database.committed(connection):
                for migration in MIGRATIONS[applied:]:
                    migration(connection, self._database.words)
                self._database.set_version(connection, len(MIGRATIONS))
            return applied == 0

    def _version(self, connection: Connection) -> int:
        version = self._database.version(connection)
        if version > len(MIGRATIONS):
            raise TrackingError(
                f"The store {self.home} has shape {version}, this version knows {len(MIGRATIONS)}; "
                "update with: pip install --upgrade edgeproof-hub"
            )
        return version

    @contextlib.contextmanager
    def _reading(self) -> Iterator[Connection]:
        with self.translated(), self._pool.lend() as connection:
            yield connection

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[Connection]:
        with self._reading() as connection, self._database.committed(connection):
            yield connection

    @contextlib.contextmanager
    def translated(self) -> Iterator[None]:
        """Turn what the database and the file system say into one error of ours."""
        try:
            yield
        except OSError as error:
            raise self.unusable(error) from error
        except Exception as error:
            if not self._database.is_own_error(error):
                raise
            if self._database.is_damage(error):
                raise DamagedIndexError(self._database.damaged(error)) from error
            raise self.unusable(error) from error

    def unusable(self, error: Exception) -> StoreUnusableError:
        """Return the error that says why the store cannot be used, and what to do."""
        return StoreUnusableError(
            f"The store {self.home} cannot be used: {error}. Check that its folder is writable and has space, "
            "or choose another with EMBEDL_HUB_HOME or home=."
        )


class DamagedIndexError(TrackingError):
    """The index cannot be read; the runs it stands for can."""


def reindex(home: Path) -> int:
    """Rebuild the index of a home from its run folders, a damaged one included; return the number of runs."""
    try:
        with Store(home) as store:
            return store.reindex()
    except DamagedIndexError:
        pass
    for suffix in ("", "-wal", "-shm"):
        damaged = home / f"{DATABASE_NAME}{suffix}"
        if damaged.exists():
            damaged.rename(home / f"damaged-{_journal.now_ms()}-{damaged.name}")
    with Store(home) as store:
        return store.reindex()


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
