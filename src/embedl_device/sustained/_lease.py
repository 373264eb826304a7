"""Keep the board for a run whose hub is gone: the same lock that the hub held, taken when the hub lets go of it.

While the hub is there it has the lock, and this waits without asking for more. If somebody else is faster, that is
noted: the times were then not taken alone.
"""

from __future__ import annotations

import contextlib
import os
import time
from typing import Any, Dict, Optional

_EVERY_S = 1.0
_MOST_NOTE_BYTES = 200


class BoardLease:
    """Tries for the lock of a folder now and then."""

    def __init__(self, folder: str, title: str) -> None:
        self._title = title
        self._next_s = 0.0
        self._first: Optional[str] = None
        self.taken_at_s: Optional[float] = None
        self.shared_at_s: Optional[float] = None
        try:
            self._file = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            self._file = -1
            return
        # A board without flock keeps its lease as a folder, which only its keeper can hold.
        if any(name.startswith("lock.") for name in os.listdir(self._file)):  # noqa: PTH208 - by number, not by name
            self.close()
            self._file = -1

    def look(self, at_s: float) -> None:
        """Take the lock if it is free; see who has it if it is not."""
        if self._file < 0 or self.taken_at_s is not None or time.monotonic() < self._next_s:
            return
        self._next_s = time.monotonic() + _EVERY_S
        import fcntl

        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            holder = self._holder()
            if self._first is None:
                self._first = holder
            elif holder != self._first and self.shared_at_s is None:
                self.shared_at_s = at_s
            return
        self.taken_at_s = at_s
        self._write_note()

    def close(self) -> None:
        """Let go of it."""
        if self._file >= 0:
            if self.taken_at_s is not None:
                with contextlib.suppress(OSError):
                    os.unlink(self._own, dir_fd=self._file)
            os.close(self._file)

    def facts(self) -> Dict[str, Any]:
        """Return from when on the run held the lock itself, and from when on somebody else did."""
        return {"own_from_s": self.taken_at_s, "shared_from_s": self.shared_at_s}

    @property
    def _own(self) -> str:
        return "holder.{}".format(os.geteuid())

    def _write_note(self) -> None:
        with contextlib.suppress(OSError):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._own, dir_fd=self._file)
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
            note = os.open(self._own, flags, 0o644, dir_fd=self._file)
            with os.fdopen(note, "w", encoding="utf-8", errors="replace") as file:
                file.write("{} since {}".format(self._title, time.strftime("%H:%M:%S")))

    def _holder(self) -> str:
        newest, text = -1, ""
        with contextlib.suppress(OSError):
            for name in os.listdir(self._file):  # noqa: PTH208 - by number, not by name
                if not name.startswith("holder."):
                    continue
                changed = os.stat(name, dir_fd=self._file, follow_symlinks=False).st_mtime_ns
                if changed > newest:
                    newest, text = changed, self._read(name)
        return text

    def _read(self, name: str) -> str:
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        note = os.open(name, flags, dir_fd=self._file)
        try:
            return os.read(note, _MOST_NOTE_BYTES).decode("utf-8", "replace")
        finally:
            os.close(note)
