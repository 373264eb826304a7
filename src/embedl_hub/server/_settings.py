"""What a server is told when it starts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True)
class Settings:
    """How to serve a home.

    Attributes:
        home: The server's folder, of its own.
        host: The address to listen on.
        port: The port; 0 takes a free one.
        database: The address of a PostgreSQL database for the index; a file in the home if not given.
        artifacts: The address of a bucket for contents, such as ``s3://bucket/folder``; the home if not given.
        durable: Whether what is acknowledged survives a power cut.
        rate: Requests per second that one key may make, over time.
        burst: Requests that one key may make at once.
        largest_artifact_bytes: No file may be larger.
        threads: How many requests are worked on at once.
        certificate: A file with the certificate, to serve over TLS.
        private_key: A file with its key.
        shutdown_s: How long requests may take to end after SIGTERM.
    """

    home: Path
    host: str = "127.0.0.1"
    port: int = 8410
    database: str | None = None
    artifacts: str | None = None
    durable: bool = True
    rate: float = 500.0
    burst: float = 1000.0
    largest_artifact_bytes: int = 16 << 30
    threads: int = 32
    certificate: Path | None = None
    private_key: Path | None = None
    shutdown_s: int = 20
