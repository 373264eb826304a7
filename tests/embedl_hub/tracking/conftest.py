"""A fresh store and a client on it."""

from __future__ import annotations

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
