"""The door to the page: who gets through, and what a page behind it is told."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
import http.client
import json
import threading
from typing import TYPE_CHECKING
from urllib.parse import urlencode

import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from support.hub_server import free_port

from embedl_hub.server import Key, KeyRing, Settings
from embedl_hub.server._app import make_app
from embedl_hub.server._login import COOKIE, Door, Sessions
from embedl_hub.tracking import Client, Redactor, Store

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from starlette.requests import Request


def page(door: Door) -> Starlette:
    """A page that shows what it may see."""

    def show(request: Request) -> PlainTextResponse:
        names = ",".join(summary.name for summary in door.open_store().projects())
        return PlainTextResponse(f"{request.method} {names} {door.key().access}")

    return Starlette(routes=[Route("/", show, methods=["GET", "POST"])])


@pytest.fixture
def home(tmp_path: Path) -> Path:
    with Store(tmp_path / "home") as store:
        for name in ("ours", "theirs"):
            client = Client(name, store, Redactor({}))
            with client.start_run():
                pass
            client.close()
    return tmp_path / "home"


@pytest.fixture
def port(home: Path) -> Iterator[int]:
    """A server in this process, with that page."""
    with serving(Settings(home)) as port:
        yield port


@contextlib.contextmanager
def serving(settings: Settings) -> Iterator[int]:
    """Serve that page in this process."""
    port = free_port()
    server = uvicorn.Server(uvicorn.Config(make_app(settings, page), port=port, log_config=None))
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        assert thread.is_alive()
    yield port
    server.should_exit = True
    thread.join()


def ask(port: int, method: str, path: str, body: str | None = None, **headers: str) -> tuple[int, str, dict[str, str]]:
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=20)) as connection:
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request(method, path, body, sent)
        answer = connection.getresponse()
        return answer.status, answer.read().decode(), {name.lower(): value for name, value in answer.getheaders()}


def log_in(port: int, key: str, then: str = "/") -> tuple[int, str, dict[str, str]]:
    form = urlencode({"key": key, "next": then})
    return ask(port, "POST", "/login", form, Origin=f"http://127.0.0.1:{port}")


def test_a_browser_without_a_cookie_is_led_to_the_form(port: int) -> None:
    """And a program is told."""
    status, _, headers = ask(port, "GET", "/?a=1", Accept="text/html")
    assert (status, headers["location"]) == (303, "/login?next=%2F%3Fa%3D1")
    assert ask(port, "GET", "/")[0] == 401
    status, text, _ = ask(port, "GET", '/login?next="><script>')
    assert status == 200
    assert "<script" not in text


def test_a_key_opens_its_own_projects(port: int, home: Path) -> None:
    """The page sees what the key sees."""
    _, key = KeyRing(home).add("reader", ["ours"], "read")
    status, _, headers = log_in(port, key)
    assert (status, headers["location"]) == (303, "/")
    cookie = headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=lax" in cookie
    assert key not in cookie
    shown = ask(port, "GET", "/", Cookie=cookie.partition(";")[0])
    assert shown[:2] == (200, "GET ours read")
    assert shown[2]["content-security-policy"].startswith("default-src 'none'; script-src 'self'")
    _, all_of_it = KeyRing(home).add("lead", ["*"], "write")
    cookie = log_in(port, all_of_it)[2]["set-cookie"].partition(";")[0]
    assert ask(port, "GET", "/", Cookie=cookie)[1] == "GET ours,theirs write"


def test_a_cookie_opens_no_api_and_ends_with_its_key(port: int, home: Path) -> None:
    """A cookie is for the page alone."""
    key, text = KeyRing(home).add("reader", ["ours"], "read")
    cookie = log_in(port, text)[2]["set-cookie"].partition(";")[0]
    assert ask(port, "GET", "/api/projects", Cookie=cookie)[0] == 401
    assert ask(port, "GET", "/", Cookie=cookie)[0] == 200
    assert ask(port, "GET", "/", Cookie=cookie[:-1] + ("0" if cookie[-1] != "0" else "1"))[0] == 401
    KeyRing(home).revoke(key.id)
    assert ask(port, "GET", "/", Cookie=cookie)[0] == 401


def test_another_site_cannot_act_for_a_browser(port: int, home: Path) -> None:
    """Changes come from pages of this server, with a key that writes."""
    own = f"http://127.0.0.1:{port}"
    cookies = {}
    for access in ("read", "write"):
        text = KeyRing(home).add(access, ["ours"], access)[1]
        cookies[access] = log_in(port, text)[2]["set-cookie"].partition(";")[0]
    assert ask(port, "POST", "/", Cookie=cookies["write"])[0] == 403
    assert ask(port, "POST", "/", Cookie=cookies["write"], Origin="http://evil.example")[0] == 403
    assert ask(port, "POST", "/", Cookie=cookies["write"], Origin="null")[0] == 403
    assert ask(port, "POST", "/", Cookie=cookies["read"], Origin=own)[0] == 403
    assert ask(port, "POST", "/", Cookie=cookies["write"], Origin=own)[:2] == (200, "POST ours write")
    status, _, headers = ask(port, "POST", "/logout", Cookie=cookies["write"], Origin=own)
    assert status == 303
    assert "Max-Age=0" in headers["set-cookie"]


@pytest.mark.parametrize(
    "then", ["//evil.example", "https://evil.example", "/\\evil.example", "javascript:1", "/\r\nX: y"]
)
def test_a_login_leads_nowhere_else(port: int, home: Path, then: str) -> None:
    """Whatever the link said."""
    key = KeyRing(home).add("reader", ["ours"], "read")[1]
    assert log_in(port, key, then)[2]["location"] == "/"


def test_a_wrong_key_is_refused_and_guessing_slowed(port: int) -> None:
    """With the same words for every wrong key."""
    status, text, headers = log_in(port, "eh_wrong", "/runs?type=PROFILE")
    assert 'name=next value="/runs?type=PROFILE"' in text
    assert status == 401
    assert "does not open" in text
    assert "set-cookie" not in headers
    assert 429 in {log_in(port, "eh_wrong")[0] for _ in range(30)}


def test_wrong_keys_lock_no_colleague_out(port: int, home: Path) -> None:
    """Who shows a right key gets in, whoever guesses at the same address or behind the same proxy."""
    _, key = KeyRing(home).add("colleague", ["ours"], "read")
    assert 429 in {log_in(port, "eh_wrong")[0] for _ in range(30)}
    assert log_in(port, key)[0] == 303
    assert ask(port, "GET", "/api/projects", Authorization=f"Bearer {key}")[0] == 200


@pytest.mark.parametrize("left", [b"", b"short", b"x" * 33], ids=["empty", "short", "long"])
def test_a_damaged_secret_signs_nothing(home: Path, left: bytes) -> None:
    """What a crash left of the file is no secret: anybody could sign with it."""
    ring = KeyRing(home)
    key: Key = ring.add("lead", ["*"], "write")[0]
    (home / "session.key").write_bytes(left)
    body = base64.urlsafe_b64encode(json.dumps([key.id, 2**40]).encode()).decode().rstrip("=")
    forged = f"{body}.{hmac.new(left, body.encode(), hashlib.sha256).hexdigest()}"
    sessions = Sessions(home, ring)
    assert sessions.key_of(forged) is None
    assert sessions.key_of(sessions.start(key)) == key
    assert len((home / "session.key").read_bytes()) == 32
    assert (home / "session.key").stat().st_mode & 0o777 == 0o600
    assert not [path for path in home.iterdir() if path.name.startswith(".session")]


def test_the_page_has_the_rate_limit_of_the_api(home: Path) -> None:
    """One budget for both: a key that asks too often is told so on the page too."""
    with serving(Settings(home, rate=1.0, burst=10.0)) as port:
        _, key = KeyRing(home).add("reader", ["ours"], "read")
        cookie = log_in(port, key)[2]["set-cookie"].partition(";")[0]
        answers = [ask(port, "GET", "/", Cookie=cookie) for _ in range(15)]
        assert [status for status, _, _ in answers[:10]] == [200] * 10
        assert 429 in {status for status, _, _ in answers}
        assert "retry-after" in answers[-1][2]
        assert ask(port, "GET", "/api/projects", Authorization=f"Bearer {key}")[0] == 429


def test_a_cookie_ends(home: Path) -> None:
    """After half a day."""
    ring = KeyRing(home)
    key: Key = ring.add("reader", ["ours"], "read")[0]
    now = [1000.0]
    sessions = Sessions(home, ring, clock=lambda: now[0])
    cookie = sessions.start(key)
    assert sessions.key_of(cookie) == key
    assert Sessions(home, ring, clock=lambda: now[0]).key_of(cookie) == key
    now[0] += 12 * 3600
    assert sessions.key_of(cookie) is None
    for wrong in (None, "", ".", "x.y", "é.é", f"{cookie}.{cookie}"):
        assert sessions.key_of(wrong) is None
    assert COOKIE not in cookie
