"""Quantization in its own process: formats, and memory that does not grow with the calibration set."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import numpy as np
import onnx
import pytest
from support.models import residual_net, save

from embedl_hub.quantization.quantize import NumberFormat, Request, number_format
from embedl_hub.refusal import RefusedError

MEASURED = """\
import runpy, sys
try:
    runpy.run_module("embedl_hub.quantization.quantize", run_name="__main__")
except SystemExit as ending:
    code = ending.code
lines = open("/proc/self/status").read().splitlines()
print(next(line.split()[1] for line in lines if line.startswith("VmHWM")))
sys.exit(code)
"""


@pytest.mark.parametrize(
    ("architecture", "features", "u8s8", "expected"),
    [
        ("x86_64", ("avx2", "avx512_vnni"), None, NumberFormat("uint8")),
        ("x86_64", ("avx_vnni",), None, NumberFormat("uint8")),
        ("AMD64", ("avx2",), None, NumberFormat("uint8", portable=True)),
        ("x86_64", (), None, NumberFormat("uint8", portable=True)),
        # What the runtime answered there counts for more than what the processor lists.
        ("x86_64", (), "exact", NumberFormat("uint8")),
        ("x86_64", ("avx2", "avx512_vnni"), "saturating", NumberFormat("uint8", portable=True)),
        ("aarch64", ("asimddp",), "exact", NumberFormat("int8")),
        ("armv7l", (), None, NumberFormat("int8")),
    ],
)
def test_the_processor_decides_the_format(
    architecture: str, features: tuple[str, ...], u8s8: str | None, expected: NumberFormat
) -> None:
    """Unsigned on x86, portable unless its kernels are known to be exact; signed on ARM."""
    assert number_format(architecture, features, u8s8) == expected
    assert ("portable" in expected.kernels) == expected.portable


def test_a_processor_nobody_measured_is_refused() -> None:
    """Rather than a guess that may be four times slower than float."""
    with pytest.raises(RefusedError, match="'riscv64' runs fast; known are x86_64 and aarch64"):
        number_format("riscv64", ())


def quantized(folder: Path, samples: int, method: str) -> int:
    """Quantize on so many samples and return the process's peak memory in KiB."""
    folder.mkdir()
    model = save(residual_net(size=96), folder / "net.onnx")
    data = np.random.default_rng(0).normal(size=(samples, 3, 96, 96)).astype(np.float32)
    np.savez(folder / "data.npz", x=data)
    request = Request(str(model), str(folder / "out.onnx"), str(folder / "data.npz"), method, False)
    (folder / "request.json").write_text(json.dumps(asdict(request)))
    done = subprocess.run(
        [sys.executable, "-c", MEASURED, folder / "request.json"], capture_output=True, text=True, check=True
    )
    assert "QuantizeLinear" in {node.op_type for node in onnx.load(folder / "out.onnx").graph.node}
    return int(done.stdout.split()[-1])


@pytest.mark.slow
@pytest.mark.parametrize("method", ["minmax", "entropy", "percentile"])
def test_memory_does_not_grow_with_the_calibration_set(method: str, tmp_path: Path) -> None:
    """Sixteen times the samples, 2.5 MB of activations each: the same memory within a few of them."""
    few, many = quantized(tmp_path / "few", 8, method), quantized(tmp_path / "many", 128, method)
    print(f"{method}: {few / 1024:.0f} MB with 8 samples, {many / 1024:.0f} MB with 128")  # noqa: T201 - shown by -rP
    assert many - few < 40_000
