"""An answer that says no, and why."""

from __future__ import annotations

from collections.abc import Mapping


class Refusal(Exception):  # noqa: N818 - no error of ours: an answer to a client
    """What a client asked for is not done: the code and the details are for programs, the message is for people."""

    def __init__(
        self, status: int, code: str, message: str, *,
        details: Mapping[str, object] | None = None, headers: Mapping[str, str] | None = None,
    ) -> None:  # fmt: skip
        super().__init__(message)
        self.status = status
        self.headers = dict(headers or {})
        self._error = {"code": code, "message": message, "details": dict(details or {})}

    def document(self) -> dict[str, object]:
        """Return the body of the answer."""
        return {"errors": [self._error]}


def not_found() -> Refusal:
    """Return the one answer to everything that is not there or not for this key."""
    return Refusal(404, "not_found", "There is nothing here that this key may see.")


def bad_request(message: str) -> Refusal:
    """Return the answer to what cannot be understood."""
    return Refusal(400, "bad_request", message)


def too_many(wait_s: float) -> Refusal:
    """Return the answer to whoever asks more often than is allowed."""
    seconds = str(max(1, round(wait_s)))
    return Refusal(429, "too_many_requests", "Too many requests.", headers={"Retry-After": seconds})
