"""An answer that says no, and why."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping


class Refusal(Exception):  # noqa: N818 - no error of ours: an answer to a client
    """What a client asked for is not done.

    Attributes:
        status: The HTTP status.
        code: One word for programs.
        message: One sentence for people.
        details: Facts for programs.
        headers: Headers of the answer.
    """

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        *,
        details: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.details = dict(details or {})
        self.headers = dict(headers or {})

    def document(self) -> dict[str, Any]:
        """Return the body of the answer."""
        return {"errors": [{"code": self.code, "message": self.message, "details": self.details}]}


def not_found() -> Refusal:
    """Return the one answer to everything that is not there or not for this key."""
    return Refusal(404, "not_found", "There is nothing here that this key may see.")


def bad_request(message: str) -> Refusal:
    """Return the answer to what cannot be understood."""
    return Refusal(400, "bad_request", message)
