"""What a server is told when it starts."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

_MOST_AT_ONCE = 4


def _spare_cores() -> int:
    """Return how many cores one key may keep busy, so that one is left to the others."""
    return max(1, min(_MOST_AT_ONCE, len(os.sched_getaffinity(0)) - 1))


@dataclass(frozen=True)
class Settings:
    """How to serve a home."""

    home: Path  # the server's folder, of its own
    host: str = "127.0.0.1"  # the address to listen on
    port: int = 8410  # the port; 0 takes a free one
    database: str | None = None  # the address of a PostgreSQL database for the index; a file in the home if not given
    # The address of a bucket for contents, such as ``s3://bucket/folder``; the home if not given
    artifacts: str | None = None
    durable: bool = True  # whether what is acknowledged survives a power cut
    rate: float = 500.0  # requests per second that one key may make, over time
    burst: float = 1000.0  # requests that one key may make at once
    largest_artifact_bytes: int = 16 << 30  # no file may be larger
    wrong_keys: float = 20.0  # how many wrong keys one address may show at once; then one per second
    key_runs: int = 1_000_000  # how many runs one key may have
    key_bytes: int = 1 << 40  # how much one key may send in all
    threads: int = 32  # how many requests are worked on at once
    query_s: float = 5.0  # how long the questions of one request to the database may take
    # How many reading requests of one key are worked on at once; the rest wait their turn
    queries_at_once: int = field(default_factory=_spare_cores)
    # How many connections wait for their clients, of one address and in all; a new one takes the place of the oldest
    connections_per_address: int = 500
    connections: int = 2000
    certificate: Path | None = None  # A file with the certificate, to serve over TLS
    private_key: Path | None = None  # A file with its key
    shutdown_s: int = 20  # how long requests may take to end after SIGTERM
