"""The store as one visitor may see it, and answers that change slowly. Everything the page shows comes through here."""

from __future__ import annotations

import contextlib
import functools
import threading
import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from embedl_hub.errors import ConfigError, HubError, TrackingError
from embedl_hub.tracking import Page, Run, Store, check_filter

Value = TypeVar("Value")
_FRESH_S = 15.0
_OLD_S = 600.0
_MOST = 256
_MOST_FOREVER = 10_000


class NotHereError(ConfigError):
    """There is no such thing, or it is not this visitor's to see: the answer is the same."""


@dataclass(frozen=True)
class Scope:
    """A store, and the projects of it that may be seen; None for all."""

    whole: Store
    visible: frozenset[str] | None = None

    @functools.cached_property
    def store(self) -> Store:
        """The store as if it held nothing else."""
        return self.whole if self.visible is None else self.whole.for_projects(sorted(self.visible))

    def find(
        self, where: Sequence[str], *, order: str = "-started", archived: bool | None = False,
        after: str | None = None, limit: int = 50,
    ) -> Page:  # fmt: skip
        return self.store.find(_all_of(where), order=order, archived=archived, after=after, limit=limit)

    def count(self, where: Sequence[str], *, archived: bool | None = False) -> int:
        return self.store.count(_all_of(where), archived=archived)

    def having(
        self, metric: str, where: Sequence[str], *, archived: bool | None = False, metrics: Sequence[str] = (),
        params: Sequence[str] = (), artifacts: Sequence[str] = (), limit: int,
    ) -> list[Run]:  # fmt: skip
        return self.store.having(
            metric, _all_of(where), archived=archived, metrics=metrics, params=params, artifacts=artifacts, limit=limit
        )

    def run(self, run_id: str) -> Run:
        try:
            run = self.store.run(run_id)
        except TrackingError:
            run = None
        # The beginning of an id is for people at a prompt; an address names one run.
        if run is None or run.id != run_id:
            raise NotHereError(f"There is no run {run_id!r} here.")
        return run


def _all_of(where: Sequence[str]) -> str:
    parts = [text for text in where if text.strip()]
    for text in parts:
        # Alone first: what is whole by itself cannot reach out of the brackets it is put in.
        check_filter(text)
    return " and ".join(f"({text})" for text in parts)


@dataclass
class TtlCache:
    """Keeps answers for a time. An answer that is no longer fresh is given once more while a new one is looked for."""

    _kept: dict[Hashable, tuple[float, object]] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _forever: dict[Hashable, object] = field(default_factory=dict)
    _asked: set[Hashable] = field(default_factory=set)

    def get(self, key: Hashable, look: Callable[[], Value]) -> Value:
        entry = self._kept.get(key)
        age_s = _OLD_S if entry is None else time.monotonic() - entry[0]
        if entry is None or age_s >= _OLD_S:
            return self._look(key, look)
        if age_s >= _FRESH_S:
            with self._lock:
                is_first = key not in self._asked
                self._asked.add(key)
            if is_first:
                threading.Thread(target=self._look_again, args=(key, look), daemon=True).start()
        return entry[1]  # type: ignore[return-value]

    def keep(self, key: Hashable, look: Callable[[], Value]) -> Value:
        """Return the answer for a key, of something that never changes."""
        if key in self._forever:
            return self._forever[key]  # type: ignore[return-value]
        if len(self._forever) >= _MOST_FOREVER:
            self._forever = {}
        answer = self._forever[key] = look()
        return answer

    def _look(self, key: Hashable, look: Callable[[], Value]) -> Value:
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
