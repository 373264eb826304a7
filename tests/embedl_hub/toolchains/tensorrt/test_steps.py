"""Compile, profile and invoke through trtexec, as TensorRT 8.6, 10.16 and 11.1 speak, over SSH and here."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from support import trtexec
from support.models import images, residual_net, save, two_input_net
from support.quantized import quantized_net
from support.sampled import sampled

from embedl_hub.core import HubContext
from embedl_hub.core.compile import CompileError, TensorRTCompiledModel, TensorRTCompiler
from embedl_hub.core.device import Device, ONNXRuntimeConfig, TrtexecConfig
from embedl_hub.core.invoke import InvokeError, TensorRTInvoker
from embedl_hub.core.profile import ProfileError, TensorRTProfiler
from embedl_hub.testing import check_provider, temporary_context
from embedl_hub.tracking import Run

VERSIONS = list(trtexec.VERSIONS)


def last_run(ctx: HubContext) -> Run:
    assert ctx.client.store is not None
    return ctx.client.store.run(ctx.client.store.runs()[0].id)


def log_of(ctx: HubContext, what: str) -> str:
    return last_run(ctx).artifacts[f"trtexec-{what}.log"].local().read_text()


def reference(model: Path, data: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    session = onnxruntime.InferenceSession(str(model), providers=["CPUExecutionProvider"])
    names = [value.name for value in session.get_outputs()]
    return dict(zip(names, session.run(None, data), strict=True))


@pytest.mark.parametrize("version", sampled(VERSIONS, VERSIONS[-1]))
def test_all_three_steps_over_ssh(version: str, make_board: Any, model: Path, tmp_path: Path) -> None:
    """The outputs are the model's to the last bit, times and layers are whole, the second compile is from the cache."""
    data = {"x": images()}
    with HubContext("trt", [make_board(version)], home=tmp_path / "home") as ctx:
        compiled = TensorRTCompiler().run(ctx, model)
        built = last_run(ctx)
        assert built.params["from_cache"].value is False
        assert built.params["runtime_version"].value == version
        assert "--profilingVerbosity=detailed" in log_of(ctx, "build")
        profile = TensorRTProfiler().run(ctx, compiled)
        assert last_run(ctx).params["precision"].value == "float32"
        measured = last_run(ctx)
        answer = TensorRTInvoker().run(ctx, compiled, data)
        again = TensorRTCompiler().run(ctx, model)
        assert last_run(ctx).params["from_cache"].value is True
        assert again.path.sha256 == compiled.path.sha256
        assert "trtexec-build.log" not in last_run(ctx).artifacts
        expected = reference(model, data)
        assert np.array_equal(answer.output["y"], expected["y"])
        assert answer.output["y"].dtype == np.float32
        assert profile.iterations is not None
        assert profile.iterations.value >= 12
        assert profile.load_time is not None
        assert profile.load_time.value == pytest.approx(21.4)
        assert profile.peak_memory_mb is not None
        assert profile.peak_memory_mb.value == pytest.approx(54 * 1.048576)
        assert {"times.json", "layer_times.json", "layers.json", "output_file"} <= set(measured.artifacts)
        nodes = [node for layer in profile.layers for node in layer.source_nodes]
        assert nodes == ["conv/0", "norm/0", "relu/0", "conv/1", "add/1", "relu/1", "pool", "flat", "fc", "bias"]
        assert profile.layers[0].added_by_runtime
        assert sum(layer.share or 0 for layer in profile.layers) == pytest.approx(1, abs=1e-4)
        document = json.loads(measured.artifacts["output_file"].local().read_text())
        assert document["format"] == 1
        assert document["latency_ms"]["mean"] == pytest.approx(np.mean(document["samples_us"]) / 1e3)
        rebuilt = TensorRTCompiledModel.from_run(built)
        assert rebuilt.engine["inputs"][0]["name"] == "x"


def test_the_local_provider_uses_this_machines_trtexec(
    programs: dict[str, Path], model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without any device; another toolchain's settings on the machine do not matter; engines stay in the cache."""
    gpu = programs["8.6.1"].parents[1] / "gpu"
    monkeypatch.setenv("PATH", f"{programs['11.1.0'].parent}:{gpu}:/usr/bin:/bin")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    data = {"x": images()}
    quick = TrtexecConfig(min_seconds=0.02, warmup_seconds=0.01, iterations=5)
    here = Device("here", provider_config=ONNXRuntimeConfig(), provider_config_overrides={TensorRTProfiler: quick})
    with HubContext("trt", [here], home=tmp_path / "home") as ctx:
        compiled = TensorRTCompiler().run(ctx, model)
        assert last_run(ctx).provider == "local"
        TensorRTProfiler().run(ctx, compiled)
        answer = TensorRTInvoker().run(ctx, compiled, data)
        assert np.array_equal(answer.output["y"], reference(model, data)["y"])
    with temporary_context() as ctx:
        TensorRTCompiler().run(ctx, model)
        assert last_run(ctx).params["from_cache"].value is True


def test_the_providers_conform(make_here: Any, model: Path, tmp_path: Path) -> None:
    """They keep the rules every provider must keep."""
    device = make_here()
    check_provider(TensorRTCompiler(), "trtexec", model, devices=[device], bad_args=[tmp_path / "missing.onnx"])
    with HubContext("models", [device], home=tmp_path / "models") as ctx:
        compiled = TensorRTCompiler().run(ctx, model)
    check_provider(TensorRTProfiler(), "trtexec", compiled, devices=[device])
    check_provider(
        TensorRTInvoker(), "trtexec", compiled, {"x": images()}, devices=[device], bad_args=[compiled, {"z": images()}]
    )


@pytest.mark.parametrize("version", VERSIONS)
def test_every_version_measures_the_same(version: str, make_here: Any, model: Path) -> None:
    """CUDA graph and spin wait on, copies off, layers apart: whatever the version does by itself."""
    with temporary_context([make_here(version)]) as ctx:
        compiled = TensorRTCompiler().run(ctx, model)
        TensorRTProfiler().run(ctx, compiled)
        words = set(log_of(ctx, "profile").splitlines()[0].split())
        queries = json.loads(last_run(ctx).artifacts["times.json"].local().read_text())
    pinned = {"--useCudaGraph", "--useSpinWait", "--noDataTransfers", "--separateProfileRun"}
    assert words & pinned == (set() if version.startswith("11") else pinned)
    assert all(query["latencyMs"] == query["computeMs"] for query in queries)


@pytest.mark.parametrize("version", VERSIONS)
def test_every_version_can_be_told_the_opposite(version: str, make_here: Any, model: Path) -> None:
    """No CUDA graph, no spin wait, copies counted."""
    device = make_here(version, cuda_graph=False, spin_wait=False, data_transfers=True)
    with temporary_context([device]) as ctx:
        profile = TensorRTProfiler().run(ctx, TensorRTCompiler().run(ctx, model))
        words = set(log_of(ctx, "profile").splitlines()[0].split())
        document = json.loads(last_run(ctx).artifacts["output_file"].local().read_text())
    unpinned = {"--noCudaGraph", "--noSpinWait", "--includeDataTransfers"}
    assert words & unpinned == (unpinned if version.startswith("11") else set())
    assert not words & {"--useCudaGraph", "--useSpinWait", "--noDataTransfers"}
    assert profile.latency.value == pytest.approx(document["compute_ms"]["mean"] + 0.02, rel=1e-3)


@pytest.mark.parametrize("version", sampled(VERSIONS, VERSIONS[-1]))
def test_open_shapes_take_a_range(version: str, make_here: Any, tmp_path: Path) -> None:
    """Shapes within it run; one beyond is refused before anything is sent."""
    path = save(residual_net("n"), tmp_path / "open.onnx")
    shapes = {
        "min_shapes": {"x": (1, 3, 16, 16)},
        "opt_shapes": {"x": [2, 3, 16, 16]},
        "max_shapes": {"x": (4, 3, 16, 16)},
    }
    with temporary_context([make_here(version, **shapes)]) as ctx:
        compiled = TensorRTCompiler().run(ctx, path)
        for count in (1, 3):
            data = {"x": images(count)}
            answer = TensorRTInvoker().run(ctx, compiled, data)
            assert np.array_equal(answer.output["y"], reference(path, data)["y"])
        profile = TensorRTProfiler().run(ctx, compiled)
        assert profile.latency.value > 0
        assert "--shapes='x':2x3x16x16" in log_of(ctx, "profile")
        with pytest.raises(InvokeError, match=r"\[1, 3, 16, 16\] to \[4, 3, 16, 16\]"):
            TensorRTInvoker().run(ctx, compiled, {"x": images(5)})


def test_an_open_shape_needs_a_wish(make_here: Any, tmp_path: Path) -> None:
    """Silence would be a batch of one; input_shape fixes it."""
    path = save(residual_net("n"), tmp_path / "open.onnx")
    with temporary_context([make_here()]) as ctx:
        with pytest.raises(CompileError, match=r"input_shape=\(1, 3, 16, 16\).*opt_shapes="):
            TensorRTCompiler().run(ctx, path)
        compiled = TensorRTCompiler().run(ctx, path, input_shape=(2, 3, 16, 16))
        data = {"x": images(6)}
        answer = TensorRTInvoker().run(ctx, compiled, data)
        assert np.allclose(answer.output["y"], reference(path, data)["y"], atol=1e-5)
        assert {"trtexec-invoke.log", "trtexec-invoke-1.log", "trtexec-invoke-2.log"} <= set(last_run(ctx).artifacts)


def test_shapes_that_do_not_fit_are_refused(make_here: Any, model: Path, tmp_path: Path) -> None:
    """A fixed input, a stranger, a shape of another rank, a range that shrinks."""
    path = save(residual_net("n"), tmp_path / "open.onnx")
    cases = [
        (model, {"opt_shapes": {"x": (1, 3, 16, 16)}}, "fixed in the model"),
        (path, {"opt_shapes": {"z": (1, 3, 16, 16)}}, "no input of the model"),
        (path, {"opt_shapes": {"x": (1, 4, 16, 16)}}, "does not fit the input"),
        (path, {"opt_shapes": {"x": (1, 3, 16, 16)}, "min_shapes": {"x": (2, 3, 16, 16)}}, "must grow"),
    ]
    for file, shapes, message in cases:
        with temporary_context([make_here(**shapes)]) as ctx, pytest.raises(CompileError, match=message):
            TensorRTCompiler().run(ctx, file)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_quantized_model_needs_no_precision(version: str, make_here: Any, tmp_path: Path) -> None:
    """Its own types hold in each version, in that version's words."""
    path = save(quantized_net(), tmp_path / "int8.onnx")
    with temporary_context([make_here(version)]) as ctx:
        TensorRTCompiler().run(ctx, path)
        words = log_of(ctx, "build").splitlines()[0].split()
    expected = {"8.6.1": "--int8", "10.16.0": "--stronglyTyped", "11.1.0": None}[version]
    assert {word for word in words if word in {"--int8", "--stronglyTyped", "--fp16"}} == ({expected} - {None})


def test_precision_that_a_version_does_not_have_is_refused(make_here: Any, model: Path, tmp_path: Path) -> None:
    """TensorRT 11 is strongly typed; INT8 without quantized nodes would be made up."""
    for version, precision, message in (
        ("11.1.0", "fp16", r"strongly typed.*Convert the model itself.*leave precision out"),
        ("10.16.0", "int8", r"ranges at random"),
        ("8.6.1", "bf16", r"8\.6\.1 has no --bf16"),
    ):
        device = make_here(version, precision=precision)
        with temporary_context([device]) as ctx, pytest.raises(CompileError, match=message):
            TensorRTCompiler().run(ctx, model)
    with temporary_context([make_here("11.1.0", precision="int8")]) as ctx:
        TensorRTCompiler().run(ctx, save(quantized_net(), tmp_path / "int8.onnx"))
        assert "needs no option" in str(last_run(ctx).params["precision_meaning"].value)
        assert last_run(ctx).params["precision"].value == "int8"
    with temporary_context([make_here("8.6.1", precision="fp16", tf32=False, workspace_mib=64)]) as ctx:
        TensorRTCompiler().run(ctx, model)
        assert last_run(ctx).params["precision"].value == "float16"
        assert {"--fp16", "--noTF32", "--memPoolSize=workspace:64"} <= set(log_of(ctx, "build").splitlines()[0].split())


def test_whole_numbers_of_64_bits(make_here: Any, tmp_path: Path) -> None:
    """TensorRT 8 holds them in 32; the user sees neither, unless a number does not fit."""
    path = save(integer_net(), tmp_path / "integers.onnx")
    data = {"i": np.array([[1, 2, 3, 2**31 - 1]], dtype=np.int64)}
    for version in VERSIONS:
        with temporary_context([make_here(version)]) as ctx:
            compiled = TensorRTCompiler().run(ctx, path)
            answer = TensorRTInvoker().run(ctx, compiled, data)
            assert answer.output["j"].dtype == np.int64
            assert answer.output["j"].tolist() == data["i"].tolist()
            if version == "8.6.1":
                with pytest.raises(InvokeError, match="beyond int32"):
                    TensorRTInvoker().run(ctx, compiled, {"i": np.array([[1, 2, 3, 2**40]])})


def integer_net() -> Any:
    """Return a net that hands its integers on."""
    from onnx import TensorProto, helper

    kinds = [helper.make_tensor_value_info(name, TensorProto.INT64, [1, 4]) for name in "ij"]
    graph = helper.make_graph([helper.make_node("Abs", ["i"], ["j"], name="abs")], "integers", kinds[:1], kinds[1:])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def test_data_that_does_not_fit_is_refused(make_here: Any, model: Path) -> None:
    """Names, types and shapes, before anything is sent."""
    with temporary_context([make_here()]) as ctx:
        compiled = TensorRTCompiler().run(ctx, model)
        for data in ({"z": images()}, {"x": images().astype(np.float64)}, {"x": images()[:, :2]}):
            with pytest.raises(InvokeError, match="does not fit the model"):
                TensorRTInvoker().run(ctx, compiled, data)


def test_two_inputs_with_a_colon_in_a_name(make_here: Any, tmp_path: Path) -> None:
    """Trtexec reads names between quotation marks."""
    net = two_input_net()
    for value in net.graph.input:
        if value.name == "b":
            value.name = "b:0"
    net.graph.node[1].input[1] = "b:0"
    path = save(net, tmp_path / "two.onnx")
    shapes = {"opt_shapes": {"a": (2, 4), "b:0": (2, 8)}}
    random = np.random.default_rng(3)
    data = {"a": random.normal(size=(2, 4)).astype(np.float32), "b:0": random.normal(size=(2, 8)).astype(np.float32)}
    with temporary_context([make_here(**shapes)]) as ctx:
        compiled = TensorRTCompiler().run(ctx, path)
        answer = TensorRTInvoker().run(ctx, compiled, data)
    assert np.array_equal(answer.output["y"], reference(path, data)["y"])


def test_a_name_trtexec_cannot_be_told_is_refused(make_here: Any, tmp_path: Path) -> None:
    """It splits at commas."""
    net = residual_net()
    net.graph.input[0].name = net.graph.node[0].input[0] = "x,y"
    with temporary_context([make_here()]) as ctx, pytest.raises(CompileError, match="Rename the tensor"):
        TensorRTCompiler().run(ctx, save(net, tmp_path / "comma.onnx"))


def test_another_option_another_version_or_gpu_is_another_engine(
    make_here: Any, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each part of the key matters; so does use_cache."""

    def cached(*args: str, **changes: Any) -> bool:
        with temporary_context([make_here(*args, **changes)]) as ctx:
            TensorRTCompiler().run(ctx, model)
            return bool(last_run(ctx).params["from_cache"].value)

    assert not cached()
    assert cached()
    assert not cached(use_cache=False)
    assert not cached(workspace_mib=32)
    assert not cached(cli_args=("--builderOptimizationLevel=4",))
    assert not cached("11.1.0")
    assert cached("11.1.0")
    monkeypatch.setenv("STANDIN_GPU", "NVIDIA Another")
    assert not cached()
    monkeypatch.delenv("STANDIN_GPU")
    assert cached()


def test_without_a_gpu_that_says_its_name_nothing_is_cached(
    make_here: Any, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It could be another one next time; the run says so."""
    device = make_here()
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    for _ in range(2):
        with temporary_context([device]) as ctx:
            TensorRTCompiler().run(ctx, model)
            run = last_run(ctx)
            assert run.params["from_cache"].value is False
            assert "does not say which GPU" in str(run.params["cached_reason"].value)


def test_a_damaged_engine_is_built_again(make_here: Any, model: Path, tmp_path: Path) -> None:
    """What is kept is held against its hash."""
    device = make_here()
    with temporary_context([device]) as ctx:
        compiled = TensorRTCompiler().run(ctx, model)
    kept = next((tmp_path / "here" / "tensorrt" / "engines").glob("*/engine.plan"))
    kept.unlink()
    kept.write_bytes(b"rubbish")
    with temporary_context([device]) as ctx:
        again = TensorRTCompiler().run(ctx, model)
        assert last_run(ctx).params["from_cache"].value is False
    assert again.path.sha256 == compiled.path.sha256
    with temporary_context([device]) as ctx:
        TensorRTCompiler().run(ctx, model)
        assert last_run(ctx).params["from_cache"].value is True


def test_engines_are_trimmed_to_the_boards_limit(make_here: Any, tmp_path: Path) -> None:
    """Least recently used first; the timing cache stays and grows."""
    device = replace(make_here(), store_cap_bytes=64 << 10)
    with temporary_context([device]) as ctx:
        for size in (16, 24, 32, 40):
            TensorRTCompiler().run(ctx, save(residual_net(size=size), tmp_path / f"net{size}.onnx"))
    engines = list((tmp_path / "here" / "tensorrt" / "engines").iterdir())
    assert 1 <= len(engines) < 4
    timing = list((tmp_path / "here" / "tensorrt" / "timing").iterdir())
    assert len(timing) == 1
    assert timing[0].read_text().count("timed") == 4


def test_the_engine_is_not_sent_back_to_where_it_was_built(make_here: Any, model: Path, tmp_path: Path) -> None:
    """A link in the board's content store spares the upload."""
    with temporary_context([make_here()]) as ctx:
        compiled = TensorRTCompiler().run(ctx, model)
        stored = tmp_path / "here" / "store" / compiled.path.sha256 / compiled.path.file_name
        assert stored.is_file()
        assert stored.stat().st_nlink >= 2


def test_no_trtexec_says_where_it_was_looked_for(make_here: Any, model: Path) -> None:
    """And what to install."""
    with temporary_context([make_here(path="/nowhere/trtexec")]) as ctx:
        with pytest.raises(
            CompileError, match=r"has no trtexec: looked for /nowhere/trtexec\..*--set trtexec_path=PATH"
        ):
            TensorRTCompiler().run(ctx, model)
        assert "input" in last_run(ctx).artifacts


def test_what_another_toolchain_made_is_no_engine(make_here: Any, model: Path) -> None:
    """Said before anybody looks for trtexec."""
    with temporary_context([make_here(path="/nowhere/trtexec")]) as ctx:
        with ctx.client.start_run() as run:
            made = TensorRTCompiledModel(path=run.log_artifact(model, name="path"))
        with pytest.raises(ProfileError, match=r"\.onnx is no TensorRT engine. Compile the model first"):
            TensorRTProfiler().run(ctx, made)


def test_it_is_asked_once_what_it_can_do(
    make_here: Any, programs: dict[str, Path], model: Path, tmp_path: Path
) -> None:
    """While the context lives; each step is one call besides."""
    calls = tmp_path / "calls"
    program = tmp_path / "counting"
    program.write_text(f"#!/bin/sh\necho \"$1\" >> '{calls}'\nexec '{programs['10.16.0']}' \"$@\"\n")
    program.chmod(0o755)
    with temporary_context([make_here(path=program)]) as ctx:
        compiled = TensorRTCompiler().run(ctx, model)
        TensorRTProfiler().run(ctx, compiled)
        TensorRTInvoker().run(ctx, compiled, {"x": images()})
    words = [line.partition("=")[0] for line in calls.read_text().splitlines()]
    assert words == ["--help", "--onnx", "--loadEngine", "--loadEngine"]


def test_it_is_found_where_nvidias_packages_put_it(
    make_here: Any, programs: dict[str, Path], model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a Jetson it is not on PATH."""
    monkeypatch.setattr("embedl_hub.toolchains.tensorrt.program._USUAL", ("/nowhere/trtexec", str(programs["8.6.1"])))
    with temporary_context([make_here(path="trtexec")]) as ctx:
        TensorRTCompiler().run(ctx, model)
        assert last_run(ctx).params["runtime_version"].value == "8.6.1"


def test_a_library_that_is_missing_is_not_a_missing_trtexec(make_here: Any, model: Path, tmp_path: Path) -> None:
    """The loader's words, and what to set."""
    program = tmp_path / "unlinked"
    words = "error while loading shared libraries: libnvinfer.so.10: cannot open shared object file"
    program.write_text(f"#!/bin/sh\necho 'trtexec: {words}' >&2\nexit 127\n")
    program.chmod(0o755)
    message = r"a library it needs is not.*libnvinfer.*LD_LIBRARY_PATH"
    with temporary_context([make_here(path=program)]) as ctx, pytest.raises(CompileError, match=message):
        TensorRTCompiler().run(ctx, model)


def test_another_program_of_that_name_is_not_believed(make_here: Any, model: Path) -> None:
    """Its help does not speak of TensorRT."""
    with temporary_context([make_here(path="/bin/echo")]) as ctx, pytest.raises(CompileError, match="another program"):
        TensorRTCompiler().run(ctx, model)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"version": "8.6.1"}, "Version tag does not match"),
        ({"STANDIN_CAPABILITY": "7.5"}, "expecting compute 7.5 got compute 8.6"),
    ],
)
def test_an_engine_for_something_else_is_refused(
    wrong: dict[str, str], message: str, make_here: Any, model: Path, tmp_path: Path
) -> None:
    """The error names both sides and what to do; trtexec's words are kept."""
    version = wrong.pop("version", "10.16.0")
    other = trtexec.install(tmp_path / "other", version, **wrong)
    with temporary_context([make_here()]) as ctx:
        compiled = TensorRTCompiler().run(ctx, model)
        kept = compiled.path.local()
        with temporary_context([make_here(version, path=other)]) as second:
            foreign = replace(compiled, path=replace(compiled.path, local_path=kept))
            with pytest.raises(
                ProfileError, match=rf"not built for device 'here'.*{message}.*compile the model on that"
            ):
                TensorRTProfiler().run(second, foreign)
            assert message in log_of(second, "profile")
            with pytest.raises(InvokeError, match="not built for"):
                TensorRTInvoker().run(second, foreign, {"x": images()})


def test_memory_that_runs_out_while_building(make_here: Any, model: Path, tmp_path: Path) -> None:
    """One error with what to change; the log and the source are kept."""
    program = trtexec.install(tmp_path / "small", "10.16.0", fault="memory")
    with temporary_context([make_here(path=program)]) as ctx:
        with pytest.raises(CompileError, match=r"memory of device 'here' ran out.*workspace_mib.*trtexec-build.log"):
            TensorRTCompiler().run(ctx, model)
        assert "Requested amount of GPU memory" in log_of(ctx, "build")
        assert "input" in last_run(ctx).artifacts


def test_a_new_format_is_named_and_kept(make_here: Any, model: Path, tmp_path: Path) -> None:
    """Microseconds under another key are not taken for milliseconds."""
    program = trtexec.install(tmp_path / "newer", "11.1.0", fault="format")
    with temporary_context([make_here("11.1.0", path=program)]) as ctx:
        compiled = TensorRTCompiler().run(ctx, model)
        with pytest.raises(ProfileError, match=r"--exportTimes.*does not know.*'latencyUs'.*kept with the run"):
            TensorRTProfiler().run(ctx, compiled)
        assert "latencyUs" in last_run(ctx).artifacts["times.json"].local().read_text()


def test_a_time_limit_ends_trtexec(make_here: Any, model: Path, tmp_path: Path) -> None:
    """And says which setting gives it more."""
    program = trtexec.install(tmp_path / "slow", "10.16.0", fault="hang")
    device = make_here(path=program, timeout_s=1.0)
    message = r"stopped after 1 s during build.*timeout_s"
    with temporary_context([device]) as ctx, pytest.raises(CompileError, match=message):
        TensorRTCompiler().run(ctx, model)


def test_an_option_of_another_version_is_named(make_here: Any, model: Path) -> None:
    """Trtexec's own complaint, in one line."""
    device = make_here(cli_args=("--tuneBuildRoutes",))
    message = r"10.16.0\) has no option --tuneBuildRoutes"
    with temporary_context([device]) as ctx, pytest.raises(CompileError, match=message):
        TensorRTCompiler().run(ctx, model)


def test_a_secret_among_the_arguments_is_kept_nowhere(make_here: Any, model: Path, tmp_path: Path) -> None:
    """Neither in the run nor in the log of trtexec, which quotes its command line."""
    device = make_here(cli_args=("--token=hunter22-secret",))
    with HubContext("trt", [device], home=tmp_path / "home") as ctx, pytest.raises(CompileError):
        TensorRTCompiler().run(ctx, model)
    written = b"".join(path.read_bytes() for path in (tmp_path / "home").rglob("*") if path.is_file())
    assert b"--token=<redacted>" in written
    assert b"hunter22" not in written


def test_throttling_reaches_the_verdict(make_here: Any, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the driver says holds the clocks down."""
    monkeypatch.setenv("STANDIN_REASONS", "0x0000000000000060")
    with temporary_context([make_here()]) as ctx:
        profile = TensorRTProfiler().run(ctx, TensorRTCompiler().run(ctx, model))
    assert profile.verdict == "throttled"
    assert profile.verdict_reason is not None
    assert "thermal slowdown" in profile.verdict_reason


def test_an_engine_file_of_ones_own(make_here: Any, model: Path) -> None:
    """Profiled and run without knowing what it was built from."""
    with temporary_context([make_here()]) as ctx:
        compiled = TensorRTCompiler().run(ctx, model)
        bare = TensorRTCompiledModel(path=compiled.path)
        profile = TensorRTProfiler().run(ctx, bare)
        assert profile.layers[1].source_nodes[0] == "conv/0"
        answer = TensorRTInvoker().run(ctx, bare, {"x": images()})
        assert np.array_equal(answer.output["y"], reference(model, {"x": images()})["y"])
