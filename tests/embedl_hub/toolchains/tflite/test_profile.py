"""Profiling: the same numbers, verdicts and document as every toolchain; layers shown once."""

from __future__ import annotations

import dataclasses
import json
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from embedl_hub.core import HubContext
from embedl_hub.core.compile import TFLiteCompiledModel
from embedl_hub.core.device import Device, LiteRTConfig, SSHCommandRunner
from embedl_hub.core.invoke import InvokeError, TFLiteInvoker
from embedl_hub.core.profile import ProfileError, TFLiteProfiler

VERDICTS = {"stable", "drifting", "throttled", "noisy", "indicative"}


@pytest.mark.parametrize("where", ["here", "board"])
def test_a_profile_has_numbers_a_verdict_and_layers(
    compiled: dict[str, TFLiteCompiledModel],
    where: str,
    here: Device,
    make_board: Callable[..., Device],
    board: SSHCommandRunner,
    tmp_path: Path,
) -> None:
    """Here and over SSH alike."""
    device = here if where == "here" else make_board(board)
    with HubContext("profile", [device], home=tmp_path / "home") as ctx:
        result = TFLiteProfiler().run(ctx, compiled["float"])
        assert ctx.client.store is not None
        assert ctx.client.store.find("type = 'PROFILE' and params.precision = 'float32'").runs
    assert result.latency.value > 0
    assert result.latency_min is not None
    assert result.latency_median is not None
    assert result.latency_min.value <= result.latency_median.value
    assert result.iterations is not None
    assert result.iterations.value >= 20
    assert result.verdict in VERDICTS
    assert result.layers
    # The runtime counts whole microseconds, and some operators of so small a net take none.
    shares = sum(layer.share or 0 for layer in result.layers)
    assert shares == pytest.approx(1 if any(layer.time_ms for layer in result.layers) else 0)
    assert {layer.compute_unit for layer in result.layers} == {"CPU"}
    assert not [layer for layer in result.layers if "delegate" in layer.name.lower()]
    assert result.modules is not None
    assert result.modules.added_ms == 0
    assert result.modules.unnamed_ms == pytest.approx(sum(layer.time_ms or 0 for layer in result.layers))


def test_without_xnnpack_every_layer_leads_back_to_the_source(
    compiled: dict[str, TFLiteCompiledModel], here: Device, tmp_path: Path
) -> None:
    """The runtime's own kernels are the converted model's operators."""
    assert isinstance(here.provider_config, LiteRTConfig)
    plain = dataclasses.replace(here, provider_config=dataclasses.replace(here.provider_config, xnnpack=False))
    with HubContext("builtin", [plain], home=tmp_path / "home") as ctx:
        result = TFLiteProfiler().run(ctx, compiled["float"])
        document = json.loads(result.output_file.local().read_text())  # type: ignore[union-attr]
    assert document["settings"] == {"threads": 1, "xnnpack": False}
    types = [layer.op_type for layer in result.layers]
    assert sorted(types) == ["CONV_2D", "LOGISTIC", "MEAN", "RELU", "RESHAPE"]
    sources = {layer.op_type: layer.source_nodes for layer in result.layers}
    assert sources["CONV_2D"] == ("conv",)
    assert sources["LOGISTIC"] == ("sigmoid",)
    modules = {layer.op_type: layer.modules for layer in result.layers}
    assert modules["CONV_2D"] == ("net.conv",)
    assert result.modules is not None
    assert {"", "net", "net.conv", "net.sigmoid"} <= {row.name for row in result.modules.rows}


_BENCHMARK = """#!/bin/sh
for word in "$@"; do
  case "$word" in
    --op_profiling_output_file=*) file=${word#*=};;
    --graph=*) graph=${word#*=};;
    --enable_op_profiling=true) layers=yes;;
  esac
done
[ -r "$graph" ] || { echo "no graph" >&2; exit 1; }
echo "count=15 first=490 curr=336 min=328 max=490 avg=348.1 std=39"
echo "count=50 first=328 curr=339 min=326 max=340 avg=332.5 std=4 p5=327 median=331 p95=338"
echo "Inference timings in us: Init: 855, First inference: 490, Warmup (avg): 348.1, Inference (avg): 332.5"
echo "Overall peak memory footprint (MB) via periodic monitoring: 12.5"
if [ -n "$layers" ] && [ -n "$FORM" ]; then cat "$FORM" > "$file"; fi
"""

_CSV = """Profiling Info for Benchmark Initialization:
============================== Run Order ==============================
node type, start, first, avg_ms, %, cdf%, mem KB, times called, name
AllocateTensors, 0.000, 9.000, 9.000, 100%, 100%, 0, 1, AllocateTensors/0

Operator-wise Profiling Info for Regular Benchmark Runs:
============================== Run Order ==============================
node type, start, first, avg_ms, %, cdf%, mem KB, times called, name
CONV_2D, 0.000, 0.300, 0.200, 66.6%, 66.6%, 0.0, 50, [c, with comma]:0
Delegate/Fully Connected (NC, F32) GEMM, 0.2, 0.1, 0.100, 33.3%, 100%, 0.0, 50, Delegate/1:1

============================== Top by Computation Time ==============================
node type, start, first, avg_ms, %, cdf%, mem KB, times called, name
CONV_2D, 0.000, 0.300, 0.200, 66.6%, 66.6%, 0.0, 50, [c, with comma]:0
Timings (microseconds): count=50 first=300 curr=300 min=300 max=301 avg=300 std=0
"""


@pytest.fixture
def tool(tmp_path: Path) -> Path:
    """A stand-in for Google's tool that writes its formats, as its public sources do."""
    path = tmp_path / "benchmark_model"
    path.write_text(_BENCHMARK.replace("$FORM", str(tmp_path / "form.csv")))
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    (tmp_path / "form.csv").write_text(_CSV)
    return path


def test_a_board_with_only_googles_benchmark(
    compiled: dict[str, TFLiteCompiledModel],
    make_board: Callable[..., Device],
    board: SSHCommandRunner,
    tool: Path,
    tmp_path: Path,
) -> None:
    """Its means in milliseconds, its operators in the order they ran, its own words kept."""
    device = make_board(board, benchmark_model_path=str(tool))
    with HubContext("google", [device], home=tmp_path / "home") as ctx:
        result = TFLiteProfiler().run(ctx, compiled["float"])
        store = ctx.client.store
        assert store is not None
        run = store.run(store.find(limit=1).runs[0].id)
        assert {"raw", "operators", "output_file"} <= set(run.artifacts)
        with pytest.raises(InvokeError, match="benchmark_model, which measures"):
            TFLiteInvoker().run(ctx, compiled["float"], {})
        with pytest.raises(ProfileError, match="benchmark_model on device 'board' cannot measure until 'p99'"):
            TFLiteProfiler().run(ctx, compiled["float"], until="p99")
    assert result.latency.value == pytest.approx(0.3325)
    assert result.latency_p95 is None, "of 50 runs, also by the tool's own word"
    assert result.latency_median is not None
    assert result.latency_median.value == pytest.approx(0.331)
    assert result.load_time is not None
    assert result.load_time.value == pytest.approx(0.855)
    assert result.peak_memory_mb is not None
    assert result.peak_memory_mb.value == 12.5
    assert result.verdict == "indicative"
    assert [layer.op_type for layer in result.layers] == ["CONV_2D", "Fully Connected (NC, F32) GEMM"]
    assert [layer.time_ms for layer in result.layers] == pytest.approx([0.2, 0.1])


def test_a_board_without_the_tool_says_so(
    compiled: dict[str, TFLiteCompiledModel],
    make_board: Callable[..., Device],
    board: SSHCommandRunner,
    tmp_path: Path,
) -> None:
    """With what to put there."""
    device = make_board(board, benchmark_model_path="/nowhere/benchmark_model")
    words = "has no program '/nowhere/benchmark_model'"
    with HubContext("none", [device], home=tmp_path / "home") as ctx, pytest.raises(ProfileError, match=words):
        TFLiteProfiler().run(ctx, compiled["float"])


def test_a_tool_that_prints_something_else_is_refused_and_kept(
    compiled: dict[str, TFLiteCompiledModel],
    make_board: Callable[..., Device],
    board: SSHCommandRunner,
    tool: Path,
    tmp_path: Path,
) -> None:
    """A new format is no crash; what it printed stays with the run."""
    tool.write_text("#!/bin/sh\necho 'Brand new report: 12 qps'\n")
    device = make_board(board, benchmark_model_path=str(tool))
    with HubContext("new", [device], home=tmp_path / "home") as ctx:
        with pytest.raises(ProfileError, match=r"a new format.*Brand new report"):
            TFLiteProfiler().run(ctx, compiled["float"])
        store = ctx.client.store
        assert store is not None
        run = store.run(store.find(limit=1).runs[0].id)
        assert "Brand new" in run.artifacts["raw"].local().read_text()
