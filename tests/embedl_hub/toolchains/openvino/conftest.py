"""Places and models of the OpenVINO tests."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.models import residual_net, save
from support.sampled import sampled

from embedl_hub.core.device import Device, EmbedlOpenVINOConfig, OpenVINOConfig, SSHCommandRunner

QUICK: dict[str, Any] = {
    "iterations": 20,
    "min_seconds": 0.02,
    "max_warmup_seconds": 0.2,
    "layer_runs": 3,
    "threads": 1,
}
PROGRAM = str(Path(sys.executable).with_name("embedl-openvino"))

MakeDevice = Callable[..., Device]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A small net with a fixed batch."""
    return save(residual_net(), tmp_path / "net.onnx")


@pytest.fixture
def make_here() -> MakeDevice:
    """Make this machine, measuring quickly, with other settings."""

    def make(**changes: Any) -> Device:
        config = OpenVINOConfig(**{**QUICK, **changes})
        return Device("here", provider_type="local", provider_config=config)

    return make


@pytest.fixture
def here(make_here: MakeDevice) -> Device:
    """This machine, measuring quickly."""
    return make_here()


@pytest.fixture
def make_board(tmp_path: Path) -> MakeDevice:
    """Make a device of a runner: a board with the program installed unless said otherwise."""

    def make(runner: SSHCommandRunner, **changes: Any) -> Device:
        config = EmbedlOpenVINOConfig(**{"embedl_openvino_path": PROGRAM, **QUICK, **changes})
        return Device(
            "board",
            runner,
            provider_type="embedl_openvino",
            provider_config=config,
            artifact_root=tmp_path / "board",
            lease_dir=str(tmp_path / "lock"),
        )

    return make


@pytest.fixture(params=sampled(["here", "board"], "board"))
def device(request: pytest.FixtureRequest, make_board: MakeDevice) -> Device:
    """This machine and a board over SSH, in turn."""
    if request.param == "here":
        here: Device = request.getfixturevalue("here")
        return here
    return make_board(request.getfixturevalue("board"))
