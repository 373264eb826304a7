"""TFLite in Qualcomm's cloud, through the vendor's real client, against a stand-in of its service on loopback."""

from __future__ import annotations

import copy
import json
import math
import random
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnxruntime
import pytest
from support.models import save
from support.qai_hub import StandIn, make_phone, serving
from support.tflite import picture_net, pictures

from embedl_hub.clouds.qai_hub.jobs import document_of
from embedl_hub.core import HubContext
from embedl_hub.core.compile import CompileError, TFLiteCompiledModel, TFLiteCompiler
from embedl_hub.core.device import Device
from embedl_hub.core.invoke import TFLiteInvoker
from embedl_hub.core.profile import ProfileError, TFLiteProfiler
from embedl_hub.refusal import RefusedError
from embedl_hub.testing import temporary_context


@pytest.fixture
def service(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compiled: dict[str, TFLiteCompiledModel]
) -> Iterator[StandIn]:
    with serving(tmp_path, monkeypatch) as stand_in:
        stand_in.tflite = compiled["float"].path.local().read_bytes()
        yield stand_in


@pytest.fixture
def phone() -> Device:
    return make_phone()


def test_from_source_to_answer(service: StandIn, phone: Device, tmp_path: Path) -> None:
    """Quantize and compile jobs; names and layouts of the result are mapped both ways."""
    source = save(picture_net(), tmp_path / "net.onnx")
    data = pictures(2, seed=3)
    session = onnxruntime.InferenceSession(source)
    with HubContext("cloud", [phone], home=tmp_path / "home") as ctx:
        model = TFLiteCompiler().run(ctx, source, calibration_data={"x:0": pictures(4)})
        kinds = [job.WhichOneof("job") for job in service.jobs.values()]
        assert kinds == ["quantize_job", "compile_job"]
        assert list(service.jobs.values())[1].compile_job.options == "--target_runtime tflite"
        assert model.input_name_mapping == {"x:0": "x__0"}
        assert model.tensors["inputs"][0]["axes"] == [0, 2, 3, 1]
        answer = TFLiteInvoker().run(ctx, model, {"x:0": data}).output
    for name in ("y", "map"):
        wanted: Any = [session.run([name], {"x:0": one[None]})[0] for one in data]
        np.testing.assert_allclose(answer[name], np.concatenate(wanted), atol=1e-5, rtol=0)


def test_a_profile_in_our_units(service: StandIn, phone: Device, compiled: dict[str, TFLiteCompiledModel]) -> None:
    """Microseconds in, milliseconds out; the vendor's own file is kept."""
    with temporary_context([phone]) as ctx:
        result = TFLiteProfiler().run(ctx, compiled["float"])
        assert result.latency.value == pytest.approx(4.495, rel=1e-9)
        assert result.verdict == "indicative"
        assert len(result.layers) == 5
        assert result.layers[0].source_nodes == ("conv",)
        assert result.output_file is not None
        document = json.loads(result.output_file.local().read_text())
        assert document["runtime"]["name"] == "tflite"


def test_a_job_that_fails_is_told_with_its_id(
    service: StandIn, phone: Device, compiled: dict[str, TFLiteCompiledModel], tmp_path: Path
) -> None:
    """And the run keeps it, so that it can be looked up an hour later."""
    source = save(picture_net(), tmp_path / "net.onnx")
    service.faults = {"fail compile_job", "fail inference_job"}
    with temporary_context([phone]) as ctx:
        with pytest.raises(CompileError, match=r"compile job j\d+ failed: the chip caught fire"):
            TFLiteCompiler().run(ctx, source)
        with pytest.raises(ProfileError, match="Qualcomm AI Hub cannot measure until 'p99'"):
            TFLiteProfiler().run(ctx, compiled["float"], until="p99")
        with pytest.raises(ProfileError, match=r"profile job j\d+ failed: the chip caught fire"):
            TFLiteProfiler().run(ctx, compiled["float"])
        last = ctx.client.store.runs()[0]  # type: ignore[union-attr]
        assert "$qai_hub_job_id" in ctx.client.store.run(last.id).params  # type: ignore[union-attr]


RAW: dict[str, Any] = {
    "execution_summary": {
        "estimated_inference_time": 3652,
        "estimated_inference_peak_memory": 12_000_000,
        "first_load_time": 120_000,
        "warm_load_time": 45_000,
        "inference_memory_peak_range": [1, 2],
        "all_inference_times": [4000, 4100, 4200],
    },
    "execution_detail": [
        {"name": "a", "type": "Conv", "compute_unit": "NPU", "execution_time": 100, "execution_cycles": 5},
        {"name": "b", "type": "Add", "compute_unit": "UNSPECIFIED"},
    ],
}


def _damage(random_: random.Random, value: Any) -> Any:
    if random_.random() < 0.08:
        return random_.choice([None, "x", -1, math.nan, math.inf, 1e308, True, [], {}, [None], "4000", b"z", 0, 7])
    if isinstance(value, dict):
        kept = {key: _damage(random_, item) for key, item in value.items() if random_.random() > 0.05}
        return {**kept, "new": 1} if random_.random() < 0.05 else kept
    if isinstance(value, list):
        return [_damage(random_, item) for item in value if random_.random() > 0.05]
    return value


def test_ten_thousand_damaged_profiles_are_read_or_refused() -> None:
    """Never a crash, never a number that is none."""
    random_ = random.Random(3)  # noqa: S311 - for a test
    job, device = SimpleNamespace(job_id="j1", url="http://x"), SimpleNamespace(name="d", os="14")
    read = 0
    for _ in range(10_000):
        raw = _damage(random_, copy.deepcopy(RAW))
        try:
            made = document_of(
                raw if isinstance(raw, dict) else {}, job, device, "tflite", lambda rows: [()] * len(rows)
            )
        except RefusedError:
            continue
        read += 1
        assert made.latency_ms.mean is not None
        assert made.latency_ms.mean >= 0
        assert math.isfinite(made.latency_ms.mean)
        assert all(row.time_ms is None or row.time_ms >= 0 for row in made.rows)
    assert read > 1000
