"""Models in turns: one lease, one process, one document; ratios, ranking and lineage recorded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.models import images, residual_net, save

from embedl_hub.core.compile import ONNXRuntimeCompiledModel, ONNXRuntimeCompiler
from embedl_hub.core.device import Device, SSHCommandRunner
from embedl_hub.core.profile import ONNXRuntimePairedProfiler, PairedResult, ProfileError
from embedl_hub.core.toolchain import paired_profiler
from embedl_hub.errors import ConfigError
from embedl_hub.testing import check_provider, temporary_context
from embedl_hub.tracking import RunStatus


@pytest.fixture
def large(tmp_path: Path) -> Path:
    """The same net on sixteen times as many pixels."""
    return save(residual_net(size=64), tmp_path / "large.onnx")


def test_the_providers_conform(device: Device, model: Path) -> None:
    """Both keep every rule we ask of others."""
    with temporary_context() as ctx:
        compiled = ONNXRuntimeCompiler().run(ctx, model)
        check_provider(
            ONNXRuntimePairedProfiler(samples=10), device.provider_type, [compiled, compiled], devices=[device],
            bad_args=[[compiled]],
        )  # fmt: skip


def test_a_slower_model_is_shown_to_be_slower(
    device: Device, model: Path, large: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Ratio, interval, ranking and words, here and on a board; all of it can be built again from the store."""
    with temporary_context([device]) as ctx:
        small, big = (ONNXRuntimeCompiler().run(ctx, path) for path in (model, large))
        result = ONNXRuntimePairedProfiler().run(ctx, [small, big, small], samples=40)
        assert [entry.name for entry in result.models] == ["input", "input_2", "input_3"]
        one, two, three = result.ratios
        assert one.value == 1
        assert two.low is not None
        assert two.low > 1
        assert three.value == pytest.approx(1, abs=0.5)
        assert "inputs of different shapes" in caplog.text
        assert [each.number for each in result.ranking][2] == 1
        assert result.ranking[1].is_significant
        assert result.rounds >= 40  # more where they are done before the least time is over
        store = ctx.client.store
        assert store is not None
        run = store.run(str(result.output_file.run_id))
        assert PairedResult.from_run(run) == result
        metrics = {metric.name: metric.value for metric in run.metrics}
        assert metrics["ratio_2"] == two.value
        assert metrics["ratio_2_low"] == two.low
        assert {"latency_median_1", "latency_median_2", "latency_median_3", "ratio_3_high", "rounds"} <= set(metrics)
        assert run.params["verdict"].value == result.verdict
        assert run.device == device.name
        made_from = {entry.id for entry in store.lineage(run.id).made_from}
        assert made_from == {small.path.run_id, big.path.run_id}
        assert run.id in {entry.id for entry in store.lineage(str(big.path.run_id)).used_by}


def test_the_document_holds_every_sample_and_the_order(here: Device, model: Path) -> None:
    """So that anybody can judge anew."""
    with temporary_context([here]) as ctx:
        compiled = ONNXRuntimeCompiler().run(ctx, model)
        result = ONNXRuntimePairedProfiler(samples=20).run(ctx, [compiled, compiled])
        document = json.loads(result.output_file.local().read_text())
    assert document["place"] == "this machine"
    assert len(document["order"]) == document["rounds"] == len(document["models"][1]["samples_us"]) >= 20
    assert document["models"][1]["ratio"]["value"] == result.ratios[1].value
    assert document["settings"]["threads"] == 1


def test_models_of_open_shape_run_on_data(here: Device, tmp_path: Path) -> None:
    """The same data for all; without it, or where it does not fit, nothing is measured."""
    with temporary_context([here]) as ctx:
        open_one = ONNXRuntimeCompiler().run(ctx, save(residual_net("n"), tmp_path / "open.onnx"))
        fixed = ONNXRuntimeCompiler().run(ctx, save(residual_net(2), tmp_path / "fixed.onnx"))
        pair = ONNXRuntimePairedProfiler(samples=10)
        with pytest.raises(ProfileError, match="has no fixed shape"):
            pair.run(ctx, [fixed, open_one])
        result = pair.run(ctx, [fixed, open_one], input_data={"x": images(2)})
        assert len(result.models) == 2
        with pytest.raises(ProfileError, match="'x' has shape"):
            pair.run(ctx, [fixed, open_one], input_data={"x": images(3)})


@pytest.mark.parametrize("count", [0, 1])
def test_fewer_than_two_models_are_refused(here: Device, model: Path, count: int) -> None:
    """Nor is one model given without a list taken for one."""
    with temporary_context([here]) as ctx:
        compiled = ONNXRuntimeCompiler().run(ctx, model)
        with pytest.raises(ProfileError, match="two models or more"):
            ONNXRuntimePairedProfiler().run(ctx, [compiled] * count)
        given: Any = compiled
        with pytest.raises(ProfileError, match="two models or more"):
            ONNXRuntimePairedProfiler().run(ctx, given)
        with pytest.raises(ProfileError, match="samples must be at least 1"):
            ONNXRuntimePairedProfiler(samples=0).run(ctx, [compiled, compiled])


def test_a_failure_on_the_board_is_told_in_its_words(board: SSHCommandRunner, make_board: Any, model: Path) -> None:
    """The run is kept as failed, with its inputs."""
    with temporary_context([make_board(board)]) as ctx:
        compiled = ONNXRuntimeCompiler().run(ctx, model)
        with pytest.raises(ProfileError, match=r"AzureExecutionProvider was required.*pair on device 'board'"):
            ONNXRuntimePairedProfiler(require_provider="AzureExecutionProvider").run(ctx, [compiled, compiled])
        store = ctx.client.store
        assert store is not None
        last = store.run(store.runs()[0].id)
        assert last.status is RunStatus.FAILED
        assert set(last.artifacts) == {"input", "input_2"}


def test_the_step_of_a_toolchain_is_found_by_name() -> None:
    """And what cannot take turns is said, with what can and another way."""
    assert paired_profiler("onnxruntime") is ONNXRuntimePairedProfiler
    with pytest.raises(ConfigError, match=r"'tensorrt'.*onnxruntime.*tflite.*embedl-hub gate"):
        paired_profiler("tensorrt")


def test_a_model_of_the_users_own_needs_no_compile_run(here: Device, model: Path) -> None:
    """Any logged file will do."""
    with temporary_context([here]) as ctx:
        with ctx.client.start_run("CUSTOM", "model") as run:
            artifact = run.log_artifact(model, name="path")
        mine = ONNXRuntimeCompiledModel(path=artifact)
        assert ONNXRuntimePairedProfiler(samples=10).run(ctx, [mine, mine]).rounds >= 10
