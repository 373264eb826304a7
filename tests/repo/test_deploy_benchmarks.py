"""Deploy's benchmarks still run."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def run(name: str, *arguments: str) -> str:
    """Run a benchmark and return what it prints."""
    done = subprocess.run(
        [sys.executable, str(ROOT / "benchmarks" / "deploy" / name), *arguments],
        capture_output=True, text=True, check=False, timeout=250,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_coverage(tmp_path: Path) -> None:
    """One model of each library, as a table and as data."""
    out = run("coverage.py", "--only", "resnet18", "hf:bert", "--json", str(tmp_path / "rows.json"))
    assert "2 of 2 transform with outputs equal" in out
    rows = json.loads((tmp_path / "rows.json").read_text())["data"]["tensorrt"]
    assert rows["resnet18"]["counts"]["ConvBNAddReLUPattern"] == 8
    assert rows["hf:bert"]["left"] == {"Embedding": 3}


@pytest.mark.slow
def test_cost() -> None:
    """One round on small cases."""
    assert "from embedl_deploy import transform, after torch" in run("bench_transform.py", "--quick")
