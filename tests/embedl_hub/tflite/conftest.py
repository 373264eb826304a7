"""The converter, places and models of the TFLite tests."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from onnx import helper
from support.models import save
from support.tflite import picture_net, pictures

from embedl_hub.core import HubContext
from embedl_hub.core.compile import TFLiteCompiledModel, TFLiteCompiler
from embedl_hub.core.device import Device, EmbedlLiteRTConfig, LiteRTConfig, SSHCommandRunner
from embedl_hub.tflite.environment import CACHE_VARIABLE

QUICK: dict[str, Any] = {
    "iterations": 20,
    "min_seconds": 0.02,
    "max_warmup_seconds": 0.2,
    "layer_runs": 3,
    "threads": 1,
}
PROGRAM = str(Path(sys.executable).with_name("embedl-litert"))


@pytest.fixture
def cache(converter: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of this test's own, with the converter in it."""
    folder = tmp_path / "cache"
    folder.mkdir()
    (folder / "converters").symlink_to(converter)
    monkeypatch.setenv(CACHE_VARIABLE, str(folder))
    return folder


@pytest.fixture(scope="session")
def compiled(converter: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, TFLiteCompiledModel]:
    """The picture net, float and INT8 with float and with integer ends; really converted."""
    folder = tmp_path_factory.mktemp("compiled")
    net = picture_net()
    names = {node.name: [f"net.{node.name}"] for node in net.graph.node}
    helper.set_model_props(net, {"edgeproof.modules": json.dumps(names)})
    path = save(net, folder / "net.onnx")
    data = {"x:0": pictures(16)}
    (folder / "converters").symlink_to(converter)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(CACHE_VARIABLE, str(folder))
        with HubContext("compiled", home=folder / "home") as ctx:
            return {
                "float": TFLiteCompiler().run(ctx, path),
                "int8": TFLiteCompiler().run(ctx, path, calibration_data=data),
                "int8 ends": TFLiteCompiler().run(ctx, path, calibration_data=data, quantize_io=True),
            }


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
