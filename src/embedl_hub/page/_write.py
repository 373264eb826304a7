"""The few changes the page can make: label, note down, archive and delete a run that has ended.

A form must prove that it came from a page of ours: it holds a token that only fits the visitor's own cookie.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Mapping
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, quote

from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.responses import RedirectResponse, Response

from embedl_hub.errors import ConfigError, TrackingError
from embedl_hub.tracking import check_name

if TYPE_CHECKING:
    from starlette.requests import Request

    from embedl_hub.page._scope import Scope

_COOKIE = "embedl_hub_form"
_LARGEST_FORM_BYTES = 64_000
_LONGEST_NOTE = 2000


class Tokens:
    """Makes and checks the tokens of forms."""

    def __init__(self) -> None:
        self._secret = secrets.token_bytes(32)

    def for_form(self, request: Request) -> str:
        return self._sign(self._visitor(request))

    def keep(self, request: Request, response: Response) -> None:
        """Give the visitor the cookie that the token fits, if a token was made."""
        new = getattr(request.state, "new_visitor", None)
        if new is not None:
            path = request.scope.get("root_path", "") or "/"
            secure = request.url.scheme == "https"
            response.set_cookie(_COOKIE, new, path=path, secure=secure, httponly=True, samesite="strict")

    def fits(self, request: Request, token: str) -> bool:
        visitor = request.cookies.get(_COOKIE)
        return visitor is not None and hmac.compare_digest(self._sign(visitor).encode(), token.encode())

    def _visitor(self, request: Request) -> str:
        visitor = request.cookies.get(_COOKIE) or getattr(request.state, "new_visitor", None)
        if visitor is None:
            visitor = request.state.new_visitor = secrets.token_urlsafe(24)
        return visitor

    def _sign(self, visitor: str) -> str:
        return hmac.new(self._secret, visitor.encode(), hashlib.sha256).hexdigest()


async def change(request: Request, scope: Scope, tokens: Tokens) -> Response:
    """Carry out a form of the run page."""
    form = await _form(request)
    from_elsewhere = request.headers.get("sec-fetch-site", "same-origin") not in {"same-origin", "none"}
    if from_elsewhere or not tokens.fits(request, form.get("token", "")):
        raise HTTPException(403, "This form is not from this page, or too old. Go back, reload the page and try again.")
    try:
        where = await run_in_threadpool(_carry_out, request.path_params, form, scope)
    except TrackingError as error:
        # A run that still goes on, most likely; the store is well enough to say so.
        raise HTTPException(409, str(error)) from error
    return RedirectResponse(request.scope.get("root_path", "") + where, status_code=303)


async def _form(request: Request) -> dict[str, str]:
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > _LARGEST_FORM_BYTES:
            raise HTTPException(413, "This form is too large.")
    return dict(parse_qsl(body.decode("utf-8", "replace"), keep_blank_values=True, max_num_fields=16))


def _carry_out(path: Mapping[str, str], form: Mapping[str, str], scope: Scope) -> str:
    run, what = scope.run(path["run_id"]), path["change"]
    if what == "archive":
        # What is meant, not the opposite of what is: a browser may send a form a second time on its own.
        scope.store.archive(run.id, archived=form.get("archived") != "no")
    elif what == "label":
        check_name("tag", form.get("name", ""))
        scope.store.label(run.id, form["name"], form.get("value", ""))
    elif what == "note":
        scope.store.label(run.id, "note", form.get("text", "")[:_LONGEST_NOTE])
    elif what == "delete":
        if form.get("sure") != "yes":
            raise ConfigError("A run is deleted for good; tick the box beside the button if that is meant.")
        scope.store.delete(run.id)
        return f"/runs?project={quote(run.project, safe='')}"
    else:
        raise HTTPException(404)
    return f"/runs/{run.id}"
