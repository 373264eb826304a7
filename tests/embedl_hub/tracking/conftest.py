"""A fresh store, a client on it, and file systems that run full or refuse writing."""

from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING

import pytest

from embedl_hub.tracking import Client, Redactor, Store

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


@pytest.fixture
def store(home: Path) -> Iterator[Store]:
    with Store(home) as store:
        yield store


@pytest.fixture
def client(store: Store) -> Iterator[Client]:
    client = Client("project", store, Redactor({}))
    yield client
    client.close()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of one MiB of its own."""
    if os.geteuid() != 0:
        pytest.skip("mounting a small file system needs root; run the tests as root to check full disks")
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)], capture_output=True, text=True, check=False
    )
    if mounted.returncode != 0:
        pytest.fail(f"a small file system could not be mounted, though we are root: {mounted.stderr.strip()}")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)
