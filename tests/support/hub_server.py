"""A real server of ours on loopback, that tests may stop, kill and start again; and a wire that can be cut."""

import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from embedl_hub.credentials import Server
from embedl_hub.server import KeyRing
from support.processes import wait_until

_START_S = 60.0


def free_port() -> int:
    """Return a port that nobody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


class HubServer:
    """``embedl-hub serve`` in a process of its own."""

    def __init__(self, home: Path, *options: str, environment: dict[str, str] | None = None) -> None:
        self.home = home
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.log = home.with_name(f"{home.name}.log")
        self._options = options
        self._environment = {**os.environ, **(environment or {})}
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> "HubServer":
        """Start it and wait until it answers."""
        argv = [sys.executable, "-m", "embedl_hub", "serve", "--home", str(self.home), "--port", str(self.port)]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen([*argv, *self._options], stdout=log, stderr=log, env=self._environment)
        wait_until(self._is_up, _START_S)
        return self

    def stop(self) -> int:
        """Ask it to stop, wait for its end and return its exit code."""
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        return self._process.wait(60)

    def kill(self) -> None:
        """End it as a power cut of the process would."""
        assert self._process is not None
        self._process.kill()
        self._process.wait(60)

    def end(self) -> None:
        """Make sure that it is gone."""
        if self._process is not None and self._process.poll() is None:
            self.kill()

    def key(self, *projects: str, access: str = "write") -> str:
        """Return a new key; for all projects if none is named."""
        return KeyRing(self.home).add("test", projects or ("*",), access)[1]

    def server(self, *projects: str) -> Server:
        """Return the server as a client knows it, with a new key."""
        return Server(self.url, self.key(*projects))

    def ask(
        self, method: str, path: str, key: str | None = None, body: Any = None, headers: dict[str, str] | None = None
    ) -> tuple[int, Any, dict[str, str]]:
        """Ask the server something and return status, document or bytes, and headers."""
        return ask(self.port, method, path, key, body, headers)

    def _is_up(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, self.log.read_text()[-3000:]
        with contextlib.suppress(OSError):
            return self.ask("GET", "/healthz")[0] == 200
        return False


def ask(
    port: int, method: str, path: str, key: str | None = None, body: Any = None, headers: dict[str, str] | None = None
) -> tuple[int, Any, dict[str, str]]:
    """Ask a server on loopback something."""
    sent = dict(headers or {})
    if key is not None:
        sent["Authorization"] = f"Bearer {key}"
    if body is not None and not isinstance(body, bytes):
        body = json.dumps(body).encode()
        sent.setdefault("Content-Type", "application/json")
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        connection.request(method, path, body=body, headers=sent)
        answer = connection.getresponse()
        found = answer.read()
    finally:
        connection.close()
    names = {name.lower(): value for name, value in answer.getheaders()}
    is_json = names.get("content-type", "").startswith("application/json")
    return answer.status, json.loads(found) if is_json and found else found, names


@contextlib.contextmanager
def cuttable(port: int) -> Iterator["Wire"]:
    """Yield a way to a port of this machine that can be cut."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        wire = Wire(listener, port)
        yield wire
        wire.cut()
        listener.shutdown(socket.SHUT_RDWR)


class Wire:
    """Passes connections on until it is cut: then nothing moves, as with a pulled cable."""

    def __init__(self, listener: socket.socket, port: int) -> None:
        self.port = int(listener.getsockname()[1])
        self.url = f"http://127.0.0.1:{self.port}"
        self.passed = 0
        self._to = port
        self._open = threading.Event()
        self._open.set()
        threading.Thread(target=self._accept, args=(listener,), daemon=True).start()

    def cut(self) -> None:
        """Let nothing through."""
        self._open.clear()

    def mend(self) -> None:
        """Let everything through again."""
        self._open.set()

    def _accept(self, listener: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                here, _ = listener.accept()
                there = socket.create_connection(("127.0.0.1", self._to))
                for pair in ((here, there), (there, here)):
                    threading.Thread(target=self._pass_on, args=pair, daemon=True).start()

    def _pass_on(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError), source, target:
            while data := source.recv(1 << 16):
                while not self._open.wait(0.05):
                    time.sleep(0.01)
                self.passed += len(data)
                target.sendall(data)
