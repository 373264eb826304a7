"""Cold starts and models at once, here and on a board: recorded, built again, refused with a sentence."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.cli import answer, hub
from support.models import residual_net, save

from embedl_device.statistics import Ratio
from embedl_hub.core.compile import ONNXRuntimeCompiler, TensorRTCompiledModel
from embedl_hub.core.device import Device
from embedl_hub.core.document import ProfileDocument, document_of, find_metric
from embedl_hub.core.profile import (
    ColdStartProfiler,
    ColdStartResult,
    ConcurrentModel,
    ConcurrentProfiler,
    ConcurrentResult,
    ProfileError,
)
from embedl_hub.page._measurements import table_of
from embedl_hub.testing import temporary_context
from embedl_hub.tracking import Run


def metrics_of(run: Run) -> dict[str, float]:
    return {metric.name: metric.value for metric in run.metrics}


def test_cold_starts_are_recorded(device: Device, model: Path) -> None:
    """The whole and its parts; the result can be built again from the store."""
    with temporary_context([device]) as ctx:
        compiled = ONNXRuntimeCompiler().run(ctx, model)
        result = ColdStartProfiler().run(ctx, compiled, starts=1)
        assert ctx.client.store is not None
        run = ctx.client.store.run(str(result.output_file.run_id))
        assert ColdStartResult.from_run(run) == result
        metrics = metrics_of(run)
        assert len(metrics) == len(run.metrics)
        parts = [metrics[name] for name in ("process_time", "import_time", "load_time", "first_latency")]
        assert result.start_time.value == pytest.approx(sum(parts))
        assert (result.start_time_cold is None) == (result.cold_problem is not None)
        assert run.device == device.name
        assert metrics["starts"] == 1
        table = table_of(document_of(run)[0])
        assert table is not None
        assert table.hint.startswith("Medians over 1 starts")
        assert len(table.columns) == 1 + (result.start_time_cold is not None)
        assert len(table.rows) == 5
        assert ctx.client.store.lineage(run.id).made_from[0].id == compiled.path.run_id


def test_models_at_once_are_recorded(device: Device, model: Path, tmp_path: Path) -> None:
    """Alone, beside the others and the ratio of each; metrics have titles and units."""
    with temporary_context([device]) as ctx:
        one = ONNXRuntimeCompiler().run(ctx, model)
        two = ONNXRuntimeCompiler().run(ctx, save(residual_net(size=64), tmp_path / "large.onnx"))
        result = ConcurrentProfiler().run(ctx, [one, two], rounds=2)
        assert ctx.client.store is not None
        run = ctx.client.store.run(str(result.output_file.run_id))
        assert ConcurrentResult.from_run(run) == result
        assert [each.name for each in result.models] == ["input", "input_2"]
        assert result.models[1].latency_alone > result.models[0].latency_alone
        assert all(each.conclusion == "too few rounds to tell" for each in result.models)
        metrics = metrics_of(run)
        assert len(metrics) == len(run.metrics)
        assert metrics["rounds"] == 2
        table = table_of(document_of(run)[0])
        assert table is not None
        assert table.hint.startswith("Means over 2 rounds")
        assert [row.name for row in table.rows] == [each.file_name for each in result.models]
        assert metrics["latency_concurrent_2"] == result.models[1].latency_concurrent
        assert find_metric("latency_concurrent_2").unit == "ms"
        assert {each.id for each in ctx.client.store.lineage(run.id).made_from} == {one.path.run_id, two.path.run_id}


@pytest.mark.parametrize(
    ("ratio", "told"),
    [
        (Ratio(1.3, 1.2, 1.4), "slower beside the others"),
        (Ratio(1.02, 0.99, 1.05), "no significant difference"),
        (Ratio(1.3), "too few rounds to tell"),
    ],
)
def test_what_an_interval_shows(ratio: Ratio, told: str) -> None:
    """In words."""
    assert ConcurrentModel("input", "a.onnx", 1.0, 1.3, ratio, 10.0, 8.0).conclusion == told


@pytest.mark.slow
def test_a_start_is_measured_again_by_the_gate(model: Path, tmp_path: Path) -> None:
    """As a profile is: the same model and options."""
    home = {"EMBEDL_HUB_HOME": str(tmp_path / "home")}
    runs = [answer("cold-start", model, "--here", "--starts", "1", **home)["run"] for _ in range(2)]
    words = ("--metric", "start_time", "--tolerance", "900%", "--most-pairs", "3")
    done = hub("gate", runs[0], "--baseline", runs[1], *words, **home)
    assert done.returncode == 0, done.stderr
    assert "3 turns" in done.stdout


def test_what_cannot_be_measured_so_is_refused(here: Device, model: Path) -> None:
    """Counts that are none, a toolchain without a device program, models of two toolchains."""
    with temporary_context([here]) as ctx:
        compiled = ONNXRuntimeCompiler().run(ctx, model)
        foreign = TensorRTCompiledModel(path=compiled.path)
        with pytest.raises(ProfileError, match="starts must be at least 1, not 0"):
            ColdStartProfiler().run(ctx, compiled, starts=0)
        with pytest.raises(ProfileError, match="not 20 rounds of 1 models and 0 idle processes"):
            ConcurrentProfiler().run(ctx, [compiled])
        with pytest.raises(ProfileError, match="TensorRT are measured by the vendor's own program"):
            ColdStartProfiler().run(ctx, foreign)
        with pytest.raises(ProfileError, match=r"they must all be of one toolchain, of .*'onnxruntime'"):
            ConcurrentProfiler().run(ctx, [compiled, foreign])


@pytest.mark.parametrize("kind", ["cold_start", "concurrent"])
def test_a_document_that_is_not_whole_is_no_table(kind: str) -> None:
    """One kept by another version, or by hand: the page shows the run's metrics all the same."""
    assert table_of(ProfileDocument.from_json({"kind": kind, "models": [{"alone": 3}], "cached": []})) is None
