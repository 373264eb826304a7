"""Talking to an MLflow server: JSON questions, files both ways; answers are bounded, redirects are not followed.

https://mlflow.org/docs/latest/api_reference/rest-api.html, as MLflow 2 and 3 answer.
"""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Self
from urllib.parse import quote, urlencode, urlsplit

from embedl_device.readers import UnreadableError, parse_json
from embedl_hub.credentials import INSECURE_VARIABLE, is_loopback
from embedl_hub.errors import ConfigError, TrackingError
from embedl_hub.tracking import Redactor

TOKEN_VARIABLE = "MLFLOW_TRACKING_TOKEN"  # noqa: S105 - the name, not a token
USER_VARIABLE = "MLFLOW_TRACKING_USERNAME"
PASSWORD_VARIABLE = "MLFLOW_TRACKING_PASSWORD"  # noqa: S105
_LIMIT_S = 60.0
_LARGEST_ANSWER = 32 << 20
_CHUNK_BYTES = 1 << 20
_MOST_PAGES = 10_000
_TRIES = 4
_PAUSE_S = 0.2
PROXY = "/api/2.0/mlflow-artifacts/artifacts/"


class AbsentError(TrackingError):
    """The server does not have what was asked for."""


class RefusedError(TrackingError):
    """The server does not take this, however often it is sent."""


@dataclass(frozen=True)
class Server:
    """An MLflow server and what opens it, which is never shown."""

    url: str
    token: str | None = field(default=None, repr=False)
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    insecure: bool = False  # whether they may be sent in plain text to another machine

    @classmethod
    def at(cls, url: str) -> Server:
        """Return the server of an address, with what MLflow's own variables in the environment say opens it."""
        try:
            parts = urlsplit(url.strip())
            is_right = parts.port != 0 and parts.scheme in {"http", "https"} and bool(parts.hostname)
        except ValueError:
            is_right = False
        if not is_right or parts.query or parts.fragment:
            raise ConfigError(f"{url!r:.300} is no address of an MLflow server; it looks like http://127.0.0.1:5000.")
        if parts.username or parts.password:
            raise ConfigError(
                f"A password has no place in an address, where others see it; set {USER_VARIABLE} and "
                f"{PASSWORD_VARIABLE}, or {TOKEN_VARIABLE}."
            )
        token, user, password = map(os.environ.get, (TOKEN_VARIABLE, USER_VARIABLE, PASSWORD_VARIABLE))
        insecure = os.environ.get(INSECURE_VARIABLE, "") not in {"", "0"}
        return cls(url.strip().rstrip("/"), token, user, password, insecure)

    def headers(self) -> dict[str, str]:
        """Return what opens the server; refuse to send it where everybody on the way could read it."""
        if not self.token and not self.username:
            return {}
        parts = urlsplit(self.url)
        if not self.insecure and parts.scheme != "https" and not is_loopback(parts.hostname or ""):
            raise ConfigError(
                f"What opens {self.url} would be sent there in plain text, where everybody on the way can read it. Use "
                f"https://, or an SSH tunnel to 127.0.0.1; if the way there is safe, say so: {INSECURE_VARIABLE}=1"
            )
        if self.token:
            return {"Authorization": f"Bearer {self.token}"}
        login = base64.b64encode(f"{self.username}:{self.password or ''}".encode()).decode()
        return {"Authorization": f"Basic {login}"}


class Api:
    """A connection to an MLflow server; made on first use, and again after every trouble."""

    def __init__(self, server: Server) -> None:
        self.url = server.url
        self._parts = urlsplit(server.url)
        self._headers = server.headers()
        self._connection: http.client.HTTPConnection | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection; the next question makes another one."""
        if self._connection is not None:
            with contextlib.suppress(OSError):
                self._connection.close()
            self._connection = None

    def get(self, path: str, query: Mapping[str, object]) -> dict[str, Any]:
        """Ask for something; again after a trouble on the way."""
        given = {name: value for name, value in query.items() if value is not None}
        return self._again("GET", f"/api/2.0/mlflow/{path}?{urlencode(given)}", None)

    def post(self, path: str, facts: Mapping[str, object], *, repeats: bool = True) -> dict[str, Any]:
        """Send something; again after a trouble on the way, unless it must not be sent twice."""
        body = json.dumps({name: value for name, value in facts.items() if value is not None}).encode()
        return self._again("POST", f"/api/2.0/mlflow/{path}", body, tries=_TRIES if repeats else 1)

    def pages(
        self, path: str, what: str, facts: Mapping[str, object], *, by_post: bool = False
    ) -> Iterator[dict[str, Any]]:
        """Yield the items of an answer that comes in pages."""
        token: object = None
        for _ in range(_MOST_PAGES):
            asked = {**facts, "page_token": token}
            answer = self.post(path, asked) if by_post else self.get(path, asked)
            yield from objects(answer.get(what))
            before, token = token, answer.get("next_page_token")
            if not token:
                return
            if not isinstance(token, str) or token == before:
                break
        raise self._odd(f"its pages of {what} have no end")

    def upload(self, path: str, file: BinaryIO, size: int) -> None:
        """Put a file among the artifacts that the server keeps."""
        headers = {"Content-Length": str(size), "Content-Type": "application/octet-stream"}
        for last in _attempts():
            try:
                file.seek(0)
                self._read(self._send("PUT", PROXY + quote(path), file, headers))
            except _TroubleError as error:
                last.fail(error)
            else:
                return

    def download(self, address: str, target: Path, most_bytes: int) -> int:
        """Bring an artifact here and return its size; refuse one that is larger than allowed."""
        for last in _attempts():
            try:
                answer = self._send("GET", address, None, {})
                if answer.status != 200:
                    self._read(answer)
                    raise self._odd(f"it answers {answer.status} where a file should be")
                return self._receive(answer, target, most_bytes)
            except _TroubleError as error:
                last.fail(error)
        raise AssertionError  # the last attempt raises

    def _receive(self, answer: http.client.HTTPResponse, target: Path, most_bytes: int) -> int:
        size = 0
        try:
            with target.open("wb") as file:
                while chunk := answer.read(_CHUNK_BYTES):
                    size += len(chunk)
                    if size > most_bytes:
                        self.close()
                        raise TooLargeError(f"it is larger than the {most_bytes >> 20} MiB that are allowed")
                    file.write(chunk)
        except (ConnectionError, TimeoutError, http.client.HTTPException) as error:
            self.close()
            raise _TroubleError(f"{self.url} broke off: {error!r}") from error
        return size

    def _again(self, method: str, path: str, body: bytes | None, *, tries: int = _TRIES) -> dict[str, Any]:
        for last in _attempts(tries):
            try:
                headers = {"Content-Type": "application/json"} if body is not None else {}
                return self._read(self._send(method, path, body, headers))
            except _TroubleError as error:
                last.fail(error)
        raise AssertionError  # the last attempt raises

    def _send(self, method: str, path: str, body: Any, headers: Mapping[str, str]) -> http.client.HTTPResponse:  # noqa: ANN401 - bytes or a file
        if self._connection is None:
            kind = http.client.HTTPSConnection if self._parts.scheme == "https" else http.client.HTTPConnection
            self._connection = kind(self._parts.hostname or "", self._parts.port, timeout=_LIMIT_S)
        try:
            # The address is asked to answer plainly: what is unpacked here could be of any size.
            sent = {"Accept-Encoding": "identity", **headers, **self._headers}
            self._connection.request(method, self._parts.path.rstrip("/") + path, body=body, headers=sent)
            return self._connection.getresponse()
        except (OSError, http.client.HTTPException) as error:
            self.close()
            raise _TroubleError(f"{self.url} cannot be reached: {error}") from error

    def _read(self, answer: http.client.HTTPResponse) -> dict[str, Any]:
        try:
            text = answer.read(_LARGEST_ANSWER + 1)
        except (OSError, http.client.HTTPException) as error:
            self.close()
            raise _TroubleError(f"{self.url} broke off: {error!r}") from error
        if len(text) > _LARGEST_ANSWER:
            self.close()
            raise self._odd(f"it has more than {_LARGEST_ANSWER >> 20} MiB")
        if 300 <= answer.status < 400:
            place = answer.headers.get("Location", "")
            raise TrackingError(
                f"{self.url} leads to {place!r:.200}, which is not followed; give that address if it is right."
            )
        document = _document(text)
        if answer.status < 300:
            if document is None:
                raise self._odd("it is no JSON object")
            return document
        raise self._refusal(answer.status, document or {})

    def _refusal(self, status: int, document: Mapping[str, Any]) -> TrackingError:
        code, message = document.get("error_code"), document.get("message")
        # What a server quotes of a question may be what opens it.
        words = f": {Redactor().text(message)[:500]}" if isinstance(message, str) else ""
        what = f"{self.url} answers {status}{words}"
        if status in {408, 425, 429} or status >= 500:
            return _TroubleError(what)
        if status in {401, 403}:
            return RefusedError(
                f"{what} What opens it is set with {TOKEN_VARIABLE}, or {USER_VARIABLE} and {PASSWORD_VARIABLE}."
            )
        if code == "RESOURCE_DOES_NOT_EXIST":
            return AbsentError(what)
        if status == 404:
            return AbsentError(f"{what} Is it the address of an MLflow server?")
        return RefusedError(what)

    def _odd(self, why: str) -> TrackingError:
        return TrackingError(f"The answer of {self.url} is not an MLflow server's: {why}.")


class TooLargeError(TrackingError):
    """A file is larger than allowed."""


class _TroubleError(TrackingError):
    """The server did not answer, or is busy; what was asked can be asked again."""


class _Attempt:
    def __init__(self, number: int, tries: int) -> None:
        self._number, self._tries = number, tries

    def fail(self, error: _TroubleError) -> None:
        if self._number + 1 >= self._tries:
            raise TrackingError(f"{error} The same command goes on where it stopped.") from error
        time.sleep(_PAUSE_S * 2**self._number)


def _attempts(tries: int = _TRIES) -> Iterator[_Attempt]:
    for number in range(tries):
        yield _Attempt(number, tries)


def _document(text: bytes) -> dict[str, Any] | None:
    try:
        found = parse_json(text) if text.strip() else {}
    except UnreadableError:
        return None
    return found if isinstance(found, dict) else None


def objects(value: object) -> list[dict[str, Any]]:
    """Return the objects of a list that came from a server; nothing where there is no list."""
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def text_of(facts: Mapping[str, Any], name: str) -> str:
    """Return a text of an object that came from a server; an empty one where there is none."""
    value = facts.get(name)
    return value if isinstance(value, str) else ""


def whole_of(facts: Mapping[str, Any], name: str) -> int | None:
    """Return a whole number of such an object: as JSON's own, or as the text that 64 bits are sent as."""
    value = facts.get(name)
    if isinstance(value, str) and value.lstrip("-").isascii() and value.lstrip("-").isdigit() and len(value) <= 20:
        return int(value)
    return value if type(value) is int else None
