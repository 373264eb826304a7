"""A store with recorded runs, and the page over it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from starlette.testclient import TestClient
from support import recorded
from support.recorded import Recorded

from embedl_hub import page
from embedl_hub.tracking import Store

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(scope="session")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Recorded]:
    """A store that tests only look at."""
    folder = tmp_path_factory.mktemp("files")
    with Store(tmp_path_factory.mktemp("shown") / "home") as store:
        ids = recorded.record_other(store, folder)
        ids["slow"] = recorded.record_profile(store, folder, name="slow", scale=3.0)
        ids["fast"] = recorded.record_profile(store, folder, name="fast")
        hostile = recorded.record_hostile(store, folder)
        evil = recorded.HOSTILE
        sweeps = {
            "sweep": recorded.record_sweep(store, folder),
            "evil": recorded.record_sweep(store, folder, models=tuple(evil[:4]), targets=tuple(evil[4:6])),
        }
        yield Recorded(store, ids, hostile, sweeps)


@pytest.fixture
def visitor(shown: Recorded) -> TestClient:
    return TestClient(page.app(lambda: shown.store))


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Recorded]:
    """A store that a test may change."""
    (tmp_path / "files").mkdir()
    with Store(tmp_path / "home") as store:
        yield Recorded(store, recorded.record_other(store, tmp_path / "files"))
