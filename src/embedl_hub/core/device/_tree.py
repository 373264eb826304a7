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

from embedl_hub.core.device._tar import Kind, read_entries
from embedl_hub.errors import TransferError
from embedl_hub.tracking import walk_files

_CHUNK_BYTES = 1 << 20
# Deeper than any path that can be used, and not as deep as a function may call itself.
_MOST_PARTS = 200


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
    hashes: dict[Path, str] = {}
    links: list[tuple[Path, str]] = []
    made: set[Path] = set()
    for entry in read_entries(stream):
        name = _checked_name(entry.name)
        target = folder / name
        if entry.kind is Kind.LINK:
            links.append((target, _checked_link(name, entry.link)))
            continue
        needed = target if entry.kind is Kind.FOLDER else target.parent
        if needed not in made:
            needed.mkdir(parents=True, exist_ok=True)
            made.add(needed)
        if entry.kind is Kind.FILE:
            hashes[target] = _write_new(target, stream, entry.size_bytes, executable=entry.is_executable)
        elif entry.kind is Kind.SECOND_NAME:
            # Of a file that came before, and costs nothing, however many there are.
            original = folder / _checked_name(entry.link)
            if original not in hashes:
                raise TransferError(f"The board sent {entry.name!r} as another name of nothing that it sent; refused.")
            target.hardlink_to(original)
            hashes[target] = hashes[original]
    # Links come last, so that nothing is ever written through one.
    for target, aim in links:
        _check_inside(target.parent, folder, f"the name {str(target.relative_to(folder))!r}")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.symlink_to(aim)
    # A link may lead out by way of another one, whatever their texts say.
    for target, aim in links:
        _check_inside(target, folder, f"the link {str(target.relative_to(folder))!r} -> {aim!r}")
    return list(hashes.values())


def remove(path: Path) -> None:
    """Remove what is there, be it a file or a folder, and never complain: this is for leftovers."""
    shutil.rmtree(path, ignore_errors=True)
    with contextlib.suppress(OSError):
        path.unlink(missing_ok=True)


def _checked_name(name: str) -> str:
    parts = name.split("/")
    if name.startswith("/") or ".." in parts or "\0" in name or not name:
        raise TransferError(f"The board sent the name {name!r:.300}, which leads out of the target folder; refused.")
    if len(parts) > _MOST_PARTS:
        raise TransferError(f"The board sent a name of {len(parts)} folders in each other; refused.")
    return posixpath.normpath(name)


def _write_new(target: Path, stream: IO[bytes], size_bytes: int, *, executable: bool) -> str:
    digest = hashlib.sha256()
    with target.open("xb") as file:
        left = size_bytes
        while left:
            chunk = stream.read(min(left, _CHUNK_BYTES))
            if not chunk:
                raise TransferError(f"The board's stream ends in the middle of {target.name!r}.")
            left -= len(chunk)
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
