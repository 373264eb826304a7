"""The SSH runner, on the OpenSSH client: the user's configuration, keys, agents and jump hosts just work.

One master connection per runner carries every command and transfer. Files travel through plain pipes,
so a board needs a POSIX shell and nothing else: no sftp server, no Python.
"""

from __future__ import annotations

import logging
import os
import time
import warnings
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING

from embedl_hub.core.device._bounded import FloodError
from embedl_hub.core.device._lease import keep_remote_lease
from embedl_hub.core.device._process import execute
from embedl_hub.core.device._runner import AnyPath, CommandResult, Lease, as_argv, path_text
from embedl_hub.core.device._script import (
    KEEP_LEASE,
    KEEP_LEASE_BY_FOLDER,
    LEASE_LIMIT_S,
    SUPERVISE,
    WATCH,
    command_line,
)
from embedl_hub.core.device._ssh_connection import SSHConnection
from embedl_hub.core.device._ssh_transfer import Transfer
from embedl_hub.errors import CommandError, ConfigError, ConnectError, TransferError

if TYPE_CHECKING:
    from embedl_hub.core.device._ssh_config import SSHConfig

_LOG = logging.getLogger("embedl_hub")
_ATTEMPTS = 3


class SSHCommandRunner:
    """Runs commands and moves files on a board over one multiplexed SSH connection.

    Making one does no network traffic; the first use connects. A connection that was lost is made anew
    for everything that is safe to repeat: transfers, and commands that had not started.
    """

    def __init__(self, config: SSHConfig) -> None:
        self.config = config
        self._connection = SSHConnection(config)
        self._transfer = Transfer(self._connection)
        self._is_lock_told = False
        if config.host_key == "off":
            warnings.warn(
                f"Host keys of {config.place} are not verified (host_key='off'): anyone on the network can pose as it.",
                stacklevel=2,
            )

    def __repr__(self) -> str:
        return f"SSHCommandRunner({self.config.place})"

    @property
    def address(self) -> str:
        """Where the board is, and the way there."""
        config = self.config
        parts = (config.place, config.jump_host and f"via {config.jump_host}", config.config_file)
        return " ".join(("ssh", *(os.fspath(part) for part in parts if part)))

    def run(
        self, argv: Sequence[AnyPath], cwd: AnyPath | None = None, *, hide: bool = False, timeout_s: float | None = None
    ) -> CommandResult:
        """Run a command; see :class:`CommandRunner`.

        It outlives neither this process nor the connection. A child that it leaves behind does: sshd tells us
        nothing of those.
        """
        words = as_argv(argv)
        folder = "" if cwd is None else _plain_path(cwd)
        limit_s = self.config.command_timeout_s if timeout_s is None else timeout_s
        limit, shell = self._connection.open().watch
        line = command_line(SUPERVISE, "edgeproof", limit, shell, WATCH, folder, *words)
        with self._connection.slots:
            session = self._connection.session(line)
            try:
                outcome = execute(session, timeout_s=limit_s, echo=not hide)
            except FloodError as error:
                raise CommandError(words, None, stderr=str(error), place=self.config.place) from error
        if outcome.exit_code is not None:
            self._connection.check(session, f"while {words[0]!r} was running")
        if outcome.exit_code != 0:
            over = limit_s if outcome.exit_code is None and not outcome.is_stopped_by_other else None
            raise CommandError(
                words, outcome.exit_code, outcome.stdout, outcome.stderr, timeout_s=over, place=self.config.place
            )
        return CommandResult(outcome.stdout, outcome.stderr, outcome.exit_code)

    def put(self, local: AnyPath, remote: AnyPath) -> None:
        """Copy a file or folder to the board; see :class:`CommandRunner`.

        Missing parent folders are made. A folder's target must not exist, or be empty: nothing there is ever
        merged or deleted.
        """
        source, target = Path(path_text(local)), _plain_path(remote)
        if not source.is_dir() and not source.is_file():
            raise TransferError(f"There is no file or folder {source} to send to {self.config.place}.")
        send = self._transfer.put_folder if source.is_dir() else self._transfer.put_file
        try:
            self._repeat(lambda: send(source, target))
        except OSError as error:
            raise TransferError(f"{source} could not be read to send it to {self.config.place}: {error}.") from error

    def get(self, remote: AnyPath, local: AnyPath) -> None:
        """Copy a file or folder from the board; see :class:`CommandRunner`."""
        source, target = _plain_path(remote), Path(path_text(local))
        self._repeat(lambda: self._transfer.get(source, target))

    def lease(self, lock_dir: str, holder: str, *, wait_s: float) -> AbstractContextManager[Lease]:
        """Hold the board's lease for the length of a block."""
        capabilities = self._connection.open()
        limit, shell = capabilities.watch
        script = KEEP_LEASE
        if "flock" not in capabilities.tools:
            script = KEEP_LEASE_BY_FOLDER
            if not self._is_lock_told:
                _LOG.warning("%s has no flock: it is kept to one user by a folder with a heartbeat.", self.config.place)
                self._is_lock_told = True
        arguments = (lock_dir, holder, f"{wait_s:.0f}", str(LEASE_LIMIT_S) if limit else "", str(LEASE_LIMIT_S))
        line = command_line(script, "edgeproof-lease", *arguments, shell=shell)
        return keep_remote_lease(lambda: self._connection.session(line), place=self.config.place, wait_s=wait_s)

    def close(self) -> None:
        """End the connection; the next use makes a new one."""
        self._connection.close()

    def _repeat(self, operation: Callable[[], None]) -> None:
        """Do something that is safe to repeat, with a new connection when the old one broke."""
        # A board that cannot be reached in the first place is said so at once.
        self._connection.open()
        first: ConnectError | None = None
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                operation()
            except ConnectError as error:
                first = first or error
                if attempt == _ATTEMPTS:
                    raise ConnectError(f"{first}\nTried {_ATTEMPTS} times; the last time: {error}") from error
                time.sleep(0.5 * attempt)
            else:
                return


def _plain_path(path: AnyPath) -> str:
    """Return a remote path that no program takes for an option; relative ones start at the login folder."""
    text = path_text(path)
    if not text or "\0" in text:
        raise ConfigError(f"A remote path must not be empty or contain NUL: {text!r}.")
    # A slash at the end would make a folder of the file's own name.
    text = text.rstrip("/") or "/"
    return text if text.startswith(("/", "./")) else f"./{text}"
