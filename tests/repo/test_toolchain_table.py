"""The script that runs the toolchain table says of each cell what it was and what came of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_every_cell_says_what_it_was(tmp_path: Path, converter: Path) -> None:
    """Five toolchains with every provider; nothing fails, and only TensorRT-RTX refuses, for it has no GPU."""
    done = subprocess.run(
        [sys.executable, ROOT / "tools" / "toolchain_table.py", "--json"],
        capture_output=True, text=True, timeout=280, check=False,
        env={**os.environ, "PATH": "/usr/sbin:/usr/bin:/bin", "XDG_CACHE_HOME": str(tmp_path)},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    cells = [json.loads(line) for line in done.stdout.splitlines()]
    counts = Counter((cell["toolchain"], cell["kind"], cell["result"]) for cell in cells)
    assert counts == {
        ("TFLite", "real", "ok"): 6,
        ("TFLite", "stand-in", "ok"): 4,
        ("ONNX Runtime", "real", "ok"): 6,
        ("ONNX Runtime", "stand-in", "ok"): 3,
        ("OpenVINO", "real", "ok"): 6,
        ("ExecuTorch", "real", "ok"): 6,
        ("TensorRT", "stand-in", "ok"): 18,
        ("TensorRT", "real", "ok"): 1,
        ("TensorRT", "real", "refused"): 2,
    }
    providers = {(cell["toolchain"], cell["provider"].partition(" ")[0]) for cell in cells}
    assert len(providers) == 14
    assert all(cell["parts"] for cell in cells)
