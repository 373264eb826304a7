"""Clients that are waited for: half a head, half a body, half an answer read. They keep nobody out."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from typing import TYPE_CHECKING

import pytest
import uvicorn
from starlette.responses import Response
from support.sockets import HALF_A_BODY, HALF_A_HEAD, half_sent, is_open

from embedl_hub.server import Settings, _patience
from embedl_hub.server._app import make_app

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from starlette.types import ASGIApp
    from support.hub_server import HubServer

_SAME, _OTHERS = ("127.0.0.1",), ("127.0.0.2", "127.0.0.3", "127.0.0.4")


def _is_served(server: HubServer, key: str, times: int = 20) -> float:
    """Ask as a client with a key does, on new connections, and return how long the slowest answer took."""
    slowest = 0.0
    for _ in range(times):
        started = time.monotonic()
        assert server.ask("GET", "/api/projects", key)[0] == 200
        slowest = max(slowest, time.monotonic() - started)
    return slowest


def test_half_sent_requests_shut_nobody_out(new_server: Callable[..., HubServer]) -> None:
    """From addresses of their own, and from the very address of a client with a key."""
    server = new_server("--connections", "200", "--connections-per-address", "80")
    key = server.key()
    for sources, sent in ((_OTHERS, HALF_A_HEAD), (_SAME, HALF_A_BODY), ((*_OTHERS, *_SAME), b"")):
        with half_sent(server.port, 400, sources, sent) as held:
            assert _is_served(server, key) < 5
            # Those who sit there pushed out each other.
            assert sum(map(is_open, held)) <= 200


@pytest.mark.slow
@pytest.mark.parametrize("sent", [HALF_A_HEAD, HALF_A_BODY], ids=["head", "body"])
def test_ten_thousand_half_sent_requests_shut_nobody_out(new_server: Callable[..., HubServer], sent: bytes) -> None:
    """With the limits a server has by itself."""
    server = new_server()
    key = server.key()
    for sources in (_OTHERS, _SAME):
        with half_sent(server.port, 10_000, sources, sent) as held:
            assert len(held) == 10_000
            assert _is_served(server, key, 100) < 5


@contextlib.contextmanager
def _serving(app: ASGIApp) -> Iterator[int]:
    """Serve an application in this process as the real server is, and yield its port."""
    kind = _patience.patient_in(_patience.Room(100, 100))
    server = _patience.PatientServer(uvicorn.Config(app, log_config=None, http=kind, ws="none"))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        while not server.started:
            assert thread.is_alive()
            time.sleep(0.01)
        yield int(listener.getsockname()[1])
        server.should_exit = True
        thread.join()


@pytest.fixture
def hurried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """A server that waits for nobody long."""
    monkeypatch.setattr(_patience, "_HEAD_S", 0.6)
    monkeypatch.setattr(_patience, "_MOVE_S", 0.6)
    with _serving(make_app(Settings(tmp_path / "home"))) as port:
        yield port


def _drip(port: int, first: bytes, *, limit_s: float = 5.0) -> tuple[float, bytes]:
    """Send something and then a byte now and then; return when the server had enough, and what it said."""
    with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
        connection.sendall(first)
        connection.settimeout(0.05)
        started = time.monotonic()
        said = b""
        while (waited := time.monotonic() - started) < limit_s:
            try:
                connection.sendall(b"x")
                part = connection.recv(4096)
            except TimeoutError:
                continue
            except ConnectionError:
                break
            if not part:
                break
            said += part
        return waited, said


@pytest.mark.parametrize("first", [HALF_A_HEAD, HALF_A_BODY], ids=["head", "body"])
def test_a_request_that_drips_is_ended(hurried: int, first: bytes) -> None:
    """However many bytes it still sends; with 408, as far as the client listens."""
    waited, said = _drip(hurried, first)
    assert waited < 3
    assert said == b"" or said.startswith(b"HTTP/1.1 408 ")


def test_a_body_that_drips_after_its_refusal_is_ended(hurried: int) -> None:
    """The answer is there; what still comes is not waited for."""
    head = b"POST /api/x HTTP/1.1\r\nHost: hub\r\nContent-Length: 1000000\r\n\r\n"
    waited, said = _drip(hurried, head)
    assert waited < 3
    assert said.startswith(b"HTTP/1.1 401 ")


def test_whoever_reads_nothing_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """A long answer is not kept for somebody who does not take it."""
    monkeypatch.setattr(_patience, "_MOVE_S", 0.6)
    with _serving(Response(b"x" * (64 << 20))) as port, socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect(("127.0.0.1", port))
        connection.sendall(b"GET / HTTP/1.1\r\nHost: hub\r\n\r\n")
        time.sleep(2.5)
        received = 0
        connection.settimeout(10)
        with contextlib.suppress(ConnectionError):
            while part := connection.recv(1 << 20):
                received += len(part)
        assert received < 64 << 20


def test_whoever_reads_and_sends_at_a_fair_pace_is_served(hurried: int, tmp_path: Path) -> None:
    """For longer than any limit, as long as something moves."""
    del tmp_path
    body = b"x" * (600 << 10)
    head = b"POST /login HTTP/1.1\r\nHost: h\r\nOrigin: http://h\r\nContent-Length: %d\r\n\r\n" % len(body)
    with socket.create_connection(("127.0.0.1", hurried), timeout=10) as connection:
        connection.sendall(head)
        for start in range(0, len(body), 60 << 10):
            connection.sendall(body[start : start + (60 << 10)])
            time.sleep(0.15)
        assert connection.recv(4096).startswith(b"HTTP/1.1 4")
