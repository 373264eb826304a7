"""How often somebody may ask: a bucket of tokens that fills with time."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

_MOST_BUCKETS = 10_000


class Buckets:
    """One bucket per name.

    Args:
        rate: Tokens per second.
        burst: Tokens in a full bucket.
        clock: Seconds that only grow.
    """

    def __init__(self, rate: float, burst: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._rate = rate
        self._burst = burst
        self._clock = clock
        self._levels: dict[str, tuple[float, float]] = {}
        self._lock = threading.Lock()

    def wait_s(self, name: str, *, take: bool = True) -> float:
        """Take a token and return 0, or return how long to wait for one."""
        now = self._clock()
        with self._lock:
            level, at = self._levels.get(name, (self._burst, now))
            level = min(self._burst, level + (now - at) * self._rate)
            if level < 1:
                return (1 - level) / self._rate
            if take:
                if len(self._levels) >= _MOST_BUCKETS:
                    self._forget_full(now)
                self._levels[name] = (level - 1, now)
            return 0.0

    def _forget_full(self, now: float) -> None:
        self._levels = {
            name: (level, at)
            for name, (level, at) in self._levels.items()
            if level + (now - at) * self._rate < self._burst
        }
