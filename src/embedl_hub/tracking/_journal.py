"""The manifest of one run: an append-only file of JSON lines in the run's own folder.

A logged value is acknowledged once its line is written here, so a killed process loses nothing; the
database is an index that can be rebuilt from these files alone. While a run is alive its process holds
a lock on the file; the kernel drops the lock with the process, and that is how a dead run is recognized.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from embedl_hub.paths import NotPlainError, open_plain
from embedl_hub.tracking import _fork

Record = dict[str, Any]

MANIFEST_NAME = "manifest.jsonl"
FORMAT = 1
LATEST_MS = 253_402_300_799_999
"""The end of the year 9999: later, no calendar of ours can show it."""
_LOCK_AGAIN_S = 0.01
# A folder from elsewhere may hold a link in the manifest's place; what it leads to is not ours to write to.
_OPEN = os.O_RDWR | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
_to_json = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


def now_ms() -> int:
    """Return the wall clock in milliseconds."""
    return time.time_ns() // 1_000_000


def new_run_id() -> str:
    """Return an id that is unique across machines and sorts by time, to the microsecond."""
    return f"{time.time_ns() // 1000:013x}{secrets.token_hex(4)}"


def encode(record: Record) -> bytes:
    return _to_json(record).encode("utf-8", "surrogatepass") + b"\n"


class Journal(_fork.ForkAware):
    """Writes the manifest of a run that is alive in this process."""

    def __init__(self, path: Path, *, durable: bool, wait_s: float = 0.0) -> None:
        self._durable = durable
        self._fd = os.open(path, _OPEN | os.O_CREAT, 0o644)
        try:
            _lock(self._fd, wait_s)
            if _is_torn(self._fd):
                # Whoever wrote here last was killed in the middle of a line; ours must not be glued to it.
                _append(self._fd, b"\n")
        except BaseException:
            os.close(self._fd)
            raise
        _fork.watch(self)

    def append(self, *records: Record) -> None:
        """Write records, all or none of them; when this returns, killing the process cannot lose them."""
        _append(self._fd, b"".join(map(encode, records)))

    def sync(self) -> None:
        """Bring what was written to the disk itself, if this store is durable."""
        if self._durable:
            os.fsync(self._fd)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def after_fork(self, *, in_child: bool) -> None:
        """Leave the run to the parent: a child that kept the file would keep a dead parent's run alive."""
        if in_child:
            self.close()


def read(path: Path) -> list[Record]:
    """Return the records of a manifest in order; lines that cannot be read are passed over."""
    return list(each(path))


def each(path: Path) -> Iterator[Record]:
    """Yield the records of a manifest one by one, as :func:`read` gives them all."""
    last = -1
    try:
        with open_plain(path, below=path.parent) as file:
            for line in file:
                record = decode(line)
                if record is not None and record["seq"] > last:
                    yield record
                    last = record["seq"]
    except (FileNotFoundError, NotPlainError):
        return


def bury(path: Path, end: Record) -> list[Record] | None:
    """Finish the manifest of a dead run, with this end if it has none, and return its records; None while it lives."""
    try:
        fd = os.open(path, _OPEN)
    except FileNotFoundError:
        return []
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return None
        records = read(path)
        if is_detached(records):
            return None
        if records and not has_ended(records):
            end = {**end, "seq": records[-1]["seq"] + 1}
            # A torn line gets its line end and stays: nothing is ever cut from a manifest that is not ours.
            _append(fd, (b"\n" if _is_torn(fd) else b"") + encode(end))
            records.append(end)
        return records
    finally:
        os.close(fd)


def has_ended(records: list[Record]) -> bool:
    """Tell whether a run is over; labels may come after its end."""
    return any(record["kind"] == "end" for record in records)


def is_detached(records: list[Record]) -> bool:
    """Tell whether a run goes on without a process of its own: its commands come and go."""
    return bool(records) and records[0].get("detached") is True and not has_ended(records)


def _lock(fd: int, wait_s: float) -> None:
    deadline = time.monotonic() + wait_s
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline:
                raise
            time.sleep(_LOCK_AGAIN_S)
        else:
            return


def _append(fd: int, line: bytes) -> None:
    start = os.lseek(fd, 0, os.SEEK_END)
    try:
        written = os.write(fd, line)
        while written < len(line):
            written += os.write(fd, line[written:])
    except BaseException:
        # A full disk may take part of a line; what comes next must not be glued to it.
        os.ftruncate(fd, start)
        raise


def decode(line: bytes) -> Record | None:
    """Return the record of a line; None when it holds none."""
    try:
        record = json.loads(line.decode("utf-8", "surrogatepass"))
    except (ValueError, RecursionError):
        return None
    if not isinstance(record, dict):
        return None
    whole = all(type(record.get(key)) is kind for key, kind in (("seq", int), ("kind", str), ("time_ms", int)))
    return record if whole else None


def _is_torn(fd: int) -> bool:
    end = os.lseek(fd, 0, os.SEEK_END)
    return end > 0 and os.pread(fd, 1, end - 1) != b"\n"
