"""Converted TFLite models: for the toolchain, and for the services that run them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from onnx import helper
from support.models import save
from support.tflite import picture_net, pictures

from embedl_hub.core import HubContext
from embedl_hub.core.compile import TFLiteCompiledModel, TFLiteCompiler
from embedl_hub.machine.environment import CACHE_VARIABLE


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
