"""The database's shape, as a list of steps that only ever grows at its end."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from embedl_hub.tracking._sql.database import Connection, SqlDialect

LONGEST_INDEXED = 200
"""Longer values of parameters and tags are found by reading, not by an index: PostgreSQL's would refuse them."""


def m001_runs(connection: Connection, dialect: SqlDialect) -> None:
    """Projects, runs and what they logged."""
    text, end = dialect.text, dialect.clustered
    for statement in (
        f"CREATE TABLE project (key {dialect.key}, name {text} NOT NULL UNIQUE, created_ms BIGINT NOT NULL)",
        f"""CREATE TABLE run (
            key {dialect.key},
            id {text} NOT NULL UNIQUE,
            project BIGINT NOT NULL REFERENCES project,
            type {text} NOT NULL,
            name {text} NOT NULL,
            status {text} NOT NULL,
            started_ms BIGINT NOT NULL,
            ended_ms BIGINT,
            parent_id {text},
            component {text},
            provider {text},
            device {text},
            error {text},
            traceback {text},
            applied BIGINT NOT NULL
        )""",
        "CREATE INDEX run_by_project ON run (project, id)",
        "CREATE INDEX run_alive ON run (id) WHERE status = 'RUNNING'",
        "CREATE INDEX run_by_parent ON run (parent_id) WHERE parent_id IS NOT NULL",
        f"""CREATE TABLE param (
            run BIGINT NOT NULL, name {text} NOT NULL, value {text} NOT NULL, PRIMARY KEY (run, name)
        ){end}""",
        f"""CREATE TABLE metric (
            run BIGINT NOT NULL, name {text} NOT NULL, seq BIGINT NOT NULL,
            value DOUBLE PRECISION, step BIGINT, time_ms BIGINT NOT NULL, PRIMARY KEY (run, name, seq)
        ){end}""",
        f"""CREATE TABLE tag (
            run BIGINT NOT NULL, name {text} NOT NULL, value {text} NOT NULL, PRIMARY KEY (run, name)
        ){end}""",
        f"""CREATE TABLE artifact (
            run BIGINT NOT NULL, name {text} NOT NULL, file_name {text} NOT NULL, sha256 {text} NOT NULL,
            size_bytes BIGINT NOT NULL, is_folder BIGINT NOT NULL, PRIMARY KEY (run, name)
        ){end}""",
        "CREATE INDEX artifact_by_content ON artifact (sha256)",
    ):
        connection.execute(statement)


def m002_queries(connection: Connection, dialect: SqlDialect) -> None:  # noqa: ARG001 - a migration's signature
    """What makes runs quick to find by what they logged, and the runs that were archived."""
    for statement in (
        "ALTER TABLE run ADD COLUMN archived BIGINT NOT NULL DEFAULT 0",
        "CREATE INDEX run_by_device ON run (device, id) WHERE device IS NOT NULL",
        # The last value under a name is the one that filters and orders; the others are its history.
        "ALTER TABLE metric ADD COLUMN latest BIGINT NOT NULL DEFAULT 0",
        """UPDATE metric SET latest = 1 WHERE seq = (
            SELECT max(other.seq) FROM metric AS other WHERE other.run = metric.run AND other.name = metric.name
        )""",
        "CREATE INDEX metric_latest ON metric (name, value, run) WHERE latest = 1",
        f"CREATE INDEX param_by_value ON param (name, value, run) WHERE length(value) <= {LONGEST_INDEXED}",
        f"CREATE INDEX tag_by_value ON tag (name, value, run) WHERE length(value) <= {LONGEST_INDEXED}",
    ):
        connection.execute(statement)


MIGRATIONS: tuple[Callable[[Connection, SqlDialect], None], ...] = (m001_runs, m002_queries)
