"""The real page behind the real server's login."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import urlencode

from embedl_hub.credentials import Server
from embedl_hub.tracking import Client, Redactor, Store, Uplink

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from support.hub_server import HubServer


def test_the_page_shows_what_the_key_opens(new_server: Callable[..., HubServer], tmp_path: Path) -> None:
    """And answers for other projects' runs as if they were not there."""
    server = new_server()
    ids = {}
    for project in ("ours", "theirs"):
        with Store(tmp_path / project) as store:
            client = Client(project, store, Redactor({}), Uplink(store, Server(server.url, server.key(project))))
            with client.start_run("EVAL", f"{project} run") as run:
                run.log_param("html", "<script>alert(1)</script>")
            client.close()
            ids[project] = run.id

    def log_in(key: str) -> dict[str, str]:
        headers = {"Origin": server.url, "Content-Type": "application/x-www-form-urlencoded"}
        status, _, found = server.ask("POST", "/login", None, urlencode({"key": key}).encode(), headers)
        assert status == 303
        return {"Cookie": found["set-cookie"].partition(";")[0], "Accept": "text/html"}

    reader = log_in(server.key("ours", access="read"))
    status, text, headers = server.ask("GET", "/projects", None, headers=reader)
    assert status == 200
    assert b"ours" in text
    assert b"theirs" not in text
    assert "'unsafe-inline'" not in headers["content-security-policy"]
    status, text, _ = server.ask("GET", f"/runs/{ids['ours']}", None, headers=reader)
    assert status == 200
    assert b"<script>alert" not in text
    assert b"/logout" in text
    hidden = server.ask("GET", f"/runs/{ids['theirs']}", None, headers=reader)
    absent = server.ask("GET", f"/runs/{'0' * 21}", None, headers=reader)
    assert hidden[0] == absent[0] == 404
    assert b"theirs run" not in hidden[1]
    change = server.ask("POST", f"/runs/{ids['ours']}/archive", None, b"", {**reader, "Origin": server.url})
    assert change[0] == 403
    everything = log_in(server.key())
    status, text, _ = server.ask("GET", "/projects", None, headers=everything)
    assert b"theirs" in text
    assert server.ask("GET", "/static/page.css")[0] == 401
