"""Talking to a server: one connection, kept open, with time limits; every answer is one of a few kinds."""

from __future__ import annotations

import contextlib
import json
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from embedl_hub.errors import TrackingError

if TYPE_CHECKING:
    import http.client

    from embedl_hub.credentials import Server

_LIMIT_S = 30.0
_LARGEST_ANSWER = 16 << 20


class UnreachableError(TrackingError):
    """The server did not answer, or is busy and asks to wait; what was asked can be asked again."""

    def __init__(self, message: str, *, is_down: bool, wait_s: float = 0.0) -> None:
        super().__init__(message)
        self.is_down = is_down
        self.wait_s = wait_s


class NotAllowedError(TrackingError):
    """The server does not take the key; ``is_closed`` when it says that only another key might open the project."""

    def __init__(self, message: str, *, is_closed: bool) -> None:
        super().__init__(message)
        self.is_closed = is_closed


class RefusedError(TrackingError):
    """The server will not take this, however often it is sent; ``code`` is its word for the reason."""

    def __init__(self, message: str, *, status: int = 0, code: str = "", last: int = -1) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.last = last


class Wire:
    """A connection to a server; made on first use, and again after every trouble."""

    def __init__(self, server: Server) -> None:
        server.check_way()
        self._server = server
        self._url = urlsplit(server.url)
        self._connection: http.client.HTTPConnection | None = None
        self.limit_s = _LIMIT_S

    def ask(
        self, method: str, path: str, body: bytes | None = None, headers: dict[str, str] | None = None
    ) -> tuple[dict[str, Any], dict[str, str]]:
        """Return the data of an answer and its headers, or raise one of the errors above."""
        import http.client  # noqa: PLC0415 - runs without a server must not pay for it

        all_headers = {"Authorization": f"Bearer {self._server.key or ''}", **(headers or {})}
        # A server that was restarted has forgotten an open connection; that alone says nothing about a new one.
        is_old = self._connection is not None and self._connection.sock is not None
        try:
            connection = self._connect()
            connection.request(method, self._url.path + path, body=body, headers=all_headers)
            answer = connection.getresponse()
            text = answer.read(_LARGEST_ANSWER)
        except (OSError, http.client.HTTPException) as error:
            self.close()
            if is_old and isinstance(error, ConnectionError):
                return self.ask(method, path, body, headers)
            raise UnreachableError(f"{self._server.url} cannot be reached: {error}", is_down=True) from error
        received = {name.lower(): value for name, value in answer.getheaders()}
        if answer.status < 300:
            return _document(text), received
        raise self._refusal(answer.status, text, received)

    def close(self) -> None:
        """Close the connection; the next question makes another one."""
        if self._connection is not None:
            with contextlib.suppress(OSError):
                self._connection.close()
            self._connection = None

    def _connect(self) -> http.client.HTTPConnection:
        import http.client  # noqa: PLC0415 - as above

        if self._connection is None:
            kind = http.client.HTTPSConnection if self._url.scheme == "https" else http.client.HTTPConnection
            self._connection = kind(self._url.hostname or "", self._url.port, timeout=self.limit_s)
        self._connection.timeout = self.limit_s
        if self._connection.sock is not None:
            self._connection.sock.settimeout(self.limit_s)
        return self._connection

    def _refusal(self, status: int, text: bytes, headers: dict[str, str]) -> TrackingError:
        errors = _document(text).get("errors")
        first = errors[0] if isinstance(errors, list) and errors and isinstance(errors[0], dict) else {}
        code, message = str(first.get("code", "")), str(first.get("message", ""))
        what = f"{self._server.url} answers {status}{f': {message}' if message else ''}"
        if status in {408, 425, 429} or status >= 500 or code == "busy":
            if status >= 500:
                self.close()
            wait = headers.get("retry-after", "")
            wait_s = float(min(int(wait), 60)) if wait.isascii() and wait.isdigit() else 0.0
            return UnreachableError(what, is_down=False, wait_s=wait_s)
        if status in {401, 403, 404}:
            # A proxy or a wrong address answers 404 too, but not in our words.
            return NotAllowedError(
                f"{what} Check the key and which projects it opens: embedl-hub auth --check",
                is_closed=status != 401 and bool(code),
            )
        details = first.get("details")
        last = details.get("last", -1) if isinstance(details, dict) else -1
        return RefusedError(what, status=status, code=code, last=last if isinstance(last, int) else -1)


def _document(text: bytes) -> dict[str, object]:
    try:
        document = json.loads(text) if text else {}
    except ValueError:
        document = {}
    return document if isinstance(document, dict) else {}
