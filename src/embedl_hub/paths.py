"""Paths here and paths on a device, as different types, so that one is never opened as the other."""

import contextlib
import errno
import os
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import BinaryIO

__all__ = ["LocalPath", "RemotePath"]

LocalPath = Path


class RemotePath(PurePosixPath):
    """A path on a device. It can be joined and printed, never opened."""

    __slots__ = ()


def make_private(folder: Path) -> None:
    """Make a folder that other accounts of this machine cannot look into; one that is there stays as it is."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700)


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a path to write a file to that takes the place of ``path`` if the block ends well, and is gone if not."""
    part = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        yield part
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


SECRET_BYTES = 32


def write_private(path: Path, content: bytes) -> None:
    """Write a file for its owner alone: made closed, on the disk before it takes its name, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with replacing(path) as part:
        fd = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(fd, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())


def kept_secret(path: Path) -> bytes:
    """Return random bytes that a file keeps for its owner; one of another length, which a crash left, is made anew."""
    with contextlib.suppress(FileNotFoundError):
        if len(secret := path.read_bytes()) == SECRET_BYTES:
            return secret
    write_private(path, secrets.token_bytes(SECRET_BYTES))
    # Read back: another process may have made one at the same moment.
    return path.read_bytes()


class NotPlainError(OSError):
    """A path leads over a link, out of its folder, or to something that is no file: it is not read."""


def open_plain(path: Path, *, below: Path | None = None) -> BinaryIO:
    """Open a regular file for reading, and nothing else: no pipe that would never end, no device.

    With ``below``, every part of the path from that folder down must be what it seems: no links, no way out. For all
    that may have come from elsewhere.
    """
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK
    if below is None:
        fd = os.open(path, flags)
    else:
        *folders, name = _parts(path, below)
        with _descended(below, folders) as folder:
            try:
                fd = os.open(name, flags | os.O_NOFOLLOW, dir_fd=folder)
            except OSError as error:
                raise _told(error, path) from error
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise _not_plain(path)
    return os.fdopen(fd, "rb")


def check_plain(path: Path, below: Path) -> None:
    """Refuse a path that is not a regular file or a folder, or leads there over a link, from ``below`` on down."""
    # Plain strings: every step looks at its artifacts this way.
    place, parts = str(below), _parts(path, below)
    for number, part in enumerate(parts, start=1):
        place = f"{place}/{part}"
        mode = os.lstat(place).st_mode
        if not stat.S_ISDIR(mode) and not (number == len(parts) and stat.S_ISREG(mode)):
            raise _not_plain(path)


def is_plain(path: Path, below: Path) -> bool:
    """Tell whether a path is a regular file, and leads there over no link from ``below`` on down."""
    try:
        check_plain(path, below)
    except OSError:
        return False
    return path.is_file()


def walk_plain(folder: Path, *, below: Path) -> Iterator[tuple[str, BinaryIO]]:
    """Yield the regular files of a folder, each open and with its name inside it; what is anything else is left out."""
    for current, folders, names in os.walk(folder):
        folders.sort()
        for path in (Path(current, name) for name in sorted(names)):
            with contextlib.suppress(NotPlainError), open_plain(path, below=below) as file:
                yield path.relative_to(folder).as_posix(), file


def _parts(path: Path, below: Path) -> tuple[str, ...]:
    parts = path.parts[len(below.parts) :]
    if path.parts[: len(below.parts)] != below.parts or not parts or ".." in parts:
        raise _not_plain(path)
    return parts


@contextlib.contextmanager
def _descended(below: Path, folders: tuple[str, ...] | list[str]) -> Iterator[int]:
    """Yield a folder's descriptor, reached without following a link."""
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
    fd = os.open(below, flags)
    try:
        for name in folders:
            try:
                inner = os.open(name, flags | os.O_NOFOLLOW, dir_fd=fd)
            except OSError as error:
                raise _told(error, below.joinpath(*folders)) from error
            os.close(fd)
            fd = inner
        yield fd
    finally:
        os.close(fd)


def _told(error: OSError, path: Path) -> OSError:
    # What the kernel says of a link that it was told not to follow.
    return _not_plain(path) if error.errno in {errno.ELOOP, errno.ENOTDIR, errno.ENXIO} else error


def _not_plain(path: Path) -> NotPlainError:
    return NotPlainError(errno.EINVAL, "It is a link, or no plain file inside its folder; it is not read", str(path))
