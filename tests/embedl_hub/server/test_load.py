"""Many clients at once, for some seconds; benchmarks/hub/bench_serve.py is the long form of this."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from support.postgres import postgres_programs

ROOT = Path(__file__).parents[3]


@pytest.mark.slow
def test_nothing_is_lost_under_load_on_both_databases(tmp_path: Path) -> None:
    """And no request fails."""
    postgres_programs()
    argv = [sys.executable, "benchmarks/hub/bench_serve.py", "--seconds", "3", "--clients", "64"]
    done = subprocess.run(
        [*argv, "--json", str(tmp_path / "out.json")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    results = json.loads((tmp_path / "out.json").read_text())["data"]["results"]
    assert [result["database"] for result in results] == ["SQLite", "PostgreSQL"]
    for result in results:
        assert result["records"] > 64
        assert (result["lost"], result["failed_5xx"], result["other_failures"]) == (0, 0, 0)
