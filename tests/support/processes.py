"""Processes on this machine as /proc shows them, and waiting for a fact instead of for a time."""

import os
import secrets
import time
from collections.abc import Callable
from pathlib import Path

_POLL_S = 0.02


def wait_until(is_so: Callable[[], object], limit_s: float) -> float:
    """Wait until something is so and return how long that took; fail the test when it never was."""
    started = time.monotonic()
    while not is_so():
        waited_s = time.monotonic() - started
        assert waited_s < limit_s, f"not so within {limit_s:g} s: {is_so}"
        time.sleep(_POLL_S)
    return time.monotonic() - started


def unique_sleep() -> list[str]:
    """Return a command that sleeps for a quarter of an hour and can be told from every other one."""
    return ["sleep", f"900.{secrets.randbelow(10**9):09d}"]


def running(argv: list[str]) -> list[int]:
    """Return the processes that have exactly this command line."""
    wanted = b"".join(os.fsencode(word) + b"\0" for word in argv)
    return [pid for pid in _all() if _read(pid, "cmdline") == wanted]


def descendants(pid: int) -> list[int]:
    """Return the processes below one, parents first."""
    parents = {child: _parent(child) for child in _all()}
    found = [pid]
    for known in found:
        found += [child for child, parent in parents.items() if parent == known]
    return found[1:]


def group(leader: int) -> list[int]:
    """Return the processes of a group; those that ended and wait for their parent do not count."""
    members = []
    for pid in _all():
        state, _, number, *_ = _facts(pid) or ["Z", "", "0"]
        if state != "Z" and int(number) == leader:
            members.append(pid)
    return members


def program(pid: int) -> str:
    """Return the short name of a process; nothing when it is gone."""
    return os.fsdecode(_read(pid, "comm")).strip()


def command_line(pid: int) -> str:
    """Return a process's command line in one text."""
    return os.fsdecode(_read(pid, "cmdline").replace(b"\0", b" "))


def open_files() -> int:
    """Return how many files this process has open."""
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def with_words(*words: str) -> list[int]:
    """Return the processes whose command line holds all these words."""
    return [pid for pid in _all() if all(word in command_line(pid) for word in words)]


def _all() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]


def _parent(pid: int) -> int:
    facts = _facts(pid)
    return int(facts[1]) if facts else 0


def _facts(pid: int) -> list[str]:
    """Return a process's state, parent, group and so on; nothing when it is gone."""
    # The name before it, in brackets, may hold anything, spaces and brackets included.
    return _read(pid, "stat").rpartition(b")")[2].decode().split()


def _read(pid: int, name: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:
        return b""
