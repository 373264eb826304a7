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
    """The server did not answer, or not now; what was asked can be asked again.

    Attributes:
        is_down: Nobody answered; otherwise the server is there and busy.
        wait_s: How long it asks to wait.
    """

    def __init__(self, message: str, *, is_down: bool, wait_s: float = 0.0) -> None:
        super().__init__(message)
        self.is_down = is_down
        self.wait_s = wait_s


class NotAllowedError(TrackingError):
    """The server does not take the key, or the key does not open the project.

    Attributes:
        is_closed: The server itself says that this key will never see it; another key might.
    """

    def __init__(self, message: str, *, is_closed: bool) -> None:
        super().__init__(message)
        self.is_closed = is_closed


class RefusedError(TrackingError):
    """The server will not take this, however often it is sent.

    Attributes:
        status: The HTTP status.
        code: The server's word for the reason.
        details: Its facts.
    """

    def __init__(self, message: str, *, status: int, code: str, details: dict[str, Any]) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.details = details


class Wire:
    """A connection to a server; made on first use, and again after every trouble."""

    def __init__(self, server: Server) -> None:
        self._server = server
        parts = urlsplit(server.url)
        self._is_tls = parts.scheme == "https"
        self._host, self._port = parts.hostname or "", parts.port
        self._base = parts.path
        self._connection: http.client.HTTPConnection | None = None
        self.limit_s = _LIMIT_S

    def ask(
        self, method: str, path: str, body: bytes | None = None, headers: dict[str, str] | None = None
    ) -> tuple[dict[str, Any], dict[str, str]]:
        """Return the data of an answer and its headers.

        Raises:
            UnreachableError: No answer, or a temporary one.
            NotAllowedError: The key does not open this.
            RefusedError: A final no.
        """
        import http.client  # noqa: PLC0415 - runs without a server must not pay for it

        all_headers = {"Authorization": f"Bearer {self._server.key or ''}", **(headers or {})}
        # A server that was restarted has forgotten an open connection; that alone says nothing about a new one.
        is_old = self._connection is not None and self._connection.sock is not None
        try:
            connection = self._connect()
            connection.request(method, self._base + path, body=body, headers=all_headers)
            answer = connection.getresponse()
            text = answer.read(_LARGEST_ANSWER)
        except (OSError, http.client.HTTPException) as error:
            self.close()
            if is_old and isinstance(error, ConnectionError):
                return self.ask(method, path, body, headers)
            raise UnreachableError(f"{self._server.url} cannot be reached: {error}", is_down=True) from error
        found = {name.lower(): value for name, value in answer.getheaders()}
        if answer.status < 300:
            return _document(text), found
        raise self._no(answer.status, text, found)

    def close(self) -> None:
        """Close the connection; the next question makes another one."""
        if self._connection is not None:
            with contextlib.suppress(OSError):
                self._connection.close()
            self._connection = None

    def _connect(self) -> http.client.HTTPConnection:
        import http.client  # noqa: PLC0415 - as above

        if self._connection is None:
            kind = http.client.HTTPSConnection if self._is_tls else http.client.HTTPConnection
            self._connection = kind(self._host, self._port, timeout=self.limit_s)
        self._connection.timeout = self.limit_s
        if self._connection.sock is not None:
            self._connection.sock.settimeout(self.limit_s)
        return self._connection

    def _no(self, status: int, text: bytes, headers: dict[str, str]) -> TrackingError:
        document = _document(text)
        errors = document.get("errors")
        first = errors[0] if isinstance(errors, list) and errors and isinstance(errors[0], dict) else {}
        code, message = str(first.get("code", "")), str(first.get("message", ""))
        what = f"{self._server.url} answers {status}{f': {message}' if message else ''}"
        if status in {408, 425, 429} or status >= 500 or code == "busy":
            if status >= 500:
                self.close()
            return UnreachableError(what, is_down=False, wait_s=_seconds(headers.get("retry-after", "")))
        if status in {401, 403, 404}:
            # A proxy or a wrong address answers 404 too, but not in our words.
            return NotAllowedError(
                f"{what} Check the key and which projects it opens: embedl-hub auth --check",
                is_closed=status != 401 and bool(code),
            )
        details = first.get("details")
        return RefusedError(what, status=status, code=code, details=details if isinstance(details, dict) else {})


def _document(text: bytes) -> dict[str, Any]:
    try:
        found = json.loads(text) if text else {}
    except ValueError:
        found = {}
    return found if isinstance(found, dict) else {}


def _seconds(text: str) -> float:
    return float(min(int(text), 60)) if text.isascii() and text.isdigit() else 0.0
