"""Where a server keeps the contents of artifacts: in its home, or in a bucket.

A content belongs to the projects that sent it. That another project has the same one is not told, and naming its
hash does not open it: whoever wants to use a content sends it.
"""

from __future__ import annotations

import contextlib
import shutil
from typing import IO, TYPE_CHECKING, Any, Protocol

from embedl_hub.errors import ConfigError, TrackingError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from embedl_hub.tracking import Store

_KEPT_HERE_BYTES = 8 << 20
"""Contents of a bucket up to this size are also kept in the home: the page reads profiles from there."""


class Contents(Protocol):
    """A place for contents."""

    def size(self, project_id: str, sha256: str) -> int | None:
        """Return how large a project's content is; None when the project has not sent it."""
        ...

    def add(self, project_id: str, sha256: str, path: Path) -> None:
        """Take a file in that has this hash; the file is gone afterwards."""
        ...

    def place(self, sha256: str, target: Path) -> None:
        """Make a content appear in a run's folder, where that is its place."""
        ...

    def open(self, project_id: str, sha256: str) -> IO[bytes]:
        """Open a project's content."""
        ...


class HomeContents:
    """Contents in the server's home, each once; an empty file per project says who sent it."""

    def __init__(self, store: Store) -> None:
        self._blobs = store.blobs
        self._held = store.home / "held"

    def size(self, project_id: str, sha256: str) -> int | None:
        """Return how large it is."""
        if not self._mark(project_id, sha256).exists():
            return None
        try:
            return self._blobs.path_of(sha256).stat().st_size
        except FileNotFoundError:
            return None

    def add(self, project_id: str, sha256: str, path: Path) -> None:
        """Take a file in."""
        self._blobs.move_in(path, sha256)
        mark = self._mark(project_id, sha256)
        mark.parent.mkdir(parents=True, exist_ok=True)
        mark.touch()

    def place(self, sha256: str, target: Path) -> None:
        """Link it into the run's folder."""
        _link(self._blobs, sha256, target)

    def open(self, project_id: str, sha256: str) -> IO[bytes]:  # noqa: ARG002 - the seam's signature
        """Open it."""
        return self._blobs.path_of(sha256).open("rb")

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
        self._blobs = store.blobs

    def size(self, project_id: str, sha256: str) -> int | None:
        """Return how large it is."""
        with self._translated():
            try:
                return int(self._files.info(self._key(project_id, sha256))["size"])
            except FileNotFoundError:
                return None

    def add(self, project_id: str, sha256: str, path: Path) -> None:
        """Send a file there."""
        with self._translated():
            self._files.put_file(str(path), self._key(project_id, sha256))
        if path.stat().st_size <= _KEPT_HERE_BYTES:
            self._blobs.move_in(path, sha256)
        else:
            path.unlink()

    def place(self, sha256: str, target: Path) -> None:
        """Link it into the run's folder if it is kept here too."""
        if self._blobs.path_of(sha256).exists():
            _link(self._blobs, sha256, target)

    def open(self, project_id: str, sha256: str) -> IO[bytes]:
        """Open it over there."""
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


def _link(blobs: Any, sha256: str, target: Path) -> None:  # noqa: ANN401 - a part of the store's
    if target.is_dir():
        shutil.rmtree(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    # Never written over: what stands there may be a link to another content.
    target.unlink(missing_ok=True)
    blobs.link(sha256, target)
