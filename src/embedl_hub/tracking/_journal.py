"""The manifest of one run: an append-only file of JSON lines in the run's own folder.

A logged value is acknowledged once its line is written here, so a killed process loses nothing; the
database is an index that can be rebuilt from these files alone. While a run is alive its process holds
a lock on the file; the kernel drops the lock with the process, and that is how a dead run is recognised.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

Record = dict[str, Any]

MANIFEST_NAME = "manifest.jsonl"
FORMAT = 1


def now_ms() -> int:
    """Return the wall clock in milliseconds."""
    return time.time_ns() // 1_000_000


def new_run_id() -> str:
    """Return an id that sorts by time and is unique across machines."""
    return f"{now_ms():011x}{secrets.token_hex(5)}"


def encode(record: Record) -> bytes:
    """Return the record as one line."""
    return json.dumps(record, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass") + b"\n"


class Journal:
    """Writes the manifest of a run that is alive in this process."""

    def __init__(self, path: Path, *, durable: bool) -> None:
        self._durable = durable
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def append(self, record: Record) -> None:
        """Write one record; when this returns, killing the process cannot lose it."""
        line = encode(record)
        written = os.write(self._fd, line)
        while written < len(line):
            # A full disk may take part of a line; the rest either follows or raises.
            written += os.write(self._fd, line[written:])

    def sync(self) -> None:
        """Bring what was written to the disk itself, if this store is durable."""
        if self._durable:
            os.fsync(self._fd)

    def close(self) -> None:
        """Let go of the file and its lock."""
        os.close(self._fd)


def read(path: Path) -> list[Record]:
    """Return the complete records of a manifest; a torn last line is dropped."""
    records: list[Record] = []
    for line in path.read_bytes().split(b"\n")[:-1]:
        try:
            record = json.loads(line.decode("utf-8", "surrogatepass"))
        except ValueError:
            break
        if not isinstance(record, dict) or record.get("seq") != len(records):
            break
        records.append(record)
    return records


def bury(path: Path, end: Record) -> list[Record] | None:
    """Finish the manifest of a dead run and return its records; None while its process lives.

    Args:
        path: The manifest.
        end: The end record to append if the run has none; its ``seq`` is filled in here.
    """
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return []
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return None
        records = read(path)
        if records and records[-1]["kind"] != "end":
            end = {**end, "seq": len(records)}
            whole = sum(len(encode(record)) for record in records)
            # Drop the torn line, if there is one, so that the end record starts on its own.
            os.ftruncate(fd, whole)
            os.lseek(fd, 0, os.SEEK_END)
            os.write(fd, encode(end))
            records.append(end)
        return records
    finally:
        os.close(fd)
