"""From HTTP to the service and back: keys, limits, bodies, headers, logs."""

from __future__ import annotations

import contextlib
import errno
import json
import re
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Mount
from starlette.routing import Route as Address

from embedl_hub.errors import ConfigError, HubError, TooSlowError
from embedl_hub.paths import make_private
from embedl_hub.ranges import NoSuchRangeError, pieces, range_headers, wanted_bytes
from embedl_hub.server._keys import PREFIX, Buckets, Key, KeyRing
from embedl_hub.server._login import PAGE_POLICY, Door, Guard, Sessions, current_key, limited_body, no_page
from embedl_hub.server._refusal import Refusal, bad_request, too_many
from embedl_hub.server._routes import ROUTES, Route, document
from embedl_hub.server._service import Answer, Call, File, Service
from embedl_hub.server._telemetry import LOG, Metrics
from embedl_hub.server._turns import Turns

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from embedl_hub.server._settings import Settings

Held = TypeVar("Held")
LARGEST_BODY = 8 << 20
_PIECE_BYTES = 1 << 20
_FAILURES_PER_S = 1.0
_RANGE = re.compile(r"bytes (?:([0-9]{1,18})-([0-9]{1,18})|\*)/([0-9]{1,18})")
_HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"same-origin"),
    (b"x-frame-options", b"DENY"),
    (b"cross-origin-opener-policy", b"same-origin"),
)
_METHODS = frozenset(("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"))
_to_json = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode
_API_POLICY = "default-src 'none'; frame-ancestors 'none'"


def make_app(settings: Settings, page: Callable[[Door], ASGIApp] | None = None) -> ASGIApp:
    """Return the whole server as an ASGI application; ``page`` makes what browsers see once they are logged in."""
    metrics, keys = Metrics(), KeyRing(settings.home)
    make_private(settings.home)
    service = Service(settings, metrics)
    failures = Buckets(_FAILURES_PER_S, settings.wrong_keys)
    rates, turns = Buckets(settings.rate, settings.burst), Turns(settings.queries_at_once, settings.query_s)
    api = _Api(service, keys, rates, failures, turns, metrics)
    shown = no_page() if page is None else page(Door(lambda: service.seen_by(current_key()), current_key))
    guard = Guard(shown, keys, Sessions(settings.home, keys), failures, rates, turns)

    @contextlib.asynccontextmanager
    async def alive(_: Starlette) -> AsyncIterator[None]:
        import anyio.to_thread  # noqa: PLC0415 - there once the loop is

        anyio.to_thread.current_default_thread_limiter().total_tokens = settings.threads
        await run_in_threadpool(service.open)
        yield
        await run_in_threadpool(service.close)

    paths = list(dict.fromkeys(route.path for route in ROUTES))
    addresses = [Address(path, _Endpoint(api, path)) for path in paths]
    # What is under /api and is no address of ours is answered by the API, not by the page.
    app = Starlette(routes=[*addresses, Mount("/api", _Endpoint(api, "")), Mount("/", guard)], lifespan=alive)
    return _Edge(app, metrics)


class _Endpoint:
    """All methods of one address."""

    def __init__(self, api: _Api, path: str) -> None:
        self._api = api
        self._path = path
        self._routes = {route.method: route for route in ROUTES if route.path == path}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope.setdefault("state", {})["route"] = self._path or "unknown"
        request = Request(scope, receive)
        try:
            answer = await self._api.answer(request, self._route(request.method))
        except Refusal as refusal:
            answer = JSONResponse(refusal.document(), refusal.status, headers=refusal.headers)
        await answer(scope, receive, send)

    def _route(self, method: str) -> Route | None:
        if not self._routes:
            return None
        wanted = "GET" if method == "HEAD" and "HEAD" not in self._routes else method
        if wanted not in self._routes:
            allow = ", ".join(self._routes)
            raise Refusal(405, "method_not_allowed", f"Here is only {allow}.", headers={"Allow": allow})
        return self._routes[wanted]


class _Api:
    """Brings requests to the service."""

    def __init__(
        self,
        service: Service,
        keys: KeyRing,
        rates: Buckets,
        failures: Buckets,
        turns: Turns,
        metrics: Metrics,
    ) -> None:
        self._service = service
        self._keys = keys
        self._rates = rates
        self._failures = failures
        self._turns = turns
        self._metrics = metrics
        self._document = document(ROUTES)

    async def answer(self, request: Request, route: Route | None) -> Response:
        if route is None or route.access:
            key = self._key(request)
            request.scope["state"]["key_id"] = key.id
        if route is None:
            raise Refusal(404, "not_found", "There is no such address; /api/openapi.json lists them.")
        values = route.checked(request.path_params, request.query_params.multi_items())
        if not route.access:
            return await self._open(route)
        if "project" in values:
            self._service.check_project(key, values["project"])
        if route.access == "write" and not key.may_write:
            raise Refusal(403, "read_only", "This key is for reading only.")
        if route.is_upload:
            return await self._upload(request, key, values)
        body, size = await _json_body(request) if route.body is not None else (None, 0)
        call, handler = Call(key, values, body, size), self._service.handlers[route.name]
        with _translated():
            if route.access == "write":
                return await run_in_threadpool(self._work, handler, call, request)
            asked = time.monotonic()
            async with self._turns.taking(key.id):
                waited_s = time.monotonic() - asked
                return await run_in_threadpool(self._work, handler, call, request, waited_s)

    def _work(self, handler: Callable[[Call], Answer], call: Call, request: Request, waited_s: float = 0.0) -> Response:
        with self._service.store.one_question(waited_s):
            return _response(handler(call), request)

    def _key(self, request: Request) -> Key:
        word, _, text = request.headers.get("authorization", "").partition(" ")
        key = self._keys.find(text.strip()) if word.lower() == "bearer" and text.strip().startswith(PREFIX) else None
        if key is None:
            # Only who shows wrong keys is slowed down: others may come from the same address.
            if (wait_s := self._failures.wait_s(request.client.host if request.client else "")) > 0:
                raise too_many(wait_s)
            message = "Show a key that holds: Authorization: Bearer eh_..."
            raise Refusal(401, "no_key", message, headers={"WWW-Authenticate": "Bearer"})
        if (wait_s := self._rates.wait_s(key.id)) > 0:
            raise too_many(wait_s)
        return key

    async def _open(self, route: Route) -> Response:
        """Answer what needs no key."""
        if route.name == "getDocument":
            return JSONResponse(self._document)
        with _translated():
            return _response(await run_in_threadpool(self._service.health), None)

    async def _upload(self, request: Request, key: Key, values: Mapping[str, str]) -> Response:
        start, total = _announced(request)
        place = values["project"], values["sha256"]
        uploads = self._service.uploads
        with _translated():
            progress = await run_in_threadpool(uploads.progress, *place)
            if not progress.complete:
                announced = int(request.headers["content-length"])
                async with (
                    _in_threads(self._service.usage.sending(key, announced)) as sending,
                    _in_threads(uploads.receiving(*place, start, total)) as upload,
                ):
                    async for piece in _pieces(request):
                        await run_in_threadpool(upload.write, piece)
                        sending.size_bytes += len(piece)
                        self._metrics.add("content_bytes_received_total", len(piece))
                    progress = await run_in_threadpool(uploads.take, *place, upload)
        return Response(status_code=200 if progress.complete else 202, headers=progress.headers())


class _Edge:
    """Around everything: safe headers, one line of log, one count, and never a traceback to a client."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started, status = time.perf_counter(), 0
        state = scope.setdefault("state", {})

        async def sending(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = _with_safe_headers(list(message["headers"]), state.get("route"))
            await send(message)

        try:
            await self._app(scope, receive, sending)
        except ClientDisconnect:
            status = status or 499
        except Exception:
            LOG.exception("A request failed.", extra={"facts": {"path": scope["path"]}})
            if status:
                raise
            refusal = Refusal(500, "failed", "The server failed; its log says why.")
            await JSONResponse(refusal.document(), 500)(scope, receive, sending)
        finally:
            self._note(scope, status, time.perf_counter() - started)

    def _note(self, scope: Scope, status: int, seconds: float) -> None:
        state, method = scope["state"], scope["method"]
        known_method = method if method in _METHODS else "OTHER"
        self._metrics.request(known_method, state.get("route", "page"), status, seconds)
        facts = {
            "method": method, "path": scope["path"], "status": status, "ms": round(seconds * 1000, 1),
            "key": state.get("key_id"), "client": (scope.get("client") or ("",))[0],
        }  # fmt: skip
        LOG.info("request", extra={"facts": facts})


def _with_safe_headers(headers: list[tuple[bytes, bytes]], route: str | None) -> list[tuple[bytes, bytes]]:
    there = {name.lower() for name, _ in headers}
    policy = PAGE_POLICY if route is None else _API_POLICY
    wanted = [*_HEADERS, (b"content-security-policy", policy.encode())]
    if route is not None:
        wanted.append((b"cache-control", b"no-store"))
    return headers + [(name, value) for name, value in wanted if name not in there]


@contextlib.asynccontextmanager
async def _in_threads(context: contextlib.AbstractContextManager[Held]) -> AsyncIterator[Held]:
    """Enter and leave a context in threads: both may wait for a disk."""
    held = await run_in_threadpool(context.__enter__)
    try:
        yield held
    finally:
        await run_in_threadpool(context.__exit__, None, None, None)


@contextlib.contextmanager
def _translated() -> Iterator[None]:
    """Turn our errors into answers; what they say of this machine goes to the log, not to the client."""
    try:
        yield
    except ConfigError as error:
        raise bad_request(str(error)) from error
    except TooSlowError as error:
        raise Refusal(503, "too_slow", str(error), headers={"Retry-After": "5"}) from error
    except (HubError, OSError) as error:
        LOG.warning("%s", error)
        cause = error if isinstance(error, OSError) else error.__cause__
        full = isinstance(cause, OSError) and cause.errno in {errno.ENOSPC, errno.EDQUOT}
        if full or "full" in str(cause):
            raise Refusal(507, "no_space", "The server's disk is full.", headers={"Retry-After": "30"}) from error
        raise Refusal(503, "unavailable", "Not at the moment; try again.", headers={"Retry-After": "1"}) from error


async def _json_body(request: Request) -> tuple[Any, int]:
    """Return what a client sent, whatever that is, and how many bytes it had."""
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise bad_request("The body must be application/json.")
    body = await limited_body(request, LARGEST_BODY)
    if body is None:
        raise Refusal(413, "too_large", f"A body may have {LARGEST_BODY} bytes.")
    try:
        return json.loads(body.decode(), parse_constant=_no_constant), len(body)
    except (ValueError, RecursionError) as error:
        raise bad_request(f"The body is no JSON: {type(error).__name__}.") from error


def _no_constant(text: str) -> None:
    raise ValueError(text)


def _announced(request: Request) -> tuple[int, int]:
    """Return where a piece of content starts and how large the whole is."""
    length = request.headers.get("content-length", "")
    if not re.fullmatch("[0-9]{1,18}", length):
        raise bad_request("Content-Length says how many bytes come; it is needed.")
    text = request.headers.get("content-range")
    if text is None:
        return 0, int(length)
    match = _RANGE.fullmatch(text)
    if match is None:
        raise bad_request("Content-Range is: bytes FIRST-LAST/ALL, or bytes */ALL when nothing is left to send")
    total = int(match[3])
    first, last = (total, total - 1) if match[1] is None else (int(match[1]), int(match[2]))
    if not first <= last + 1 <= total or last - first + 1 != int(length):
        raise bad_request("Content-Range does not fit the bytes that come.")
    return first, total


async def _pieces(request: Request) -> AsyncIterator[bytes]:
    """Yield a body in larger pieces; of a client that goes away, what came."""
    gathered, left = bytearray(), None
    try:
        async for chunk in request.stream():
            gathered += chunk
            if len(gathered) >= _PIECE_BYTES:
                yield bytes(gathered)
                gathered.clear()
    except ClientDisconnect as error:
        left = error
    if gathered:
        yield bytes(gathered)
    if left is not None:
        raise left


def _response(answer: Answer, request: Request | None) -> Response:
    if answer.file is not None and request is not None:
        return _send(answer.file, request)
    if answer.text is not None:
        return PlainTextResponse(answer.text)
    if answer.document is None:
        return Response(status_code=answer.status, headers=answer.headers)
    return Response(_encoded(answer.document), answer.status, media_type="application/json")


def _encoded(document: object) -> bytes:
    """Return a document as JSON; a long list by its items, so that other threads get their turns in between."""
    match document:
        case {"data": {"items": [_, *_] as items, "pagination": place}}:
            text = ",".join(map(_to_json, items))
            return f'{{"data":{{"items":[{text}],"pagination":{_to_json(place)}}}}}'.encode()
        case _:
            return _to_json(document).encode()


def _send(file: File, request: Request) -> Response:
    try:
        first, count = wanted_bytes(request.headers.get("range"), file.size)
    except NoSuchRangeError as error:
        headers = {"Content-Range": str(error)}
        raise Refusal(416, "no_such_range", "The file has no such bytes.", headers=headers) from error
    disposition = {"Content-Disposition": f"attachment; filename*=UTF-8''{quote(file.name, safe='')}"}
    headers = disposition | range_headers(first, count, file.size)
    status = 206 if count < file.size else 200
    return StreamingResponse(_read(file, first, count), status, headers, "application/octet-stream")


def _read(file: File, first: int, count: int) -> Iterator[bytes]:
    # Opened when it is sent: whoever asks for the head alone costs no file.
    yield from pieces(file.open(), first, count)
