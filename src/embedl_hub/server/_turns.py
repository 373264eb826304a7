"""Whoever asks much waits for himself: a few questions of one key are worked on at once, the others take turns."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from embedl_hub.server._refusal import Refusal

_MOST_WAITING = 200


@dataclass
class _Line:
    """Who is in front of one counter."""

    free: asyncio.Semaphore
    people: int = field(default=0)


class Turns:
    """So many at once for one name; the rest wait without a thread, and not for long."""

    def __init__(self, at_once: int, wait_s: float) -> None:
        self._at_once = at_once
        self._wait_s = wait_s
        self._lines: dict[str, _Line] = {}

    @contextlib.asynccontextmanager
    async def taking(self, name: str) -> AsyncIterator[None]:
        """Wait for a turn and keep it for a block."""
        line = self._lines.setdefault(name, _Line(asyncio.Semaphore(self._at_once)))
        if line.people >= _MOST_WAITING + self._at_once:
            raise _busy()
        line.people += 1
        try:
            try:
                async with asyncio.timeout(self._wait_s):
                    await line.free.acquire()
            except TimeoutError:
                raise _busy() from None
            try:
                yield
            finally:
                line.free.release()
        finally:
            line.people -= 1
            if not line.people:
                self._lines.pop(name, None)


def _busy() -> Refusal:
    message = "Other questions of this key are still being worked on; ask one after the other."
    return Refusal(429, "too_many_at_once", message, headers={"Retry-After": "1"})
