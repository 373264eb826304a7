"""NVIDIA's tegrastats: a program on Jetsons that prints a line with the supplies' milliwatts, again and again.

Lines by generation, from the Jetson Linux Developer Guides: ``POM_5V_IN 1532/1532`` (Nano, 32.x), ``VDD_IN 2532/2532``
(TX2), ``GPU 0mW/0mW CPU 310mW/310mW`` (AGX Xavier), ``VDD_IN 4280mW/4280mW VDD_CPU_GPU_CV 480mW/480mW`` (Orin).
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import time
from typing import Dict, List, Optional

from embedl_device.power._source import Found, Source, domain_of

# The space behind keeps off memory, ``RAM 1938/3964MB``, which looks alike.
_SUPPLY = re.compile(r"(?:^|\s)([A-Za-z][A-Za-z0-9_]{1,30}) ([0-9]{1,7})(mW)?/([0-9]{1,7})(mW)?(?=\s|$)")
_INTERVAL_MS = 200
_FIRST_LINE_S = 3.0
_MOST_LINE_BYTES = 65536


def parse_line(line: str) -> Dict[str, float]:
    """Return the watts of each supply of a line."""
    return {name: int(now) / 1e3 for name, now, _, _, _ in _SUPPLY.findall(line)}


class _Reader:
    """The child and the newest whole line of it."""

    def __init__(self, command: str) -> None:
        argv = [command, "--interval", str(_INTERVAL_MS)]
        self._child = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        assert self._child.stdout is not None  # noqa: S101 - opened with a pipe
        self._file = self._child.stdout.fileno()
        os.set_blocking(self._file, False)
        self._rest = b""
        self._watts: Dict[str, float] = {}
        self._users = 0

    def join(self) -> None:
        self._users += 1

    def watts(self) -> Dict[str, float]:
        """Return what the newest line says."""
        try:
            chunk = os.read(self._file, _MOST_LINE_BYTES)
        except BlockingIOError:
            return self._watts
        if not chunk:
            raise ValueError("tegrastats ended")
        *lines, rest = (self._rest + chunk).split(b"\n")
        self._rest = rest[-_MOST_LINE_BYTES:]
        if lines:
            self._watts = parse_line(lines[-1].decode("utf-8", "replace"))
        return self._watts

    def leave(self) -> None:
        self._users -= 1
        if self._users <= 0:
            self.stop()

    def stop(self) -> None:
        self._child.terminate()
        try:
            self._child.wait(2)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait()
        if self._child.stdout is not None:
            self._child.stdout.close()


class _Supply(Source):
    family = "tegrastats"
    is_counter = False

    def __init__(self, label: str, reader: _Reader) -> None:
        self.name, self.domain = "tegrastats {}".format(label), domain_of(label)
        self._label, self._reader = label, reader
        reader.join()

    def read(self) -> float:
        watts = self._reader.watts().get(self._label)
        if watts is None:
            raise ValueError("tegrastats does not tell {} any more".format(self._label))
        return watts

    def close(self) -> None:
        self._reader.leave()


def find_tegrastats(command: Optional[str] = None) -> Found:
    """Start tegrastats, where there is one, and find the supplies of its first line."""
    program = command or shutil.which("tegrastats")
    if program is None:
        return Found()
    try:
        reader = _Reader(program)
    except OSError as error:
        return Found(problems=["tegrastats cannot be started: {}".format(error)])
    deadline = time.monotonic() + _FIRST_LINE_S
    watts: Dict[str, float] = {}
    try:
        while not watts and time.monotonic() < deadline:
            watts = reader.watts()
            if not watts:
                time.sleep(0.02)
    except (OSError, ValueError):
        watts = {}
    if not watts:
        reader.stop()
        return Found(problems=["tegrastats ({}) told no supply within {:g} s".format(program, _FIRST_LINE_S)])
    sources: List[Source] = [_Supply(label, reader) for label in watts]
    return Found(sources)
