"""Runs one supervised command to its end, here or on a board: captured, echoed, beaten and stopped in time."""

from __future__ import annotations

import codecs
import contextlib
import math
import os
import selectors
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import IO, Protocol

from embedl_device.terminal import printable
from embedl_hub.core.device._bounded import (
    MOST_COMPLAINT_BYTES,
    MOST_KEPT_BYTES,
    MOST_OUTPUT_BYTES,
    BoundedOutput,
    FloodError,
)
from embedl_hub.core.device._script import BEAT_EVERY_S, STOP

# The far side needs a moment to end the group and say so: two seconds between TERM and KILL, and a margin.
_GRACE_S = 4.0
_READ_BYTES = 1 << 16


@dataclass(frozen=True)
class Outcome:
    """How a process ended; ``exit_code`` is None when it was stopped: at its time limit, or by another thread."""

    stdout: str
    stderr: str
    exit_code: int | None
    is_stopped_by_other: bool = False


class Process(Protocol):
    """A command that runs: a process group here, or a session on a board. Its stdin is its lifeline."""

    @property
    def stdin(self) -> IO[bytes] | None: ...
    @property
    def stdout(self) -> IO[bytes] | None: ...
    @property
    def stderr(self) -> IO[bytes] | None: ...
    @property
    def returncode(self) -> int | None: ...
    def poll(self) -> int | None: ...
    def wait(self, timeout: float | None = None) -> int: ...
    def kill(self) -> None: ...


class ProcessGroup(subprocess.Popen[bytes]):
    """A process here, in a session of its own: Ctrl-C in the terminal reaches us, and we end it the orderly way."""

    def __init__(self, argv: Sequence[str]) -> None:
        pipe = subprocess.PIPE
        super().__init__(argv, stdin=pipe, stdout=pipe, stderr=pipe, start_new_session=True)

    def kill(self) -> None:
        """End the whole group."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)


class Commands:
    """The commands that a block runs, for another thread to stop: see :func:`stoppable_commands`."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: list[Process] = []
        self._stopped = threading.Event()

    @property
    def is_stopped(self) -> bool:
        """Whether they were told to stop; whatever the block starts later is stopped at once."""
        return self._stopped.is_set()

    def stop(self) -> None:
        """Have the commands that run now ended, with everything they started; whoever waits for them is told."""
        with self._lock:
            self._stopped.set()
            for process in self._running:
                _ask_to_stop(process)

    @contextlib.contextmanager
    def following(self, process: Process) -> Iterator[None]:
        """Have a command stopped with the others while the block lasts."""
        with self._lock:
            self._running.append(process)
            if self.is_stopped:
                _ask_to_stop(process)
        try:
            yield
        finally:
            # Before its streams are closed: their numbers may be somebody else's the moment after.
            with self._lock:
                self._running.remove(process)


_COMMANDS: ContextVar[Commands | None] = ContextVar("commands", default=None)


@contextlib.contextmanager
def stoppable_commands() -> Iterator[Commands]:
    """Let another thread stop the commands that this thread runs in the block, on whichever machine."""
    commands = Commands()
    token = _COMMANDS.set(commands)
    try:
        yield commands
    finally:
        _COMMANDS.reset(token)


def execute(process: Process, *, timeout_s: float | None, echo: bool) -> Outcome:
    """Bring a supervised command to its end; a ``FloodError`` when it had to be stopped for all that it printed."""
    commands = _COMMANDS.get() or Commands()
    with _Capture(process, echo=echo) as capture, commands.following(process):
        outcome = _execute(process, capture, timeout_s)
    if commands.is_stopped and outcome.exit_code != 0:
        return replace(outcome, exit_code=None, is_stopped_by_other=True)
    return outcome


def _execute(process: Process, capture: _Capture, timeout_s: float | None) -> Outcome:
    deadline = math.inf if timeout_s is None else time.monotonic() + timeout_s
    try:
        in_time = _follow(process, capture, deadline)
    except BaseException:
        _halt(process)
        raise
    if not in_time:
        _halt(process)
        capture.drain()
    return Outcome(capture.text("stdout"), capture.text("stderr"), process.returncode if in_time else None)


def _follow(process: Process, capture: _Capture, deadline: float) -> bool:
    """Wait for a command's end; tell whether it came in time."""
    # A command may close its output and live on, or end and leave its output to a child: both count as running.
    while capture.is_open() or process.poll() is None:
        left_s = deadline - time.monotonic()
        if left_s <= 0:
            return False
        capture.beat()
        if capture.is_open():
            capture.read(min(BEAT_EVERY_S, left_s))
        else:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(min(BEAT_EVERY_S, left_s))
    return True


def _halt(process: Process) -> None:
    """Have a supervised command ended, with what it left behind if it has ended already."""
    _ask_to_stop(process)
    stop(process)


def _ask_to_stop(process: Process) -> None:
    if process.stdin is not None:
        # ValueError: its own thread was quicker, and closed it.
        with contextlib.suppress(OSError, ValueError):
            process.stdin.write(STOP)
            process.stdin.flush()


def stop(process: Process) -> None:
    """End a process by cutting its lifeline, then by force."""
    if process.stdin is not None:
        with contextlib.suppress(OSError):
            process.stdin.close()
    try:
        process.wait(_GRACE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


class _Capture:
    """Collects what a process prints, and beats its lifeline."""

    def __init__(self, process: Process, *, echo: bool) -> None:
        self._process = process
        self._echo = echo
        self._selector = selectors.DefaultSelector()
        self._kept = {"stdout": BoundedOutput(MOST_KEPT_BYTES), "stderr": BoundedOutput(MOST_COMPLAINT_BYTES)}
        self._decoders = {name: codecs.getincrementaldecoder("utf-8")("replace") for name in self._kept}
        self._next_beat = time.monotonic() + BEAT_EVERY_S

    def __enter__(self) -> _Capture:  # noqa: PYI034 - private, never subclassed
        for name in self._kept:
            stream: IO[bytes] = getattr(self._process, name)
            self._selector.register(stream, selectors.EVENT_READ, name)
        return self

    def __exit__(self, *_: object) -> None:
        self._selector.close()
        for stream in (self._process.stdin, self._process.stdout, self._process.stderr):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()

    def is_open(self) -> bool:
        """Tell whether more output may come."""
        return bool(self._selector.get_map())

    def read(self, wait_s: float) -> bool:
        """Take what is there, waiting at most so long; tell whether there was anything."""
        ready = self._selector.select(wait_s)
        for key, _ in ready:
            chunk = os.read(key.fd, _READ_BYTES)
            if not chunk:
                self._selector.unregister(key.fileobj)
                continue
            self._kept[key.data].add(chunk)
            if sum(each.size_bytes for each in self._kept.values()) > MOST_OUTPUT_BYTES:
                raise FloodError
            if self._echo:
                sys.stderr.write(printable(self._decoders[key.data].decode(chunk)))
                sys.stderr.flush()
        return bool(ready)

    def drain(self) -> None:
        """Take what an ended process left behind."""
        while self.is_open() and self.read(0.1):
            pass

    def beat(self) -> None:
        """Tell the far side that we are alive, every few seconds."""
        if time.monotonic() < self._next_beat or self._process.stdin is None:
            return
        self._next_beat = time.monotonic() + BEAT_EVERY_S
        with contextlib.suppress(OSError):
            self._process.stdin.write(b"\n")
            self._process.stdin.flush()

    def text(self, name: str) -> str:
        """Return what was printed to one stream, as far as it is kept."""
        return self._kept[name].text()
