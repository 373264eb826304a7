"""One master connection to a board, and what the board's shell can do."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
import threading
import time
import weakref
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from embedl_hub.core.device._bounded import FloodError
from embedl_hub.core.device._process import execute
from embedl_hub.core.device._script import BEAT_LIMIT_S, CAPABILITIES
from embedl_hub.core.device._ssh_config import SSHConfig, explain_connect_failure
from embedl_hub.core.device._ssh_mux import MasterGoneError, Session, SessionRefusedError, ask_to_exit, is_alive
from embedl_hub.errors import ConnectError

_FOLDER_PREFIX = "edgeproof-ssh-"
# Long enough for a master of another process to be on its way.
_ABANDONED_S = 600
_FAST_CIPHER = "aes128-gcm@openssh.com"
# sshd allows ten sessions per connection by default; two stay free for the lease and for others.
_MOST_SESSIONS = 8
_LARGE_BYTES = 8 << 20
_ATTEMPTS = 3
_SHELL_ANSWER_S = 30.0
_MOST_COMPLAINT_BYTES = 64 << 10
_MOST_NAME_CHARACTERS = 40


@dataclass(frozen=True)
class Capabilities:
    """What the board's shell can do."""

    tools: frozenset[str]
    timed_read: bool
    aes: bool

    def hash_tool(self, size_bytes: int) -> str:
        """Return the hash program: openssl is several times faster on large files, slower to start."""
        if "openssl" in self.tools and (size_bytes >= _LARGE_BYTES or "sha256sum" not in self.tools):
            return "openssl"
        return "sha256sum" if "sha256sum" in self.tools else "shasum"

    @property
    def watch(self) -> tuple[str, str]:
        """The heartbeat limit and a shell that can wait for a beat; without one, only end of file counts."""
        if self.timed_read:
            return str(BEAT_LIMIT_S), "sh"
        return (str(BEAT_LIMIT_S), "bash") if "bash" in self.tools else ("", "sh")


class SSHConnection:
    """A lazily made OpenSSH master that every command and transfer of a runner goes through."""

    def __init__(self, config: SSHConfig) -> None:
        self.config = config
        self.slots = threading.BoundedSemaphore(_MOST_SESSIONS)
        self._lock = threading.Lock()
        self._folder: str | None = None
        self._masters = 0
        self._capabilities: Capabilities | None = None

    def open(self) -> Capabilities:
        """Connect unless connected, and return what the board can do."""
        return self._open()[1]

    def close(self) -> None:
        """End the connection; the next use makes a new one."""
        with self._lock:
            self._capabilities = None
            self._exit()

    def session(
        self, line: str, *, stdin: IO[bytes] | int = subprocess.PIPE, stdout: IO[bytes] | int = subprocess.PIPE
    ) -> Session:
        """Start a line in the board's login shell, over a new connection if the old one is gone."""
        patience = time.monotonic() + self.config.connect_timeout_s
        attempt, pause_s = 1, 0.02
        while True:
            socket_path, _ = self._open()
            try:
                return Session(socket_path, line, stdin=stdin, stdout=stdout)
            except MasterGoneError as error:
                self._forget(socket_path)
                if attempt == _ATTEMPTS:
                    raise ConnectError(f"The connection to {self.config.place} does not hold: {error}.") from error
                attempt += 1
            except SessionRefusedError as error:
                if time.monotonic() > patience:
                    raise ConnectError(
                        f"{self.config.place} opens no further session on this connection ({error}). "
                        "Run fewer commands at once, or raise MaxSessions in its sshd_config."
                    ) from error
                time.sleep(pause_s)
                pause_s = min(2 * pause_s, 0.5)

    def check(self, session: Session, when: str) -> None:
        """Raise if a session ended because its connection did."""
        if session.is_lost and not is_alive(session.socket_path):
            self._forget(session.socket_path)
            raise ConnectError(
                f"The connection to {self.config.place} was lost {when}; what ran there is stopped by its watch. "
                "Is the board still on and on the network? The next use connects again."
            )

    def _open(self) -> tuple[str, Capabilities]:
        # One answer: a moment later the socket may be that of another thread's new master, not yet there.
        with self._lock:
            if self._capabilities is None:
                self._capabilities = self._connect()
            return self._socket_path, self._capabilities

    def _connect(self) -> Capabilities:
        if shutil.which("ssh") is None:
            raise ConnectError("There is no ssh program on this machine; install openssh-client.")
        prefer = [] if self._user_chose_cipher() else ["-o", f"Ciphers=^{_FAST_CIPHER}"]
        self._start(prefer)
        try:
            capabilities = self._ask()
        except BaseException:
            self._exit()
            raise
        if prefer and not capabilities.aes:
            # Without AES instructions on the board, OpenSSH's own choice is the faster one.
            self._exit()
            self._start([])
        return capabilities

    @property
    def _socket_path(self) -> str:
        # Each master has its own, so that a session of a lost one is never taken for one of the next.
        return f"{self._folder}/{self._masters}"

    def _forget(self, socket_path: str) -> None:
        """Connect anew at the next use, unless another thread has done so already."""
        with self._lock:
            if socket_path == self._socket_path:
                self._capabilities = None
                self._exit()

    def _user_chose_cipher(self) -> bool:
        def ciphers(*arguments: str) -> list[str]:
            found = subprocess.run(
                ["ssh", "-G", *arguments, "--", self.config.host],  # noqa: S607 - the user's own ssh is the point
                capture_output=True, text=True, timeout=10, check=False, stdin=subprocess.DEVNULL,
            )  # fmt: skip
            return [line for line in found.stdout.splitlines() if line.startswith("ciphers ")]

        try:
            return ciphers(*self.config.options()) != ciphers("-F", "none")
        except subprocess.TimeoutExpired:
            return True

    def _start(self, extra: list[str]) -> None:
        if self._folder is None:
            # Short: a socket's path may not exceed 104 bytes, and ssh adds 17 while it makes one.
            _sweep()
            self._folder = tempfile.mkdtemp(prefix=_FOLDER_PREFIX, dir="/tmp")
            weakref.finalize(self, _end_masters, self._folder)
        self._masters += 1
        argv = [
            "ssh", *extra, *self.config.options(), "-o", "ControlMaster=yes", "-o", "ControlPersist=300",
            "-S", self._socket_path, "-N", "-f", "--", self.config.host,
        ]  # fmt: skip
        limit_s = self.config.connect_timeout_s + 5
        # A file, not a pipe: the master keeps running in the background and would hold a pipe open.
        with tempfile.TemporaryFile() as complaint:
            try:
                code = subprocess.run(
                    argv, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=complaint, timeout=limit_s,
                    check=False, start_new_session=True,
                ).returncode  # fmt: skip
            except subprocess.TimeoutExpired:
                raise ConnectError(
                    f"{self.config.place} did not finish the login within {limit_s:g} s. "
                    "Is the board overloaded, or the network slow? SSHConfig(connect_timeout_s=...) sets the limit."
                ) from None
            complaint.seek(max(0, complaint.seek(0, os.SEEK_END) - _MOST_COMPLAINT_BYTES))
            text = complaint.read().decode("utf-8", "replace")
        if code != 0:
            raise explain_connect_failure(self.config, text)

    def _ask(self) -> Capabilities:
        place = self.config.place
        try:
            session = Session(self._socket_path, f"exec sh -c '{CAPABILITIES}'")
        except (MasterGoneError, SessionRefusedError) as error:
            raise ConnectError(f"{place} let us in but starts no command: {error}.") from error
        try:
            found = execute(session, timeout_s=_SHELL_ANSWER_S, echo=False)
        except FloodError as error:
            raise ConnectError(f"{place} let us in but its shell does not stop talking: {error}.") from error
        if found.exit_code is None:
            raise ConnectError(
                f"{place} let us in but its shell did not answer within {_SHELL_ANSWER_S:g} s. "
                "Does a login by hand get a prompt?"
            )
        pairs = [line.split("=", 1) for line in found.stdout.splitlines() if "=" in line]
        facts = dict(pairs)
        shell = facts.get("shell", "").rsplit("/", 1)[-1][:_MOST_NAME_CHARACTERS]
        if facts.get("end") != "yes":
            raise ConnectError(
                f"{place} let us in but has no POSIX shell (login shell {shell or 'unknown'!r}): "
                f"{found.stderr.strip()[-300:] or 'no reason given'}."
            )
        if shell in {"csh", "tcsh"}:
            # A newline inside quotes ends a csh command: a file name could become one.
            raise ConnectError(f"{place} has the login shell {shell}, which cannot quote safely; change it to sh.")
        tools = frozenset(value for key, value in pairs if key == "tool")
        if not tools & {"sha256sum", "openssl", "shasum"}:
            raise ConnectError(f"{place} has no sha256sum, openssl or shasum; files could not be checked there.")
        return Capabilities(tools, facts.get("timed_read") == "yes", facts.get("aes") == "yes")

    def _exit(self) -> None:
        if self._folder is not None:
            ask_to_exit(self._socket_path)


def _sweep() -> None:
    """Remove what killed processes left behind: folders of our own without a living master."""
    for folder in Path("/tmp").glob(f"{_FOLDER_PREFIX}*"):  # noqa: S108 - made by mkdtemp, ours alone
        with contextlib.suppress(OSError):
            facts = folder.lstat()
            is_old = time.time_ns() - facts.st_mtime_ns > _ABANDONED_S * 10**9
            if is_old and facts.st_uid == os.getuid() and not any(is_alive(str(path)) for path in folder.iterdir()):
                shutil.rmtree(folder, ignore_errors=True)


def _end_masters(folder: str) -> None:
    # A clean-up of /tmp may have been there first.
    with contextlib.suppress(OSError):
        for path in Path(folder).iterdir():
            ask_to_exit(str(path))
    shutil.rmtree(folder, ignore_errors=True)
