"""Answers that many pages need and that change slowly: the names in pickers and column lists."""

from __future__ import annotations

import contextlib
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

from embedl_hub.errors import HubError

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

Found = TypeVar("Found")
_FRESH_S = 15.0
_OLD_S = 600.0
_MOST = 256
_MOST_FOREVER = 10_000


@dataclass
class Memory:
    """Keeps answers. An answer that is no longer fresh is given once more while a new one is looked for."""

    _kept: dict[Hashable, tuple[float, object]] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _forever: dict[Hashable, object] = field(default_factory=dict)
    _asked: set[Hashable] = field(default_factory=set)

    def recall(self, key: Hashable, look: Callable[[], Found]) -> Found:
        """Return the answer for a key."""
        found = self._kept.get(key)
        age_s = _OLD_S if found is None else time.monotonic() - found[0]
        if found is None or age_s >= _OLD_S:
            return self._look(key, look)
        if age_s >= _FRESH_S:
            with self._lock:
                is_first = key not in self._asked
                self._asked.add(key)
            if is_first:
                threading.Thread(target=self._look_again, args=(key, look), daemon=True).start()
        return found[1]  # type: ignore[return-value]

    def keep(self, key: Hashable, look: Callable[[], Found]) -> Found:
        """Return the answer for a key, of something that never changes."""
        if key in self._forever:
            return self._forever[key]  # type: ignore[return-value]
        if len(self._forever) >= _MOST_FOREVER:
            self._forever = {}
        answer = self._forever[key] = look()
        return answer

    def _look(self, key: Hashable, look: Callable[[], Found]) -> Found:
        answer = look()
        with self._lock:
            if len(self._kept) >= _MOST:
                # Whoever asks for so many different things pays for looking again.
                self._kept.clear()
            self._kept[key] = (time.monotonic(), answer)
        return answer

    def _look_again(self, key: Hashable, look: Callable[[], object]) -> None:
        # Nobody waits for this one; whoever asks next after a failure looks for himself and is told.
        try:
            with contextlib.suppress(HubError):
                self._look(key, look)
        finally:
            self._asked.discard(key)
