"""Keepers of a lease as a board runs them: the real scripts, in real shells, without a network between."""

from __future__ import annotations

import os
import select
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from embedl_hub.core.device._script import KEEP_LEASE, KEEP_LEASE_BY_FOLDER
from support.debian import require

FORMS = {"flock": KEEP_LEASE, "folder": KEEP_LEASE_BY_FOLDER}
_SHELLS = {"dash": ("dash",), "bash": ("bash",), "busybox": ("busybox", "ash")}
SHELLS = [*_SHELLS]
# dash cannot wait for a line with a limit.
_TIMED = ("bash", "busybox")


def shell_command(name: str) -> list[str]:
    """Return the command of a shell, which is there or is installed."""
    program, *rest = _SHELLS[name]
    return [require(program, program), *rest]


def keeper_command(
    form: str, shell: str, folder: Path, who: str, *, wait_s: int, limit_s: int, uptime: Path | None = None
) -> list[str]:
    """Return the command of a keeper; ``uptime`` is where it reads for how long the board has been up."""
    limit = str(limit_s) if shell in _TIMED else ""
    arguments = (str(folder), who, str(wait_s), limit, str(limit_s), *([str(uptime)] if uptime else []))
    return [*shell_command(shell), "-c", FORMS[form], "lease", *arguments]


class Keeper:
    """A keeper that runs, and what it said."""

    def __init__(
        self,
        form: str,
        shell: str,
        folder: Path,
        who: str = "me",
        *,
        wait_s: int = 0,
        limit_s: int = 24,
        environment: Mapping[str, str] | None = None,
        uptime: Path | None = None,
    ) -> None:
        self.process = subprocess.Popen(
            keeper_command(form, shell, folder, who, wait_s=wait_s, limit_s=limit_s, uptime=uptime),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            start_new_session=True,
            env={**os.environ, **(environment or {})},
        )
        self._said = b""

    def line(self, limit_s: float = 10.0) -> str:
        """Return the next line it says; nothing at its end."""
        assert self.process.stdout is not None
        deadline = time.monotonic() + limit_s
        while b"\n" not in self._said:
            left_s = deadline - time.monotonic()
            if left_s <= 0 or not select.select([self.process.stdout], [], [], left_s)[0]:
                pytest.fail(f"the keeper said nothing in {limit_s:g} s")
            chunk = os.read(self.process.stdout.fileno(), 4096)
            if not chunk:
                return self._said.decode("utf-8", "replace")
            self._said += chunk
        line, _, self._said = self._said.partition(b"\n")
        return line.decode("utf-8", "replace")

    def has_said(self) -> list[str]:
        """Return the whole lines that came by now."""
        assert self.process.stdout is not None
        while select.select([self.process.stdout], [], [], 0)[0] and (
            chunk := os.read(self.process.stdout.fileno(), 4096)
        ):
            self._said += chunk
        *lines, self._said = self._said.split(b"\n")
        return [line.decode("utf-8", "replace") for line in lines]

    def beat(self) -> None:
        """Send a heartbeat."""
        assert self.process.stdin is not None
        self.process.stdin.write(b"\n")

    def let_go(self) -> None:
        """End its input, and wait for its end."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(10)

    def close(self) -> None:
        """End it by force, if it is there still."""
        self.process.kill()
        self.process.wait(10)
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            if stream is not None:
                stream.close()
