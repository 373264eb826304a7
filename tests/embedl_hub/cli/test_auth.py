"""The key goes where it belongs and nowhere else."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from support.cli import hub

KEY = "eh_0123456789"


class _Server(ThreadingHTTPServer):
    """Answers as the REST API does; remembers which keys it saw."""

    def __init__(self) -> None:
        self.seen: list[str | None] = []
        super().__init__(("127.0.0.1", 0), _Handler)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    server: _Server

    def do_GET(self) -> None:
        self.server.seen.append(self.headers.get("Authorization"))
        if self.path.startswith("/elsewhere"):
            self.send_response(302)
            self.send_header("Location", f"{self.server.url}/api/projects")
            self.end_headers()
            return
        is_known = self.headers.get("Authorization") == f"Bearer {KEY}"
        body = (
            b"rubbish"
            if self.path.startswith("/odd")
            else json.dumps({"data": {"items": [{"name": "shapes"}]}}).encode()
        )
        self.send_response(200 if is_known else 401)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Keep quiet."""


@pytest.fixture
def server() -> Iterator[_Server]:
    server = _Server()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


def test_a_key_is_kept_checked_and_removed(server: _Server, tmp_path: Path) -> None:
    """Read from standard input, mode 0600, in no project; the program never prints it."""
    own = {"XDG_CONFIG_HOME": str(tmp_path / "config")}
    kept = hub("auth", server.url, stdin=f"{KEY}\n", cwd=tmp_path, **own)
    assert kept.returncode == 0, kept.stderr
    (path,) = (tmp_path / "config").rglob("server.toml")
    assert path.stat().st_mode & 0o777 == 0o600
    checked = hub("auth", "--check", **own)
    assert "shapes" in checked.stdout
    shown = hub("show", "--json", cwd=tmp_path, **own)
    assert json.loads(shown.stdout)["server"] == server.url
    assert not any(KEY in done.stdout + done.stderr for done in (kept, checked, shown))
    assert hub("auth", "--remove", **own).stdout == "Forgotten.\n"
    assert not path.exists()


def test_a_key_from_the_environment_is_enough(server: _Server) -> None:
    """Nothing is written."""
    variables = {"EMBEDL_HUB_API_BASE_URL": server.url, "EMBEDL_HUB_API_KEY": KEY}
    assert json.loads(hub("auth", "--check", "--json", **variables).stdout)["projects"] == ["shapes"]


@pytest.mark.parametrize(
    ("path", "key", "words"),
    [
        ("", "eh_wrong", "does not take the key"),
        ("/odd", KEY, "does not answer like"),
        ("/elsewhere", KEY, "HTTP 302"),
    ],
)
def test_a_server_that_refuses_is_said(server: _Server, path: str, key: str, words: str) -> None:
    """Exit code 1; a redirect is not followed with the key."""
    variables = {"EMBEDL_HUB_API_BASE_URL": server.url + path, "EMBEDL_HUB_API_KEY": key}
    done = hub("auth", "--check", **variables)
    assert done.returncode == 1
    assert words in done.stderr
    assert len(server.seen) == 1


def test_a_server_that_is_not_there_is_said() -> None:
    """In one line."""
    done = hub("auth", "--check", EMBEDL_HUB_API_BASE_URL="http://127.0.0.1:9", EMBEDL_HUB_API_KEY=KEY)
    assert done.returncode == 1
    assert "cannot be reached" in done.stderr
    assert KEY not in done.stderr


def doctor_on(home: Path, **variables: str) -> dict[str, dict[str, object]]:
    done = hub("doctor", "--json", "--home", home, **variables)
    results = {result["title"]: result for result in json.loads(done.stdout)}
    assert done.returncode == any(result["is_ok"] is False for result in results.values())
    return results


@pytest.mark.slow
def test_the_doctor_asks_the_server(server: _Server, tmp_path: Path) -> None:
    """An address alone is no server."""
    there = {"EMBEDL_HUB_API_BASE_URL": server.url, "EMBEDL_HUB_API_KEY": KEY}
    assert doctor_on(tmp_path, **there)["server"]["is_ok"] is True
    revoked = doctor_on(tmp_path, **{**there, "EMBEDL_HUB_API_KEY": "eh_wrong"})["server"]
    assert revoked["is_ok"] is False
    assert "does not take the key" in str(revoked["message"])
    stopped = doctor_on(tmp_path, **{**there, "EMBEDL_HUB_API_BASE_URL": "http://127.0.0.1:9"})["server"]
    assert stopped["is_ok"] is False
    assert "cannot be reached" in str(stopped["message"])


def test_the_doctor_reads_the_devices(tmp_path: Path) -> None:
    """A file that no step can read is not well."""
    assert doctor_on(tmp_path)["devices"]["is_ok"] is True
    (tmp_path / "devices.toml").write_text("[pi\n")
    assert doctor_on(tmp_path)["devices"]["is_ok"] is False
