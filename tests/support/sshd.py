"""A real sshd on a loopback port with throw-away keys: the board of our tests."""

import contextlib
import dataclasses
import os
import pwd
import re
import signal
import socket
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Self

from embedl_hub.core.device import SSHConfig
from support.debian import require
from support.processes import descendants, program, wait_until

_START_LIMIT_S = 20.0
_STARTS = 5


class SSHServer:
    """An sshd of our own.

    Attributes:
        settings: Further lines of its configuration.
        environment: Variables of its sessions.
        sftp: Whether it has an sftp server.
    """

    def __init__(
        self,
        folder: Path,
        *,
        settings: Iterable[str] = (),
        environment: Mapping[str, str] | None = None,
        sftp: bool = True,
    ) -> None:
        self.folder = folder
        self.port = 0
        self.identity = folder / "user_key"
        self.known_hosts = folder / "known_hosts"
        self.client_config = folder / "client_config"
        self.log = folder / "log"
        # A home of its own: what a developer's shell does at login takes time and is none of our business.
        self.home = folder / "home"
        variables = {"HOME": str(self.home), **(environment or {})}
        self._settings = [*settings, "SetEnv " + " ".join(f'"{name}={value}"' for name, value in variables.items())]
        if sftp:
            self._settings.append("Subsystem sftp internal-sftp")
        self._process: subprocess.Popen[bytes] | None = None
        self.home.mkdir(parents=True)
        _make_key(self.identity)
        _make_key(folder / "host_key")
        # A developer's agent may hold more keys than sshd lets one try.
        self.client_config.write_text("IdentitiesOnly yes\nIdentityAgent none\n")

    @property
    def user(self) -> str:
        """The only account an sshd without privileges can serve: ours."""
        return pwd.getpwuid(os.geteuid()).pw_name

    def config(self, **changes: Any) -> SSHConfig:
        """Return how to reach this server."""
        config = SSHConfig(
            "127.0.0.1",
            username=self.user,
            port=self.port,
            identity_file=self.identity,
            known_hosts=self.known_hosts,
            config_file=self.client_config,
        )
        return dataclasses.replace(config, **changes)

    def start(self) -> Self:
        """Serve, on the same port as before when there was one, and return self."""
        sshd = require("sshd", "openssh-server")
        for attempt in range(1, _STARTS + 1):
            port = self.port or _free_port()
            self._write_config(port)
            with self.log.open("ab") as log:
                self._process = subprocess.Popen(
                    [sshd, "-D", "-e", "-f", str(self.folder / "sshd_config")],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                )
            if self._comes_up(port):
                self.port = port
                self.know_host_key()
                return self
            assert attempt < _STARTS, f"sshd did not start:\n{self.log.read_text()[-2000:]}"
        raise AssertionError

    def stop(self) -> None:
        """End the server and its sessions."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """End the server and its sessions as a power cut would; what runs in the sessions stays."""
        self._end(signal.SIGKILL)

    def drop_sessions(self) -> None:
        """Cut every connection; new ones are welcome."""
        dropped = set(self._sessions())
        for pid in dropped:
            _signal(pid, signal.SIGKILL)
        wait_until(lambda: not dropped & set(self._sessions()), 10)

    @contextlib.contextmanager
    def hanging(self) -> Iterator[None]:
        """Have the server and its sessions stand still, connections and all."""
        assert self._process is not None
        stopped = [self._process.pid, *self._sessions()]
        for pid in stopped:
            _signal(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            for pid in stopped:
                _signal(pid, signal.SIGCONT)

    def change_host_key(self) -> None:
        """Make a new host key, in use from the next start."""
        for path in self.folder.glob("host_key*"):
            path.unlink()
        _make_key(self.folder / "host_key")

    def know_host_key(self) -> None:
        """Write the host key into our known_hosts."""
        algorithm, key, *_ = (self.folder / "host_key.pub").read_text().split()
        self.known_hosts.write_text(f"[127.0.0.1]:{self.port} {algorithm} {key}\n")

    def _write_config(self, port: int) -> None:
        (self.folder / "authorized_keys").write_text(self.identity.with_suffix(".pub").read_text())
        lines = [
            *self._settings,
            f"Port {port}",
            "ListenAddress 127.0.0.1",
            f"HostKey {self.folder}/host_key",
            f"AuthorizedKeysFile {self.folder}/authorized_keys",
            "PidFile none",
            "UsePAM no",
            "StrictModes no",
            "PasswordAuthentication no",
            "PermitRootLogin yes",
            "MaxStartups 100",
            "LogLevel VERBOSE",
        ]
        if _version() >= (9, 8):
            # Our faults look like attacks to it, and it would shut out this machine for a while.
            lines.append("PerSourcePenalties no")
        (self.folder / "sshd_config").write_text("\n".join(lines) + "\n")
        if os.geteuid() == 0:
            Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)

    def _comes_up(self, port: int) -> bool:
        assert self._process is not None
        with contextlib.suppress(AssertionError):
            wait_until(lambda: self._process_ended() or _speaks_ssh(port), _START_LIMIT_S)
        return not self._process_ended()

    def _process_ended(self) -> bool:
        return self._process is None or self._process.poll() is not None

    def _sessions(self) -> list[int]:
        if self._process is None:
            return []
        return [pid for pid in descendants(self._process.pid) if program(pid).startswith("sshd")]

    def _end(self, how: signal.Signals) -> None:
        if self._process is None:
            return
        # The listener first, stopped: no connection may come up between the two.
        _signal(self._process.pid, signal.SIGSTOP)
        for pid in (*self._sessions(), self._process.pid):
            _signal(pid, how)
        _signal(self._process.pid, signal.SIGCONT)
        self._process.wait(20)
        self._process = None


def _make_key(path: Path) -> None:
    subprocess.run(
        [require("ssh-keygen", "openssh-client"), "-q", "-t", "ed25519", "-N", "", "-C", "test", "-f", str(path)],
        check=True,
    )


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _speaks_ssh(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1) as connection:
            return connection.recv(4) == b"SSH-"
    except OSError:
        return False


def _signal(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def _version() -> tuple[int, int]:
    said = subprocess.run([require("ssh", "openssh-client"), "-V"], capture_output=True, text=True, check=True).stderr
    found = re.search(r"OpenSSH_(\d+)\.(\d+)", said)
    return (int(found[1]), int(found[2])) if found else (0, 0)
