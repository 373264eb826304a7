"""What a server is told when it starts."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


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
    threads: int = 32  # how many requests are worked on at once
    certificate: Path | None = None  # A file with the certificate, to serve over TLS
    private_key: Path | None = None  # A file with its key
    shutdown_s: int = 20  # how long requests may take to end after SIGTERM
