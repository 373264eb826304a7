"""Folders as one stream: packed without surprises, unpacked without trust."""

from __future__ import annotations

import contextlib
import hashlib
import os
import posixpath
import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import IO

from embedl_hub.errors import TransferError
from embedl_hub.tracking import walk_files

_CHUNK_BYTES = 1 << 20


def pack(folder: Path, stream: IO[bytes], advance: Callable[[int], None]) -> None:
    """Write the folder's files as a tar stream; links arrive as what they point to."""
    # GNU format: busybox reads its long names, and not those of the default format.
    with tarfile.open(fileobj=stream, mode="w|", format=tarfile.GNU_FORMAT, bufsize=_CHUNK_BYTES) as archive:
        for parent, folders, _ in os.walk(folder, followlinks=True):
            if not folders:
                name = os.path.relpath(parent, folder)
                if name != ".":
                    entry = tarfile.TarInfo(name)
                    entry.type, entry.mode = tarfile.DIRTYPE, 0o755
                    archive.addfile(entry)
        for name, path in walk_files(folder):
            facts = path.stat()
            entry = tarfile.TarInfo(name)
            entry.size, entry.mtime = facts.st_size, int(facts.st_mtime)
            entry.mode = 0o755 if facts.st_mode & 0o100 else 0o644
            with path.open("rb") as file:
                archive.addfile(entry, file)
            advance(facts.st_size)


def unpack(stream: IO[bytes], folder: Path) -> list[str]:
    """Read a tar stream from a board, whose names are hostile until checked, into a new folder; return the hashes."""
    hashes: list[str] = []
    links: list[tuple[Path, str]] = []
    made: set[Path] = set()
    with tarfile.open(fileobj=stream, mode="r:") as archive:
        for entry in archive:
            name = _checked_name(entry.name)
            target = folder / name
            if entry.issym():
                links.append((target, _checked_link(name, entry.linkname)))
                continue
            needed = target if entry.isdir() else target.parent
            if needed not in made:
                needed.mkdir(parents=True, exist_ok=True)
                made.add(needed)
            if entry.isreg():
                with archive.extractfile(entry) as source:  # type: ignore[union-attr]
                    hashes.append(_write_new(target, source, executable=bool(entry.mode & 0o100)))
            elif entry.islnk():
                # A second name of a file that came before: here it becomes a file of its own.
                original = folder / _checked_name(entry.linkname)
                with original.open("rb") as source:
                    hashes.append(_write_new(target, source, executable=os.access(original, os.X_OK)))
            elif not entry.isdir():
                raise TransferError(
                    f"The board sent {entry.name!r}, which is neither a file, a folder nor a link; refused."
                )
    # Links come last, so that nothing is ever written through one.
    for target, aim in links:
        _check_inside(target.parent, folder, f"the name {str(target.relative_to(folder))!r}")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.symlink_to(aim)
    # A link may lead out by way of another one, whatever their texts say.
    for target, aim in links:
        _check_inside(target, folder, f"the link {str(target.relative_to(folder))!r} -> {aim!r}")
    return hashes


def remove(path: Path) -> None:
    """Remove what is there, be it a file or a folder, and never complain: this is for leftovers."""
    shutil.rmtree(path, ignore_errors=True)
    with contextlib.suppress(OSError):
        path.unlink(missing_ok=True)


def _checked_name(name: str) -> str:
    parts = name.split("/")
    if name.startswith("/") or ".." in parts or "\0" in name or not name:
        raise TransferError(f"The board sent the name {name!r}, which leads out of the target folder; refused.")
    return posixpath.normpath(name)


def _write_new(target: Path, source: IO[bytes], *, executable: bool) -> str:
    digest = hashlib.sha256()
    with target.open("xb") as file:
        while chunk := source.read(_CHUNK_BYTES):
            digest.update(chunk)
            file.write(chunk)
    if executable:
        target.chmod(0o755)
    return digest.hexdigest()


def _check_inside(path: Path, folder: Path, what: str) -> None:
    if not Path(os.path.realpath(path)).is_relative_to(os.path.realpath(folder)):
        raise TransferError(f"The board sent {what}, which leads out of the target folder; refused.")


def _checked_link(name: str, aim: str) -> str:
    end = posixpath.normpath(posixpath.join(posixpath.dirname(name), aim))
    if aim.startswith("/") or end == ".." or end.startswith("../"):
        raise TransferError(f"The board sent the link {name!r} -> {aim!r}, which leads out of the folder; refused.")
    return aim
