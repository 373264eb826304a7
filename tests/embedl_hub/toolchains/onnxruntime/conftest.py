"""Places and models of the ONNX Runtime tests."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.models import residual_net, save

from embedl_hub.core.device import Device, EmbedlONNXRuntimeConfig, ONNXRuntimeConfig, SSHCommandRunner

QUICK: dict[str, Any] = {
    "iterations": 20,
    "min_seconds": 0.02,
    "max_warmup_seconds": 0.2,
    "layer_runs": 3,
    "threads": 1,
}
PROGRAM = str(Path(sys.executable).with_name("embedl-onnxruntime"))

MakeDevice = Callable[..., Device]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A small net with a fixed batch."""
    return save(residual_net(), tmp_path / "net.onnx")


@pytest.fixture
def here() -> Device:
    """This machine, measuring quickly."""
    return Device("here", provider_type="local", provider_config=ONNXRuntimeConfig(**QUICK))


@pytest.fixture
def make_board(tmp_path: Path) -> MakeDevice:
    """Make a device of a runner: a board with the program installed unless said otherwise."""

    def make(runner: SSHCommandRunner, **changes: Any) -> Device:
        config = EmbedlONNXRuntimeConfig(**{"embedl_onnxruntime_path": PROGRAM, **QUICK, **changes})
        return Device(
            "board",
            runner,
            provider_type="embedl_onnxruntime",
            provider_config=config,
            artifact_root=tmp_path / "board",
            lease_dir=str(tmp_path / "lock"),
        )

    return make


@pytest.fixture(params=["here", "board"])
def device(request: pytest.FixtureRequest, make_board: MakeDevice) -> Device:
    """This machine and a board over SSH, in turn."""
    if request.param == "here":
        here: Device = request.getfixturevalue("here")
        return here
    return make_board(request.getfixturevalue("board"))
