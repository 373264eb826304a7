"""Answers that are kept for a while."""

from __future__ import annotations

import threading

import pytest

from embedl_hub.errors import TrackingError
from embedl_hub.page import _remember
from embedl_hub.page._remember import Memory


def test_a_fresh_answer_is_given_again() -> None:
    memory, asked = Memory(), iter(range(9))
    assert [memory.recall("key", lambda: next(asked)) for _ in range(3)] == [0, 0, 0]
    assert memory.recall("other", lambda: next(asked)) == 1


def test_an_old_answer_is_given_while_a_new_one_is_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits; the next one has it. A failure is left to whoever asks then."""
    memory, looked = Memory(), threading.Event()
    assert memory.recall("key", lambda: "old") == "old"
    monkeypatch.setattr(_remember, "_FRESH_S", 0.0)

    def look() -> str:
        looked.set()
        return "new"

    def fail() -> str:
        looked.set()
        raise TrackingError("away")

    assert memory.recall("key", fail) == "old"
    assert looked.wait(10)
    while memory._asked:
        pass
    looked.clear()
    assert memory.recall("key", look) == "old"
    assert looked.wait(10)
    while memory._asked:
        pass
    assert memory.recall("key", look) == "new"


def test_what_never_changes_is_looked_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """And forgotten when there is too much of it."""
    monkeypatch.setattr(_remember, "_MOST_FOREVER", 2)
    memory, asked = Memory(), iter(range(9))
    assert [memory.keep("a", lambda: next(asked)) for _ in range(2)] == [0, 0]
    assert [memory.keep(key, lambda: next(asked)) for key in ("b", "c", "a")] == [1, 2, 3]
