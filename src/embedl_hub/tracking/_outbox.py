"""Which runs of a home a server has not got yet, and how far each has come.

A run that is to be sent has a file in ``outbox/<server>/``, from before its first record until the server has its
last one. Whoever sends it holds a lock on that file, which the kernel drops with the process. What the file says may
be behind the truth: the server knows what it has, and sending again changes nothing.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import hmac
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING

from embedl_hub.credentials import own_secret
from embedl_hub.tracking import _journal

if TYPE_CHECKING:
    from embedl_hub.tracking._store import Store

_MARK_BYTES = 128
_BATCH_BYTES = 1 << 20
_BATCH_RECORDS = 1000


@dataclass(frozen=True)
class Piece:
    """Records in a row as the manifest has them: as bytes, read, and where in the file each ends."""

    lines: tuple[bytes, ...] = ()
    records: tuple[_journal.Record, ...] = ()
    ends: tuple[int, ...] = ()


class Mark:
    """How far one run has come; held by this process."""

    def __init__(self, fd: int, path: Path, manifest: Path) -> None:
        self._fd = fd
        self._path = path
        self._manifest = manifest
        self.run_id = path.name
        self.last, self._offset, self.has_ended = self._read()
        self._project = ""

    def next_piece(self) -> Piece:
        """Return records that are still to be sent; none when there are none now."""
        try:
            with self._manifest.open("rb") as file:
                while text := _whole_lines(file, self._offset):
                    if (piece := self._new_of(text)).records:
                        return piece
                    # Nothing but records that the server has, after going back.
                    self._offset += len(text)
        except FileNotFoundError:
            pass
        return Piece()

    def _new_of(self, text: bytes) -> Piece:
        batch: list[tuple[bytes, _journal.Record, int]] = []
        end, after = self._offset, self.last
        for line in text.split(b"\n")[:-1]:
            end += len(line) + 1
            record = _journal.decode(line)
            if record is not None and record["seq"] > after:
                after = record["seq"]
                batch.append((line, record, end))
                if len(batch) == _BATCH_RECORDS:
                    break
        return Piece(*zip(*batch, strict=True)) if batch else Piece()

    def advance(self, piece: Piece, last: int) -> None:
        """Write down that the server has the records up to a number."""
        for record, end in zip(piece.records, piece.ends, strict=True):
            if record["seq"] <= last:
                self.last, self._offset = record["seq"], end
                self.has_ended = self.has_ended or record["kind"] == "end"
        self._write()

    def go_back(self, last: int) -> None:
        """Start over after a record, since the server has no more."""
        self.last, self._offset, self.has_ended = last, 0, False
        self._write()

    def refuse(self, reason: str) -> None:
        refusal_of(self._path).write_text(reason, encoding="utf-8")

    def remove(self) -> None:
        """The server has everything."""
        refusal_of(self._path).unlink(missing_ok=True)
        self._path.unlink(missing_ok=True)
        self.close()

    def close(self) -> None:
        """Leave the run to whoever comes next."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def learn_project(self) -> str:
        """Return the run's project; empty before its first record."""
        if not self._project:
            with contextlib.suppress(FileNotFoundError), self._manifest.open("rb") as file:
                self._project = str((_journal.decode(file.readline()) or {}).get("project", ""))
        return self._project

    def _read(self) -> tuple[int, int, bool]:
        try:
            last, offset, ended = json.loads(os.pread(self._fd, _MARK_BYTES, 0))
            return int(last), int(offset), bool(ended)
        except (ValueError, TypeError):
            return -1, 0, False

    def _write(self) -> None:
        # One write of one size: a killed process leaves the old line or the new one.
        text = json.dumps([self.last, self._offset, self.has_ended]).encode()
        os.pwrite(self._fd, text.ljust(_MARK_BYTES), 0)


class Outbox:
    """The runs of a home that are to be sent to one server."""

    def __init__(self, store: Store, url: str) -> None:
        self._store = store
        # Nobody else can name the folder: an outbox that came with a stranger's files is not sent.
        name = hmac.new(own_secret(), url.encode(), hashlib.sha256).hexdigest()[:16]
        self._folder = store.home / "outbox" / name

    def elsewhere(self) -> int:
        """Return how many runs wait in this home for another server, or were put there by another account."""
        return sum(not path.suffix and path.parent != self._folder for path in self._folder.parent.glob("*/*"))

    def run_ids(self) -> list[str]:
        """Return the runs that are to be sent, oldest first."""
        try:
            return sorted(path.name for path in self._folder.iterdir() if not path.suffix)
        except FileNotFoundError:
            return []

    def waiting(self) -> list[str]:
        """Return the runs that have something to be sent and nobody who is sending it."""
        waiting = []
        for run_id in self.run_ids():
            if (mark := self.hold(run_id)) is not None:
                if mark.next_piece().records:
                    waiting.append(run_id)
                mark.close()
        return waiting

    def refusals(self) -> dict[str, str]:
        """Return the runs that the server will not take, with the reasons."""
        files = {run_id: refusal_of(self._folder / run_id) for run_id in self.run_ids()}
        return {run_id: file.read_text(encoding="utf-8") for run_id, file in files.items() if file.exists()}

    def forget_refusals(self) -> None:
        """Try refused runs once more."""
        for run_id in self.refusals():
            refusal_of(self._folder / run_id).unlink(missing_ok=True)

    def hold(self, run_id: str, *, new: bool = False) -> Mark | None:
        """Take a run for sending; None when another process sends it, or it is not to be sent."""
        path = self._folder / run_id
        if new:
            self._folder.mkdir(parents=True, exist_ok=True)
        flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if new else 0)
        try:
            fd = os.open(path, flags, 0o644)
        except FileNotFoundError:
            return None
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(fd).st_ino != path.stat().st_ino:
                raise FileNotFoundError(path)  # noqa: TRY301 - removed while we opened it
        except (BlockingIOError, FileNotFoundError):
            os.close(fd)
            return None
        return Mark(fd, path, self._store.manifest(run_id))


def _whole_lines(file: IO[bytes], offset: int) -> bytes:
    """Return the next lines that are written to their ends."""
    file.seek(offset)
    text = file.read(_BATCH_BYTES)
    while b"\n" not in text and (more := file.read(_BATCH_BYTES)):
        text += more
    return text[: text.rfind(b"\n") + 1]


def refusal_of(mark: Path) -> Path:
    return mark.with_name(f"{mark.name}.refused")
