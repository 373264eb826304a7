"""What one key may bring: runs and bytes, counted over restarts, refused in words."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

from support import cli

from embedl_hub.credentials import Server
from embedl_hub.server import KeyRing
from embedl_hub.tracking import Client, Store, Uplink, project_id

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from support.hub_server import HubServer

BASE = f"/api/projects/{project_id('p')}"
START = {"seq": 0, "kind": "start", "time_ms": 0, "format": 1, "project": "p", "type": "EVAL", "name": "x"}


def _begin(server: HubServer, key: str, number: int) -> tuple[int, Any]:
    body = {"after": -1, "records": [START]}
    return server.ask("POST", f"{BASE}/runs/{number:016x}/records", key, body)[:2]


def test_a_key_has_so_many_runs(new_server: Callable[..., HubServer]) -> None:
    """Also after a restart; a deleted one makes room, and another key has its own."""
    server = new_server("--key-runs", "3")
    one, other = server.key(), server.key()
    assert [_begin(server, one, number)[0] for number in (1, 2, 3, 3)] == [200] * 4
    status, document = _begin(server, one, 4)
    assert (status, document["errors"][0]["code"]) == (413, "quota")
    assert "may have 3 runs" in document["errors"][0]["message"]
    assert _begin(server, other, 5)[0] == 200
    server.kill()
    server.start()
    assert _begin(server, one, 4)[0] == 413
    assert server.ask("DELETE", f"{BASE}/runs/{1:016x}", one)[0] == 204
    assert [_begin(server, one, number)[0] for number in (4, 6)] == [200, 413]


def test_a_key_sends_so_many_bytes(new_server: Callable[..., HubServer]) -> None:
    """Contents and records together, whole or in part; what would not fit is not even begun."""
    server = new_server("--key-mib", "2")
    key = server.key()

    def put(content: bytes) -> tuple[int, Any]:
        return server.ask("PUT", f"{BASE}/contents/{hashlib.sha256(content).hexdigest()}", key, content)[:2]

    assert put(b"a" * (1 << 20))[0] == 200
    # Pieces of something that is never whole count as well.
    piece, headers = b"b" * (512 << 10), {"Content-Range": f"bytes 0-{(512 << 10) - 1}/{1 << 30}"}
    assert server.ask("PUT", f"{BASE}/contents/{'c' * 64}", key, piece, headers)[0] == 202
    status, document = put(b"d" * (600 << 10))
    assert (status, document["errors"][0]["code"]) == (413, "quota")
    assert f"{512 << 10} left" in document["errors"][0]["message"]
    assert put(b"e" * (512 << 10))[0] == 200
    assert _begin(server, key, 1)[0] == 413
    assert server.ask("GET", "/api/projects", key)[0] == 200


def test_a_key_may_have_a_quota_of_its_own(new_server: Callable[..., HubServer], tmp_path: Path) -> None:
    """Given when it is made, and shown with what it has brought; a client is told and keeps its run."""
    server = new_server()
    key = cli.answer("serve", "key", "add", "ci", "--project", "p", "--most-runs", 1, "--home", server.home)["key"]
    assert KeyRing(server.home).all()[0].most_runs == 1
    assert _begin(server, key, 1)[0] == 200
    assert cli.answer("serve", "key", "list", "--home", server.home)[0]["runs"] == 1
    with Store(tmp_path / "home") as store:
        client = Client("p", store)
        with client.start_run():
            pass
        client.close()
        sent = Uplink(store, Server(server.url, key)).send_all(also=[store.runs()[0].id])
        assert (sent.runs, len(sent.refused)) == (0, 1)
        assert "may have 1 runs" in next(iter(sent.refused.values()))
