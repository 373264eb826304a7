"""What the hub installs by itself: every package by version and hash, said before anything is downloaded.

A lock is a requirements file of pip in ``locks/``, one for each Python and processor, written by ``tools/lock.py``.
With ``--require-hashes --no-deps`` pip takes the files that are named there and resolves nothing.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from embedl_hub.errors import ConfigError

LOCKS = Path(__file__).parent / "locks"
OFFLINE_VARIABLE = "EMBEDL_HUB_OFFLINE"
_LINE = re.compile(
    r"(?P<name>[\w.-]+)==(?P<version>\S+) --hash=sha256:(?P<sha256>[0-9a-f]{64})  # (?P<size>\d+) (?P<file>\S+\.whl)"
)
_NOTE = re.compile(r"# glibc (?P<minor>2\.\d+)")
_OFF = ("", "0", "false", "no", "off")


@dataclass(frozen=True)
class LockedWheel:
    """One file that pip may install, and no other."""

    name: str
    version: str
    sha256: str
    file_name: str
    size_bytes: int


@dataclass(frozen=True)
class Lock:
    """All that is installed for one purpose on one Python and processor."""

    path: Path
    glibc: tuple[int, int]  # the oldest C library that every file runs on
    wheels: tuple[LockedWheel, ...]

    @property
    def words(self) -> str:
        """What is downloaded: the number of packages, their size, and each by name and size."""
        total = size_words(sum(wheel.size_bytes for wheel in self.wheels))
        names = (f"{wheel.name} {wheel.version} ({size_words(wheel.size_bytes)})" for wheel in self.wheels)
        return f"{len(self.wheels)} packages, {total}: {', '.join(names)}"

    @property
    def options(self) -> Sequence[str]:
        """What pip is told: these files by their hashes, nothing built here, and nothing that they ask for besides."""
        return ("--require-hashes", "--no-deps", "--only-binary=:all:", "--requirement", str(self.path))


def find_lock(purpose: str, python: tuple[int, int], machine: str) -> Lock | None:
    """Return the lock of a purpose (``tflite``, ``board``) for a Python and a processor; None where there is none."""
    path = LOCKS / f"{purpose}-cp{python[0]}{python[1]}-{machine}.lock"
    return read_lock(path) if path in LOCKS.glob(f"{purpose}-*.lock") else None


def read_lock(path: Path) -> Lock:
    """Read a lock; every line of it is one file with its hash, or a note."""
    wheels, glibc = [], (2, 0)
    for line in path.read_text(encoding="utf-8").splitlines():
        if note := _NOTE.fullmatch(line):
            glibc = version_pair(note["minor"])
        elif not line.startswith("#"):
            found = _LINE.fullmatch(line)
            if found is None:
                raise ConfigError(f"{path} is damaged at {line!r:.100}; install edgeproof-hub again.")
            wheels.append(
                LockedWheel(found["name"], found["version"], found["sha256"], found["file"], int(found["size"]))
            )
    return Lock(path, glibc, tuple(wheels))


def version_pair(text: str) -> tuple[int, int]:
    """Return the first two numbers of a version; zeros for what has none."""
    found = re.match(r"(\d{1,4})\.(\d{1,4})", text)
    return (int(found[1]), int(found[2])) if found else (0, 0)


def check_may_download(what: str, instead: str) -> None:
    """Refuse a download where the user forbids it.

    Args:
        what: What would be downloaded: ``the TFLite converter``.
        instead: What to do, as a sentence.

    Raises:
        ConfigError: EMBEDL_HUB_OFFLINE is set.
    """
    value = os.environ.get(OFFLINE_VARIABLE, "")
    if value.strip().lower() not in _OFF:
        raise ConfigError(f"{what} would have to be downloaded, and {OFFLINE_VARIABLE}={value} forbids it. {instead}")


def explain_hashes(stderr: str) -> str:
    """Return what it means that pip refused a file for its hash, as sentences; nothing when it did not."""
    if "DO NOT MATCH THE HASHES" not in stderr:
        return ""
    return (
        "A file from pip's index is not the one that this version was made with, and was not installed: the index, a "
        "mirror or somebody on the way has changed it. Ask whoever runs the index; pip config list says which it is. "
    )


def size_words(size_bytes: int) -> str:
    """Return a size for people."""
    if size_bytes < 100_000:
        return f"{size_bytes / 1e3:.0f} kB"
    return f"{size_bytes / 1e6:.{0 if size_bytes >= 10_000_000 else 1}f} MB"
