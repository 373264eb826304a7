"""A context whose devices, all this machine, differ in settings."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.bisection_nets import device

from embedl_hub.core import HubContext


@pytest.fixture
def ctx(tmp_path: Path) -> Iterator[HubContext]:
    """A context whose two devices, both this machine, differ in a setting that matters and in two that do not."""
    devices = [device("good"), device("bad", optimization_level="disable", allow_fallback=True, allow_saturation=True)]
    with HubContext("bisect", [*devices, device("same", allow_fallback=True)], home=tmp_path / "home") as made:
        yield made
