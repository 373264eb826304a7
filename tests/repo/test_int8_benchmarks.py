"""The INT8 comparisons still run: on a toy network, without opponents, which need environments of their own."""

import json
import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest
from support.debian import leave_off, require

ROOT = Path(__file__).resolve().parents[2]
NOT_RUN = ("bench_accuracy.py", "train.py")


def run(name: str, home: Path, *arguments: str) -> str:
    """Run a benchmark with its cache in a folder of the test."""
    done = subprocess.run(
        [sys.executable, str(ROOT / "benchmarks" / "deploy" / name), *arguments],
        capture_output=True, text=True, check=False, timeout=280, env=dict(os.environ, EDGEPROOF_BENCH=str(home)),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def masks() -> None:
    """What hiding a processor's features needs."""
    if platform.machine() != "x86_64" or sys.platform != "linux":
        leave_off("Linux on x86-64", "hiding a processor's features is for that")
    require("gcc", "gcc")
    require("objdump", "binutils")


@pytest.mark.parametrize("name", NOT_RUN)
def test_help(name: str, tmp_path: Path) -> None:
    """What needs weights, data or other environments at least imports, and says what it answers."""
    assert "usage:" in run(name, tmp_path, "--help")


@pytest.mark.slow
def test_a_toy_is_quantized_and_raced(tmp_path: Path) -> None:
    """Our file of a small network loads, runs in integers alone and stays near float."""
    told = tmp_path / "rows.json"
    run(
        "bench_int8.py", tmp_path, "--only", "toy", "--candidates", "edgeproof", "--rounds", "3", "--json", str(told)
    )  # fmt: skip
    row = json.loads(told.read_text())["data"]["nets"]["toy"]["edgeproof"]
    assert (row["coverage"]["integer"], row["coverage"]["float_"]) == (3, 0)
    assert row["coverage"]["inner_q"] == row["coverage"]["inner_dq"] == 0
    assert row["sqnr_db"] > 30
    assert row["cpu_s"]["quantize"] > 0


@pytest.mark.slow
@pytest.mark.usefixtures("masks")
def test_a_toy_is_raced_with_vnni_and_without(tmp_path: Path) -> None:
    """The portable file stays near float on both; the probe says that the kernels are others."""
    told = tmp_path / "rows.json"
    run("bench_families.py", tmp_path, "--only", "toy", "--without-peers", "--turns", "3", "--json", str(told))
    data = json.loads(told.read_text())["data"]
    assert data["families"]["x86-avx2"] == 1_048_544
    found = data["nets"]["toy"]["portable"]
    assert all(row["sqnr_db"] > 30 for row in found["families"].values())
    assert found["largest_difference"] == 0


@pytest.mark.slow
@pytest.mark.usefixtures("masks")
def test_inputs_that_try_to_break_a_file(tmp_path: Path) -> None:
    """The portable file gives the same bits on all families, the 8-bit one does not."""
    told = tmp_path / "rows.json"
    run("bench_inputs.py", tmp_path, "--only", "cnn", "--inputs", "10", "--json", str(told))
    row = json.loads(told.read_text())["data"]["nets"]["cnn"]
    cut = row["families"]["x86-avx2"]
    assert (row["pairs_that_can_saturate"], cut["runs_that_differ"], cut["kernels_off"]) == (0, 0, 0)
    assert row["largest_pair_8_bits"] > 32767 >= row["largest_pair"]


@pytest.mark.slow
def test_training_and_calibration_are_timed(tmp_path: Path) -> None:
    """One round on the CPU."""
    told = tmp_path / "rows.json"
    run(
        "bench_gpu.py", tmp_path, "--only", "toy", "--device", "cpu", "--batch", "2", "--rounds", "1",
        "--json", str(told),
    )  # fmt: skip
    row = json.loads(told.read_text())["data"]["batches"]["2"]["toy"]
    assert row["calibration"] > 0
    assert row["training"] > 0


@pytest.mark.slow
def test_compiled_steps_are_timed_in_both_modes(tmp_path: Path) -> None:
    """One round on the CPU, with the gradients of eager mode."""
    told = tmp_path / "rows.json"
    run(
        "bench_compiled.py", tmp_path, "--only", "toy", "--device", "cpu", "--batch", "2", "--rounds", "1",
        "--json", str(told),
    )  # fmt: skip
    row = json.loads(told.read_text())["data"]["nets"]["toy"]
    assert set(row) == {"compiled", "reduced"}
    for found in row.values():
        assert found["ratio"] > 0
        assert min(found["gradients_db"].values()) > 60


@pytest.mark.slow
def test_costs_are_counted(tmp_path: Path) -> None:
    """One pass for all methods against one, and memory at few and many pictures."""
    out = run(
        "bench_ptq.py", tmp_path, "--only", "toy", "--candidates", "edgeproof", "--rounds", "1", "--pictures", "2", "4"
    )
    assert "all / min-max" in out
    assert "peak MB at 4 pictures" in out
