"""One user at a time on a board: the kernel's lock on a folder there, held as long as we beat."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import select
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from embedl_hub.core.device._process import Process, stop
from embedl_hub.core.device._runner import Lease
from embedl_hub.core.device._script import BEAT_EVERY_S
from embedl_hub.errors import BusyError, ConnectError, DeviceError, LeaseError

_LOG = logging.getLogger("embedl_hub")
_START_S = 30.0
_HINT = "Choose another folder with lease_dir on the device, or lease_dir=None to go without."


@contextlib.contextmanager
def keep_remote_lease(start: Callable[[], Process], *, place: str, wait_s: float) -> Iterator[Lease]:
    """Hold a lease through a keeper process whose stdin is its lifeline.

    The keeper says ``busy <holder>``, then ``held``; it lets go at end of file or when the beats stop, so a
    killed client frees the board at once and a cut cable within the heartbeat limit.
    """
    keeper = start()
    lease = Lease()
    released = threading.Event()
    try:
        _await_lease(keeper, place, wait_s)
        beats = threading.Thread(target=_beat, args=(keeper, lease, released), name="edgeproof-lease", daemon=True)
        beats.start()
        try:
            yield lease
        finally:
            released.set()
            beats.join()
    finally:
        stop(keeper)
        for stream in (keeper.stdout, keeper.stderr):
            if stream is not None:
                stream.close()


def _await_lease(keeper: Process, place: str, wait_s: float) -> None:
    assert keeper.stdout is not None  # noqa: S101 - opened with pipes
    deadline = time.monotonic() + _START_S
    buffer = b""
    poll = select.poll()
    poll.register(keeper.stdout, select.POLLIN)
    while True:
        ready = poll.poll(max(0.0, deadline - time.monotonic()) * 1000)
        chunk = os.read(keeper.stdout.fileno(), 4096) if ready else b""
        buffer += chunk
        *lines, buffer = buffer.split(b"\n")
        for line in (raw.decode("utf-8", "replace") for raw in lines):
            word, _, holder = line.partition(" ")
            if word == "held":
                return
            if word == "busy":
                _LOG.warning("Waiting up to %g s for %s, in use by %s.", wait_s, place, holder or "an unknown user")
                deadline = time.monotonic() + wait_s + _START_S
            elif word == "late":
                holder = holder or "an unknown user"
                advice = "Try later, raise lease_wait_s on the context, or ask them."
                raise BusyError(f"{place} was in use by {holder} for all of {wait_s:g} s. {advice}", holder)
            else:
                raise LeaseError(f"The lease on {place} could not be taken: {line}. {_HINT}")
        if not chunk:
            raise _no_answer(keeper, place)


def _no_answer(keeper: Process, place: str) -> DeviceError:
    assert keeper.stderr is not None  # noqa: S101 - opened with pipes
    stop(keeper)
    complaint = keeper.stderr.read().decode("utf-8", "replace").strip()[-500:]
    if complaint:
        return LeaseError(f"The lease on {place} could not be taken: {complaint}. {_HINT}")
    return ConnectError(f"The lease on {place} got no answer. Is the board still on and on the network?")


def _beat(keeper: Process, lease: Lease, released: threading.Event) -> None:
    assert keeper.stdin is not None  # noqa: S101 - opened with pipes
    while not released.wait(BEAT_EVERY_S):
        try:
            keeper.stdin.write(b"\n")
            keeper.stdin.flush()
            is_gone = keeper.poll() is not None
        except OSError:
            is_gone = True
        if is_gone:
            lease.lose()
            return


class LocalLease(Lease):
    """This machine's lease, which can be let go of from another thread than the one that holds it."""

    def __init__(self, fd: int) -> None:
        super().__init__()
        self._fd = fd
        self._lock = threading.Lock()

    def let_go(self) -> None:
        """Free the machine; whoever holds the lease is told at the end that it was lost."""
        with self._lock:
            if not self.is_lost:
                self.lose()
                fcntl.flock(self._fd, fcntl.LOCK_UN)


@contextlib.contextmanager
def keep_local_lease(lock_dir: str, holder: str, *, wait_s: float) -> Iterator[LocalLease]:
    """Hold this machine's lease: the same lock that a keeper of a remote user would take here."""
    folder = Path(lock_dir)
    note = folder / "holder"
    try:
        fd = _open_folder(folder)
    except OSError as error:
        raise LeaseError(f"The lease on this machine could not be taken: {error}. {_HINT}") from error
    try:
        _lock_with_patience(fd, note, wait_s)
        note.unlink(missing_ok=True)
        with contextlib.suppress(FileExistsError), note.open("x", encoding="utf-8") as file:
            file.write(f"{holder} since {time.strftime('%H:%M:%S')}")
        lease = LocalLease(fd)
        try:
            yield lease
        finally:
            if not lease.is_lost:
                note.unlink(missing_ok=True)
            lease.let_go()
    finally:
        os.close(fd)


def _open_folder(folder: Path) -> int:
    if folder.is_symlink():
        raise LeaseError(f"The lease on this machine could not be taken: {folder} is a link. {_HINT}")
    if not folder.is_dir():
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o777)
    return os.open(folder, os.O_RDONLY | os.O_CLOEXEC)


def _lock_with_patience(fd: int, note: Path, wait_s: float) -> None:
    deadline = time.monotonic() + wait_s
    is_logged = False
    while True:
        try:
            return fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = note.read_text(encoding="utf-8", errors="replace") if note.is_file() else "an unknown user"
            if time.monotonic() >= deadline:
                advice = "Try later, or raise lease_wait_s on the context."
                raise BusyError(
                    f"This machine was in use by {holder} for all of {wait_s:g} s. {advice}", holder
                ) from None
            if not is_logged:
                _LOG.warning("Waiting up to %g s for this machine, in use by %s.", wait_s, holder)
                is_logged = True
            time.sleep(0.1)
