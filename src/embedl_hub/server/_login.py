"""The door to the page: a browser shows a key once and gets a cookie that ends.

The cookie names the key and when it ends, signed with a secret of the home; it opens nothing of the API, and what
changes something needs to come from a page of this very server.
"""

from __future__ import annotations

import base64
import contextlib
import contextvars
import hashlib
import hmac
import html
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import parse_qs, quote, urlsplit

from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response

from embedl_hub.paths import SECRET_BYTES, kept_secret
from embedl_hub.server._refusal import Refusal, too_many
from embedl_hub.server._telemetry import LOG

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from embedl_hub.server._keys import Buckets, Key, KeyRing
    from embedl_hub.server._turns import Turns
    from embedl_hub.tracking import Store

COOKIE = "edgeproof_session"
_LASTS_S = 12 * 3600
_LARGEST_FORM = 4096
_SAFE = frozenset(("GET", "HEAD", "OPTIONS"))
_current: contextvars.ContextVar[Key] = contextvars.ContextVar("edgeproof_key")

PAGE_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; font-src 'self'; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)


@dataclass(frozen=True)
class Door:
    """What the page is told of who is asking: the store as the browser's key sees it, and that key."""

    open_store: Callable[[], Store]
    key: Callable[[], Key]


def current_key() -> Key:
    """Return the key of the browser whose request is being answered."""
    return _current.get()


class Sessions:
    """Makes and checks cookies."""

    def __init__(self, home: Path, keys: KeyRing, clock: Callable[[], float] | None = None) -> None:
        self._secret = _secret(home / "session.key")
        self._keys = keys
        self._clock = clock or (lambda: time.time_ns() / 1e9)

    def start(self, key: Key) -> str:
        text = json.dumps([key.id, int(self._clock()) + _LASTS_S])
        body = base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")
        return f"{body}.{self._sign(body)}"

    def key_of(self, cookie: str | None) -> Key | None:
        """Return the key that a cookie stands for, if both still hold."""
        body, _, signature = (cookie or "").partition(".")
        is_plain = body and body.isascii() and signature.isascii()
        if not is_plain or not hmac.compare_digest(signature, self._sign(body)):
            return None
        key_id, ends = json.loads(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)))
        key = self._keys.by_id(key_id)
        return key if key is not None and key.revoked_ms is None and ends > self._clock() else None

    def _sign(self, body: str) -> str:
        return hmac.new(self._secret, body.encode(), hashlib.sha256).hexdigest()


class Guard:
    """Lets browsers with a cookie through to the page, and everybody else to the login form."""

    def __init__(
        self, page: ASGIApp, keys: KeyRing, sessions: Sessions, failures: Buckets, rates: Buckets, turns: Turns
    ) -> None:
        self._page = page
        self._keys = keys
        self._sessions = sessions
        self._failures = failures
        self._rates = rates
        self._turns = turns

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        answer = await self._answer(request)
        if isinstance(answer, Response):
            await answer(scope, receive, send)
            return
        scope.setdefault("state", {})["key_id"] = answer.id
        token = _current.set(answer)
        try:
            await self._show(answer, scope, receive, send)
        except Refusal as refusal:
            await PlainTextResponse(f"{refusal}\n", refusal.status, refusal.headers)(scope, receive, send)
        finally:
            _current.reset(token)

    async def _show(self, key: Key, scope: Scope, receive: Receive, send: Send) -> None:
        if (wait_s := self._rates.wait_s(key.id)) > 0:
            raise too_many(wait_s)
        async with contextlib.AsyncExitStack() as turn:
            await turn.enter_async_context(self._turns.taking(key.id))

            async def sending(message: Message) -> None:
                # Looking is what takes turns; whoever reads the answer slowly keeps nobody waiting.
                await turn.aclose()
                await send(message)

            await self._page(scope, receive, sending)

    async def _answer(self, request: Request) -> Response | Key:
        """Return what the door itself answers, or the key that lets the request through."""
        changes = request.method not in _SAFE
        if changes and not _is_from_here(request):
            return PlainTextResponse("This request does not come from a page of this server.\n", 403)
        if request.url.path == "/login":
            return await self._login(request)
        if request.url.path == "/logout" and request.method == "POST":
            answer = RedirectResponse("/login", 303)
            answer.delete_cookie(COOKIE)
            return answer
        key = self._sessions.key_of(request.cookies.get(COOKIE))
        if key is None:
            return _to_login(request)
        return PlainTextResponse("This key is for reading only.\n", 403) if changes and not key.may_write else key

    async def _login(self, request: Request) -> Response:
        then = _local(request.query_params.get("next", "/"))
        if request.method in {"GET", "HEAD"}:
            return _form(then)
        if request.method != "POST":
            return PlainTextResponse("Only GET and POST.\n", 405, headers={"Allow": "GET, POST"})
        form = parse_qs((await limited_body(request, _LARGEST_FORM) or b"").decode("utf-8", "replace"))
        then = _local(form.get("next", ["/"])[0])
        key = self._keys.find(form.get("key", [""])[0].strip())
        if key is None:
            # Only who shows wrong keys is slowed down: a colleague may come from the same address, or the same proxy.
            if self._failures.wait_s(request.client.host if request.client else "") > 0:
                return PlainTextResponse("Too many tries; wait a little.\n", 429, headers={"Retry-After": "10"})
            return _form(then, "That key does not open this server.", status=401)
        answer, cookie, secure = RedirectResponse(then, 303), self._sessions.start(key), request.url.scheme == "https"
        answer.set_cookie(COOKIE, cookie, max_age=_LASTS_S, httponly=True, samesite="lax", secure=secure)
        return answer


def _to_login(request: Request) -> Response:
    if request.method == "GET" and "text/html" in request.headers.get("accept", ""):
        wanted = request.url.path + (f"?{request.url.query}" if request.url.query else "")
        return RedirectResponse(f"/login?next={quote(wanted, safe='')}", 303)
    return PlainTextResponse("Log in first, at /login.\n", 401)


def _form(then: str, problem: str = "", status: int = 200) -> Response:
    message = f"<p role=alert>{html.escape(problem)}</p>" if problem else ""
    text = f"""<!doctype html>
<html lang=en><head><meta charset=utf-8><meta name=viewport content="width=device-width">
<meta name=color-scheme content="light dark"><title>Log in - Edgeproof</title></head>
<body><main><h1>Edgeproof</h1>{message}
<form method=post action=/login><input type=hidden name=next value="{html.escape(then)}">
<p><label>API key <input type=password name=key autocomplete=current-password required autofocus></label></p>
<p><button>Log in</button></p></form></main></body></html>
"""
    return HTMLResponse(text, status)


def _local(path: str) -> str:
    """Return where to go after the login: a place of this server, whatever was asked for."""
    plain = path.isascii() and path.isprintable() and "\\" not in path
    return path if plain and path.startswith("/") and not path.startswith("//") else "/"


def _is_from_here(request: Request) -> bool:
    """Tell whether a browser says that a request comes from a page of ours."""
    origin = request.headers.get("origin")
    if origin is not None:
        return urlsplit(origin).netloc == request.headers.get("host", "")
    return request.headers.get("sec-fetch-site") in {"same-origin", "none"}


async def limited_body(request: Request, most_bytes: int) -> bytes | None:
    """Return the body of a request; None when it is larger than this."""
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > most_bytes:
            return None
    return bytes(body)


def _secret(path: Path) -> bytes:
    """Return the home's secret for signing. Anybody can guess how one signs that a crash or a full disk left short."""
    if path.exists() and path.stat().st_size != SECRET_BYTES:
        LOG.warning("%s is damaged; a new one replaces it, and everybody has to log in again.", path)
    return kept_secret(path)


def no_page() -> ASGIApp:
    """Return what stands in the page's place where it is not installed."""
    return PlainTextResponse("This server has no page; its API is described at /api/openapi.json.\n", 404)
