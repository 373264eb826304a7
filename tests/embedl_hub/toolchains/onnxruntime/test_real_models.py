"""Four trained models from packages: compiled, profiled and run here and over SSH, float and INT8."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.real_models import REAL_MODELS, samples

from embedl_hub.core import HubContext
from embedl_hub.core.compile import ONNXRuntimeCompiler
from embedl_hub.core.device import Device, SSHCommandRunner
from embedl_hub.core.invoke import ONNXRuntimeInvoker
from embedl_hub.core.profile import ONNXRuntimeProfiler
from embedl_hub.models.onnx_file import inputs_of, read_graph

# What INT8 may cost; measured 0.9988 and better, the rest is headroom.
LEAST_COSINE = 0.99
# Its front end is a Fourier transform and a logarithm, which 8 bits do not survive; the compiler must say so.
BEYOND_INT8 = "pitch"


@pytest.mark.slow
@pytest.mark.parametrize("name", REAL_MODELS)
def test_a_real_model_here_and_there(
    name: str,
    here: Device,
    board: SSHCommandRunner,
    make_board: Any,
    tmp_path: Path,
    tmp_path_factory: Any,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Outputs are bit-equal on both; the drift of INT8 is reported, and is small or warned of."""
    real = REAL_MODELS[name]
    source = real.fetch(tmp_path_factory.getbasetemp() / "real-models")
    devices = [here, make_board(board)]
    with HubContext("real", devices, home=tmp_path / "home") as ctx:
        answers = []
        for place in ("here", "board"):
            compiled = ONNXRuntimeCompiler(device=place, input_shape=real.input_shape).run(ctx, source)
            inputs = inputs_of(read_graph(compiled.path.local()))
            many = {
                tensor.name: samples(tensor.name, tuple(int(size or 1) for size in tensor.shape), tensor.dtype, 8)
                for tensor in inputs
            }
            data = {tensor.name: many[tensor.name][:1] if tensor.shape else many[tensor.name][0] for tensor in inputs}
            profile = ONNXRuntimeProfiler(device=place).run(ctx, compiled, input_data=data)
            assert profile.latency.value > 0
            assert any(layer.source_nodes for layer in profile.layers)
            answers.append(ONNXRuntimeInvoker(device=place).run(ctx, compiled, data).output)
        assert answers[0].keys() == answers[1].keys()
        for key, array in answers[0].items():
            np.testing.assert_array_equal(array, answers[1][key], err_msg=key)
        small = ONNXRuntimeCompiler(device="here", input_shape=real.input_shape, per_channel=True).run(
            ctx, source, calibration_data=many
        )
        drift = ONNXRuntimeInvoker(device="here").run(ctx, small, data).compare(source)
        print(f"{name}: {drift}")  # noqa: T201 - the drift is what the reader wants; pytest -rP shows it
        if name == BEYOND_INT8:
            assert "INT8 changes output 'pitch' beyond use" in caplog.text
        else:
            assert drift.finite_share == 1
            assert drift.cosine > LEAST_COSINE
            assert caplog.text == ""
