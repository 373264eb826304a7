"""Boards with old versions of ONNX Runtime: the carried program measures there too, trace files and all."""

from __future__ import annotations

import json
import subprocess
import venv
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.models import images, residual_net, save

from embedl_hub.core import HubContext
from embedl_hub.core.compile import ONNXRuntimeCompiler
from embedl_hub.core.device import SSHCommandRunner
from embedl_hub.core.invoke import ONNXRuntimeInvoker
from embedl_hub.core.profile import ONNXRuntimeProfiler, ProfileError


@pytest.mark.slow
@pytest.mark.parametrize(
    ("version", "numpy_version"), [("1.16.3", "1.26.4"), ("1.18.1", "1.26.4"), ("1.22.1", "2.2.6")]
)
def test_an_old_runtime_on_the_board(
    version: str, numpy_version: str, board: SSHCommandRunner, make_board: Any, tmp_path: Path
) -> None:
    """Float and INT8; names that break its trace file; placement from the trace where it knows no better."""
    venv.create(tmp_path / "python", with_pip=True, symlinks=True)
    python = str(tmp_path / "python" / "bin" / "python")
    subprocess.run(
        [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", f"onnxruntime=={version}",
         f"numpy=={numpy_version}"],
        check=True,
    )  # fmt: skip
    model = residual_net()
    model.graph.node[6].name = 'po"ol\\q'
    source = save(model, tmp_path / "net.onnx")
    device = make_board(board, embedl_onnxruntime_path="no-such-program", python_path=python)
    with HubContext("old", [device], home=tmp_path / "home") as ctx:
        for data in (None, {"x": images(4)}):
            compiled = ONNXRuntimeCompiler().run(ctx, source, calibration_data=data)
            profile = ONNXRuntimeProfiler().run(ctx, compiled)
            document = json.loads(profile.output_file.local().read_text())  # type: ignore[union-attr]
            assert document["runtime"]["version"] == version
            covered = {name for layer in profile.layers for name in layer.source_nodes}
            assert covered == {node.name for node in model.graph.node}
            assert document["placement"]["CPUExecutionProvider"]
            answer = ONNXRuntimeInvoker().run(ctx, compiled, {"x": images(2)})
            drift = answer.compare(source)
            assert drift.cosine > (0.99999 if data is None else 0.98)
            assert np.isfinite(answer.output["y"]).all()
            with pytest.raises(ProfileError, match=r"AzureExecutionProvider was required, but of \d+ nodes"):
                ONNXRuntimeProfiler().run(ctx, compiled, require_provider="AzureExecutionProvider")
