"""A server that is killed in the middle of things, and started over what it, or somebody else, left there."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import socket
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest
from support.processes import wait_until
from support.s3 import bucket_of_its_own

from embedl_hub.credentials import Server
from embedl_hub.tracking import Client, Redactor, Store, Uplink, project_id

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from support.hub_server import HubServer

BASE = f"/api/projects/{project_id('p')}"


@pytest.fixture(params=["files", pytest.param("postgresql and s3", marks=pytest.mark.slow)])
def server(request: pytest.FixtureRequest, new_server: Callable[..., HubServer]) -> Iterator[HubServer]:
    """A server with a file and a folder, and one with a database server and a bucket."""
    with contextlib.ExitStack() as stack:
        if request.param == "files":
            yield new_server()
            return
        address = request.getfixturevalue("cluster").database(f"restart{time.time_ns()}")
        environment = stack.enter_context(bucket_of_its_own())
        yield new_server("--database", address, "--artifacts", "s3://models/hub", environment=environment)


def test_an_upload_goes_on_after_a_kill_in_its_middle(server: HubServer) -> None:
    """What came is there, what comes is added, and only the whole is a content."""
    key, content = server.key(), os.urandom(12 << 20)
    address = f"{BASE}/contents/{hashlib.sha256(content).hexdigest()}"
    head = f"PUT {address} HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer {key}\r\nContent-Length: {len(content)}\r\n\r\n"
    with socket.create_connection(("127.0.0.1", server.port)) as connection:
        connection.sendall(head.encode() + content[: 5 << 20])
        wait_until(lambda: _size(server.home) >= 4 << 20, 30)
        server.kill()
    server.start()
    headers = server.ask("HEAD", address, key)[2]
    offset = int(headers["upload-offset"])
    assert headers["upload-complete"] == "false"
    assert 4 << 20 <= offset <= 5 << 20
    # Whoever says that it begins elsewhere is told where it stands.
    again = {"Content-Range": f"bytes 0-9/{len(content)}"}
    assert server.ask("PUT", address, key, content[:10], again)[0] == 409
    rest = {"Content-Range": f"bytes {offset}-{len(content) - 1}/{len(content)}"}
    assert server.ask("PUT", address, key, content[offset:], rest)[0] == 200
    assert server.ask("HEAD", address, key)[2]["upload-complete"] == "true"
    assert list((server.home / "uploads").iterdir()) == []


def _size(home: Path) -> int:
    return sum(path.stat().st_size for path in home.glob("uploads/*"))


@pytest.mark.slow
def test_a_client_gets_everything_over_while_the_server_is_killed(server: HubServer, tmp_path: Path) -> None:
    """Three times, in the middle of its uploads; nothing is there twice or in part."""
    key, contents = server.key(), [os.urandom(6 << 20) for _ in range(4)]
    with Store(tmp_path / "client") as store:
        client = Client("p", store, Redactor({}))
        with client.start_run("EVAL", "x") as run:
            for number, content in enumerate(contents):
                (tmp_path / "file").write_bytes(content)
                run.log_artifact(tmp_path / "file", name=f"a{number}")
        client.close()
        uplink = Uplink(store, Server(server.url, key))
        for _ in range(3):
            killer = _kill_during_uploads(server)
            with contextlib.suppress(Exception):
                uplink.send_all(also=[run.id])
            killer()
            server.end()
            server.start()
        assert uplink.send_all(also=[run.id]).waiting == 0
    for number, content in enumerate(contents):
        assert server.ask("GET", f"{BASE}/runs/{run.id}/artifacts/a{number}", key)[:2] == (200, content)


def _kill_during_uploads(server: HubServer) -> Callable[[], None]:
    def kill() -> None:
        with contextlib.suppress(Exception):
            wait_until(lambda: _size(server.home) > 1 << 20, 5)
            server.kill()

    thread = threading.Thread(target=kill)
    thread.start()
    return thread.join


def test_a_server_starts_over_bad_runs(server: HubServer) -> None:
    """That somebody put into its home: the good ones are there, and the log names the others."""
    start = {"seq": 0, "kind": "start", "time_ms": 1, "format": 1, "project": "p", "type": "EVAL", "name": "x"}
    bad: list[dict[str, Any]] = [
        {"kind": "end", "status": "EXPLODED"},
        {"kind": "end", "status": "FINISHED", "time_ms": 10**18},
        {"kind": "tag", "name": ["a"], "value": {"b": 1}},
        {"kind": "tag", "name": "a", "value": "nul \0"},
        {"kind": "metric", "name": "m", "value": 1, "step": 2**70},
        {"kind": "param", "name": None, "value": 1},
    ]
    server.stop()
    for number, record in enumerate([{"kind": "tag", "name": "a", "value": "b"}, *bad]):
        folder = server.home / "runs" / f"{number:016x}"
        folder.mkdir(parents=True)
        lines = [start, {"seq": 1, "time_ms": 2, **record}]
        (folder / "manifest.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (server.home / "runs" / "pipe").mkdir()
    os.mkfifo(server.home / "runs" / "pipe" / "manifest.jsonl")
    server.start()
    key = server.key()
    status, document, _ = server.ask("GET", f"{BASE}/runs?include=all&limit=500", key)
    assert status == 200
    found = {run["id"] for run in document["data"]["items"]}
    assert f"{0:016x}" in found
    left_out = server.log.read_text()
    # What one database cannot hold, the other may.
    assert all(f"{number:016x}" in found or f"{number:016x}" in left_out for number in range(len(bad) + 1))
    assert not {f"{number:016x}" for number in (1, 2, 3, 5, 6)} & found
