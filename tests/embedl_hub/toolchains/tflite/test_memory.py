"""LiteRT's arena: predicted from the file, laid out by the runtime, and the two held against each other."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from support.tflite import conv_tflite

from embedl_hub.core.compile import TFLiteCompiledModel
from embedl_hub.core.device import Device, DeviceSpec, LiteRTConfig
from embedl_hub.core.profile import ProfileError, TFLiteProfiler
from embedl_hub.core.steps import keep_model
from embedl_hub.testing import temporary_context
from embedl_hub.toolchains.tflite.memory.layout import read_layout
from embedl_hub.toolchains.tflite.memory.planner import Use, place, plan_arena
from embedl_hub.toolchains.tflite.memory.predict import measured_memory, plan_file
from embedl_litert.session import Model, Settings

OWN = LiteRTConfig(xnnpack=False)


@pytest.fixture(params=[16, 7])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A file of four operators."""
    file = tmp_path / "m.tflite"
    file.write_bytes(conv_tflite(request.param))
    return file


def test_the_arena_is_what_the_runtime_laid_out(path: Path) -> None:
    """To the byte, and so is each tensor's place; parts are walked through, not made up from the rest."""
    told = Model(path, Settings(1, xnnpack=False)).memory()
    measured, predicted = measured_memory(told, path), plan_file(path, OWN)
    assert measured.arena_bytes == predicted.arena_bytes
    assert sum(part.size_bytes for part in measured.parts) == measured.arena_bytes
    planned = {each.name: (each.offset, each.size) for each in plan_arena(read_layout(path)).placed}
    for tensor in told["tensors"]:
        # The sum is written over what it adds; the mean is as large as what it is made of, and either may come first.
        if tensor["name"] not in {"total", "mean"}:
            assert planned[tensor["name"]] == (tensor["start"], tensor["size"])
    assert measured.peak_layer == predicted.peak_layer == "CONV_2D:0"
    assert [row.in_use_bytes for row in measured.rows] == [row.in_use_bytes for row in predicted.rows]
    assert {part.what for part in measured.parts} >= {"x", "first", "unfolded input of CONV_2D:0"}


def test_a_delegate_s_memory_is_not_told(path: Path) -> None:
    """Neither predicted nor measured: a sentence instead of a number."""
    predicted = plan_file(path, LiteRTConfig())
    assert predicted.total_bytes is None
    assert "XNNPACK" in str(predicted.problem)
    told = Model(path, Settings(1, xnnpack=True)).memory()
    measured = measured_memory(told, path)
    assert "memory of their own that LiteRT does not tell" in str(measured.problem)
    assert not measured.rows


def test_a_profile_tells_its_memory_and_what_has_no_room_is_refused(path: Path, here: Device) -> None:
    """By the same words as in any runtime."""
    own = replace(here, provider_config=replace(here.provider_config, xnnpack=False))  # type: ignore[type-var]
    tight = replace(own, name="tight", spec=DeviceSpec(memory_bytes=48_000_000))
    with temporary_context([own, tight]) as ctx:
        model = keep_model(ctx, TFLiteProfiler, path)
        assert isinstance(model, TFLiteCompiledModel)
        result = TFLiteProfiler().run(ctx, model, device="here")
        assert result.output_file is not None
        document = json.loads(result.output_file.local().read_text())
        assert document["memory"]["arena_bytes"] == document["predicted_memory"]["arena_bytes"]
        assert result.arena_peak_mb is not None
        with pytest.raises(ProfileError, match=r"will not fit: 48 of 48 MB, at layer CONV_2D:0"):
            TFLiteProfiler().run(ctx, model, device="tight")


def test_an_operator_that_sizes_its_memory_itself_is_no_number(tmp_path: Path) -> None:
    """And it is named."""
    (tmp_path / "m.tflite").write_bytes(conv_tflite(custom=True))
    found = plan_file(tmp_path / "m.tflite", OWN)
    assert found.total_bytes is None
    assert found.problem == "it has CUSTOM, whose memory does not follow from the file"


def test_the_largest_comes_first_and_fills_the_smallest_gap() -> None:
    """Offsets are multiples of 64; what lives all the time lies at the beginning."""
    uses = [
        Use("small", 10, 0, 1, 2, 1), Use("large", 500, 1, 0, 1, 0), Use("whole", 100, 2, 0, 1 << 30, -1),
        Use("later", 300, 3, 2, 3, 2),
    ]  # fmt: skip
    found = {each.name: each.offset for each in place(uses)}
    assert found == {"whole": 0, "large": 128, "later": 128, "small": 640}
