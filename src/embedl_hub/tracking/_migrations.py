"""The database's shape, as a list of steps that only ever grows at its end."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable


def m001_runs(connection: sqlite3.Connection) -> None:
    """Projects, runs and what they logged."""
    for statement in (
        "CREATE TABLE project (key INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, created_ms INTEGER NOT NULL)",
        """CREATE TABLE run (
            key INTEGER PRIMARY KEY,
            id TEXT NOT NULL UNIQUE,
            project INTEGER NOT NULL REFERENCES project,
            type TEXT NOT NULL,
            name TEXT NOT NULL,
            status TEXT NOT NULL,
            started_ms INTEGER NOT NULL,
            ended_ms INTEGER,
            parent_id TEXT,
            component TEXT,
            provider TEXT,
            device TEXT,
            error TEXT,
            traceback TEXT,
            applied INTEGER NOT NULL
        )""",
        "CREATE INDEX run_by_project ON run (project, id)",
        "CREATE INDEX run_alive ON run (id) WHERE status = 'RUNNING'",
        "CREATE INDEX run_by_parent ON run (parent_id) WHERE parent_id IS NOT NULL",
        """CREATE TABLE param (
            run INTEGER NOT NULL, name TEXT NOT NULL, value TEXT NOT NULL, PRIMARY KEY (run, name)
        ) WITHOUT ROWID""",
        """CREATE TABLE metric (
            run INTEGER NOT NULL, name TEXT NOT NULL, seq INTEGER NOT NULL,
            value REAL, step INTEGER, time_ms INTEGER NOT NULL, PRIMARY KEY (run, name, seq)
        ) WITHOUT ROWID""",
        """CREATE TABLE tag (
            run INTEGER NOT NULL, name TEXT NOT NULL, value TEXT NOT NULL, PRIMARY KEY (run, name)
        ) WITHOUT ROWID""",
        """CREATE TABLE artifact (
            run INTEGER NOT NULL, name TEXT NOT NULL, file_name TEXT NOT NULL, sha256 TEXT NOT NULL,
            size_bytes INTEGER NOT NULL, is_folder INTEGER NOT NULL, PRIMARY KEY (run, name)
        ) WITHOUT ROWID""",
        "CREATE INDEX artifact_by_content ON artifact (sha256)",
    ):
        connection.execute(statement)


MIGRATIONS: tuple[Callable[[sqlite3.Connection], None], ...] = (m001_runs,)
