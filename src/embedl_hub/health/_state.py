"""A board's state is its latest health run: nothing else is kept, so nothing can contradict it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from embedl_hub.tracking import RunType, equal

if TYPE_CHECKING:
    from collections.abc import Iterable

    from embedl_hub.tracking import Run, Store

RUN_NAME = "health"
TAG = "health"
WORDS = ("ok", "failed")
State = Literal["ok", "out", "unknown"]


@dataclass(frozen=True)
class Health:
    """How a device is.

    Attributes:
        state: ``ok``; ``out`` when its latest check failed; ``unknown`` when it was never checked.
        since_ms: Since when it is so.
        checked_ms: When it was last checked.
        reason: Why it is out.
        run_id: The latest check.
    """

    state: State = "unknown"
    since_ms: int | None = None
    checked_ms: int | None = None
    reason: str = ""
    run_id: str | None = None


def device_health(store: Store | None, names: Iterable[str]) -> dict[str, Health]:
    """Return how devices are, by name: two short questions to the index for each."""
    return {name: Health() if store is None else _latest(store, name) for name in names}


def _latest(store: Store, name: str) -> Health:
    check = " and ".join([equal("device", name), equal("type", RunType.CUSTOM), equal("name", RUN_NAME)])
    # One question for each word: an equality that few runs meet is where the index starts, however many runs a device
    # has had since.
    pages = [store.find(f"{equal('tags', word, name=TAG)} and {check}", archived=None, limit=1) for word in WORDS]
    latest = max((run for page in pages for run in page.runs), key=lambda run: run.id, default=None)
    return Health() if latest is None else health_of(latest)


def health_of(run: Run) -> Health:
    """Return the state that a health run stands for."""
    since = run.params.get("since_ms")
    since_ms = since.value if since is not None and isinstance(since.value, int) else run.started_ms
    is_ok = run.tags.get(TAG) == "ok"
    return Health("ok" if is_ok else "out", since_ms, run.started_ms, "" if is_ok else run.error or "", run.id)
