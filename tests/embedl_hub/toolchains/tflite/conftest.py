"""The converter, places and models of the TFLite tests."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from embedl_hub.core.device import Device, EmbedlLiteRTConfig, LiteRTConfig, SSHCommandRunner

QUICK: dict[str, Any] = {
    "iterations": 20,
    "min_seconds": 0.02,
    "max_warmup_seconds": 0.2,
    "layer_runs": 3,
    "threads": 1,
}
PROGRAM = str(Path(sys.executable).with_name("embedl-litert"))


@pytest.fixture
def here() -> Device:
    """This machine, measuring quickly."""
    return Device("here", provider_type="local", provider_config=LiteRTConfig(**QUICK))


@pytest.fixture
def make_board(tmp_path: Path) -> Callable[..., Device]:
    """Make a device of a runner: a board with the program installed unless said otherwise."""

    def make(runner: SSHCommandRunner, **changes: Any) -> Device:
        config = EmbedlLiteRTConfig(**{"embedl_litert_path": PROGRAM, **QUICK, **changes})
        return Device(
            "board",
            runner,
            provider_type="embedl_litert",
            provider_config=config,
            artifact_root=tmp_path / "board",
            lease_dir=str(tmp_path / "lock"),
        )

    return make
