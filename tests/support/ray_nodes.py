"""Ray nodes on this machine, each a process of its own with a home of its own; ended by their ids."""

import contextlib
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from support.processes import wait_until

_START_LIMIT_S = 90.0
_STARTS = 4
TESTS = Path(__file__).parent.parent
# One token for the nodes and for the processes that join them; nodes refuse to start without.
os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))


class RayNode:
    """A node started by the command that users start it with.

    Attributes:
        home: Its home.
        address: The address of the cluster's head.
    """

    def __init__(
        self, home: Path, *, head: str | None = None, ip: str, cpus: int, environment: Mapping[str, str] | None = None
    ) -> None:
        self.home = home
        self.ip = ip
        home.mkdir(parents=True, exist_ok=True)
        port = _free_port() if head is None else None
        self.address = head or f"{ip}:{port}"
        role = ["--head", f"--port={port}"] if head is None else [f"--address={head}"]
        # Short: the path of a socket is at most 107 characters.
        self._temporary = tempfile.mkdtemp(prefix="ray")
        argv = [sys.executable, "-m", "embedl_hub", "fleet", "node", *role, f"--ip={ip}", f"--cpus={cpus}"]
        self._argv = [*argv, f"--home={home}", f"--temp-dir={self._temporary}"]
        self._environment = {**os.environ, "PYTHONPATH": str(TESTS), **(environment or {})}
        self._log = home / "node.log"
        self._process = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        with self._log.open("wb") as log:
            return subprocess.Popen(
                self._argv,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self._environment,
                start_new_session=True,
            )

    def wait(self) -> None:
        """Wait until it serves. Ray gives up after 30 s, which a busy machine may take: then it is tried again."""
        for _ in range(_STARTS):
            wait_until(lambda: "Ray runtime started" in self._said() or self._has_ended(), _START_LIMIT_S)
            if not self._has_ended() or "timed out during startup" not in self._said():
                break
            self._process = self._start()
        assert not self._has_ended(), f"the node did not start:\n{self._said()[-3000:]}"

    def _has_ended(self) -> bool:
        return self._process.poll() is not None

    def stop(self) -> None:
        """End it in good order, with everything it started."""
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGTERM)
        self._process.wait(60)
        shutil.rmtree(self._temporary, ignore_errors=True)

    def kill(self) -> None:
        """End everything of it at once, as a power cut would."""
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(10)

    def _said(self) -> str:
        return self._log.read_text(errors="replace")


@contextlib.contextmanager
def one_node(folder: Path, *, cpus: int = 2) -> Iterator[str]:
    """Run a cluster of one host and yield its address."""
    node = RayNode(folder / "home", ip="127.0.0.1", cpus=cpus)
    try:
        node.wait()
        yield node.address
    finally:
        node.stop()


def _free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        port: int = listening.getsockname()[1]
        return port
