"""Boards of the health tests: a real sshd each, with folders of their own."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from support.sshd import SSHServer

from embedl_hub.core import HubContext
from embedl_hub.core.device import Device, SSHCommandRunner

MakeBoard: TypeAlias = Callable[..., Device]


@pytest.fixture
def make_board(tmp_path: Path, connect: Callable[..., SSHCommandRunner]) -> MakeBoard:
    """Return a board on a server; its provider is of no kind, so its checks are those of every board."""

    def make(server: SSHServer, name: str = "pi", **changes: Any) -> Device:
        settings = {
            "provider_type": "plain",
            "artifact_root": tmp_path / f"root of {name}",
            "lease_dir": str(tmp_path / f"lease of {name}"),
            **changes,
        }
        return Device(name, connect(server, connect_timeout_s=2, keep_alive_s=1), **settings)

    return make


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """The store of a test."""
    return tmp_path / "home"


@pytest.fixture
def open_context(home: Path) -> Iterator[Callable[..., HubContext]]:
    """Open a context, closed at the end of the test; its boards may be gone by then."""
    opened: list[HubContext] = []

    def start(*devices: Device) -> HubContext:
        opened.append(HubContext("lab", devices, home=home, keep_remote=True).__enter__())
        return opened[-1]

    yield start
    for ctx in opened:
        ctx.__exit__(None, None, None)
