"""Predictions: the kernels of the real file, a table from the device, kept in the home, never in the way."""

from __future__ import annotations

import functools
import json
import logging
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from support.models import images, residual_net, save

from embedl_hub.core.compile import CompileError, ONNXRuntimeCompiler
from embedl_hub.core.context import HubContext
from embedl_hub.core.device import Device, ONNXRuntimeConfig, SSHCommandRunner
from embedl_hub.machine.machine import open_machine
from embedl_hub.refusal import RefusedError
from embedl_hub.testing import temporary_context
from embedl_hub.toolchains.onnxruntime import predict as predicting
from embedl_hub.toolchains.onnxruntime.config import EmbedlONNXRuntimeConfig
from embedl_hub.toolchains.onnxruntime.probes import ProbesRequest, _Net, probe_models, write_probes
from embedl_hub.toolchains.onnxruntime.workload import WorkloadRequest, nodes_run, take_weights, workload

_FEW = ("residual_64x16", "perceptron_1x32", "inverted_64x8")


@pytest.fixture
def few_probes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measure a few small networks shortly: enough for what is tested here."""

    def write(request: ProbesRequest, scratch: Path) -> None:
        write_probes(ProbesRequest(request.output, _FEW, activations=request.activations), scratch)

    monkeypatch.setattr(predicting, "write_probes", write)
    monkeypatch.setattr(predicting, "_SECONDS", 0.5)
    monkeypatch.setenv(predicting.OFF, "on")


def predict(ctx: HubContext, device: Device, model: Path, **options: Any) -> predicting.Prediction:
    with open_machine(ctx, device.name, ONNXRuntimeCompiler, ONNXRuntimeConfig, EmbedlONNXRuntimeConfig) as machine:
        return predicting.predict(ctx, machine, model, **options)


def test_kernels_are_those_of_the_real_file(here: Device, model: Path, tmp_path: Path) -> None:
    """Made-up ranges and weights change no kernel."""
    foretold = workload(WorkloadRequest(str(model)), tmp_path)
    with temporary_context([here]) as ctx:
        compiled = ONNXRuntimeCompiler().run(ctx, model, calibration_data={"x": images(4)})
        real = nodes_run(compiled.path.local(), tmp_path / "real", layouts=True)
        plain = nodes_run(model, tmp_path / "plain", layouts=True)
    for found, wanted in ((foretold["int8"], real), (foretold["float"], plain)):
        assert Counter(node["op"] for node in found) == Counter(node["op"] for node in wanted)
        assert sorted(str(node["outputs"]) for node in found) == sorted(str(node["outputs"]) for node in wanted)


@pytest.mark.parametrize("activations", ["uint8", pytest.param("int8", marks=pytest.mark.slow)])
def test_probes_run_and_int8_ones_in_integers(activations: str, tmp_path: Path) -> None:
    """No float convolution or product of weights is left in an INT8 probe; all files together are small."""
    made = probe_models(ProbesRequest("", activations=activations), tmp_path)
    assert sum(model.ByteSize() for model in made.values()) < 3_000_000
    for name, model in made.items():
        if not name.endswith(".int8"):
            continue
        path = tmp_path / "probe.onnx"
        onnx.save(model, path)
        ops = Counter(
            node["op"] for node in nodes_run(path, tmp_path / "trace", layouts=True, is_signed=activations == "int8")
        )
        assert any(op.startswith(("QLinear", "QGemm")) for op in ops), name
        assert not {"Conv", "FusedConv", "FusedGemm"} & set(ops), (name, ops)


@pytest.mark.usefixtures("few_probes")
@pytest.mark.parametrize("is_board", [False, True])
def test_a_place_is_measured_once(
    is_board: bool, here: Device, make_board: Any, board: SSHCommandRunner, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here, and over SSH by a program that is carried there: the second time the table is there."""
    carried = {"embedl_onnxruntime_path": "no-such-program", "python_path": sys.executable}
    device = make_board(board, **carried) if is_board else here
    with temporary_context([device]) as ctx:
        first = predict(ctx, device, model)
        assert first.measured_now
        assert first.gain.low < first.gain.speedup < first.gain.high
        assert first.runtime_version == onnxruntime.__version__
        assert first.costs.parent.name == predicting.COSTS_FOLDER
        assert first.to_dict()["family"] == first.family
        monkeypatch.setattr(predicting, "write_probes", None)
        again = predict(ctx, device, model, per_channel=True)
        assert not again.measured_now
        assert again.costs == first.costs


@pytest.mark.slow
@pytest.mark.usefixtures("few_probes")
def test_a_broken_table_is_measured_again(here: Device, model: Path) -> None:
    """A file that was cut short is no table."""
    with temporary_context([here]) as ctx:
        path = predict(ctx, here, model).costs
        path.write_text(path.read_text()[:100])
        assert predict(ctx, here, model).measured_now
        path.write_text("[]")
        assert predict(ctx, here, model).measured_now


@pytest.mark.usefixtures("few_probes")
def test_what_cannot_be_foretold_is_refused(here: Device, tmp_path: Path) -> None:
    """Open sizes, devices that do not run on the CPU, and a file that is in integers already."""
    with temporary_context([here]) as ctx:
        done = ONNXRuntimeCompiler().run(
            ctx, save(residual_net(), tmp_path / "float.onnx"), calibration_data={"x": images(4)}
        )
        with pytest.raises(RefusedError, match="quantized already"):
            predict(ctx, here, done.path.local())
        with pytest.raises(CompileError, match=r"quantized already .* without calibration_data"):
            ONNXRuntimeCompiler().run(ctx, done.path.local(), calibration_data={"x": images(4)})
    with temporary_context([here]) as ctx, pytest.raises(RefusedError, match="open sizes"):
        predict(ctx, here, save(residual_net("n"), tmp_path / "open.onnx"))
    other = Device("here", provider_type="local", provider_config=ONNXRuntimeConfig(execution_providers=("Other",)))
    with temporary_context([other]) as ctx, pytest.raises(RefusedError, match="CPU"):
        predict(ctx, other, save(residual_net(), tmp_path / "net.onnx"))


@pytest.mark.slow
@pytest.mark.usefixtures("few_probes")
def test_compiling_records_it_and_goes_on_without(
    here: Device, model: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Figures are with the run; a prediction that fails is a remark for the curious."""
    caplog.set_level(logging.DEBUG, "embedl_hub")
    with temporary_context([here]) as ctx:
        compiled = ONNXRuntimeCompiler().run(ctx, model, calibration_data={"x": images(4)})
        run = ctx.client.store.run(compiled.path.run_id)  # type: ignore[union-attr]
        told: Any = run.params["prediction"].value
        assert run.metric("predicted_speedup").value == pytest.approx(told["speedup"], abs=1e-3)  # type: ignore[union-attr]
        assert told["low"] <= told["speedup"] <= told["high"]
        assert json.loads(run.artifacts["kernel_costs"].local().read_text())["models"]
        assert predicting.sentence(told) in caplog.text
        monkeypatch.setattr(predicting, "_key", None)
        compiled = ONNXRuntimeCompiler().run(ctx, model, calibration_data={"x": images(4)})
        run = ctx.client.store.run(compiled.path.run_id)  # type: ignore[union-attr]
        assert "prediction" not in run.params
        assert "not predicted" in caplog.text


def test_who_wants_none_gets_none(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the device's settings, or for all by a variable."""
    monkeypatch.setenv(predicting.OFF, "on")
    monkeypatch.setattr(predicting, "predict", None)
    device = Device("here", provider_type="local", provider_config=ONNXRuntimeConfig(prediction=False))
    with temporary_context([device]) as ctx:
        assert not predicting.is_wanted(ctx, ONNXRuntimeConfig(prediction=False))
        assert predicting.is_wanted(ctx, ONNXRuntimeConfig())
        monkeypatch.setenv(predicting.OFF, "off")
        assert not predicting.is_wanted(ctx, ONNXRuntimeConfig())
        compiled = ONNXRuntimeCompiler().run(ctx, model, calibration_data={"x": images(4)})
        run = ctx.client.store.run(compiled.path.run_id)  # type: ignore[union-attr]
        assert "prediction" not in run.params


def test_a_loss_is_said_with_its_reasons() -> None:
    """And what to do instead."""
    told = {
        "speedup": 0.8,
        "low": 0.7,
        "high": 0.9,
        "reasons": ["Erf take 40% of the INT8 time"],
        "place": "device 'b'",
    }
    words = predicting.sentence(told)
    assert words.startswith("INT8 does not pay on device 'b': predicted 0.80x (0.70 to 0.90)")
    assert "Erf take 40%" in words
    assert "without --calibration-data" in words


def _dense_net() -> onnx.ModelProto:
    net = _Net(1, 32, 40, 40)
    x = "x"
    for _ in range(4):
        x = net.conv(x, 32)
    return net.model(x)


def _small_net() -> onnx.ModelProto:
    net = _Net(1, 24)
    return net.model(net.gemm(net.act(net.gemm("x", 48), "Relu"), 8))


@pytest.mark.slow
def test_predictions_are_near_what_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Within a factor of two on a network that gains and on one that loses, with the whole table."""
    monkeypatch.setattr(predicting, "_SECONDS", 4.0)
    device = Device("here", provider_type="local", provider_config=ONNXRuntimeConfig(threads=1))
    with temporary_context([device]) as ctx:
        for name, net, data in (("dense", _dense_net(), (8, 32, 40, 40)), ("small", _small_net(), (8, 24))):
            path = save(net, tmp_path / f"{name}.onnx")
            told = predict(ctx, device, path)
            samples = {"x": np.random.default_rng(0).normal(size=data).astype(np.float32)}
            int8 = ONNXRuntimeCompiler().run(ctx, path, calibration_data=samples)
            measured = _speedup(path, int8.path.local(), {"x": samples["x"][:1]})
            assert 0.5 < told.gain.speedup / measured < 2, (name, told.gain, measured)


def _speedup(plain: Path, int8: Path, feed: dict[str, np.ndarray]) -> float:
    """Return the ratio of the least CPU times, in turns."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    sessions = [onnxruntime.InferenceSession(str(path), options) for path in (plain, int8)]
    least = [float("inf")] * 2
    for _ in range(300):
        for number, session in enumerate(sessions):
            run = functools.partial(session.run, None, feed)
            run()
            start = time.thread_time_ns()
            run()
            least[number] = min(least[number], time.thread_time_ns() - start)
    return least[0] / least[1]


def test_a_file_that_declares_its_weights_is_predicted(model: Path) -> None:
    """As PyTorch's exporter writes it."""
    declaring = onnx.load(model)
    declaring.graph.value_info.extend(
        onnx.helper.make_tensor_value_info(value.name, value.data_type, value.dims)
        for value in declaring.graph.initializer
    )
    sizes = take_weights(declaring)
    assert sizes
    assert not {value.name for value in declaring.graph.value_info} & set(sizes)
