"""Paths here and paths on a device, as different types, so that one is never opened as the other."""

import contextlib
import secrets
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

__all__ = ["LocalPath", "RemotePath"]

LocalPath = Path


class RemotePath(PurePosixPath):
    """A path on a device. It can be joined and printed, never opened."""

    __slots__ = ()


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a path to write a file to that takes the place of ``path`` if the block ends well, and is gone if not."""
    part = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        yield part
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
