"""What each key has brought, and how much it may: runs that are there, and bytes that it sent."""

from __future__ import annotations

import contextlib
import sqlite3
import threading
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from embedl_hub.server._refusal import Refusal

if TYPE_CHECKING:
    from embedl_hub.server._keys import Key

FILE_NAME = "usage.db"
_FLUSH_BYTES = 1 << 20
_SHAPE = (
    "PRAGMA journal_mode = WAL",
    "PRAGMA synchronous = NORMAL",
    "CREATE TABLE IF NOT EXISTS usage (key TEXT PRIMARY KEY, runs INTEGER NOT NULL, bytes INTEGER NOT NULL)",
    "CREATE TABLE IF NOT EXISTS owned (run TEXT PRIMARY KEY, key TEXT NOT NULL) WITHOUT ROWID",
)


@dataclass(frozen=True)
class Quota:
    """How much one key may bring."""

    runs: int
    size_bytes: int


_NOTHING = Quota(0, 0)


@dataclass(frozen=True)
class Used:
    """What one key has brought."""

    runs: int = 0
    size_bytes: int = 0


class Usage:
    """The counts of a server's home. Safe for many threads."""

    def __init__(self, home: Path, quota: Quota = _NOTHING) -> None:
        self._path = home / FILE_NAME
        self._quota = quota
        self._lock = threading.Lock()
        self._open: sqlite3.Connection | None = None
        self._reserved: dict[str, int] = defaultdict(int)
        self._unwritten: dict[str, int] = defaultdict(int)

    def close(self) -> None:
        """Write down what is only remembered."""
        with self._lock:
            for key_id in list(self._unwritten):
                self._write(key_id)
            if self._open is not None:
                self._open.close()
                self._open = None

    def of(self, key_id: str) -> Used:
        """Return what a key has brought so far."""
        with self._lock:
            return self._of(key_id) if self._path.exists() else Used()

    def begin_run(self, key: Key, run_id: str) -> None:
        """Count a run that begins, or refuse it; one that was counted already is not counted again."""
        most = self._quota.runs if key.most_runs is None else key.most_runs
        with self._lock, self._connection() as connection:
            if connection.execute("SELECT 1 FROM owned WHERE run = ?", (run_id,)).fetchone():
                return
            if self._of(key.id).runs >= most:
                raise _full(f"This key may have {most} runs, and has them. Delete some", "--key-runs")
            connection.execute("INSERT INTO owned VALUES (?, ?)", (run_id, key.id))
            connection.execute(_ADD, (key.id, 1, 0))

    def end_run(self, run_id: str) -> None:
        """Give back what a deleted run took."""
        with self._lock, self._connection() as connection:
            row = connection.execute("DELETE FROM owned WHERE run = ? RETURNING key", (run_id,)).fetchone()
            if row is not None:
                connection.execute(_ADD, (row[0], -1, 0))

    @contextlib.contextmanager
    def sending(self, key: Key, announced: int) -> Iterator[Sending]:
        """Set bytes aside for as long as a key sends them, or refuse them; what came stays counted."""
        most = self._quota.size_bytes if key.most_bytes is None else key.most_bytes
        with self._lock:
            used = self._of(key.id).size_bytes + self._reserved[key.id]
            if used + announced > most:
                what = f"This key may send {most} bytes in all, and has {max(0, most - used)} left"
                raise _full(what, "--key-mib")
            self._reserved[key.id] += announced
        sent = Sending()
        try:
            yield sent
        finally:
            with self._lock:
                self._reserved[key.id] -= announced
                self._unwritten[key.id] += sent.size_bytes
                if self._unwritten[key.id] >= _FLUSH_BYTES:
                    self._write(key.id)

    def _of(self, key_id: str) -> Used:
        with self._connection() as connection:
            row = connection.execute("SELECT runs, bytes FROM usage WHERE key = ?", (key_id,)).fetchone() or (0, 0)
        return Used(row[0], row[1] + self._unwritten.get(key_id, 0))

    def _write(self, key_id: str) -> None:
        with self._connection() as connection:
            connection.execute(_ADD, (key_id, 0, self._unwritten.pop(key_id, 0)))

    @contextlib.contextmanager
    def _connection(self) -> Iterator[sqlite3.Connection]:
        try:
            if self._open is None:
                self._open = sqlite3.connect(self._path, timeout=30, isolation_level=None, check_same_thread=False)
                for statement in _SHAPE:
                    self._open.execute(statement)
            yield self._open
        except sqlite3.Error as error:
            # As any other trouble with the home's disk.
            raise OSError(f"{self._path}: {error}") from error


_ADD = """INSERT INTO usage VALUES (?, ?, ?)
    ON CONFLICT (key) DO UPDATE SET runs = runs + excluded.runs, bytes = bytes + excluded.bytes"""


@dataclass
class Sending:
    """What came of a request so far."""

    size_bytes: int = 0


def _full(what: str, option: str) -> Refusal:
    return Refusal(413, "quota", f"{what}. Ask the server's owner for more ({option}).")
