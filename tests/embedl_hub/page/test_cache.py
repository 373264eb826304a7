"""Answers that are kept for a while."""

from __future__ import annotations

import threading

import pytest

from embedl_hub.errors import TrackingError
from embedl_hub.page import _scope
from embedl_hub.page._scope import TtlCache


def test_a_fresh_answer_is_given_again() -> None:
    cache, asked = TtlCache(), iter(range(9))
    assert [cache.get("key", lambda: next(asked)) for _ in range(3)] == [0, 0, 0]
    assert cache.get("other", lambda: next(asked)) == 1


def test_an_old_answer_is_given_while_a_new_one_is_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits; the next one has it. A failure is left to whoever asks then."""
    cache, looked = TtlCache(), threading.Event()
    assert cache.get("key", lambda: "old") == "old"
    monkeypatch.setattr(_scope, "_FRESH_S", 0.0)

    def look() -> str:
        looked.set()
        return "new"

    def fail() -> str:
        looked.set()
        raise TrackingError("away")

    assert cache.get("key", fail) == "old"
    assert looked.wait(10)
    while cache._asked:
        pass
    looked.clear()
    assert cache.get("key", look) == "old"
    assert looked.wait(10)
    while cache._asked:
        pass
    assert cache.get("key", look) == "new"


def test_what_never_changes_is_looked_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """And forgotten when there is too much of it."""
    monkeypatch.setattr(_scope, "_MOST_FOREVER", 2)
    cache, asked = TtlCache(), iter(range(9))
    assert [cache.keep("a", lambda: next(asked)) for _ in range(2)] == [0, 0]
    assert [cache.keep(key, lambda: next(asked)) for key in ("b", "c", "a")] == [1, 2, 3]
