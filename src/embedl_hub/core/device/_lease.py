"""One user at a time on a board: the kernel's lock on a folder there, held as long as we beat and it answers."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import select
import stat
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path

from embedl_hub.core.device._process import Process, stop
from embedl_hub.core.device._runner import Lease
from embedl_hub.core.device._script import BEAT_EVERY_S, LOST_AFTER_S
from embedl_hub.errors import BusyError, ConnectError, DeviceError, LeaseError

_LOG = logging.getLogger("embedl_hub")
_START_S = 30.0
_MOST_NOTE_BYTES = 200
_MOST_LINE_BYTES = 4096
_MOST_COMPLAINT_BYTES = 4096
_HINT = "Choose another folder with lease_dir on the device, or lease_dir=None to go without."
_UNKNOWN = "an unknown user"


# Goes on while this machine sleeps, and nobody sets it. Where Linux has two such clocks, macOS has one.
_CLOCK: int = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def _now_s() -> float:
    return time.clock_gettime(_CLOCK)


class RemoteLease(Lease):
    """A lease that counts as lost when the board has answered no beat for a while, before the board gives it away.

    Only what was sent counts: a beat that was answered late says nothing of now. So a holder that was stopped, or cut
    off, knows it is none as soon as it looks, however long it could not.
    """

    def __init__(self, renewed_s: float) -> None:
        super().__init__()
        self._renewed_s = renewed_s

    @property
    def is_lost(self) -> bool:
        """Whether somebody else may be using the board now."""
        if _now_s() - self._renewed_s > LOST_AFTER_S:
            self.lose()
        return super().is_lost

    def renew(self, sent_s: float) -> None:
        """Note that a beat sent then was answered; what is lost stays lost."""
        if not self.is_lost:
            self._renewed_s = sent_s


class _Lifeline:
    """A keeper's two pipes: beats go out, and lines come back, none of them of any length."""

    def __init__(self, keeper: Process, place: str) -> None:
        assert keeper.stdin is not None  # noqa: S101 - opened with pipes
        assert keeper.stdout is not None  # noqa: S101 - opened with pipes
        self._place = place
        self._stdin, self._stdout = keeper.stdin, keeper.stdout
        self._waking, self._wake = os.pipe()
        self._poll = select.poll()
        self._poll.register(self._stdout, select.POLLIN)
        self._poll.register(self._waking, select.POLLIN)
        self._buffer = b""
        self._sent_s: deque[float] = deque()

    def beat(self) -> None:
        self._sent_s.append(_now_s())
        self._stdin.write(b"\n")
        self._stdin.flush()

    def is_heard(self) -> bool:
        """Send a beat, and tell whether anybody was there; who hung up has said why, on one of the other pipes."""
        try:
            self.beat()
        except OSError:
            return False
        return True

    def answered_s(self) -> float:
        """Return when the beat was sent whose answer came now."""
        return self._sent_s.popleft() if self._sent_s else 0.0

    def lines(self, wait_s: float) -> list[str] | None:
        """Return what was said, waiting at most so long for something; None when nothing will come any more."""
        ready = self._poll.poll(max(0.0, wait_s) * 1000)
        if self._stdout.fileno() not in [file for file, _ in ready]:
            return []
        chunk = os.read(self._stdout.fileno(), _MOST_LINE_BYTES)
        *lines, self._buffer = (self._buffer + chunk).split(b"\n")
        if len(self._buffer) > _MOST_LINE_BYTES:
            raise LeaseError(
                f"The lease on {self._place} could not be taken: the board answers with a line that has no end. {_HINT}"
            )
        return [raw.decode("utf-8", "replace") for raw in lines] if chunk else None

    def wake(self) -> None:
        """Have whoever waits for lines stop waiting."""
        os.write(self._wake, b"x")

    def close(self) -> None:
        os.close(self._waking)
        os.close(self._wake)


@contextlib.contextmanager
def keep_remote_lease(start: Callable[[], Process], *, place: str, wait_s: float) -> Iterator[Lease]:
    """Hold a lease through a keeper process whose stdin is its lifeline.

    The keeper says ``busy <holder>``, then ``held``, then ``beat`` to every beat; it lets go at end of file or when the
    beats stop, so a killed client frees the board at once and a cut cable within the heartbeat limit.
    """
    keeper = start()
    with contextlib.ExitStack() as stack:
        stack.callback(_end, keeper)
        lifeline = _Lifeline(keeper, place)
        stack.callback(lifeline.close)
        lease = RemoteLease(_await_lease(keeper, lifeline, place, wait_s))
        released = threading.Event()
        arguments = (lifeline, lease, released)
        beats = threading.Thread(target=_keep_beating, args=arguments, name="edgeproof-lease", daemon=True)
        beats.start()
        try:
            yield lease
        finally:
            released.set()
            lifeline.wake()
            beats.join()


def _end(keeper: Process) -> None:
    stop(keeper)
    for stream in (keeper.stdout, keeper.stderr):
        if stream is not None:
            stream.close()


def _await_lease(keeper: Process, lifeline: _Lifeline, place: str, wait_s: float) -> float:
    """Wait until the lease is ours, and return when the beat was sent that proves it."""
    deadline = _now_s() + _START_S
    is_held = is_told = False
    try:
        # Sent before it is asked for, it costs no question of its own where nobody else has the board.
        is_heard = lifeline.is_heard()
        while True:
            lines = lifeline.lines(deadline - _now_s())
            for word, _, rest in (line.partition(" ") for line in lines or ()):
                if word == "held":
                    is_held = True
                elif word == "beat" and is_held:
                    sent_s = lifeline.answered_s()
                    if _now_s() - sent_s < BEAT_EVERY_S:
                        return sent_s
                    lifeline.beat()
                elif word == "busy" and not is_told:
                    holder, is_told = _shown(rest), True
                    _LOG.warning("Waiting up to %g s for %s, in use by %s.", wait_s, place, holder)
                    deadline = _now_s() + wait_s + _START_S
                elif word == "late":
                    holder = _shown(rest)
                    advice = "Try later, raise lease_wait_s on the context, or ask them."
                    raise BusyError(f"{place} was in use by {holder} for all of {wait_s:g} s. {advice}", holder)
                else:
                    said = f"{word} {rest}"[:_MOST_NOTE_BYTES].strip()
                    raise LeaseError(f"The lease on {place} could not be taken: {said}. {_HINT}")
            if lines is None or _now_s() >= deadline:
                raise _no_answer(keeper, place, b"" if is_heard else _read_complaint(keeper, 10))
    except OSError as error:
        # Whoever hung up on us has ended, and said why, or will when the network has brought it.
        raise _no_answer(keeper, place, _read_complaint(keeper, 10)) from error


def _read_complaint(keeper: Process, wait_s: float) -> bytes:
    """Return what is said on its error stream within some seconds; nothing at once where that was closed."""
    assert keeper.stderr is not None  # noqa: S101 - opened with pipes
    poll = select.poll()
    poll.register(keeper.stderr, select.POLLIN)
    return os.read(keeper.stderr.fileno(), _MOST_COMPLAINT_BYTES) if poll.poll(wait_s * 1000) else b""


def _no_answer(keeper: Process, place: str, said: bytes = b"") -> DeviceError:
    stop(keeper)
    complaint = (said or _read_complaint(keeper, 1)).decode("utf-8", "replace").strip()[-500:]
    if complaint:
        return LeaseError(f"The lease on {place} could not be taken: {complaint}. {_HINT}")
    return ConnectError(f"The lease on {place} got no answer. Is the board still on and on the network?")


def _keep_beating(lifeline: _Lifeline, lease: RemoteLease, released: threading.Event) -> None:
    """Beat until the lease is given back; lose it when the keeper ends, which shows at once, or does not answer."""
    next_s = _now_s() + BEAT_EVERY_S
    while not released.is_set():
        try:
            lines = lifeline.lines(next_s - _now_s())
            # Looked at before any answer: those that came too late must not make up for the silence.
            if lease.is_lost:
                return
            if lines is None:
                break
            for _ in lines:
                lease.renew(lifeline.answered_s())
            if _now_s() >= next_s:
                lifeline.beat()
                next_s = _now_s() + BEAT_EVERY_S
        except (OSError, LeaseError):
            break
    if not released.is_set():
        lease.lose()


def _shown(note: str) -> str:
    """Return a holder's note for people, of which anybody with an account there may be the author."""
    return "".join(letter for letter in note if letter.isprintable())[:_MOST_NOTE_BYTES].strip() or _UNKNOWN


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
    own = f"holder.{os.geteuid()}"
    with contextlib.ExitStack() as stack:
        try:
            fd = _locked_folder(Path(lock_dir), wait_s)
            stack.callback(os.close, fd)
            _write_note(fd, own, f"{holder} since {time.strftime('%H:%M:%S')}")
        except OSError as error:
            raise LeaseError(
                f"The lease on this machine could not be taken: {lock_dir} cannot be used: {error}. {_HINT}"
            ) from error
        lease = LocalLease(fd)
        try:
            yield lease
        finally:
            if not lease.is_lost:
                _remove_note(fd, own)
            lease.let_go()


def _locked_folder(folder: Path, wait_s: float) -> int:
    """Return the lock folder, opened and locked."""
    deadline = time.monotonic() + wait_s
    while True:
        fd = _open_folder(folder)
        try:
            _lock_with_patience(fd, deadline, wait_s)
            # Somebody may have put another folder in its place while we waited, and locked that one.
            if os.path.samestat(os.fstat(fd), folder.lstat()):
                return fd
        except BaseException:
            os.close(fd)
            raise
        os.close(fd)


def _open_folder(folder: Path) -> int:
    if folder.is_symlink():
        raise LeaseError(f"The lease on this machine could not be taken: {folder} is a link. {_HINT}")
    folder.parent.mkdir(parents=True, exist_ok=True)
    is_new = True
    try:
        folder.mkdir()
    except FileExistsError:
        is_new = False
    # By number from here on: whatever takes its name meanwhile is not what is changed, read or written.
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    facts = os.fstat(fd)
    is_to_be_open = is_new and not _names(fd)
    if facts.st_uid == os.geteuid() and (is_to_be_open or facts.st_mode & stat.S_IWOTH):
        # Every account may put something there, and remove only its own.
        os.fchmod(fd, 0o1777)
    return fd


def _names(folder: int) -> list[str]:
    return os.listdir(folder)


def _write_note(folder: int, name: str, text: str) -> None:
    _remove_note(folder, name)
    # Another account's file under our name can be neither removed nor written through, and is no reason to stop.
    with contextlib.suppress(FileExistsError):
        fd = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644, dir_fd=folder)
        with os.fdopen(fd, "w", encoding="utf-8", errors="replace") as file:
            file.write(text)


def _remove_note(folder: int, name: str) -> None:
    with contextlib.suppress(FileNotFoundError, PermissionError):
        os.unlink(name, dir_fd=folder)


def _holder(folder: int) -> str:
    """Return the newest note, of which any account may be the author."""
    notes: dict[str, int] = {}
    for name in _names(folder):
        if name.startswith("holder."):
            with contextlib.suppress(OSError):
                notes[name] = os.stat(name, dir_fd=folder, follow_symlinks=False).st_mtime_ns
    return _shown(_read_note(folder, max(notes, key=lambda name: notes[name]))) if notes else _UNKNOWN


def _read_note(folder: int, name: str) -> str:
    try:
        # A link is not followed, and a pipe not waited for.
        fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    except OSError:
        return ""
    try:
        said = os.read(fd, _MOST_NOTE_BYTES) if stat.S_ISREG(os.fstat(fd).st_mode) else b""
    finally:
        os.close(fd)
    return said.decode("utf-8", "replace").partition("\n")[0]


def _lock_with_patience(fd: int, deadline: float, wait_s: float) -> None:
    is_logged = False
    while True:
        try:
            return fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = _holder(fd)
            if time.monotonic() >= deadline:
                advice = "Try later, or raise lease_wait_s on the context."
                raise BusyError(
                    f"This machine was in use by {holder} for all of {wait_s:g} s. {advice}", holder
                ) from None
            if not is_logged:
                _LOG.warning("Waiting up to %g s for this machine, in use by %s.", wait_s, holder)
                is_logged = True
            time.sleep(0.1)
