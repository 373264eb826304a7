"""API keys: made here, shown once, kept as hashes.

A key is 32 random bytes, so its plain SHA-256 is enough at rest: there is nothing to guess, and a slow hash would
only slow every request down. The file is read again when it changes, so a key that is revoked stops at once.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import secrets
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from embedl_hub.errors import ConfigError, quoted_list
from embedl_hub.paths import make_private
from embedl_hub.tracking import check_name, now_ms

PREFIX = "eh_"
FILE_NAME = "keys.jsonl"
ALL_PROJECTS = "*"
ACCESS = ("read", "write")
_MOST_BUCKETS = 10_000


@dataclass(frozen=True)
class Key:
    """What a key may do; its text is kept nowhere, only the hash."""

    id: str
    name: str  # whose it is; in lists and logs it goes by its id
    projects: tuple[str, ...]  # the projects it opens; ``*`` is all of them
    access: str  # ``read``, or ``write`` which reads too
    created_ms: int
    sha256: str = field(repr=False)
    revoked_ms: int | None = None
    most_runs: int | None = None  # how many runs it may have; what the server allows if not given
    most_bytes: int | None = None  # how much it may send in all

    @property
    def may_write(self) -> bool:
        """Whether it is for more than reading."""
        return self.access == "write"

    @property
    def opens_all(self) -> bool:
        """Whether it opens every project."""
        return ALL_PROJECTS in self.projects


class KeyRing:
    """The keys of a server's home."""

    def __init__(self, home: Path) -> None:
        self._path = home / FILE_NAME
        self._signature: tuple[int, ...] | None = None
        self._by_hash: dict[str, Key] = {}
        self._by_id: dict[str, Key] = {}

    def add(
        self,
        name: str,
        projects: Sequence[str],
        access: str,
        *,
        most_runs: int | None = None,
        most_bytes: int | None = None,
    ) -> tuple[Key, str]:
        """Make a key and return it with the text to hand out, which is kept nowhere."""
        check_name("key's name", name)
        if access not in ACCESS:
            raise ConfigError(f"A key is for {quoted_list(ACCESS)}, not {access!r}.")
        if not projects:
            raise ConfigError(f"A key opens at least one project; {ALL_PROJECTS!r} is all of them.")
        for project in projects:
            check_name("project name", project)
        text = PREFIX + secrets.token_urlsafe(32)
        key = Key(
            secrets.token_hex(4), name, tuple(projects), access, now_ms(), _hash(text),
            most_runs=most_runs, most_bytes=most_bytes,
        )  # fmt: skip
        self._append({**key.__dict__, "kind": "add"})
        return key, text

    def revoke(self, key_id: str) -> Key:
        """End a key."""
        key = self.by_id(key_id)
        if key is None:
            raise ConfigError(f"There is no key {key_id!r}; known: {quoted_list(key.id for key in self.all())}.")
        if key.revoked_ms is None:
            key = replace(key, revoked_ms=now_ms())
            self._append({"kind": "revoke", "id": key_id, "revoked_ms": key.revoked_ms})
        return key

    def all(self) -> list[Key]:
        """Return every key, the revoked ones included, oldest first."""
        self._refresh()
        return list(self._by_id.values())

    def by_id(self, key_id: str) -> Key | None:
        """Return a key by what it is called."""
        self._refresh()
        return self._by_id.get(key_id)

    def find(self, text: str) -> Key | None:
        """Return the key that a client showed, if it is one that holds."""
        self._refresh()
        key = self._by_hash.get(_hash(text))
        return key if key is not None and key.revoked_ms is None else None

    def _append(self, record: dict[str, object]) -> None:
        try:
            make_private(self._path.parent)
            fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
            with os.fdopen(fd, "a", encoding="utf-8") as file:
                fcntl.flock(file, fcntl.LOCK_EX)
                file.write(json.dumps(record) + "\n")
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise ConfigError(f"The key cannot be written to {self._path}: {error}.") from error

    def _refresh(self) -> None:
        try:
            facts = self._path.stat()
        except FileNotFoundError:
            self._by_hash, self._by_id, self._signature = {}, {}, None
            return
        signature = (facts.st_ino, facts.st_size, facts.st_mtime_ns)
        if signature != self._signature:
            by_id = _read(self._path)
            self._by_hash, self._by_id = {key.sha256: key for key in by_id.values()}, by_id
            self._signature = signature


def _read(path: Path) -> dict[str, Key]:
    keys: dict[str, Key] = {}
    try:
        for line in path.read_text(encoding="utf-8").splitlines():
            record = json.loads(line)
            if record.pop("kind") == "add":
                keys[record["id"]] = Key(**{**record, "projects": tuple(record["projects"])})
            else:
                keys[record["id"]] = replace(keys[record["id"]], revoked_ms=record["revoked_ms"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"The keys in {path} cannot be read: {error}.") from error
    return keys


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


class Buckets:
    """How often somebody may ask: one bucket per name, of ``burst`` tokens, filled at ``rate`` per second."""

    def __init__(self, rate: float, burst: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._rate = rate
        self._burst = burst
        self._clock = clock
        self._levels: dict[str, tuple[float, float]] = {}
        self._lock = threading.Lock()

    def wait_s(self, name: str, *, take: bool = True) -> float:
        """Take a token and return 0, or return how long to wait for one."""
        now = self._clock()
        with self._lock:
            level, since = self._levels.get(name, (self._burst, now))
            level = min(self._burst, level + (now - since) * self._rate)
            if level < 1:
                return (1 - level) / self._rate
            if take:
                if len(self._levels) >= _MOST_BUCKETS:
                    filled = {key: held + (now - since) * self._rate for key, (held, since) in self._levels.items()}
                    self._levels = {key: self._levels[key] for key, held in filled.items() if held < self._burst}
                self._levels[name] = (level - 1, now)
            return 0.0
