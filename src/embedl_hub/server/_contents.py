"""Where a server keeps the contents of artifacts: in its home, or in a bucket.

A content belongs to the projects that sent it. That another project has the same one is not told, and naming its
hash does not open it: whoever wants to use a content sends it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Protocol

from embedl_hub.errors import ConfigError, TrackingError
from embedl_hub.server._refusal import Refusal
from embedl_hub.tracking import hash_file, now_ms

if TYPE_CHECKING:
    from embedl_hub.tracking import Store

_KEPT_HERE_BYTES = 8 << 20
"""Contents of a bucket up to this size are also kept in the home: the page reads profiles from there."""
_OLD_MS = 7 * 86_400_000


class Contents(Protocol):
    """A place for contents."""

    def size(self, project_id: str, sha256: str) -> int | None:
        """Return how large a project's content is; None when the project has not sent it."""

    def add(self, project_id: str, sha256: str, path: Path) -> None:
        """Take a file in that has this hash; the file is gone afterwards."""

    def place(self, sha256: str, target: Path) -> None:
        """Make a content appear in a run's folder, where that is its place."""

    def open(self, project_id: str, sha256: str) -> IO[bytes]:
        """Open a project's content."""


class HomeContents:
    """Contents in the server's home, each once; an empty file per project says who sent it."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._held = store.home / "held"

    def size(self, project_id: str, sha256: str) -> int | None:
        if not self._mark(project_id, sha256).exists():
            return None
        try:
            return self._store.blobs.path_of(sha256).stat().st_size
        except FileNotFoundError:
            return None

    def add(self, project_id: str, sha256: str, path: Path) -> None:
        self._store.blobs.move_in(path, sha256)
        mark = self._mark(project_id, sha256)
        mark.parent.mkdir(parents=True, exist_ok=True)
        mark.touch()

    def place(self, sha256: str, target: Path) -> None:
        _link(self._store, sha256, target)

    def open(self, project_id: str, sha256: str) -> IO[bytes]:  # noqa: ARG002 - the seam's signature
        return self._store.blobs.path_of(sha256).open("rb")

    def _mark(self, project_id: str, sha256: str) -> Path:
        return self._held / project_id / sha256[:2] / sha256


class BucketContents:
    """Contents in a bucket that fsspec can reach, a folder for each project; small ones also in the home."""

    def __init__(self, address: str, store: Store) -> None:
        try:
            import fsspec  # noqa: PLC0415 - an extra

            self._files, root = fsspec.core.url_to_fs(address, use_listings_cache=False)
        except (ImportError, ValueError) as error:
            raise ConfigError(
                f"Contents cannot be kept at {address!r}: {error}. For s3:// addresses: pip install 'edgeproof-hub[s3]'"
            ) from error
        self._root = str(root).rstrip("/")
        self._address = address
        self._store = store

    def size(self, project_id: str, sha256: str) -> int | None:
        with self._translated():
            try:
                return int(self._files.info(self._key(project_id, sha256))["size"])
            except FileNotFoundError:
                return None

    def add(self, project_id: str, sha256: str, path: Path) -> None:
        with self._translated():
            self._files.put_file(str(path), self._key(project_id, sha256))
        if path.stat().st_size <= _KEPT_HERE_BYTES:
            self._store.blobs.move_in(path, sha256)
        else:
            path.unlink()

    def place(self, sha256: str, target: Path) -> None:
        """Link it into the run's folder if it is kept here too."""
        if self._store.blobs.path_of(sha256).exists():
            _link(self._store, sha256, target)

    def open(self, project_id: str, sha256: str) -> IO[bytes]:
        with self._translated():
            file: IO[bytes] = self._files.open(self._key(project_id, sha256), "rb")
            return file

    def _key(self, project_id: str, sha256: str) -> str:
        return f"{self._root}/{project_id}/{sha256[:2]}/{sha256}"

    @contextlib.contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # the edge of a library that raises what its own libraries raise
            raise TrackingError(f"The contents at {self._address} cannot be reached: {error}") from error


def _link(store: Store, sha256: str, target: Path) -> None:
    if target.is_dir():
        shutil.rmtree(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    # Never written over: what stands there may be a link to another content.
    target.unlink(missing_ok=True)
    store.blobs.link(sha256, target)


@dataclass(frozen=True)
class Progress:
    """How far a content has come."""

    offset: int
    complete: bool

    def headers(self) -> dict[str, str]:
        """Return the headers that say so."""
        return {"Upload-Offset": str(self.offset), "Upload-Complete": "true" if self.complete else "false"}


class Uploads:
    """The folder of unfinished uploads, and the contents that they become."""

    def __init__(self, folder: Path, contents: Contents, largest_bytes: int) -> None:
        self._folder = folder
        self._contents = contents
        self._largest = largest_bytes

    def progress(self, project_id: str, sha256: str) -> Progress:
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
                is_ours = os.fstat(fd).st_ino == part.stat().st_ino
            except (BlockingIOError, FileNotFoundError):
                is_ours = False
            if not is_ours:
                message = "This content is being sent by somebody else."
                raise Refusal(409, "busy", message, headers={"Retry-After": "1"})
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
