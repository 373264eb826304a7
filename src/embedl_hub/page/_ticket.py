"""A page without a login, on a machine that others use too: only who has the printed address gets in.

The token of that address is turned into a cookie, so that it stays out of every further address.
"""

from __future__ import annotations

import hashlib
import hmac
from typing import TYPE_CHECKING
from urllib.parse import urlencode

from starlette.responses import PlainTextResponse, RedirectResponse, Response

if TYPE_CHECKING:
    from starlette.requests import Request

_PARAMETER = "token"


class Ticket:
    """What lets a visitor in."""

    def __init__(self, token: str) -> None:
        self._token = token.encode()
        self._cookie = hashlib.sha256(b"cookie " + self._token).hexdigest()

    def answer(self, request: Request) -> Response | None:
        """Return what the door itself answers; None lets the visitor through."""
        # Cookies know no ports; other pages of this machine must not take ours away.
        name = f"embedl_hub_ui_{request.url.port or 80}"
        if _PARAMETER in request.query_params and self._fits(request.query_params[_PARAMETER]):
            rest = urlencode([pair for pair in request.query_params.multi_items() if pair[0] != _PARAMETER])
            answer = RedirectResponse(request.url.path + (f"?{rest}" if rest else ""), 303)
            answer.set_cookie(name, self._cookie, httponly=True, samesite="lax", secure=request.url.scheme == "https")
            return answer
        cookie = request.cookies.get(name, "").encode("utf-8", "replace")
        word, _, shown = request.headers.get("authorization", "").partition(" ")
        if hmac.compare_digest(cookie, self._cookie.encode()) or (word.lower() == "bearer" and self._fits(shown)):
            return None
        return PlainTextResponse(
            "This page is for the user who started it. Open the address that `embedl-hub ui` printed: its token lets "
            "you in.\n",
            403,
        )

    def _fits(self, shown: str) -> bool:
        return hmac.compare_digest(shown.encode("utf-8", "replace"), self._token)
