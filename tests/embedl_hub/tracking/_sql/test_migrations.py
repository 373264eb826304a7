"""The database's shape and the way it grows."""

from __future__ import annotations

import re
import sqlite3
from typing import TYPE_CHECKING

import pytest

from embedl_hub.errors import TrackingError
from embedl_hub.tracking import Store, _store
from embedl_hub.tracking._sql.migrations import MIGRATIONS

if TYPE_CHECKING:
    from pathlib import Path

    from embedl_hub.tracking._sql.database import Connection, SqlDialect


def shape(database: Path) -> list[tuple[str, str]]:
    """Return every statement the database is made of."""
    connection = sqlite3.connect(database)
    rows = connection.execute("SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL ORDER BY name").fetchall()
    connection.close()
    return rows


def version(database: Path) -> int:
    connection = sqlite3.connect(database)
    (number,) = connection.execute("PRAGMA user_version").fetchone()
    connection.close()
    return int(number)


def widen(connection: Connection, dialect: SqlDialect) -> None:
    connection.execute("ALTER TABLE run ADD COLUMN note TEXT")


def break_halfway(connection: Connection, dialect: SqlDialect) -> None:
    connection.execute("CREATE TABLE half (x)")
    connection.execute("CREATE TABLE half (x)")


def test_steps_are_numbered_in_order_and_explained() -> None:
    """Each step's name says its place in the list; its docstring says what it is for."""
    for number, step in enumerate(MIGRATIONS, start=1):
        assert re.match(rf"m{number:03d}_\w+", step.__name__)
        assert step.__doc__


def test_a_new_store_has_the_current_shape(store: Store, home: Path) -> None:
    """Opening creates the tables and records the number of steps."""
    assert version(home / "hub.db") == len(MIGRATIONS)
    tables = {name for name, sql in shape(home / "hub.db") if sql.startswith("CREATE TABLE")}
    assert tables == set(store.counts())


def test_an_older_store_is_brought_up_with_its_runs(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A new step runs once on an existing store, and the rows stay."""
    with Store(home) as store:
        store.apply({"1": [{"seq": 0, "kind": "start", "time_ms": 1, "project": "p", "type": "CUSTOM", "name": "old"}]})
    monkeypatch.setattr(_store, "MIGRATIONS", (*MIGRATIONS, widen))
    for _ in range(2):
        with Store(home) as store:
            assert [run.name for run in store.runs()] == ["old"]
    assert version(home / "hub.db") == len(MIGRATIONS) + 1


def test_a_step_that_fails_leaves_the_old_shape(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All steps of one opening happen together or not at all."""
    with Store(home):
        before = shape(home / "hub.db")
    monkeypatch.setattr(_store, "MIGRATIONS", (*MIGRATIONS, widen, break_halfway))
    with pytest.raises(TrackingError, match="half already exists"):
        Store(home).open()
    assert shape(home / "hub.db") == before
    assert version(home / "hub.db") == len(MIGRATIONS)


def test_a_store_of_a_newer_version_is_refused(home: Path) -> None:
    """The message gives both numbers and the command to update, and the store is left alone."""
    with Store(home):
        pass
    connection = sqlite3.connect(home / "hub.db")
    connection.execute("PRAGMA user_version = 99")
    connection.close()
    with pytest.raises(TrackingError) as caught:
        Store(home).open()
    text = str(caught.value)
    assert str(home) in text
    assert f"shape 99, this version knows {len(MIGRATIONS)}" in text
    assert "pip install --upgrade edgeproof-hub" in text
    assert version(home / "hub.db") == 99
