"""The index of all runs and the folders it stands for.

Facts come from the runs' manifests (see _journal); the database only makes them quick to find. Applying records twice
changes nothing, so recovery and reindexing need no bookkeeping of their own.
"""

from __future__ import annotations

import contextlib
import copy
import logging
import os
import shutil
import socket
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

import platformdirs

from embedl_hub import trust
from embedl_hub.errors import ConfigError, StoreUnusableError, TooSlowError, TrackingError
from embedl_hub.paths import is_plain, make_private
from embedl_hub.tracking import _journal
from embedl_hub.tracking._blobs import Blobs
from embedl_hub.tracking._filter import named_fields, parse
from embedl_hub.tracking._models import SAME_AS, Run, RunStatus
from embedl_hub.tracking._redact import Redactor
from embedl_hub.tracking._sql import rows
from embedl_hub.tracking._sql.database import Connection, Pool, open_database
from embedl_hub.tracking._sql.find import LARGEST_PAGE, Finder, Page, Query
from embedl_hub.tracking._sql.migrations import MIGRATIONS

DATABASE_NAME = "hub.db"
SERVED_NAME = "served"
_LOG = logging.getLogger("embedl_hub")
_AFTER_ALL = 2**53
_YOUNG_S = 3600.0
_MOST_RELATIVES = 1000
ENVIRONMENT_VARIABLE = "EMBEDL_HUB_HOME"


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
class Lineage:
    """The runs that made what a run read and that read what it made, the run it is a part of, and its own parts."""

    made_from: tuple[Run, ...] = ()
    used_by: tuple[Run, ...] = ()
    parent: Run | None = None
    parts: tuple[Run, ...] = ()


@dataclass(frozen=True)
class ValueNames:
    """What the runs of a project logged: the columns a table can have."""

    params: tuple[str, ...]
    metrics: tuple[str, ...]
    tags: tuple[str, ...]


class Store:
    """A home folder: the index ``hub.db``, the run folders ``runs/`` and the contents ``blobs/``.

    Args:
        home: The folder.
        durable: Also survive a power cut.
        database: The address of a PostgreSQL database to keep the index in, instead of ``hub.db``.
        recovers: Whether runs of dead processes are marked on opening; a server's runs live elsewhere.
        limit_s: How long a question may take before it is cut off with a TooSlowError; None for any time.
    """

    def __init__(
        self,
        home: str | os.PathLike[str],
        *,
        durable: bool = False,
        database: str | None = None,
        recovers: bool = True,
        limit_s: float | None = None,
    ) -> None:
        self.home = Path(home).absolute()
        self.durable = durable
        self.blobs = Blobs(self.home / "blobs", durable=durable)
        self._recovers = recovers
        self._database = open_database(database, self.home / DATABASE_NAME, durable=durable)
        self._limit_s = limit_s
        self._pool = Pool(self._database, lambda: TrackingError(f"The store {self.home} is not open."), limit_s=limit_s)
        self._scope = rows.Scope()

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def open(self) -> None:
        """Open the index, bring it to the current shape and mark the runs of dead processes."""
        try:
            with self.translated():
                make_private(self.home)
                self._pool.open()
                # However long it takes: a large index is brought to a new shape here.
                with self._pool.lend(limited=False) as connection:
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
            rows.check(connection)

    @property
    def is_served(self) -> bool:
        """Whether this is a server's home: its runs go on in processes elsewhere, whatever this machine knows."""
        return (self.home / SERVED_NAME).exists()

    def mark_served(self) -> None:
        """Say that this home is a server's, to every program that opens it from now on."""
        with self.translated():
            (self.home / SERVED_NAME).touch()

    def for_projects(self, names: Iterable[str]) -> Store:
        """Return the same store as if it held only these of the projects it shows; close the first one, not this."""
        view, shown = copy.copy(self), self._scope.projects
        view._scope = rows.Scope(tuple(name for name in names if shown is None or name in shown))  # noqa: SLF001 - same class
        return view

    def one_question(self, spent_s: float = 0.0) -> contextlib.AbstractContextManager[None]:
        """Count all that this thread asks in a block against one time limit, where the store has one.

        So much of it is spent already, by waiting for a turn.
        """
        return self._pool.one_question(spent_s)

    def run_dir(self, run_id: str) -> Path:
        """Return the folder of a run."""
        return self.home / "runs" / run_id

    def manifest(self, run_id: str) -> Path:
        """Return the manifest of a run."""
        return self.run_dir(run_id) / _journal.MANIFEST_NAME

    def records(self, run_id: str) -> list[_journal.Record]:
        """Return what the manifest of a run holds, in order."""
        with self.translated():
            return _journal.read(self.manifest(run_id))

    def apply(self, records: Mapping[str, Iterable[_journal.Record]]) -> None:
        """Bring manifest records of any number of runs into the index, in one transaction."""
        with self._transaction() as connection:
            for run_id, of_run in records.items():
                rows.apply_to_run(connection, self.manifest(run_id), list(of_run))

    def apply_readable(self, records: Mapping[str, Iterable[_journal.Record]]) -> list[str]:
        """As :meth:`apply`, but leave out runs with records that no index can hold, with a warning; return the rest."""
        with self._transaction() as connection:
            return self._apply_readable(connection, records)

    def _apply_readable(self, connection: Connection, records: Mapping[str, Iterable[_journal.Record]]) -> list[str]:
        applied = []
        for run_id, of_run in records.items():
            connection.execute("SAVEPOINT one_run")
            try:
                rows.apply_to_run(connection, self.manifest(run_id), list(of_run))
                applied.append(run_id)
            except Exception as error:
                if not isinstance(error, TrackingError) and not self._database.is_bad_value(error):
                    raise
                connection.execute("ROLLBACK TO SAVEPOINT one_run")
                # One run that came from elsewhere must not take all the others along.
                _LOG.warning("Run %r is left out of the index: %s", run_id, " ".join(str(error).split()))
            connection.execute("RELEASE SAVEPOINT one_run")
        return applied

    def recover(self) -> list[str]:
        """Mark runs whose process died, keep everything they logged, and return their ids."""
        with self._reading() as connection:
            alive = rows.run_ids(connection, RunStatus.RUNNING.value)
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
        if not recovered:
            return []
        with self._transaction() as connection:
            for run_id, records in recovered.items():
                if rows.applied(connection, run_id) > records[-1]["seq"]:
                    # A power cut took lines of the manifest that the index has: the manifest is the record.
                    rows.remove_run(connection, run_id)
            return sorted(self._apply_readable(connection, recovered))

    def reindex(self) -> int:
        """Rebuild the index from the run folders and return how many runs it holds now.

        Run folders copied in from another home are taken up, their artifacts included.
        """
        found: dict[str, list[_journal.Record]] = {}
        with self._transaction() as connection:
            # Inside the transaction, so that what other processes write meanwhile comes after it and not under it.
            for folder in sorted(self.home.glob("runs/*/")):
                records = self._records_of(folder / _journal.MANIFEST_NAME)
                if records and records[0]["kind"] == "start" and records[0]["seq"] == 0:
                    found[folder.name] = records
            rows.clear(connection)
            indexed = self._apply_readable(connection, found)
        with self.translated():
            for run_id in indexed:
                self.adopt_artifacts(run_id, found[run_id])
        return len(indexed)

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
        query = Query(where, order, archived, self._scope.projects)
        with self._finding() as finder:
            return finder.page(query, after=after, limit=limit, offset=offset)

    def runs(self, where: str = "", *, order: str = "-started", archived: bool | None = False) -> list[Run]:
        """Return all runs that meet the conditions, as :meth:`find` gives them by the page."""
        page = self.find(where, order=order, archived=archived, limit=LARGEST_PAGE)
        runs = [*page.runs]
        while page.after is not None:
            page = self.find(where, order=order, archived=archived, limit=LARGEST_PAGE, after=page.after)
            runs += page.runs
        return runs

    def having(
        self,
        metric: str,
        where: str = "",
        *,
        archived: bool | None = False,
        metrics: Sequence[str] = (),
        params: Sequence[str] = (),
        artifacts: Sequence[str] = (),
        limit: int = 1000,
    ) -> list[Run]:
        """Return the newest runs that have a number under a name, newest first.

        Made for many at once: they come with their tags, and of metrics, parameters and artifacts with those named.
        """
        query = Query(where, archived=archived, projects=self._scope.projects)
        with self._finding() as finder:
            found = finder.having(query, metric, metrics=(metric, *metrics), params=params, limit=limit)
        with self._reading() as connection:
            return rows.with_artifacts(connection, found, artifacts, self.artifact_path)

    def tagged(self, name: str, values: Iterable[str], *, params: Sequence[str] = ()) -> list[Run]:
        """Return all runs, archived ones too, whose tag has one of these values, oldest first.

        Made for many at once: they come with their tags and last metrics, without artifacts, and of their parameters
        only with those named.
        """
        with self._finding() as finder:
            return finder.tagged(name, values, params=params, projects=self._scope.projects)

    def count(self, where: str = "", *, archived: bool | None = False) -> int:
        """Return how many runs meet the conditions."""
        with self._finding() as finder:
            return finder.count(Query(where, archived=archived, projects=self._scope.projects))

    def unknown_names(self, where: str) -> list[str]:
        """Return the parameters, metrics and tags of a filter that no run has: most likely slips of the pen."""
        with self._reading() as connection:
            fields = sorted(named_fields(parse(where)), key=str)
            return [f"{field.group}.{field.name}" for field in fields if not rows.is_logged(connection, field)]

    def projects(self) -> list[ProjectSummary]:
        """Return all projects by name."""
        with self._reading() as connection:
            return [ProjectSummary(*row) for row in rows.projects(connection, self._scope)]

    def devices(self) -> list[DeviceSummary]:
        """Return the devices that runs were made on, by name."""
        with self._reading() as connection:
            return [DeviceSummary(*row) for row in rows.devices(connection, self._scope)]

    def value_names(self, project: str | None = None, *, newest: int = 1000) -> ValueNames:
        """Return the names under which the newest runs logged values."""
        with self._reading() as connection:
            return ValueNames(*rows.value_names(connection, self._scope, project, newest))

    def run(self, run_id: str) -> Run:
        """Return one run with everything it logged; an unambiguous beginning of the id is enough."""
        with self._reading() as connection:
            found = rows.runs_starting_with(connection, self._scope, run_id)
            if len(found) != 1:
                which = f"are several runs ({', '.join(str(row[1]) for row in found)} ...)" if found else "is no run"
                raise TrackingError(
                    f"There {which} with an id starting with {run_id!r} in {self.home}; "
                    "`embedl-hub run list` shows the ids."
                )
            run = rows.with_values(connection, found[0], self.artifact_path)
            shared = {
                name: other.params[name]
                for name, param in run.params.items()
                if isinstance(param.value, dict) and list(param.value) == [SAME_AS]
                for row in rows.runs_starting_with(connection, self._scope, str(param.value[SAME_AS]))[:1]
                if name in (other := rows.with_values(connection, row, self.artifact_path)).params
            }
            return replace(run, params={**run.params, **shared}) if shared else run

    def lineage(self, run_id: str) -> Lineage:
        """Return the runs that a run was made from and that use what it made, the first thousand of each."""
        with self._reading() as connection:
            made_from, used_by, parent, parts = (
                tuple(
                    rows.with_values(connection, row, self.artifact_path)
                    for other in ids
                    for row in rows.runs_starting_with(connection, self._scope, other)
                    if row[1] == other
                )
                for ids in rows.relatives(connection, run_id, _MOST_RELATIVES)
            )
            return Lineage(made_from, used_by, next(iter(parent), None), parts)

    def archive(self, run_id: str, *, archived: bool = True) -> None:
        """Archive a finished run, or restore it: it stays, and lists leave it out."""
        self.annotate(run_id, {"kind": "archive", "archived": archived})

    def label(self, run_id: str, name: str, value: str) -> None:
        """Give a finished run a tag."""
        self.annotate(run_id, {"kind": "tag", "name": name, "value": value})

    def annotate(self, run_id: str, record: _journal.Record) -> None:
        """Add a record to a run that has ended."""
        with self.translated(), self._owned(run_id) as journal:
            records = _journal.read(self.manifest(run_id))
            if not _journal.has_ended(records):
                raise TrackingError(f"Run {run_id} has not ended; finish it first: embedl-hub run finish {run_id}")
            record = {"seq": records[-1]["seq"] + 1, "time_ms": _journal.now_ms(), **record}
            Redactor().clean([record])
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
                rows.remove_run(connection, run.id)
            shutil.rmtree(gone, ignore_errors=True)
            # There is nothing left to send to any server.
            for mark in self.home.glob(f"outbox/*/{run.id}*"):
                mark.unlink(missing_ok=True)

    def manifests(self) -> Iterator[tuple[str, list[_journal.Record]]]:
        """Yield every run folder's id with its records."""
        for folder in sorted(self.home.glob("runs/[!.]*/")):
            yield folder.name, _journal.read(folder / _journal.MANIFEST_NAME)

    def folders_without_a_run(self) -> list[Path]:
        """Return the folders in ``runs/`` that the index does not know: their manifests could not be read."""
        with self._reading() as connection:
            indexed = set(rows.run_ids(connection))
        return [folder for folder in sorted(self.home.glob("runs/[!.]*/")) if folder.name not in indexed]

    def counts(self) -> dict[str, int]:
        """Return the number of rows per table."""
        with self._reading() as connection:
            return rows.counts(connection)

    def artifact_path(self, run_id: str, name: str, file_name: str) -> Path:
        """Return where a run's artifact is, inside its run folder."""
        return self.run_dir(run_id) / "artifacts" / name / file_name

    def folder_files(self, run_id: str) -> dict[str, list[tuple[str, str, int]]]:
        """Return the files of a run's artifacts that are folders: by artifact, (name inside it, sha256, size)."""
        found: dict[str, list[tuple[str, str, int]]] = {}
        with self.translated():
            for record in _journal.each(self.manifest(run_id)):
                # A manifest may be as long as a run likes; looking through it is a question like any other.
                self._pool.check_time()
                if record["kind"] == "artifact" and "files" in record:
                    found[record["name"]] = [
                        (str(name), str(sha256), int(size)) for name, sha256, size in record["files"]
                    ]
        return found

    def adopt_artifacts(self, run_id: str, records: list[_journal.Record]) -> None:
        """Take the artifacts of a run folder that came from elsewhere into the contents."""
        for record in records:
            if record["kind"] != "artifact":
                continue
            place = self.artifact_path(run_id, record["name"], record["file_name"])
            for name, sha256 in rows.files_of(record):
                path = place / name
                # A folder from elsewhere may hold links and names that lead out of it; those are left alone.
                if not self.blobs.path_of(sha256).exists() and is_plain(path, self.run_dir(run_id)):
                    self.blobs.adopt(path)

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

    def _records_of(self, manifest: Path) -> list[_journal.Record]:
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
                    migration(connection, self._database.dialect)
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
    def _finding(self) -> Iterator[Finder]:
        with self._reading() as connection:
            yield Finder(connection, self._database.dialect)

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[Connection]:
        # What is written is written: only questions have a limit.
        with (
            self.translated(),
            self._pool.lend(limited=False) as connection,
            self._database.committed(connection),
        ):
            yield connection

    @contextlib.contextmanager
    def translated(self) -> Iterator[None]:
        """Turn what the database and the file system say into one error of ours."""
        try:
            yield
        except OSError as error:
            raise self.unusable(error) from error
        except Exception as error:
            if self._database.is_over_limit(error):
                raise TooSlowError(
                    f"The question took longer than {self._limit_s:g} s and was cut off. Ask for less: fewer or rarer "
                    "conditions, equality (=) in place of contains (~), an order by time or by a metric."
                ) from error
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


def _end_of_dead_run(manifest: Path) -> _journal.Record:
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


def find_home(explicit: str | os.PathLike[str] | None = None, *, uses_devices: bool = True) -> Path:
    """Return the store's folder; nothing is created.

    A folder that is found, not named, must be the user's own; its devices must be trusted by ``embedl-hub trust``.

    Args:
        explicit: The folder, if it is named.
        uses_devices: False for work that leaves the home's devices alone.

    Raises:
        ConfigError: What is named is a file.
    """
    if (given := explicit if explicit is not None else os.environ.get(ENVIRONMENT_VARIABLE) or None) is not None:
        named = Path(given).expanduser().absolute()
        if named.is_file():
            raise ConfigError(f"{named} is a file; a store is a folder.")
        return named
    home = search_home()
    if home is None:
        return Path(platformdirs.user_data_dir("edgeproof"))
    trust.check_place(home)
    if uses_devices:
        trust.check_devices(home)
    return home


def search_home() -> Path | None:
    """Return the nearest ``.embedl`` of this folder and those above it, trusted or not."""
    here = Path.cwd()
    return next((home for folder in (here, *here.parents) if (home := folder / trust.PROJECT_FOLDER).is_dir()), None)


@dataclass(frozen=True)
class Collected:
    """What was removed, or would be."""

    files: int
    size_bytes: int
    kept_young: int  # how many were left because they came within the last hour: their run may be being written
    dry_run: bool


def collect(store: Store, *, dry_run: bool = False, young_s: float = _YOUNG_S) -> Collected:
    """Remove the contents of an open store that no run folder refers to and that are older than ``young_s``."""
    used = {
        sha256
        for _, records in store.manifests()
        for record in records
        if record["kind"] == "artifact"
        for _, sha256 in rows.files_of(record)
    }
    files = size = young = 0
    for path in store.blobs.paths():
        facts = path.stat()
        # A second link is a run folder's, also of a run whose record is still to be written.
        if path.name in used or facts.st_nlink > 1:
            continue
        if _journal.now_ms() / 1000 - facts.st_ctime < young_s:
            young += 1
            continue
        files += 1
        size += facts.st_size
        if not dry_run:
            path.unlink()
    return Collected(files, size, young, dry_run)
