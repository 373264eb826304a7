"""Qualcomm AI Hub through the vendor's real client, against a stand-in of its service on loopback."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import qai_hub
from support.models import images, residual_net, save
from support.qai_hub import TOKEN, StandIn, make_phone, serving

from embedl_hub.core import HubContext
from embedl_hub.core.compile import CompileError, ONNXRuntimeCompiledModel, ONNXRuntimeCompiler
from embedl_hub.core.device import Device, QAIHubConfig
from embedl_hub.core.invoke import InvokeError, ONNXRuntimeInvoker
from embedl_hub.core.profile import ONNXRuntimeProfiler, ProfileError
from embedl_hub.testing import check_provider, temporary_context
from embedl_hub.tracking import RunStatus, Store


@pytest.fixture
def service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StandIn]:
    with serving(tmp_path, monkeypatch) as stand_in:
        yield stand_in


@pytest.fixture
def phone() -> Device:
    return make_phone()


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return save(residual_net(), tmp_path / "net.onnx")


@pytest.fixture
def compiled(model: Path, tmp_path: Path) -> Iterator[ONNXRuntimeCompiledModel]:
    """The source as a compiled model, without the cloud."""
    with HubContext("made", home=tmp_path / "made") as ctx, ctx.client.start_run() as run:
        yield ONNXRuntimeCompiledModel(path=run.log_artifact(model, name="path"))


def test_the_providers_conform(service: StandIn, phone: Device, model: Path, compiled: Any) -> None:
    """All three keep every rule we ask of others."""
    missing = model.with_name("missing.onnx")
    check_provider(ONNXRuntimeCompiler(), "qai_hub", model, devices=[phone], bad_args=[missing])
    check_provider(ONNXRuntimeProfiler(), "qai_hub", compiled, devices=[phone])
    check_provider(
        ONNXRuntimeInvoker(),
        "qai_hub",
        compiled,
        {"x": images(1)},
        devices=[phone],
        bad_args=[compiled, {"z": images(1)}],
    )


def test_from_source_to_answer(
    service: StandIn, phone: Device, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Renamed tensors are mapped both ways; ids, links and states of the jobs are kept; the token is not."""
    source = save(residual_net("n"), tmp_path / "net.onnx")
    service.rename = {"x": "image_0", "y": "scores_0"}
    home = tmp_path / "home"
    with HubContext("cloud", [phone], home=home) as ctx:
        model = ONNXRuntimeCompiler().run(ctx, source, input_shape=(1, 3, 16, 16))
        assert model.input_name_mapping == {"x": "image_0"}
        assert model.output_name_mapping == {"y": "scores_0"}
        for name in ("x", "image_0"):
            answer = ONNXRuntimeInvoker().run(ctx, model, {name: images(3)}).output
            expected = onnxruntime.InferenceSession(source).run(None, {"x": images(3)})[0]
            np.testing.assert_allclose(answer["y"], expected, rtol=1e-4, atol=1e-5)
        raw = ONNXRuntimeInvoker(use_compiled_names=True).run(ctx, model, {"image_0": images(1)})
        assert set(raw.output) == {"scores_0"}
        with pytest.raises(InvokeError, match="inputs were called 'x', the compiler made 'image_0'"):
            ONNXRuntimeInvoker().run(ctx, model, {"z": images(1)})
    with Store(home) as store:
        run = store.run(model.path.run_id)
        job = str(run.params["$qai_hub_job_id"].value)
        assert job in service.jobs
        assert str(run.params["qai_hub_compile_job_url"].value).endswith(f"{job}/")
        states = [state["state"] for state in run.params["qai_hub_compile_job_states"].value]  # type: ignore[union-attr, index, call-overload]
        assert states == ["CREATED", "SUCCESS"]
        assert ONNXRuntimeCompiledModel.from_run(run).input_name_mapping == {"x": "image_0"}
    assert service.jobs[job].compile_job.options == "--target_runtime onnx"
    # What the vendor's client prints must not come between a program and our JSON.
    assert capsys.readouterr().out == ""
    assert not any(TOKEN.encode() in path.read_bytes() for path in home.rglob("*") if path.is_file())


def test_calibration_data_makes_a_quantize_job_first(service: StandIn, phone: Device, model: Path) -> None:
    """Its target goes into the compile job; what the vendor cannot be told is refused."""
    with temporary_context([phone]) as ctx:
        ONNXRuntimeCompiler().run(
            ctx, model, calibration_data={"x": images(4)}, calibration_method="minmax", quantize_io=True
        )
        kinds = [job.WhichOneof("job") for job in service.jobs.values()]
        assert kinds == ["quantize_job", "compile_job"]
        quantize, compile_ = service.jobs.values()
        assert quantize.quantize_job.options == "--range_scheme min_max"
        assert compile_.compile_job.options == "--target_runtime onnx --quantize_io"
        assert compile_.compile_job.model.model_id == quantize.quantize_job.target_model.model_id
        for options in ({"per_channel": True}, {"calibration_method": "entropy"}):
            with pytest.raises(CompileError, match="chooses scales itself"):
                ONNXRuntimeCompiler().run(ctx, model, calibration_data={"x": images(4)}, **options)
        with pytest.raises(CompileError, match="holds NaN"):
            ONNXRuntimeCompiler().run(ctx, model, calibration_data={"x": images(2) * np.nan})


def check_profile(ctx: HubContext, result: Any) -> None:
    document = json.loads(result.output_file.local().read_text())
    assert document["format"] == 1
    assert result.latency.value == pytest.approx(4.495, rel=1e-9)
    assert (result.latency_median.value, result.latency_p90.value, result.latency_min.value) == (4.49, 4.89, 4.0)
    assert result.latency_p99 is None
    assert document["tails"]["p99"]["reason"] == "p99 needs 662 samples, there are 100"
    assert document["estimated_inference_time_ms"] == pytest.approx(3.652, rel=1e-9)
    assert result.load_time.value == pytest.approx(45.0, rel=1e-9)
    assert result.peak_memory_mb.value == pytest.approx(12.0, rel=1e-9)
    assert result.verdict == "indicative"
    conv, *_, bias = result.layers
    assert (conv.name, conv.time_ms, conv.compute_unit, conv.source_nodes) == ("conv/0", None, "NPU", ("conv/0",))
    assert bias.share == pytest.approx(9 / 45, rel=1e-9)
    stored = ctx.client.store.run(result.output_file.run_id)  # type: ignore[union-attr]
    assert "execution_summary" in json.loads(stored.artifacts["raw"].local().read_text())


def test_a_profile_in_our_units(service: StandIn, phone: Device, compiled: Any) -> None:
    """The vendor's own file is kept beside it; its estimate stays under its own name."""
    with temporary_context([phone]) as ctx:
        check_profile(ctx, ONNXRuntimeProfiler().run(ctx, compiled))
        ONNXRuntimeProfiler().run(ctx, compiled, input_data={"x": images(1)})
        assert [job.inference_job.is_profiling_on for job in service.jobs.values()] == [True, True]
        with pytest.raises(ProfileError, match=r"runs on the NPU, but 1 of 10 layers ran elsewhere: flat \(CPU\)"):
            ONNXRuntimeProfiler().run(ctx, compiled, require_provider="QNNExecutionProvider")
        last = ctx.client.store.runs()[0]  # type: ignore[union-attr]
        assert "output_file" in ctx.client.store.run(last.id).artifacts  # type: ignore[union-attr]


def test_a_profile_without_samples_has_one_figure(service: StandIn, phone: Device, compiled: Any) -> None:
    """Old schema: an estimate and nothing to make percentiles of."""
    service.profile_version = (0, 0)
    with temporary_context([phone]) as ctx:
        result = ONNXRuntimeProfiler().run(ctx, compiled)
        assert result.latency.value == pytest.approx(3.652, rel=1e-9)
        assert result.latency_median is None
        assert result.peak_memory_mb is None


REAL = qai_hub.Client


class OldClient(REAL):
    """The API before inference and profile jobs became one."""

    def submit_inference_job(  # type: ignore[override]
        self, model: Any, device: Any, inputs: Any, name: Any = None, options: str = "", retry: bool = True
    ) -> Any:
        return REAL.submit_inference_job(self, model, device, inputs, name, options, retry, profile=False)

    def submit_profile_job(  # type: ignore[override]
        self, model: Any, device: Any, name: Any = None, options: str = "", retry: bool = True
    ) -> Any:
        return REAL.submit_inference_job(self, model, device, None, name, options, retry, profile=True)


def test_the_old_client_works_too(
    service: StandIn, phone: Device, compiled: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Profile and inference by the calls of their own; data for a profile is refused."""
    monkeypatch.setattr(qai_hub, "Client", OldClient)
    with temporary_context([phone]) as ctx:
        check_profile(ctx, ONNXRuntimeProfiler().run(ctx, compiled))
        assert ONNXRuntimeInvoker().run(ctx, compiled, {"x": images(2)}).output["y"].shape == (2, 10)
        with pytest.raises(ProfileError, match="random data only"):
            ONNXRuntimeProfiler().run(ctx, compiled, input_data={"x": images(1)})


@pytest.mark.parametrize(
    ("faults", "words"),
    [
        ({"unauthorized"}, "authentication failure|token"),
        ({"no device"}, "is not available"),
        ({"refuse compile_job"}, "compile job was not accepted.*the options make no sense"),
        ({"rate limit"}, "compile job was not accepted"),
        ({"fail compile_job"}, r"compile job j\d+ failed: the chip caught fire. See http"),
        ({"empty"}, r"job j\d+ succeeded but has no target model"),
        ({"never ends"}, r"compile job j\d+ is still CREATED after .* s; it goes on without us"),
    ],
)
def test_failures_of_compile_jobs(faults: set[str], words: str, service: StandIn, phone: Device, model: Path) -> None:
    """One clear error with the job's id; nothing is submitted twice."""
    service.faults = faults
    hurried = replace(phone, provider_config=QAIHubConfig(poll_s=0.01, timeout_s=0.2))
    with temporary_context([hurried]) as ctx:
        with pytest.raises(CompileError, match=words):
            ONNXRuntimeCompiler().run(ctx, model)
        (run,) = ctx.client.store.runs()  # type: ignore[union-attr]
        assert run.status is RunStatus.FAILED
        assert "input" in ctx.client.store.run(run.id).artifacts  # type: ignore[union-attr]
    assert len(service.jobs) <= 1


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("fail inference_job", "failed: the chip caught fire"),
        ("empty", "succeeded but has no"),
        ("refuse inference_job", "not accepted"),
    ],
)
def test_failures_of_profile_and_inference_jobs(
    fault: str, words: str, service: StandIn, phone: Device, compiled: Any
) -> None:
    """Each with the error of its step."""
    service.faults = {fault}
    with temporary_context([phone]) as ctx:
        with pytest.raises(ProfileError, match=words):
            ONNXRuntimeProfiler().run(ctx, compiled)
        with pytest.raises(InvokeError, match=words):
            ONNXRuntimeInvoker().run(ctx, compiled, {"x": images(1)})
    assert service.requests.count(("POST", "jobs")) == 2


def test_a_broken_transfer_is_repeated_and_a_job_is_not(service: StandIn, phone: Device, model: Path) -> None:
    """Two failed uploads, one job."""
    service.failures_left = 2
    with temporary_context([phone]) as ctx:
        ONNXRuntimeCompiler().run(ctx, model)
    assert service.failures_left == 0
    assert service.requests.count(("POST", "jobs")) == 1
    service.failures_left = 1000
    with temporary_context([phone]) as ctx, pytest.raises(CompileError, match=r"net\.onnx could not be uploaded"):
        ONNXRuntimeCompiler().run(ctx, model)
    assert service.requests.count(("POST", "jobs")) == 1


def test_a_client_that_is_not_set_up_says_how(
    phone: Device, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The vendor's command is in the message."""
    monkeypatch.setenv("QAIHUB_CLIENT_INI", str(tmp_path / "none.ini"))
    with temporary_context([phone]) as ctx, pytest.raises(CompileError, match="qai-hub configure --api_token"):
        ONNXRuntimeCompiler().run(ctx, model)


def test_a_model_of_open_shape_is_refused(service: StandIn, phone: Device, tmp_path: Path) -> None:
    """Before anything is uploaded."""
    source = save(residual_net("n"), tmp_path / "open.onnx")
    with temporary_context([phone]) as ctx, pytest.raises(CompileError, match=r"has no fixed shape.*give input_shape"):
        ONNXRuntimeCompiler().run(ctx, source)
    assert service.requests == []


def test_weights_beside_a_model_are_packed_into_one_file(service: StandIn, phone: Device, tmp_path: Path) -> None:
    """The cloud gets one file."""
    (tmp_path / "m").mkdir()
    onnx.save(residual_net(), tmp_path / "m" / "net.onnx", save_as_external_data=True, location="w", size_threshold=0)
    with temporary_context([phone]) as ctx:
        model = ONNXRuntimeCompiler().run(ctx, tmp_path / "m")
        assert not model.path.is_folder
        assert ONNXRuntimeInvoker().run(ctx, model, {"x": images(1)}).output["y"].shape == (1, 10)
