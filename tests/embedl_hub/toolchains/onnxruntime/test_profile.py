"""Profiling: measured by the device program, led back to the source, recorded whole."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from support.models import images, residual_net, save

from embedl_hub.core.compile import ONNXRuntimeCompiler
from embedl_hub.core.device import Device, SSHCommandRunner
from embedl_hub.core.profile import ONNXRuntimeProfiler, ONNXRuntimeProfilingResult, ProfileError
from embedl_hub.testing import check_provider, temporary_context
from embedl_hub.tracking import RunStatus

MakeDevice = Callable[..., Device]


def test_the_providers_conform(device: Device, model: Path) -> None:
    """Both keep every rule we ask of others."""
    with temporary_context() as ctx:
        compiled = ONNXRuntimeCompiler().run(ctx, model)
        dynamic = ONNXRuntimeCompiler().run(ctx, save(residual_net("n"), model.with_name("dynamic.onnx")))
        check_provider(ONNXRuntimeProfiler(), device.provider_type, compiled, devices=[device], bad_args=[dynamic])


def test_a_profile_holds_everything(device: Device, model: Path) -> None:
    """Headline numbers, raw samples, layers with their source, placement, environment, verdict, the raw trace."""
    with temporary_context([device]) as ctx:
        compiled = ONNXRuntimeCompiler().run(ctx, model)
        result = ONNXRuntimeProfiler().run(ctx, compiled)
        assert result.latency_median is not None
        assert result.latency_min is not None
        assert result.peak_memory_mb is not None
        assert 0 < result.latency_min.value <= result.latency_median.value
        assert result.peak_memory_mb.value > 1
        assert result.verdict in {"stable", "drifting", "noisy", "throttled"}
        assert result.verdict_reason
        assert result.iterations is not None
        document = json.loads(result.output_file.local().read_text())  # type: ignore[union-attr]
        assert len(document["samples_us"]) == result.iterations.value >= 20
        assert document["format"] == 1
        assert document["settings"]["threads"] == 1
        assert {"before", "after", "board"} == set(document["environment"])
        assert document["memory_method"]
        by_source = {layer.source_nodes: layer for layer in result.layers}
        assert by_source[("conv/0", "norm/0", "relu/0")].op_type == "Conv"
        assert ("conv/1", "add/1", "relu/1") in by_source
        assert by_source[("fc", "bias")].compute_unit == "CPU"
        assert sum(layer.share or 0 for layer in result.layers) == pytest.approx(1.0, abs=1e-9)
        assert document["source"]["nodes_without_layer"] == []
        placed = document["placement"]["CPUExecutionProvider"]
        assert ["pool"] in [node["source_nodes"] for node in placed]
        stored = ctx.client.store.run(result.output_file.run_id)  # type: ignore[union-attr]
        assert "_kernel_time" in stored.artifacts["trace"].local().read_text()
        assert ONNXRuntimeProfilingResult.from_run(stored).layers == result.layers
        assert ctx.client.store.find("params.precision = 'float32'").runs[0].id == stored.id  # type: ignore[union-attr]


def test_a_p99_of_few_samples_is_not_told(device: Device, model: Path) -> None:
    """It would be a guess."""
    with temporary_context([device]) as ctx:
        result = ONNXRuntimeProfiler().run(ctx, ONNXRuntimeCompiler().run(ctx, model))
        assert result.iterations is not None
        assert (result.latency_p99 is None) == (result.iterations.value < 662)
        assert (result.latency_p90 is None) == (result.iterations.value < 64)


def test_it_measures_until_a_percentile_has_its_bound(
    model: Path, make_board: MakeDevice, board: SSHCommandRunner
) -> None:
    """The run says what came of it, and where the time ran out first also the verdict; the record says the rule."""
    device = make_board(board, max_seconds=2.0, layer_runs=0)
    with temporary_context([device]) as ctx:
        compiled = ONNXRuntimeCompiler().run(ctx, model)
        result = ONNXRuntimeProfiler().run(ctx, compiled, until="p90")
        document = json.loads(result.output_file.local().read_text())  # type: ignore[union-attr]
        goal, stored = document["goal"], ctx.client.store.run(result.output_file.run_id)  # type: ignore[union-attr]
        assert (goal["until"], goal["metric"]) == ("p90", "latency_p90")
        assert goal["reached"] == (result.latency_p90_high is not None)
        assert goal["reached"] or goal["text"] in str(result.verdict_reason)
        assert stored.params["goal"].value == goal["text"]
        assert stored.params["until"].value == "p90"
        assert "a bound of p90 that the samples support, at most 2 s" in document["method"]["stop_rule"]
        with pytest.raises(ProfileError, match=r"until is one of 'mlperf', 'p90', 'p95', 'p99', not 'p50'"):
            ONNXRuntimeProfiler().run(ctx, compiled, until="p50")
        with pytest.raises(ProfileError, match="ask for 60 s at least, and the measurement may take 2 s at most"):
            ONNXRuntimeProfiler().run(ctx, compiled, until="mlperf")


def test_a_model_of_open_shape_is_measured_on_data(device: Device, tmp_path: Path) -> None:
    """Without data the error has the very words to add."""
    source = save(residual_net("n"), tmp_path / "net.onnx")
    with temporary_context([device]) as ctx:
        compiled = ONNXRuntimeCompiler().run(ctx, source)
        with pytest.raises(
            ProfileError,
            match=r"x .*has no fixed shape.*--input-shape 1,3,16,16.*--input-data x=",
        ):
            ONNXRuntimeProfiler().run(ctx, compiled)
        result = ONNXRuntimeProfiler().run(ctx, compiled, input_data={"x": images(2)})
        document = json.loads(result.output_file.local().read_text())  # type: ignore[union-attr]
        assert document["data"]["inputs"]["x"]["shape"] == [2, 3, 16, 16]
        with pytest.raises(ProfileError, match="'x' is float64, the model takes float32"):
            ONNXRuntimeProfiler().run(ctx, compiled, input_data={"x": images(2).astype("float64")})


def test_nodes_elsewhere_than_required_fail_the_run(device: Device, model: Path) -> None:
    """The message counts and names them; the run keeps what was known."""
    with temporary_context([device]) as ctx:
        compiled = ONNXRuntimeCompiler().run(ctx, model)
        ONNXRuntimeProfiler().run(ctx, compiled, require_provider="CPUExecutionProvider")
        with pytest.raises(ProfileError, match="AzureExecutionProvider was required, but of 6 nodes 6 on CPUExecution"):
            ONNXRuntimeProfiler(require_provider="AzureExecutionProvider").run(ctx, compiled)
        store = ctx.client.store
        assert store is not None
        last = store.run(store.runs()[0].id)
        assert last.status is RunStatus.FAILED
        assert last.artifacts["input"].sha256 == compiled.path.sha256
        assert last.params["require_provider"].value == "AzureExecutionProvider"


def test_layers_can_be_left_out(board: SSHCommandRunner, make_board, model: Path) -> None:  # type: ignore[no-untyped-def]  # noqa: ANN001
    """Then there is no trace either."""
    with temporary_context([make_board(board, layer_runs=0)]) as ctx:
        result = ONNXRuntimeProfiler().run(ctx, ONNXRuntimeCompiler().run(ctx, model))
        assert result.layers == ()
        assert result.latency.value > 0


def test_int8_layers_are_led_back_too(here: Device, model: Path) -> None:
    """What quantization and layout put in is shown as added."""
    with temporary_context([here]) as ctx:
        compiled = ONNXRuntimeCompiler().run(ctx, model, calibration_data={"x": images(4)})
        layers = ONNXRuntimeProfiler().run(ctx, compiled).layers
        by_source = {layer.source_nodes: layer.op_type for layer in layers if layer.source_nodes}
        assert by_source[("conv/0", "norm/0", "relu/0")] == "QLinearConv"
        assert by_source[("add/1", "relu/1")] == "QLinearAdd"
        assert {layer.op_type for layer in layers if layer.added_by_runtime} >= {"QuantizeLinear"}
        assert ctx.client.store is not None
        found = ctx.client.store.find("params.precision = 'int8'").runs
        assert [run.type for run in found] == ["PROFILE", "COMPILE"]
