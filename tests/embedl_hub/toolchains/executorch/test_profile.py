"""Profiling and invoking: the same numbers, verdicts and document as every toolchain, here and over SSH."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from support.executorch import SHAPE, quantized_net
from support.quantized import as_written

from embedl_hub.core import HubContext
from embedl_hub.core.compile import ExecuTorchCompiledModel
from embedl_hub.core.device import Device, SSHCommandRunner
from embedl_hub.core.invoke import ExecuTorchInvoker, InvokeError
from embedl_hub.core.profile import ExecuTorchPairedProfiler, ExecuTorchProfiler, ProfileError

VERDICTS = {"stable", "drifting", "throttled", "noisy", "indicative"}


@pytest.mark.parametrize("where", [pytest.param("here", marks=pytest.mark.slow), "board"])
def test_a_profile_has_numbers_a_verdict_and_layers_of_the_source(
    compiled: ExecuTorchCompiledModel,
    where: str,
    here: Device,
    make_board: Callable[..., Device],
    board: SSHCommandRunner,
    tmp_path: Path,
) -> None:
    """Every layer that computes is led back to its nodes and modules, and says whether it computed in integers."""
    device = here if where == "here" else make_board(board)
    with HubContext("profile", [device], home=tmp_path / "home") as ctx:
        result = ExecuTorchProfiler().run(ctx, compiled)
        assert ctx.client.store is not None
        assert ctx.client.store.find("type = 'PROFILE' and params.precision = 'int8'").runs
        document = json.loads(result.output_file.local().read_text())  # type: ignore[union-attr]
    assert result.latency.value > 0
    assert result.iterations is not None
    assert result.iterations.value >= 20
    assert result.verdict in VERDICTS
    assert document["runtime"]["name"] == "executorch"
    assert "XnnpackBackend" in document["runtime"]["available"]
    assert document["settings"]["threads"] == 1
    layers = {layer.source_nodes: layer for layer in result.layers if layer.integer is not None}
    integers = {nodes for nodes, layer in layers.items() if layer.integer}
    assert integers == {
        ("conv_node", "relu_node"), ("point_node",), ("sum_node",), ("pool_node",), ("mean_node",),
        ("product_node", "scores_node"),
    }  # fmt: skip
    assert [layer.op_type for layer in result.layers if layer.integer is False] == ["Softmax (NC, F32)"]
    assert layers["conv_node", "relu_node"].op_type.startswith("Convolution (NHWC, QC8)")
    assert layers["conv_node", "relu_node"].modules == ("stem.conv",)
    assert {layer.provider for layer in result.layers} == {"XNNPACK"}


def test_answers_are_those_of_onnx_runtime_within_a_step(
    compiled: ExecuTorchCompiledModel, here: Device, tmp_path: Path
) -> None:
    """A batch that is larger than the model's goes through in pieces."""
    data = np.random.default_rng(3).normal(size=(4, *SHAPE[1:])).astype(np.float32)
    session = as_written(quantized_net())
    expected = np.concatenate([session.run(None, {"x": each[None]})[0] for each in data])
    with HubContext("invoke", [here], home=tmp_path / "home") as ctx:
        found = ExecuTorchInvoker().run(ctx, compiled, {"x": data}).output
        with pytest.raises(InvokeError, match=r"'z' is not an input; 'x' is missing.*x float32\[1, 3, 12, 12\]"):
            ExecuTorchInvoker().run(ctx, compiled, {"z": data})
    assert list(found) == ["y"]
    np.testing.assert_allclose(found["y"], expected, atol=0.01)


@pytest.mark.slow
def test_models_are_measured_in_turns_on_a_board_that_has_no_program(
    compiled: ExecuTorchCompiledModel, make_board: Callable[..., Device], board: SSHCommandRunner, tmp_path: Path
) -> None:
    """The program is carried there."""
    device = make_board(board, embedl_executorch_path="no-such-program", python_path=sys.executable)
    with HubContext("pair", [device], home=tmp_path / "home") as ctx:
        result = ExecuTorchPairedProfiler().run(ctx, [compiled, compiled], samples=20)
    assert len(result.models) == 2
    assert result.ratios[1].low is not None


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"nothing that is a program", "is not an ExecuTorch program"),
        (
            b"\x3c\0\0\0ET99" + bytes(60),
            r"has format 'ET99', and ExecuTorch [\d.]+ reads 'ET12'. Compile the model anew",
        ),
        (None, "cannot load .*damaged"),
    ],
)
def test_a_program_that_is_none_or_another_versions_is_refused(
    compiled: ExecuTorchCompiledModel, content: bytes | None, words: str, here: Device, tmp_path: Path
) -> None:
    """One sentence each; a damaged one is not run."""
    whole = compiled.path.local().read_bytes()
    path = tmp_path / "net.pte"
    path.write_bytes(whole[: len(whole) // 3] if content is None else content)
    with HubContext("bad", [here], home=tmp_path / "home") as ctx:
        with ctx.client.start_run("CUSTOM", "file") as run:
            model = ExecuTorchCompiledModel(path=run.log_artifact(path, name="path"))
        with pytest.raises(ProfileError, match=words):
            ExecuTorchProfiler().run(ctx, model)
