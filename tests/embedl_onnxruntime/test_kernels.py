"""Integer kernels: asked of the runtime, told in every answer, and a file that needs others refused."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from support.families import Emulated
from support.models import all_bits_product

import embedl_kernels
from embedl_device.arrays import load_npz, save_npz

_GET = Callable[[str], Emulated]
_QUICK = ("--iterations", "2", "--min-seconds", "0", "--max-warmup-seconds", "0", "--threads", "1")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A product of matrices with all 8 bits that says so."""
    onnx.save(all_bits_product(requires=True), tmp_path / "all-bits.onnx")
    return tmp_path / "all-bits.onnx"


@pytest.fixture
def data(tmp_path: Path) -> Path:
    (tmp_path / "in").mkdir()
    save_npz(tmp_path / "in" / "data.npz", {"x": np.full((2, 64), 255, np.uint8)})
    return tmp_path / "in"


def commands(model: Path, data: Path, folder: Path) -> dict[str, list[str]]:
    file = ["--model", str(model)]
    return {
        "compile": ["compile", *file, "--output", str(folder / "out.onnx")],
        "profile": ["profile", *file, "--layer-runs", "1", "--input-dir", str(data), *_QUICK],
        "pair": ["pair", *file, *file, "--loads", "1", "--input-dir", str(data), *_QUICK],
        "run-inference": ["run-inference", *file, "--input-dir", str(data), "--output-dir", str(folder), "--use-npz"],
    }


def asked(family: Emulated, words: list[str], *, check: bool = True) -> subprocess.CompletedProcess[str]:
    return family.program(["-m", "embedl_onnxruntime", *words], check=check)


@pytest.mark.parametrize(
    ("name", "family", "u8s8"),
    [
        ("haswell", "x86-avx2", "saturating"),
        ("nehalem", "x86-sse", "exact"),
        ("cortex-a72", "arm-neon", "exact"),
    ],
)
def test_doctor_tells_the_family(emulated: _GET, name: str, family: str, u8s8: str) -> None:
    """Though the kernel's list of features under the emulator is this machine's."""
    found = json.loads(asked(emulated(name), ["doctor"]).stdout)["kernels"]
    assert (found["family"], found["u8s8"]) == (family, u8s8)
    assert found["probe"]["u8s8"] == u8s8


@pytest.mark.parametrize(
    "command",
    [*(pytest.param(each, marks=pytest.mark.slow) for each in ("compile", "pair", "run-inference")), "profile"],
)
def test_a_file_that_needs_exact_kernels_is_refused_by_others(
    emulated: _GET, command: str, model: Path, data: Path, tmp_path: Path
) -> None:
    """With the cause and both ways on; allowed, it runs and the answer says what is wrong with it."""
    words = commands(model, data, tmp_path)[command]
    refused = asked(emulated("haswell"), words, check=False)
    assert refused.returncode == 1
    assert refused.stdout == ""
    for part in ("needs exact u8 x s8 sums", "no VNNI", "embedl-deploy relower", "--allow-saturation"):
        assert part in refused.stderr.splitlines()[-1]
    assert not list(tmp_path.glob("out.onnx*"))

    allowed = json.loads(asked(emulated("haswell"), [*words, "--allow-saturation"]).stdout)
    assert allowed["kernels"]["family"] == "x86-avx2"
    assert "needs exact u8 x s8 sums" in allowed["warnings"][0]
    if command == "run-inference":
        assert load_npz(tmp_path / "data.npz")["y"].max() == 32 * 32767


@pytest.mark.slow
def test_exact_kernels_take_it(emulated: _GET, model: Path, data: Path, tmp_path: Path) -> None:
    """And the optimized file still says what it needs."""
    nehalem = emulated("nehalem")
    words = commands(model, data, tmp_path)
    assert json.loads(asked(nehalem, words["run-inference"]).stdout)["warnings"] == []
    assert load_npz(tmp_path / "data.npz")["y"].max() == 64 * 255 * 127
    answer = json.loads(asked(nehalem, words["compile"]).stdout)
    assert (answer["warnings"], answer["kernels"]["family"]) == ([], "x86-sse")
    kept = {entry.key: entry.value for entry in onnx.load(tmp_path / "out.onnx").metadata_props}
    assert kept[embedl_kernels.REQUIRES] == embedl_kernels.EXACT_U8S8


def test_a_runtime_that_cannot_be_asked_is_no_error(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A small build may lack the operator of the probe."""
    from embedl_onnxruntime import session

    def refuse(*_: object) -> Any:
        raise RuntimeError("no such kernel")

    session._kernels.cache_clear()
    monkeypatch.setattr(session, "_open", refuse)
    try:
        found = session.kernels()
        assert (found["family"], found["u8s8"], found["probe"]) == (None, None, None)
        assert found["problem"].endswith("no such kernel")
        assert session.Model(model, session.Settings()).warnings == []
    finally:
        session._kernels.cache_clear()


def test_every_file_is_python_3_8() -> None:
    """Boards have old Pythons."""
    for path in sorted(Path(embedl_kernels.__file__).parent.rglob("*.py")):
        ast.parse(path.read_text(), feature_version=(3, 8))


def test_doctor_works_without_numpy() -> None:
    """It is what one asks when something is missing."""
    code = (
        "import sys\nsys.modules['numpy'] = None\nsys.modules['onnxruntime'] = None\n"
        "from embedl_onnxruntime.cli import main\nsys.exit(main(['doctor']))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    answer = json.loads(done.stdout)
    assert answer["kernels"] is None
    assert "numpy" in answer["problem"]
