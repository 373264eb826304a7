"""Files and folders over an SSH connection: as pipes, under a temporary name, checked by hash, then renamed."""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING

from embedl_hub.core.device._bounded import MOST_COMPLAINT_BYTES, MOST_OUTPUT_BYTES, BoundedOutput, FloodError
from embedl_hub.core.device._process import Outcome, execute
from embedl_hub.core.device._script import DISCARD, PLACE, RECEIVE_FILE, RECEIVE_FOLDER, SEND, command_line
from embedl_hub.core.device._tree import pack, remove, unpack
from embedl_hub.errors import TransferError
from embedl_hub.terminal import styled_console
from embedl_hub.tracking import hash_file, walk_files

if TYPE_CHECKING:
    from embedl_hub.core.device._ssh_connection import SSHConnection
    from embedl_hub.core.device._ssh_mux import Session

_WORTH_A_BAR_BYTES = 8 << 20


@contextlib.contextmanager
def progress(title: str, total_bytes: int) -> Iterator[Callable[[int], None]]:
    """Yield a function that takes the bytes moved since it was last called."""
    if total_bytes < _WORTH_A_BAR_BYTES or not sys.stderr.isatty():
        yield lambda _: None
        return
    # Imported here: most processes never draw a bar.
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn  # noqa: PLC0415

    # A file's name may look like markup.
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=styled_console(stderr=True), transient=True) as bar:
        task = bar.add_task(title, total=total_bytes)
        yield lambda moved: bar.advance(task, moved)


_STALLED_S = 120.0
# Fewer bytes than this in that time are no transfer: a board may send one at a time for ever.
_LEAST_BYTES = 16 << 10
# No board has a reason to send as much; what it sends is on this machine's disk before anything of it is known.
_MOST_FETCHED_BYTES = 64 << 30
# Other programs need some of the disk too.
_RESERVE_BYTES = 1 << 30
_POLL_S = 0.01
# Below this size hashing first is quicker than the second question that hashing alongside costs.
_HASH_FIRST_BYTES = 32 << 20
_UNKNOWN_SIZE_BYTES = 1 << 30
_FULL_BYTES = 1 << 20
_READ_BYTES = 1 << 16
_DAMAGED = 74
_MOST_LINES = 8
_MOST_VALUE_CHARACTERS = 100
_AGAIN = "Did the file change meanwhile? Send it again; if it fails again, check the disks."


class Transfer:
    """Moves files between this machine and one board."""

    def __init__(self, connection: SSHConnection) -> None:
        self._connection = connection
        self._place = connection.config.place

    def put_file(self, source: Path, target: str) -> None:
        """Send one file."""
        what = f"{source} could not be put at {target} on {self._place}"
        size = source.stat().st_size
        token = secrets.token_hex(6)
        mode = "755" if os.access(source, os.X_OK) else "644"
        expected = hash_file(source) if size < _HASH_FIRST_BYTES else ""
        tool = self._connection.open().hash_tool(size)
        arguments = (target, token, str(size), tool, mode, expected)
        with source.open("rb") as file, progress(f"{source.name} to {self._place}", size) as advance:
            digest = None if expected else _FollowingHash(source)
            try:
                line = command_line(RECEIVE_FILE, "edgeproof", *arguments)
                printed = self._stream(line, file, advance, what, stdin=file).stdout
            finally:
                sent = expected if digest is None else digest.result()
        if digest is not None:
            arrived = _value_of("sha256", printed)
            if arrived != sent:
                self._script(DISCARD, target, token, what=what)
                raise TransferError(f"{what}: sent {sent}, arrived {arrived}. {_AGAIN}")
            self._script(PLACE, target, token, what=what)

    def put_folder(self, source: Path, target: str) -> None:
        """Send a folder as one stream."""
        what = f"{source} could not be put at {target} on {self._place}"
        capabilities = self._connection.open()
        if "tar" not in capabilities.tools:
            raise TransferError(f"{what}: there is no tar on the board. Send the files one by one.")
        files = list(walk_files(source))
        size = sum(path.stat().st_size for _, path in files)
        expected = _digest_of_hashes(hash_file(path) for _, path in files)
        arguments = (target, secrets.token_hex(6), capabilities.hash_tool(0), expected)
        line = command_line(RECEIVE_FOLDER, "edgeproof", *arguments)
        with progress(f"{source.name}/ to {self._place}", size) as advance:
            self._feed(line, lambda stream: pack(source, stream, advance), what)

    def get(self, source: str, target: Path) -> None:
        """Fetch a file or a folder; a folder comes as one stream and is unpacked here, checked name by name."""
        what = f"{source} on {self._place} could not be put at {target}"
        if target.is_dir() and any(target.iterdir()):
            raise TransferError(f"{what}: the target exists and is not an empty folder.")
        token = secrets.token_hex(6)
        part, stream = (target.with_name(f".{token}.{end}") for end in ("part", "stream"))
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            self._fetch(source, target, part, stream, what)
        except TransferError as error:
            # The master writes the file; that it could not shows only in the space that is left.
            if shutil.disk_usage(target.parent).free < _FULL_BYTES:
                raise TransferError(f"{what}: there is no space left here. Free some (df -h).") from error
            raise
        except OSError as error:
            raise TransferError(f"{what}: {error}.") from error
        finally:
            remove(stream)
            remove(part)

    def _fetch(self, source: str, target: Path, part: Path, stream: Path, what: str) -> None:
        kind, sent, arrived = self._receive(source, stream, what)
        if kind == "folder":
            if stream.stat().st_size > _room(target.parent):
                raise TransferError(f"{what}: there is no space left here to unpack it. Free some (df -h).")
            part.mkdir()
            with stream.open("rb") as file:
                arrived = _digest_of_hashes(unpack(file, part))
        elif target.is_dir():
            raise TransferError(f"{what}: {target} is a folder; name the file it should become.")
        else:
            stream.replace(part)
        if sent != arrived:
            raise TransferError(f"{what}: sent {sent}, arrived {arrived}. {_AGAIN}")
        if target.is_dir():
            target.rmdir()
        part.replace(target)

    def _receive(self, source: str, stream: Path, what: str) -> tuple[str, str, str]:
        """Let the board write into a file here; return what it is, the hash it has there, and the file's hash here."""
        tool = self._connection.open().hash_tool(_UNKNOWN_SIZE_BYTES)
        with stream.open("xb") as file, progress(f"{source} from {self._place}", _UNKNOWN_SIZE_BYTES) as advance:
            digest = _FollowingHash(stream)
            try:
                line = command_line(SEND, "edgeproof", source, tool)
                most = min(_room(stream.parent), _MOST_FETCHED_BYTES)
                said = self._stream(line, file, advance, what, stdin=subprocess.DEVNULL, stdout=file, most=most).stderr
            finally:
                arrived = digest.result()
        return _value_of("kind", said), _value_of("sha256", said), arrived

    def _script(self, text: str, *arguments: str, what: str) -> None:
        with self._connection.slots:
            session = self._connection.session(command_line(text, "edgeproof", *arguments))
            try:
                outcome = execute(session, timeout_s=_STALLED_S, echo=False)
            except FloodError as error:
                raise TransferError(f"{what}: {error}.") from error
        self._check(session, outcome, what)

    def _stream(
        self,
        line: str,
        followed: IO[bytes],
        advance: Callable[[int], None],
        what: str,
        *,
        stdin: IO[bytes] | int,
        stdout: IO[bytes] | int = subprocess.PIPE,
        most: int | None = None,
    ) -> Outcome:
        """Let ssh read or write a file by itself; how far it is shows in the offset it shares with us."""

        def position() -> int:
            return os.lseek(followed.fileno(), 0, os.SEEK_CUR)

        with self._connection.slots:
            session = self._connection.session(line, stdin=stdin, stdout=stdout)
            outcome = self._finish(session, position, advance, most)
        self._check(session, outcome, what)
        return outcome

    def _feed(self, line: str, produce: Callable[[IO[bytes]], None], what: str) -> None:
        """Feed a remote script from a function in a thread of its own."""
        with self._connection.slots:
            session = self._connection.session(line)
            assert session.stdin is not None  # noqa: S101 - opened with pipes
            feeder = _Feeder(session.stdin, produce)
            outcome = self._finish(session, feeder.position, lambda _: None)
            feeder.finish()
        self._check(session, outcome, what)

    def _finish(
        self, session: Session, position: Callable[[], int], advance: Callable[[int], None], most: int | None = None
    ) -> Outcome:
        """Wait for a transfer to end, as long as it moves and brings no more than there is room for."""
        output, complaint = _Drain(session.stdout), _Drain(session.stderr)
        pace = _Pace(self._place)
        try:
            while session.poll() is None:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    session.wait(_POLL_S)
                if step := pace.moved(position()):
                    advance(step)
                if most is not None and pace.at > most:
                    raise TransferError(
                        f"{self._place} sent more than {most >> 20} MiB, for which there is no room here; stopped. "
                        "Is it what you asked for? Free some space (df -h)."
                    )
                if output.is_flood or complaint.is_flood:
                    raise TransferError(f"The transfer with {self._place} was stopped: {FloodError()}.")
        finally:
            session.kill()
        return Outcome(output.result(), complaint.result(), session.returncode)

    def _check(self, session: Session, outcome: Outcome, what: str) -> None:
        if outcome.exit_code == 0:
            return
        self._connection.check(session, f"during a transfer ({what})")
        lines = (line for line in outcome.stderr.splitlines() if not line.startswith(("kind=", "sha256=")))
        ending = "no answer in time" if outcome.exit_code is None else f"exit code {outcome.exit_code}"
        reason = "\n".join(list(lines)[-_MOST_LINES:]).strip()[-500:] or ending
        hint = ""
        if "No space left" in reason:
            hint = " Free some there (df -h), or choose another folder with artifact_root on the device."
        elif "Permission denied" in reason:
            hint = " Choose a folder that the login may use."
        elif outcome.exit_code == _DAMAGED:
            hint = f" {_AGAIN}"
        raise TransferError(f"{what}: {reason}.{hint}")


class _Pace:
    """Whether a transfer moves."""

    def __init__(self, place: str) -> None:
        self._place = place
        self.at = 0
        self._start, self._start_at = time.monotonic(), 0

    def moved(self, at: int) -> int:
        """Return how far it came since it was last asked; raise when that is nothing for too long."""
        step, self.at = at - self.at, at
        now = time.monotonic()
        if self.at - self._start_at >= _LEAST_BYTES:
            self._start, self._start_at = now, at
        elif now - self._start > _STALLED_S:
            raise TransferError(
                f"The transfer with {self._place} has hardly moved for {_STALLED_S:g} s ({self.at - self._start_at} "
                "bytes). Is the board overloaded, or does its disk hang?"
            )
        return step


def _room(folder: Path) -> int:
    """Return how much may be written into a folder and leave some for others."""
    disk = shutil.disk_usage(folder)
    return max(0, disk.free - min(_RESERVE_BYTES, disk.total // 20))


class _Background:
    """Does its work in a thread of its own."""

    def __init__(self) -> None:
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def _work(self) -> None:
        raise NotImplementedError


class _Drain(_Background):
    """Reads a pipe to its end, so that the writer never blocks, and keeps the first and the last of it."""

    def __init__(self, stream: IO[bytes] | None) -> None:
        self._kept = BoundedOutput(MOST_COMPLAINT_BYTES)
        self._stream = stream
        super().__init__()

    @property
    def is_flood(self) -> bool:
        """Whether it is more than anybody will read."""
        return self._kept.size_bytes > MOST_OUTPUT_BYTES

    def _work(self) -> None:
        if self._stream is not None:
            with self._stream:
                while chunk := os.read(self._stream.fileno(), _READ_BYTES):
                    self._kept.add(chunk)

    def result(self) -> str:
        self._thread.join()
        return self._kept.text()


class _Feeder(_Background):
    """Writes into a pipe and counts what went through; the first error comes out of finish."""

    def __init__(self, stream: IO[bytes], produce: Callable[[IO[bytes]], None]) -> None:
        self._stream = stream
        self._produce = produce
        self._written = 0
        self._error: Exception | None = None
        super().__init__()

    def _work(self) -> None:
        try:
            self._produce(self)  # type: ignore[arg-type]
        except BrokenPipeError:
            pass  # The far side gave up first; its words say why.
        except Exception as error:  # noqa: BLE001 - carried to the caller's thread
            self._error = error
        with contextlib.suppress(OSError):
            self._stream.close()

    def write(self, data: bytes) -> int:
        count = self._stream.write(data)
        self._written += count
        return count

    def position(self) -> int:
        return self._written

    def finish(self) -> None:
        self._thread.join()
        if self._error is not None:
            raise self._error


class _FollowingHash(_Background):
    """Hashes a file while it is sent or grows; ``result`` is asked once its last byte is there."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._complete = threading.Event()
        self._digest = hashlib.sha256()
        super().__init__()

    def _work(self) -> None:
        with self._path.open("rb", buffering=0) as file:
            while True:
                is_last_round = self._complete.is_set()
                while chunk := file.read(1 << 20):
                    self._digest.update(chunk)
                if is_last_round:
                    return
                self._complete.wait(_POLL_S)

    def result(self) -> str:
        self._complete.set()
        self._thread.join()
        return self._digest.hexdigest()


def _value_of(key: str, text: str) -> str:
    found = [line.partition("=")[2] for line in text.splitlines() if line.startswith(f"{key}=")]
    return found[-1].strip()[:_MOST_VALUE_CHARACTERS] if found else "nothing"


def _digest_of_hashes(hashes: Iterable[str]) -> str:
    """Return the hash over all files' hashes, as the board's own script forms it."""
    lines = "".join(f"{line}\n" for line in sorted(hashes))
    return hashlib.sha256(lines.encode()).hexdigest()
