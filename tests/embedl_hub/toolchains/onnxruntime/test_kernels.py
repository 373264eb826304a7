"""What a processor's integer kernels do to a model: recorded, refused, allowed, or warned of."""

from __future__ import annotations

import logging
import os
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.families import Emulated
from support.models import all_bits_product, images, save

from embedl_hub.core import HubContext
from embedl_hub.core.compile import CompileError, ONNXRuntimeCompiler
from embedl_hub.core.device import Device, EmbedlONNXRuntimeConfig, LocalCommandRunner
from embedl_hub.core.invoke import InvokeError, ONNXRuntimeInvoker
from embedl_hub.core.profile import ONNXRuntimePairedProfiler, ONNXRuntimeProfiler, ProfileError
from embedl_hub.testing import temporary_context

QUICK: dict[str, Any] = {"iterations": 2, "min_seconds": 0.0, "max_warmup_seconds": 0.0, "layer_runs": 1, "threads": 1}
SOURCES = Path(__file__).resolve().parents[3] / "src"
MakeBoard = Callable[..., Device]


@pytest.fixture
def processor(emulated: Callable[[str], Emulated], tmp_path: Path) -> MakeBoard:
    """Make a board with the processor of a family."""

    def make(name: str, **changes: Any) -> Device:
        family = emulated(name)
        program = tmp_path / f"embedl-onnxruntime-{name}"
        path = os.pathsep.join((str(SOURCES), *family.python_path))
        words = shlex.join([*family.command, "-m", "embedl_onnxruntime"])
        program.write_text(f'#!/bin/sh\nPYTHONPATH={shlex.quote(path)} exec {words} "$@"\n')
        program.chmod(0o755)
        return Device(
            name,
            LocalCommandRunner(),
            provider_type="embedl_onnxruntime",
            provider_config=EmbedlONNXRuntimeConfig(str(program), **{**QUICK, **changes}),
            artifact_root=tmp_path / "board",
            lease_dir=str(tmp_path / "lock"),
        )

    return make


def params(ctx: HubContext, output: Any) -> dict[str, Any]:
    artifact = output.path if hasattr(output, "path") else output.output_file
    run = ctx.client.store.run(artifact.run_id)  # type: ignore[union-attr]
    return {name: param.value for name, param in run.params.items()}


def feed() -> dict[str, np.ndarray]:
    return {"x": np.full((2, 64), 255, np.uint8)}


def test_what_needs_exact_kernels_is_refused_by_every_step(processor: MakeBoard, tmp_path: Path) -> None:
    """With cause and way out; the file that an exact processor compiled still says what it needs."""
    source = save(all_bits_product(requires=True), tmp_path / "all-bits.onnx")
    old, older = processor("haswell"), processor("nehalem")
    words = r"needs exact u8 x s8 sums.*no VNNI.*embedl-deploy relower.*allow_saturation=true"
    with temporary_context([old, older]) as ctx:
        with pytest.raises(CompileError, match=words):
            ONNXRuntimeCompiler(device="haswell").run(ctx, source)
        compiled = ONNXRuntimeCompiler(device="nehalem").run(ctx, source)
        assert params(ctx, compiled)["kernel_family"] == "x86-sse"
        assert "warnings" not in params(ctx, compiled)
        with pytest.raises(ProfileError, match=words):
            ONNXRuntimeProfiler(device="haswell").run(ctx, compiled)
        with pytest.raises(InvokeError, match=words):
            ONNXRuntimeInvoker(device="haswell").run(ctx, compiled, feed())


@pytest.mark.slow
def test_allowed_it_runs_and_the_run_says_what_is_wrong(
    processor: MakeBoard, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    source = save(all_bits_product(requires=True), tmp_path / "all-bits.onnx")
    with temporary_context([processor("haswell", allow_saturation=True)]) as ctx:
        with caplog.at_level(logging.WARNING, "embedl_hub"):
            compiled = ONNXRuntimeCompiler().run(ctx, source)
        assert "needs exact u8 x s8 sums" in caplog.text
        result = ONNXRuntimeInvoker().run(ctx, compiled, feed())
        assert result.output["y"].max() == 32 * 32767
        for output in (compiled, result, ONNXRuntimePairedProfiler().run(ctx, [compiled, compiled], samples=2)):
            found = params(ctx, output)
            assert found["kernel_family"] == "x86-avx2"
            assert found["$kernels"]["u8s8"] == "saturating"
            assert "needs exact u8 x s8 sums" in found["warnings"][0]


@pytest.mark.slow
def test_a_foreign_file_is_warned_of(processor: MakeBoard, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It says nothing of itself; its weights do."""
    source = save(all_bits_product(requires=False), tmp_path / "foreign.onnx")
    with temporary_context([processor("haswell"), processor("nehalem")]) as ctx:
        with caplog.at_level(logging.WARNING, "embedl_hub"):
            compiled = ONNXRuntimeCompiler(device="haswell").run(ctx, source)
        assert "1 layer of the model can answer otherwise on device 'haswell'" in caplog.text
        profile = ONNXRuntimeProfiler(device="haswell").run(ctx, compiled)
        for output in (compiled, profile):
            (warning,) = params(ctx, output)["warnings"]
            for part in ("'product' is the first", "no VNNI", "embedl-deploy relower", "--dialect onnxruntime-x86"):
                assert part in warning
        assert "warnings" not in params(ctx, ONNXRuntimeProfiler(device="nehalem").run(ctx, compiled))


@pytest.mark.slow
def test_calibrated_for_a_saturating_processor_it_answers_alike_everywhere(processor: MakeBoard, model: Path) -> None:
    """The number format follows what the kernels answered, and the run has the remedy of each layer."""
    with temporary_context([processor("haswell"), processor("nehalem")]) as ctx:
        compiled = ONNXRuntimeCompiler(device="haswell", per_channel=True).run(
            ctx, model, calibration_data={"x": images(4)}
        )
        assert compiled.quantization["format"] == {"activations": "uint8", "weights": "int8", "portable": True}
        found = params(ctx, compiled)
        assert {row["layer"] for row in found["remedies"]} >= {"conv/0", "conv/1"}
        assert all(set(row) == {"layer", "remedy", "cost_db"} for row in found["remedies"])
        assert "warnings" not in found
        data = {"x": np.where(images(2) > 0, 1e3, -1e3).astype(np.float32)}
        one, other = (ONNXRuntimeInvoker(device=name).run(ctx, compiled, data) for name in ("haswell", "nehalem"))
        np.testing.assert_array_equal(one.output["y"], other.output["y"])
        exact = ONNXRuntimeCompiler(device="nehalem").run(ctx, model, calibration_data={"x": images(4)})
        assert exact.quantization["format"]["portable"] is False
        assert params(ctx, exact)["remedies"] == []
        with pytest.raises(InvokeError, match="needs exact u8 x s8 sums"):
            ONNXRuntimeInvoker(device="haswell").run(ctx, exact, data)
