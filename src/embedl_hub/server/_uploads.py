"""Contents on their way in: kept as far as they came, taken when they are whole and what they say they are."""

from __future__ import annotations

import contextlib
import fcntl
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from embedl_hub.server._refusal import Refusal
from embedl_hub.tracking import hash_file, now_ms

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from embedl_hub.server._contents import Contents

_OLD_MS = 7 * 86_400_000


@dataclass(frozen=True)
class Progress:
    """How far a content has come."""

    offset: int
    complete: bool


class Uploads:
    """The folder of unfinished uploads.

    Args:
        folder: Where they are.
        contents: Where they go.
        largest_bytes: No content may be larger.
        durable: Whether a content is on the disk itself before it counts.
    """

    def __init__(self, folder: Path, contents: Contents, largest_bytes: int) -> None:
        self._folder = folder
        self._contents = contents
        self._largest = largest_bytes

    def progress(self, project_id: str, sha256: str) -> Progress:
        """Return how far a content has come."""
        size = self._contents.size(project_id, sha256)
        if size is not None:
            return Progress(size, complete=True)
        with contextlib.suppress(FileNotFoundError):
            return Progress(self._part(project_id, sha256).stat().st_size, complete=False)
        return Progress(0, complete=False)

    @contextlib.contextmanager
    def receiving(self, project_id: str, sha256: str, start: int, total: int) -> Iterator[Upload]:
        """Go on with a content from where it stopped; one client at a time."""
        if total > self._largest:
            raise Refusal(413, "too_large", f"A file may have {self._largest} bytes, not {total}.")
        self._folder.mkdir(parents=True, exist_ok=True)
        part = self._part(project_id, sha256)
        fd = os.open(part, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise _busy() from None
            if not _is_same(fd, part):
                raise _busy()
            offset = os.fstat(fd).st_size
            if offset > total:
                # It came from somebody who said that it is larger; one of the two is wrong, and the hash will tell.
                os.ftruncate(fd, offset := 0)
            if offset != start:
                raise Refusal(
                    409, "wrong_offset", f"The next byte expected is {offset}.", headers={"Upload-Offset": str(offset)}
                )
            yield Upload(fd, part, offset, total)
        finally:
            os.close(fd)

    def take(self, project_id: str, sha256: str, upload: Upload) -> Progress:
        """Look at what came: take it if it is whole and true, drop it if it lies."""
        if upload.offset < upload.total:
            return Progress(upload.offset, complete=False)
        if hash_file(upload.part) != sha256:
            upload.part.unlink(missing_ok=True)
            raise Refusal(422, "wrong_hash", "The content does not have the hash it was sent under; it is not kept.")
        self._contents.add(project_id, sha256, upload.part)
        return Progress(upload.total, complete=True)

    def forget_old(self) -> int:
        """Remove what nobody has gone on with for a week, and return how many there were."""
        count = 0
        for part in self._folder.glob("*.part"):
            with contextlib.suppress(FileNotFoundError):
                if now_ms() - part.stat().st_mtime_ns // 1_000_000 > _OLD_MS:
                    part.unlink()
                    count += 1
        return count

    def _part(self, project_id: str, sha256: str) -> Path:
        return self._folder / f"{project_id}-{sha256}.part"


class Upload:
    """One request's part of a content."""

    def __init__(self, fd: int, part: Path, offset: int, total: int) -> None:
        self._fd = fd
        self.part = part
        self.offset = offset
        self.total = total

    def write(self, chunk: bytes) -> None:
        """Write bytes down; more than were announced are refused."""
        if self.offset + len(chunk) > self.total:
            os.ftruncate(self._fd, 0)
            raise Refusal(422, "wrong_size", f"More than the announced {self.total} bytes came; nothing of it is kept.")
        view = memoryview(chunk)
        while view:
            written = os.pwrite(self._fd, view, self.offset)
            self.offset += written
            view = view[written:]


def _busy() -> Refusal:
    return Refusal(409, "busy", "This content is being sent by somebody else.", headers={"Retry-After": "1"})


def _is_same(fd: int, path: Path) -> bool:
    try:
        return os.fstat(fd).st_ino == path.stat().st_ino
    except FileNotFoundError:
        return False
