"""The application: addresses, headers, errors. What a page shows is in _views, how it looks in templates/."""

from __future__ import annotations

import hashlib
import time
import weakref
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING

from starlette.applications import Starlette
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import FileResponse, HTMLResponse, PlainTextResponse, Response
from starlette.routing import Route

from embedl_graph import STATIC
from embedl_hub.errors import HubError
from embedl_hub.page import _export, _format, _templates, _views, _write
from embedl_hub.page._scope import Scope, TtlCache
from embedl_hub.page._ticket import Ticket
from embedl_hub.tracking import Store, now_ms

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Send
    from starlette.types import Scope as ASGIScope

_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
_GRAPH_FILES = frozenset({"dagre.js", "graph.css", "graph.js"})
_STATIC_TYPES = {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}


@dataclass(frozen=True)
class Options:
    """How the page is served; see :func:`embedl_hub.page.app`."""

    open_store: Callable[[], Store]
    read_only: bool | Callable[[Request], bool] = True
    projects: Callable[[Request], Collection[str] | None] | None = None
    hosts: tuple[str, ...] | None = None
    sign_out: str | None = None
    token: str | None = None

    def scope(self, request: Request) -> Scope:
        visible = None if self.projects is None else self.projects(request)
        return Scope(self.open_store(), None if visible is None else frozenset(visible))

    def may_write(self, request: Request) -> bool:
        return not (self.read_only(request) if callable(self.read_only) else self.read_only)


def build(options: Options) -> Starlette:
    page = _Pages(options)
    routes = [
        Route("/static/plotly.js", _library),
        Route("/static/{name}", _static),
        Route("/", page.showing(_views.projects)),
        *page.twins("/projects", _views.projects),
        *page.twins("/runs", _views.runs),
        *page.twins("/runs/count", _views.count),
        Route("/runs/{run_id}/export", page.exporting(_views.run, "run-{run_id}.html")),
        Route("/runs/{run_id}/artifacts/{name:path}", page.downloading),
        *page.twins("/runs/{run_id}/graph", _views.graph),
        Route("/runs/{run_id}/{change}", page.changing, methods=["POST"]),
        *page.twins("/runs/{run_id}", _views.run),
        Route("/compare/export", page.exporting(_views.comparison, "comparison.html")),
        *page.twins("/compare", _views.comparison),
        Route("/charts/export", page.exporting(_views.charts, "chart.html")),
        *page.twins("/charts", _views.charts),
        *page.twins("/sweeps", _views.sweeps),
        Route("/sweeps/{run_id}/export", page.exporting(_views.sweep, "sweep-{run_id}.html")),
        *page.twins("/sweeps/{run_id}", _views.sweep),
        *page.twins("/bisections", _views.bisections),
        Route("/bisections/{run_id}/export", page.exporting(_views.bisection, "bisection-{run_id}.html")),
        *page.twins("/bisections/{run_id}", _views.bisection),
        *page.twins("/devices", _views.devices),
        *page.twins("/device", _views.device),
    ]
    handlers = {HubError: page.refusing, HTTPException: page.missing, 500: page.broken}
    ticket = None if options.token is None else Ticket(options.token)
    guards = [Middleware(_Guard, hosts=options.hosts, ticket=ticket)]
    return Starlette(routes=routes, exception_handlers=handlers, middleware=guards)


class _Guard:
    """Sets the headers of every answer, and refuses names that are not ours and visitors that are not."""

    def __init__(self, app: ASGIApp, hosts: tuple[str, ...] | None, ticket: Ticket | None) -> None:
        self._app = app
        self._hosts = hosts
        self._ticket = ticket

    async def __call__(self, scope: ASGIScope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        if self._hosts is not None and _host(scope) not in self._hosts:
            refusal = PlainTextResponse(f"This page is not to be asked for as {_host(scope)!r}.\n", status_code=421)
            await refusal(scope, receive, send_guarded)
            return
        answer = None if self._ticket is None else self._ticket.answer(Request(scope))
        await (self._app if answer is None else answer)(scope, receive, send_guarded)


def _host(scope: ASGIScope) -> str:
    """Return the name in the Host header, without its port."""
    named = [value.decode("latin-1") for name, value in scope["headers"] if name == b"host"]
    text = named[0] if len(named) == 1 else ""
    return text if text.endswith("]") else text.rpartition(":")[0] or text


class _Pages:
    """The handlers, with how the page is served."""

    def __init__(self, options: Options) -> None:
        self._options = options
        # By the store that was given for a request: one that shows less than another must not be mixed up with it.
        self._caches: weakref.WeakKeyDictionary[Store, TtlCache] = weakref.WeakKeyDictionary()
        self._tokens = _write.Tokens()

    def twins(self, path: str, view: Callable[[_views.Visit], _views.Answer]) -> list[Route]:
        """Return a page's route and its JSON twin's."""
        return [Route(f"{path}.json", self.showing(view, as_json=True)), Route(path, self.showing(view))]

    def showing(
        self, view: Callable[[_views.Visit], _views.Answer], *, as_json: bool = False
    ) -> Callable[[Request], Response]:
        """Return a handler for a view. It is no coroutine, so that it runs in a thread: the store waits for disks."""

        def handler(request: Request) -> Response:
            started, visit = time.perf_counter_ns(), self._visit(request)
            with visit.scope.whole.one_question():
                response = self._respond(request, view(visit), as_json=as_json)
            response.headers["Server-Timing"] = f"page;dur={(time.perf_counter_ns() - started) / 1e6:.1f}"
            return response

        return handler

    def exporting(self, view: Callable[[_views.Visit], _views.Answer], name: str) -> Callable[[Request], Response]:
        """Return a handler that answers with a view as one file of this name."""

        def handler(request: Request) -> Response:
            visit, file_name = self._visit(request), name.format(**request.path_params)
            with visit.scope.whole.one_question():
                html = _export.alone(view(visit))
            headers = {
                "Content-Disposition": f'attachment; filename="{file_name}"',
                "Cache-Control": "private, no-store",
            }
            return HTMLResponse(html.encode("utf-8", "replace"), headers=headers)

        return handler

    def _visit(self, request: Request) -> _views.Visit:
        scope = self._options.scope(request)
        return _views.Visit(scope, request, self._caches.setdefault(scope.whole, TtlCache()))

    def downloading(self, request: Request) -> Response:
        scope = self._options.scope(request)
        with scope.whole.one_question():
            run = scope.run(request.path_params["run_id"])
        return _export.artifact(run, request.path_params["name"], request.headers.get("range"))

    async def changing(self, request: Request) -> Response:
        if not self._options.may_write(request):
            raise HTTPException(403, "This page is read-only.")
        return await _write.change(request, self._options.scope(request), self._tokens)

    def refusing(self, request: Request, error: Exception) -> Response:
        return self._respond(request, _views.failure(error))

    def missing(self, request: Request, error: Exception) -> Response:
        """Say that there is no such address, or that it cannot be used so."""
        assert isinstance(error, HTTPException)  # noqa: S101 - what it is registered for
        message = "There is no such page." if error.status_code == 404 else error.detail
        response = self._respond(request, _views.problem(message, error.status_code))
        response.headers.update(error.headers or {})
        return response

    def broken(self, request: Request, error: Exception) -> Response:  # noqa: ARG002 - told by the server's log only
        """Say that it is our fault, and nothing else."""
        message = "Something went wrong here; the log of the server tells what."
        response = self._respond(request, _views.problem(message, 500))
        # This answer is made outside of the guard.
        response.headers.update(HEADERS)
        return response

    def _respond(self, request: Request, answer: _views.Answer, *, as_json: bool = False) -> Response:
        accepted = request.headers.get("accept", "")
        prefers_json = "application/json" in accepted and "text/html" not in accepted
        if as_json or request.url.path.endswith(".json") or prefers_json:
            response = Response(_format.dumps(answer.data()), answer.status, media_type="application/json")
        else:
            part = answer.parts.get(request.query_params.get("part", ""))
            html = (
                _templates.templates()
                .get_template(part or answer.template)
                .render({**self._common(request), **answer.context})
            )
            # Names may hold halves of characters that no encoding can write.
            response = HTMLResponse(html.encode("utf-8", "replace"), answer.status)
        response.headers["Vary"] = "Accept"
        response.headers["Cache-Control"] = "private, no-cache"
        self._tokens.keep(request, response)
        if answer.status == 200:
            tag = f'"{hashlib.sha256(response.body).hexdigest()[:20]}"'
            response.headers["ETag"] = tag
            if request.headers.get("if-none-match") == tag:
                return Response(status_code=304, headers={"ETag": tag, "Vary": "Accept"})
        return response

    def _common(self, request: Request) -> dict[str, object]:
        root = request.scope.get("root_path", "")
        may_write = self._options.may_write(request)
        return {
            "root": root,
            "address": str(request.url.path),
            "query": request.url.query,
            "style_ids": _templates.style_ids(),
            "library": f"{root}/static/plotly.js?{_templates.library_tag()}",
            "token": self._tokens.for_form(request) if may_write else None,
            "sign_out": self._options.sign_out,
            "exported": False,
            "now_ms": now_ms(),
        }


def _static(request: Request) -> Response:
    name = request.path_params["name"]
    path = (STATIC if name in _GRAPH_FILES else _templates.FOLDER / "static") / name
    if path.suffix not in _STATIC_TYPES or not path.is_file():
        raise HTTPException(404)
    return FileResponse(path, media_type=_STATIC_TYPES[path.suffix], headers={"Cache-Control": "no-cache"})


def _library(request: Request) -> Response:
    headers = {"Cache-Control": "public, max-age=31536000, immutable", "Vary": "Accept-Encoding"}
    if "gzip" in request.headers.get("accept-encoding", ""):
        headers["Content-Encoding"] = "gzip"
        return Response(_templates.library_packed(), media_type="text/javascript", headers=headers)
    return FileResponse(_templates.library_path(), media_type="text/javascript", headers=headers)
