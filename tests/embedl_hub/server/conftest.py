"""Servers, databases and clients of tests."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from support.hub_server import HubServer
from support.postgres import Cluster

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """One PostgreSQL for all tests of a worker that leave it in peace."""
    cluster = Cluster().start()
    yield cluster
    cluster.end()


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HubServer]:
    """One server for all tests of a file that leave it in peace."""
    server = HubServer(tmp_path_factory.mktemp("server") / "home").start()
    yield server
    server.end()


@pytest.fixture
def new_server(tmp_path: Path) -> Iterator[Callable[..., HubServer]]:
    """Start a server that only this test uses, and may break."""
    servers: list[HubServer] = []

    def start(*options: str, home: Path | None = None, environment: dict[str, str] | None = None) -> HubServer:
        folder = home or tmp_path / f"server{len(servers)}"
        servers.append(HubServer(folder, *options, environment=environment))
        return servers[-1].start()

    yield start
    for server in servers:
        server.end()
