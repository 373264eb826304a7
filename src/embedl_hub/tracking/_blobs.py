"""Artifacts on disk, once per content, linked into the folders of the runs that use them."""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import shutil
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from embedl_hub.errors import ConfigError, TrackingError

_CHUNK_BYTES = 1 << 20


def hash_file(path: Path) -> str:
    """Return the SHA-256 of a file's content."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@dataclass(frozen=True)
class Content:
    """What a file or folder holds: one hash, a size, and for a folder its files."""

    sha256: str
    size_bytes: int
    is_folder: bool = False
    files: tuple[tuple[str, str, int], ...] = ()


def walk_files(folder: Path) -> Iterator[tuple[str, Path]]:
    """Yield the files of a folder as (name inside it, path), sorted; links are followed."""

    def walk(current: Path, prefix: str, above: tuple[Path, ...]) -> Iterator[tuple[str, Path]]:
        for entry in sorted(os.scandir(current), key=lambda item: item.name):
            path, name = Path(entry.path), f"{prefix}{entry.name}"
            try:
                mode = entry.stat().st_mode
            except OSError as error:
                raise ConfigError(f"{path} leads nowhere ({error.strerror}); remove the link or mend it.") from error
            if stat.S_ISDIR(mode):
                if (real := path.resolve()) in above:
                    raise ConfigError(f"{path} is a link back to {real}; a folder that contains itself has no end.")
                yield from walk(path, f"{name}/", (*above, real))
            elif stat.S_ISREG(mode):
                yield name, path
            else:
                raise ConfigError(f"{path} is neither a file nor a folder and cannot be stored or sent.")

    yield from walk(folder, "", (folder.resolve(),))


def folder_content(files: tuple[tuple[str, str, int], ...]) -> Content:
    """Return the content of a folder from its files: (name, sha256, size), in any order."""
    files = tuple(sorted(files))
    listing = json.dumps(files, ensure_ascii=False, separators=(",", ":"))
    digest = hashlib.sha256(listing.encode("utf-8", "surrogatepass")).hexdigest()
    return Content(digest, sum(size for _, _, size in files), is_folder=True, files=files)


def describe(path: Path) -> Content:
    """Return the content of a file or folder without storing it."""
    if path.is_dir():
        return folder_content(tuple((name, hash_file(file), file.stat().st_size) for name, file in walk_files(path)))
    if path.is_file():
        return Content(hash_file(path), path.stat().st_size)
    raise _nothing_to_log(path)


def _nothing_to_log(path: Path) -> ConfigError:
    if os.path.lexists(path):
        return ConfigError(f"{path} is neither a file nor a folder; it cannot be logged.")
    return ConfigError(f"There is no file or folder {path} to log.")


class Readable(Protocol):
    """What a content can be read from."""

    def read(self, size: int, /) -> bytes:
        """Return the next bytes, at most so many; none at the end."""


class Blobs:
    """The content store: ``<root>/<first two digits>/<sha256>``, every file read-only."""

    def __init__(self, root: Path, *, durable: bool) -> None:
        self._root = root
        self._durable = durable

    def path_of(self, sha256: str) -> Path:
        """Return where a content is, or would be."""
        return self._root / sha256[:2] / sha256

    def add(self, path: Path, target: Path) -> Content:
        """Store a file or folder and make it appear at ``target``, in place of what an unfinished attempt left."""
        if not path.is_dir() and not path.is_file():
            raise _nothing_to_log(path)
        if path.is_dir() and target.absolute().is_relative_to(path.resolve()):
            raise ConfigError(f"{path} holds the store itself ({self._root.parent}); log the folders beside it.")
        try:
            # Never write over what stands there: it may be a link to a stored content.
            if target.is_dir() and not target.is_symlink():
                shutil.rmtree(target)
            else:
                target.unlink(missing_ok=True)
            if path.is_file():
                return self._add_file(path, target)
            contents = {name: self._add_file(file, target / name) for name, file in walk_files(path)}
            target.mkdir(parents=True, exist_ok=True)
            return folder_content(tuple((name, each.sha256, each.size_bytes) for name, each in contents.items()))
        except OSError as error:
            raise TrackingError(
                f"{path} could not be stored in {self._root}: {error}. "
                "Check that it can be read and that the store has space."
            ) from error

    def adopt(self, path: Path) -> None:
        """Take a file of a run folder that came from elsewhere into the store, and keep it once."""
        self.replace_by_link(path, self._store(path).sha256)

    def replace_by_link(self, path: Path, sha256: str) -> None:
        """Turn a file whose content is stored into a link to it."""
        temporary = path.with_name(f".{path.name[:100]}.{secrets.token_hex(4)}")
        try:
            os.link(self.path_of(sha256), temporary)
            temporary.replace(path)
        except OSError:
            # No links on this file system: the second copy stays, nothing is lost.
            temporary.unlink(missing_ok=True)

    def _add_file(self, path: Path, target: Path) -> Content:
        content = self._store(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        self.link(content.sha256, target)
        return content

    def link(self, sha256: str, target: Path) -> None:
        """Make a stored content appear at a path."""
        try:
            os.link(self.path_of(sha256), target)
        except OSError:
            # Links can be impossible (file system) or used up (65,000 on ext4): copy instead.
            shutil.copyfile(self.path_of(sha256), target)

    def paths(self) -> Iterator[Path]:
        yield from self._root.glob("??/*")

    def receive(self, source: Readable, sha256: str) -> Content:
        """Store what comes from elsewhere, if it is what it says it is."""
        content = self._take_in(source, expected=sha256)
        if content.sha256 != sha256:
            raise TrackingError(
                f"A content with the hash {sha256} arrived with {content.sha256}; damaged on its way, it is not kept."
            )
        return content

    def move_in(self, path: Path, sha256: str) -> None:
        """Take over a file of this file system that has this hash."""
        if self._durable:
            with path.open("rb") as file:
                os.fsync(file.fileno())
        path.chmod(0o444)
        blob = self.path_of(sha256)
        blob.parent.mkdir(parents=True, exist_ok=True)
        path.replace(blob)

    def _store(self, path: Path) -> Content:
        blob = self.path_of(sha256 := hash_file(path))
        # Another size under this hash is a file that a power failure cut short; storing it again mends it.
        if blob.exists() and blob.stat().st_size == (size := path.stat().st_size):
            return Content(sha256, size)
        # Copied and hashed in one pass, so that a file that changes meanwhile is stored under its true hash.
        with path.open("rb") as source:
            return self._take_in(source)

    def _take_in(self, source: Readable, expected: str | None = None) -> Content:
        self._root.mkdir(parents=True, exist_ok=True)
        temporary = self._root / f"incoming-{secrets.token_hex(8)}"
        digest, size = hashlib.sha256(), 0
        try:
            with temporary.open("xb") as copy:
                while chunk := source.read(_CHUNK_BYTES):
                    digest.update(chunk)
                    copy.write(chunk)
                    size += len(chunk)
            if expected in {None, digest.hexdigest()}:
                self.move_in(temporary, digest.hexdigest())
        finally:
            temporary.unlink(missing_ok=True)
        return Content(digest.hexdigest(), size)
