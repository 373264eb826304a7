"""The INT8 comparisons still run: on a toy network, without opponents, which need environments of their own."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

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


@pytest.mark.parametrize("name", NOT_RUN)
def test_help(name: str, tmp_path: Path) -> None:
    """What needs weights, data or other environments at least imports, and says what it answers."""
    assert "usage:" in run(name, tmp_path, "--help")


def test_a_toy_is_quantised_and_raced(tmp_path: Path) -> None:
    """Our file of a small network loads, runs in integers alone and stays near float."""
    told = tmp_path / "rows.json"
    run(
        "bench_int8.py", tmp_path, "--only", "toy", "--candidates", "edgeproof", "--rounds", "3", "--json", str(told)
    )  # fmt: skip
    row = json.loads(told.read_text())["data"]["nets"]["toy"]["edgeproof"]
    assert (row["coverage"]["integer"], row["coverage"]["float_"]) == (3, 0)
    assert row["coverage"]["inner_q"] == row["coverage"]["inner_dq"] == 0
    assert row["sqnr_db"] > 30
    assert row["cpu_s"]["quantise"] > 0


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


def test_costs_are_counted(tmp_path: Path) -> None:
    """One pass for all methods against one, and memory at few and many pictures."""
    out = run(
        "bench_ptq.py", tmp_path, "--only", "toy", "--candidates", "edgeproof", "--rounds", "1", "--pictures", "2", "4"
    )
    assert "all / min-max" in out
    assert "peak MB at 4 pictures" in out
