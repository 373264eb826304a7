"""Boards with old versions of OpenVINO: the carried program measures there too."""

from __future__ import annotations

import json
import subprocess
import venv
from pathlib import Path
from typing import Any

import pytest
from support.models import images, residual_net, save

from embedl_hub.core import HubContext
from embedl_hub.core.compile import OpenVINOCompiler
from embedl_hub.core.device import SSHCommandRunner
from embedl_hub.core.invoke import OpenVINOInvoker
from embedl_hub.core.profile import OpenVINOProfiler, ProfileError


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("version", "numpy_version"), [("2024.0.0", "1.26.4")])
def test_an_old_runtime_on_the_board(
    version: str, numpy_version: str, board: SSHCommandRunner, make_board: Any, tmp_path: Path
) -> None:
    """Float and INT8, layers and placement; its IR is written there, so it reads it."""
    venv.create(tmp_path / "python", with_pip=True, symlinks=True)
    python = str(tmp_path / "python" / "bin" / "python")
    subprocess.run(
        [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", f"openvino=={version}",
         f"numpy=={numpy_version}"],
        check=True,
    )  # fmt: skip
    model = residual_net()
    source = save(model, tmp_path / "net.onnx")
    device = make_board(board, embedl_openvino_path="no-such-program", python_path=python)
    with HubContext("old", [device], home=tmp_path / "home") as ctx:
        floats = None
        for data in (None, {"x": images(4)}):
            compiled = OpenVINOCompiler().run(ctx, source, calibration_data=data)
            profile = OpenVINOProfiler().run(ctx, compiled, require_provider="CPU")
            document = json.loads(profile.output_file.local().read_text())  # type: ignore[union-attr]
            assert document["runtime"]["version"] == version
            covered = {name for layer in profile.layers for name in layer.source_nodes}
            assert covered == {node.name for node in model.graph.node}
            is_integer = {name: layer.integer for layer in profile.layers for name in layer.source_nodes}
            assert is_integer["conv/1"] is (data is not None)
            answer = OpenVINOInvoker().run(ctx, compiled, {"x": images(2)})
            floats = floats or answer.output
            assert answer.compare(floats).cosine > 0.99
        with pytest.raises(ProfileError, match="has no device 'GPU' here"):
            OpenVINOProfiler().run(ctx, compiled, require_provider="GPU")
