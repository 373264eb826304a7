"""The script that runs the TensorRT cells says of each what it was."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_every_cell_says_what_it_was(tmp_path: Path) -> None:
    """Stand-ins for trtexec in three versions, here and over SSH; the real builder of TensorRT-RTX."""
    done = subprocess.run(
        [sys.executable, ROOT / "tools" / "tensorrt_cells.py", "--json"],
        capture_output=True, text=True, timeout=280, check=False,
        env={**os.environ, "PATH": "/usr/sbin:/usr/bin:/bin", "XDG_CACHE_HOME": str(tmp_path)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    cells = [json.loads(line) for line in done.stdout.splitlines()]
    kinds = [cell["kind"] for cell in cells]
    assert (kinds.count("stand-in"), kinds.count("real"), kinds.count("refused")) == (18, 1, 2)
    invoked = [cell["says"] for cell in cells if cell["component"] == "TensorRT invoke" and cell["kind"] == "stand-in"]
    assert set(invoked) == {"at most 0.0e+00 from ONNX Runtime"}
