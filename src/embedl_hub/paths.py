"""Paths here and paths on a device, as different types, so that one is never opened as the other."""

from pathlib import Path, PurePosixPath

__all__ = ["LocalPath", "RemotePath"]

LocalPath = Path


class RemotePath(PurePosixPath):
    """A path on a device. It can be joined and printed, never opened."""

    __slots__ = ()
