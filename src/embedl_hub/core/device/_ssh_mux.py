"""Sessions on an OpenSSH master, through its control socket: what ``ssh -S`` does, without starting a program.

The protocol is OpenSSH's own (PROTOCOL.mux, version 4, in use since 2010). The master is handed the files that are
the command's stdin, stdout and stderr, and reads and writes them itself. Its answers tell for certain whether a
command was started, which the exit code of an ssh program does not.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import struct
import subprocess
import time
from collections.abc import Iterator
from typing import IO

from embedl_hub.errors import ConfigError

_VERSION = 4
_HELLO = 0x00000001
_NEW_SESSION = 0x10000002
_ALIVE_CHECK = 0x10000004
_TERMINATE = 0x10000005
_EXIT_MESSAGE = 0x80000004
_IS_ALIVE = 0x80000005
_SESSION_OPENED = 0x80000006
_NO_ESCAPE_CHARACTER = 0xFFFFFFFF

# What the master takes in one message, with room for what stands around the command.
_MOST_LINE_BYTES = (256 << 10) - 1024

# The master is a process of this machine and answers at once; one that does not is as good as dead.
_ANSWER_S = 10.0
# A session waits for the board; a dead connection is noticed by the master's own keep-alive before this.
_OPEN_S = 60.0


class MasterGoneError(Exception):
    """There is no master behind the socket, or it went before it started anything."""


class SessionRefusedError(Exception):
    """The master is there, and the board opens no further session."""


class Session:
    """A command on the board, with the face of a process. It ends when its lifeline, our socket, is closed."""

    def __init__(
        self,
        socket_path: str,
        line: str,
        *,
        stdin: IO[bytes] | int = subprocess.PIPE,
        stdout: IO[bytes] | int = subprocess.PIPE,
    ) -> None:
        self.socket_path = socket_path
        self.returncode: int | None = None  # None while it runs; 255 when it ended without saying how
        self.is_lost = False  # whether it ended without saying how: the connection broke, or a signal took its shell
        self._code: int | None = None
        self._received = b""
        if len(os.fsencode(line)) > _MOST_LINE_BYTES:
            raise ConfigError(f"A command for a board is too long with {len(line)} characters; put the data in a file.")
        self._socket = _connect(socket_path)
        with contextlib.ExitStack() as undo, contextlib.ExitStack() as handed_over:
            undo.callback(self._socket.close)
            self.stdin, theirs_in = _stream(stdin, handed_over, is_input=True)
            self.stdout, theirs_out = _stream(stdout, handed_over)
            self.stderr, theirs_err = _stream(subprocess.PIPE, handed_over)
            for stream in (self.stdin, self.stdout, self.stderr):
                if stream is not None:
                    undo.callback(stream.close)
            self._open(line, (theirs_in, theirs_out, theirs_err))
            undo.pop_all()

    def poll(self) -> int | None:
        """Return the code if the command has ended."""
        return self._listen(0.0)

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the command to end; ``subprocess.TimeoutExpired`` if it does not in that time."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            left_s = None if deadline is None else max(0.0, deadline - time.monotonic())
            code = self._listen(left_s)
            if code is not None:
                return code
            if left_s == 0.0:
                raise subprocess.TimeoutExpired("a session", timeout or 0.0)

    def kill(self) -> None:
        """Close the session; on the board its input ends."""
        if self.returncode is None:
            self._end()

    def _open(self, line: str, files: tuple[int, int, int]) -> None:
        request = struct.pack(">II", _NEW_SESSION, 0) + _text(b"")
        # No terminal, no X11, no agent, no subsystem.
        request += struct.pack(">IIIII", 0, 0, 0, 0, _NO_ESCAPE_CHARACTER) + _text(b"") + _text(os.fsencode(line))
        with _gone_if_it_fails():
            self._socket.sendall(_text(request))
            for file in files:
                socket.send_fds(self._socket, [b"\0"], [file])
            self._socket.settimeout(_OPEN_S)
            answer = _read_message(self._socket)
        if _number(answer, 0) != _SESSION_OPENED:
            raise SessionRefusedError(answer[12:].decode("utf-8", "replace"))
        self._socket.setblocking(False)

    def _listen(self, wait_s: float | None) -> int | None:
        """Take what the master has to say, waiting at most so long for it; return the code once it has ended."""
        if self.returncode is not None:
            return self.returncode
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        if not poll.poll(None if wait_s is None else wait_s * 1000):
            return None
        try:
            chunk = self._socket.recv(4096)
        except OSError:
            chunk = b""
        self._received += chunk
        while len(self._received) >= 4 and len(self._received) >= 4 + _number(self._received, 0):
            size = 4 + _number(self._received, 0)
            message, self._received = self._received[4:size], self._received[size:]
            if _number(message, 0) == _EXIT_MESSAGE:
                self._code = _number(message, 8)
        if not chunk:
            self._end()
        return self.returncode

    def _end(self) -> None:
        self.is_lost = self._code is None
        self.returncode = 255 if self._code is None else self._code
        self._socket.close()


def is_alive(socket_path: str) -> bool:
    """Tell whether a master serves this socket."""
    try:
        with _connect(socket_path) as connection, _gone_if_it_fails():
            connection.sendall(_text(struct.pack(">II", _ALIVE_CHECK, 0)))
            return _number(_read_message(connection), 0) == _IS_ALIVE
    except MasterGoneError:
        return False


def ask_to_exit(socket_path: str) -> None:
    """End a master with all its sessions, if it is there."""
    with contextlib.suppress(MasterGoneError), _connect(socket_path) as connection, _gone_if_it_fails():
        connection.sendall(_text(struct.pack(">II", _TERMINATE, 0)))
        _read_message(connection)


def _connect(socket_path: str) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX)
    try:
        with _gone_if_it_fails():
            connection.settimeout(_ANSWER_S)
            connection.connect(socket_path)
            connection.sendall(_text(struct.pack(">II", _HELLO, _VERSION)))
            hello = _read_message(connection)
            if (_number(hello, 0), _number(hello, 4)) != (_HELLO, _VERSION):
                raise OSError(f"the ssh on this machine speaks another control protocol than {_VERSION}")  # noqa: TRY301
    except BaseException:
        connection.close()
        raise
    return connection


@contextlib.contextmanager
def _gone_if_it_fails() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise MasterGoneError(str(error)) from error


def _read_message(connection: socket.socket) -> bytes:
    return _read_exactly(connection, _number(_read_exactly(connection, 4), 0))


def _read_exactly(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        chunk = connection.recv(size - len(data))
        if not chunk:
            raise ConnectionResetError("the master closed its socket")
        data += chunk
    return data


def _text(data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + data


def _number(message: bytes, at: int) -> int:
    return int.from_bytes(message[at : at + 4], "big")


def _stream(
    file: IO[bytes] | int, handed_over: contextlib.ExitStack, *, is_input: bool = False
) -> tuple[IO[bytes] | None, int]:
    """Return our end of a command's input or output, if there is one, and the master's end."""
    ours: IO[bytes] | None = None
    if file == subprocess.PIPE:
        read, write = os.pipe()
        ours, theirs = (os.fdopen(write, "wb"), read) if is_input else (os.fdopen(read, "rb"), write)
    elif file == subprocess.DEVNULL:
        theirs = os.open(os.devnull, os.O_RDONLY)
    else:
        return None, file if isinstance(file, int) else file.fileno()
    handed_over.callback(os.close, theirs)
    return ours, theirs
