"""The two databases an index can live in, behind one way of speaking to them.

Every statement of the project is written once, with ``?`` for values; what the two spell differently is a
:class:`SqlDialect`. SQLite is a file of this machine; PostgreSQL is for a team's server.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeAlias

from embedl_hub.errors import ConfigError, TrackingError
from embedl_hub.tracking import _fork

_WAIT_FOR_WRITERS_S = 60.0
_CONNECT_S = 10
# Any number will do, as long as no other program of the same database uses it.
_SHAPING_LOCK = 4_731_562_019
_MOST_IDLE = 16
_LOOK_AGAIN_S = 0.05
# A limit in PostgreSQL is set again only when it is off by more: setting it costs a way there and back.
_CLOSE_ENOUGH_S = 0.25
_MOST_STATEMENTS = 256


class OverLimitError(Exception):
    """What a question may take is used up, between two of its statements."""


@dataclass(frozen=True)
class SqlDialect:
    """What the two databases spell differently."""

    key: str
    text: str
    clustered: str
    number_of: str


class _PostgreSQLConnection:
    """Speaks our spelling of statements to psycopg."""

    def __init__(self, inner: Any) -> None:  # noqa: ANN401 - psycopg is an extra
        self.inner = inner
        self.ends: float | None = None
        self._limit_s = 0.0  # what the server was told; 0 for no limit

    def execute(self, statement: str, values: Sequence[object] = (), /) -> Any:  # noqa: ANN401 - rows that sqlite3 has too
        self.tell_limit()
        return self.inner.execute(_percent(statement), tuple(values))

    def executemany(self, statement: str, values: Sequence[Sequence[object]], /) -> None:
        self.tell_limit()
        with self.inner.cursor() as cursor:
            cursor.executemany(_percent(statement), values)

    def close(self) -> None:
        self.inner.close()

    def tell_limit(self) -> None:
        """Have the server itself end a statement when the time of its question is over."""
        left_s = 0.0 if self.ends is None else self.ends - time.monotonic()
        if self.ends is not None and left_s <= 0:
            raise OverLimitError
        if abs(left_s - self._limit_s) > _CLOSE_ENOUGH_S or (left_s == 0) != (self._limit_s == 0):
            self.inner.execute(f"SET statement_timeout = {max(1, int(left_s * 1000)) if left_s else 0}")
            self._limit_s = left_s


Connection: TypeAlias = sqlite3.Connection | _PostgreSQLConnection


class Database(Protocol):
    """A place for an index."""

    dialect: SqlDialect

    @property
    def is_read_only(self) -> bool:
        """Whether this user may read it and no more."""

    def connect(self) -> Connection:
        """Open it."""

    def version(self, connection: Connection) -> int:
        """Return how many migrations it has seen."""

    def set_version(self, connection: Connection, version: int) -> None:
        """Write down how many migrations it has seen."""

    def shaping(self, connection: Connection) -> contextlib.AbstractContextManager[None]:
        """Keep every other process from shaping it at the same time."""

    def committed(self, connection: Connection) -> contextlib.AbstractContextManager[None]:
        """Run a block as one transaction that writes."""

    def limit(self, connection: Connection, ends: float | None) -> None:
        """Cut statements off that still run at this moment of the monotonic clock; None lets them run."""

    def is_over_limit(self, error: BaseException) -> bool:
        """Tell whether an error means that a statement was cut off."""

    def is_damage(self, error: BaseException | None) -> bool:
        """Tell whether an error means that the database itself is broken."""

    def is_own_error(self, error: BaseException) -> bool:
        """Tell whether an error came from the database."""

    def is_bad_value(self, error: BaseException) -> bool:
        """Tell whether an error came from a value that the database cannot hold; the database itself is well."""

    def damaged(self, error: BaseException) -> str:
        """Say what is broken and how it is mended."""


class SQLite:
    """One file in the home folder."""

    dialect = SqlDialect(
        key="INTEGER PRIMARY KEY",
        text="TEXT",
        clustered=" WITHOUT ROWID",
        # A JSON number starts with a digit or a minus; a JSON text with a quotation mark.
        number_of="CASE WHEN {0} GLOB '[-0-9]*' THEN CAST({0} AS REAL) END",
    )

    def __init__(self, path: Path, *, durable: bool) -> None:
        self.path = path
        self._durable = durable
        self._writing = threading.Lock()
        self._watch = _Watch()

    @property
    def is_read_only(self) -> bool:
        """Whether this user may read the file and no more; SQLite writes beside it even to read."""
        return self.path.exists() and not all(os.access(path, os.W_OK) for path in (self.path, self.path.parent))

    def connect(self) -> Connection:
        """Open the file; the folder must exist."""
        address: str | Path = self.path
        if is_read_only := self.is_read_only:
            # Without a log beside it nobody is writing, and the file is all there is.
            is_alone = not self.path.with_name(f"{self.path.name}-wal").exists()
            address = f"{self.path.as_uri()}?mode=ro{'&immutable=1' if is_alone else ''}"
        connection = sqlite3.connect(
            address, timeout=_WAIT_FOR_WRITERS_S, isolation_level=None, check_same_thread=False, uri=is_read_only
        )
        try:
            connection.execute(f"PRAGMA synchronous = {'FULL' if self._durable else 'NORMAL'}")
            # A database that came with somebody's folder may have views and triggers of its own.
            connection.execute("PRAGMA trusted_schema = OFF")
        except BaseException:
            # A damaged file is told by the first statement; nobody else could close what was opened.
            connection.close()
            raise
        return connection

    def version(self, connection: Connection) -> int:
        return int(connection.execute("PRAGMA user_version").fetchone()[0])

    def set_version(self, connection: Connection, version: int) -> None:
        connection.execute(f"PRAGMA user_version = {version:d}")

    @contextlib.contextmanager
    def shaping(self, connection: Connection) -> Iterator[None]:
        with (self.path.parent / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if self.version(connection) == 0:
                connection.execute("PRAGMA journal_mode = WAL")
            yield

    @contextlib.contextmanager
    def committed(self, connection: Connection) -> Iterator[None]:
        assert isinstance(connection, sqlite3.Connection)  # noqa: S101 - it comes from connect
        # Threads of one process take turns here: SQLite itself would have them sleep and try again, in no order.
        with self._writing:
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield
                connection.execute("COMMIT")
            except BaseException:
                # A full disk may have ended the transaction already; an open one would block everything after it.
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise

    def limit(self, connection: Connection, ends: float | None) -> None:
        assert isinstance(connection, sqlite3.Connection)  # noqa: S101 - it comes from connect
        self._watch.limit(connection, ends)

    def is_over_limit(self, error: BaseException) -> bool:
        is_cut = getattr(error, "sqlite_errorcode", 0) == sqlite3.SQLITE_INTERRUPT
        return is_cut or isinstance(error, OverLimitError)

    def is_damage(self, error: BaseException | None) -> bool:
        # SQLITE_ERROR here means that a table or column of ours is not there.
        codes = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR)
        return isinstance(error, sqlite3.DatabaseError) and getattr(error, "sqlite_errorcode", 0) & 0xFF in codes

    def is_own_error(self, error: BaseException) -> bool:
        return isinstance(error, sqlite3.DatabaseError)

    def is_bad_value(self, error: BaseException) -> bool:
        kinds = (sqlite3.InterfaceError, sqlite3.ProgrammingError, sqlite3.DataError, sqlite3.IntegrityError)
        return isinstance(error, kinds)

    def damaged(self, error: BaseException) -> str:
        home = self.path.parent
        return (
            f"The index {self.path} is damaged ({error}). The runs are safe in {home / 'runs'}: "
            f"rebuild it with: embedl-hub reindex --home {home}"
        )


class _Watch:
    """Interrupts statements whose time is over, from a thread of its own.

    A progress handler would be asked after so many steps; one step that compares long texts can take a second.
    """

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._ends: dict[sqlite3.Connection, float] = {}
        self._thread: threading.Thread | None = None

    def limit(self, connection: sqlite3.Connection, ends: float | None) -> None:
        with self._condition:
            if ends is None:
                self._ends.pop(connection, None)
                return
            if not self._ends:
                self._condition.notify()
            self._ends[connection] = ends
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="edgeproof-limit", daemon=True)
                self._thread.start()

    def _work(self) -> None:
        while True:
            with self._condition:
                while not self._ends:
                    self._condition.wait()
                now = time.monotonic()
                # Under the lock: a connection that was given back belongs to somebody else.
                for connection, ends in self._ends.items():
                    if ends <= now:
                        connection.interrupt()
            time.sleep(_LOOK_AGAIN_S)


class PostgreSQL:
    """A database of a PostgreSQL server, by its address."""

    dialect = SqlDialect(
        key="BIGINT GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY",
        # Ids and names compare by their bytes in both databases, whatever the server's language is.
        text='TEXT COLLATE "C"',
        clustered="",
        # Checked to its end: PostgreSQL's cast ends the statement with an error where it meets no number, or one too
        # large. No question mark, which would be taken for a value's place.
        number_of=(
            "CASE WHEN length({0}) <= 100 AND {0} ~ "
            "'^(-|)[0-9]+([.][0-9]*|)([eE](-|[+]|)([0-9]|[0-9][0-9]|1[0-9][0-9])|)$' "
            "THEN CAST({0} AS DOUBLE PRECISION) END"
        ),
    )

    is_read_only = False

    def __init__(self, address: str) -> None:
        self._address = address

    def connect(self) -> Connection:
        inner = _psycopg().connect(self._address, autocommit=True, connect_timeout=_CONNECT_S)
        # One statement is one process of the server's: a heavy one must leave the other cores to others.
        inner.execute("SET max_parallel_workers_per_gather = 0")
        return _PostgreSQLConnection(inner)

    def version(self, connection: Connection) -> int:
        if connection.execute("SELECT to_regclass('shape')").fetchone()[0] is None:
            return 0
        return int(connection.execute("SELECT version FROM shape").fetchone()[0])

    def set_version(self, connection: Connection, version: int) -> None:
        connection.execute("CREATE TABLE IF NOT EXISTS shape (version BIGINT NOT NULL)")
        connection.execute("DELETE FROM shape")
        connection.execute("INSERT INTO shape VALUES (?)", (version,))

    @contextlib.contextmanager
    def shaping(self, connection: Connection) -> Iterator[None]:
        connection.execute("SELECT pg_advisory_lock(?)", (_SHAPING_LOCK,))
        try:
            yield
        finally:
            connection.execute("SELECT pg_advisory_unlock(?)", (_SHAPING_LOCK,))

    @contextlib.contextmanager
    def committed(self, connection: Connection) -> Iterator[None]:
        assert isinstance(connection, _PostgreSQLConnection)  # noqa: S101 - it comes from connect
        # Before it begins: what a transaction sets ends with it when it fails.
        connection.tell_limit()
        with connection.inner.transaction():
            yield

    def limit(self, connection: Connection, ends: float | None) -> None:
        assert isinstance(connection, _PostgreSQLConnection)  # noqa: S101 - it comes from connect
        connection.ends = ends

    def is_over_limit(self, error: BaseException) -> bool:
        return isinstance(error, OverLimitError | _psycopg().errors.QueryCanceled)

    def is_damage(self, error: BaseException | None) -> bool:
        errors = _psycopg().errors
        return isinstance(error, errors.UndefinedTable | errors.UndefinedColumn)

    def is_own_error(self, error: BaseException) -> bool:
        return isinstance(error, _psycopg().Error)

    def is_bad_value(self, error: BaseException) -> bool:
        own = _psycopg()
        return isinstance(error, own.InterfaceError | own.ProgrammingError | own.DataError | own.IntegrityError)

    def damaged(self, error: BaseException) -> str:
        return (
            f"The database's tables are not as expected ({error}). The runs are safe in the server's folder: "
            "empty the database and start the server again; it fills it from there."
        )


# Bounded: whoever writes filters writes statements, and no two need be alike.
@functools.lru_cache(maxsize=_MOST_STATEMENTS)
def _percent(statement: str) -> str:
    return statement.replace("%", "%%").replace("?", "%s")


def _psycopg() -> Any:  # noqa: ANN401 - an extra
    try:
        import psycopg  # type: ignore[import-not-found,unused-ignore]  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise TrackingError(
            "PostgreSQL needs a driver that is not installed: pip install 'edgeproof-hub[postgresql]'"
        ) from error
    return psycopg


def open_database(address: str | None, sqlite_path: Path, *, durable: bool) -> Database:
    """Return the database at an address; without one, the file."""
    if address is None:
        return SQLite(sqlite_path, durable=durable)
    if address.startswith(("postgresql://", "postgres://")):
        return PostgreSQL(address)
    raise ConfigError(
        f"The database address {address.partition('@')[0]!r} is not known; it starts with postgresql://, "
        "or leave it out for a SQLite file in the home folder."
    )


class Pool(_fork.ForkAware):
    """Lends connections; a thread that has one gets the same again.

    Args:
        database: What the connections lead to.
        closed: Makes the error when the pool is shut.
        limit_s: How long a question may take; None for as long as it takes.
    """

    def __init__(self, database: Database, closed: Callable[[], Exception], *, limit_s: float | None = None) -> None:
        self._database = database
        self._closed = closed
        self._limit_s = limit_s
        self._condition = threading.Condition()
        self._idle: list[Connection] = []
        self._lent = 0
        self._is_resting = False
        self._is_open = False
        self._own = threading.local()
        _fork.watch(self)

    def open(self) -> None:
        """Lend from now on."""
        self._is_open = True

    def close(self) -> None:
        """Lend no more; what is lent is closed when it comes back."""
        with self._condition:
            self._is_open = False
            self._drop_idle()

    @contextlib.contextmanager
    def one_question(self, spent_s: float = 0.0) -> Iterator[None]:
        """Count all that this thread asks in a block against one limit, of which so much is spent already."""
        if self._limit_s is None or getattr(self._own, "ends", None) is not None:
            yield
            return
        self._own.ends = time.monotonic() + self._limit_s - spent_s
        try:
            yield
        finally:
            self._own.ends = None

    def check_time(self) -> None:
        """Raise OverLimitError when the time of this thread's question is over."""
        ends: float | None = getattr(self._own, "ends", None)
        if ends is not None and ends <= time.monotonic():
            raise OverLimitError

    @contextlib.contextmanager
    def lend(self, *, limited: bool = True) -> Iterator[Connection]:
        """Lend a connection for a block; what is ``limited`` is cut off when the time of its question is over."""
        own: Connection | None = getattr(self._own, "connection", None)
        if own is not None:
            yield own
            return
        connection = self._take()
        self._own.connection = connection
        broken = False
        try:
            if self._limit_s is not None:
                self._database.limit(connection, self._ends() if limited else None)
            yield connection
        except BaseException as error:
            is_database = not isinstance(error, Exception) or self._database.is_own_error(error)
            broken = is_database and not self._database.is_over_limit(error)
            raise
        finally:
            if self._limit_s is not None:
                self._database.limit(connection, None)
            self._own.connection = None
            self._give_back(connection, broken=broken)

    def _ends(self) -> float:
        self.check_time()
        ends: float | None = getattr(self._own, "ends", None)
        return ends if ends is not None else time.monotonic() + (self._limit_s or 0)

    def before_fork(self) -> None:
        """Close what is idle once nothing is lent, and lend nothing until the fork is over."""
        self._condition.acquire()
        self._is_resting = True
        # The forking thread may be in the middle of something of its own; it cannot wait for itself.
        own = int(getattr(self._own, "connection", None) is not None)
        while self._lent > own:
            self._condition.wait()
        self._drop_idle()

    def after_fork(self, *, in_child: bool) -> None:  # noqa: ARG002 - the same on both sides
        """Let the next one connect again."""
        self._is_resting = False
        self._condition.notify_all()
        self._condition.release()

    def _take(self) -> Connection:
        with self._condition:
            while self._is_resting:
                self._condition.wait()
            if not self._is_open:
                raise self._closed()
            self._lent += 1
            if self._idle:
                return self._idle.pop()
        try:
            return self._database.connect()
        except BaseException:
            self._end_loan()
            raise

    def _give_back(self, connection: Connection, *, broken: bool) -> None:
        with self._condition:
            self._idle.append(connection)
            # A server that went away took its other connections along.
            while self._idle and (broken or not self._is_open or len(self._idle) > _MOST_IDLE):
                _close(self._idle.pop())
        self._end_loan()

    def _end_loan(self) -> None:
        with self._condition:
            self._lent -= 1
            self._condition.notify_all()

    def _drop_idle(self) -> None:
        while self._idle:
            _close(self._idle.pop())


def _close(connection: Connection) -> None:
    with contextlib.suppress(Exception):
        connection.close()
