"""Kernels of older x86 processors, run on this one with features hidden: they are those kernels, to the bit."""

import platform
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from support.debian import leave_off, require
from support.families import FAMILIES, Emulated
from support.qdq_random import extreme_input, random_qdq, tapped

from embedl_deploy.dialect import lower
from embedl_deploy.integer import IntegerModel
from embedl_kernels import MODEL

ROOT = Path(__file__).resolve().parents[2]
MAIN = ROOT / "benchmarks/deploy/masked/__main__.py"
CUT, WHOLE = 1_048_544, 2_072_640
SUMS = {"x86-avx512": CUT, "x86-avx2": CUT, "x86-sse": WHOLE}
# A processor's own features are the most that can be had; AVX-512 without VNNI saturates as AVX2 does.
REFERENCES = {"x86-avx512": "x86-avx2", "x86-avx2": "x86-avx2", "x86-sse": "x86-sse"}
PROBE = {"A": np.full((8, 64), 255, np.uint8), "B": np.full((64, 16), 127, np.int8)}


@pytest.fixture
def runtime(request: pytest.FixtureRequest) -> Iterator[Emulated]:
    """ONNX Runtime on the family that a test asks for."""
    if platform.machine() != "x86_64" or sys.platform != "linux":
        leave_off("Linux on x86-64", "hiding a processor's features is for that")
    require("gcc", "gcc")
    require("objdump", "binutils")
    if request.param == "x86-avx512" and "avx512bw" not in Path("/proc/cpuinfo").read_text():
        pytest.skip("this processor has no AVX-512, and no emulator has it")
    with Emulated(FAMILIES["host"]) as made:
        made._command = ([sys.executable, str(MAIN), request.param, sys.executable], [])
        yield made


@pytest.mark.slow
@pytest.mark.parametrize(("runtime", "wanted"), SUMS.items(), indirect=["runtime"])
def test_the_runtime_takes_the_family_s_kernels(runtime: Emulated, wanted: int) -> None:
    """The probe's 64 products of 255 and 127."""
    ((found,),) = runtime.run(MODEL, [PROBE])
    assert found[0, 0] == wanted


@pytest.mark.parametrize(("runtime", "family"), REFERENCES.items(), indirect=["runtime"])
def test_integer_arithmetic_predicts_the_kernels(runtime: Emulated, family: str) -> None:
    """Random graphs of extreme numbers: no difference at any boundary that an integer kernel writes."""
    for seed in range(12):
        model = lower(random_qdq(seed), "onnxruntime-x86-vnni")
        integer = IntegerModel(model, family=family)
        names, feed = integer.qdq.integers, extreme_input(seed)
        outputs = [value.name for value in model.graph.output]
        (found,) = runtime.run(tapped(model, list(names.values())), [feed], outputs=[*names.values(), *outputs])
        given = dict(zip(names, found, strict=False))
        made = integer.run(feed, given)
        floats = {kernel.boundary for kernel in integer.kernels if not kernel.integer}
        checked = [name for name in given if name in made.boundaries and name not in floats]
        assert len(checked) > 1
        for name in checked:
            assert np.array_equal(given[name], made.boundaries[name]), (seed, name)


@pytest.mark.parametrize("runtime", ["x86-avx512", "x86-avx2"], indirect=True)
def test_a_portable_file_gives_the_same_bits(runtime: Emulated) -> None:
    """As on the processor as it is, and the file with all 8 bits does not: the test could fail."""
    differs = 0
    with Emulated(FAMILIES["host"]) as host:
        for seed in range(12):
            feed = extreme_input(seed)
            for dialect in ("onnxruntime-x86", "onnxruntime-x86-vnni"):
                model = lower(random_qdq(seed), dialect).SerializeToString()
                ((here,), (there,)) = host.run(model, [feed])[0], runtime.run(model, [feed])[0]
                if dialect == "onnxruntime-x86":
                    assert np.array_equal(here, there), seed
                else:
                    differs += not np.array_equal(here, there)
        ((found,),) = host.run(MODEL, [PROBE])
    assert differs or found[0, 0] == CUT
