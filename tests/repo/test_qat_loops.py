"""The recipe runs in the loops that users have."""

import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "examples" / "qat_loops"
TESTS = Path(__file__).parents[1]
# transformers imports torchvision where it is installed, and beside a CPU torch that fails.
RUN = """
import runpy, sys
sys.path.append(sys.argv.pop(1))
from support.vision import declare_operators
kept = declare_operators()
script = sys.argv.pop(1)
sys.path.insert(0, script.rpartition("/")[0])
runpy.run_path(script, run_name="__main__")
"""


@pytest.mark.slow
@pytest.mark.parametrize("name", ["main", "with_lightning", "with_transformers"])
def test_a_loop_gives_accuracy_back(name: str, tmp_path: Path) -> None:
    """Each ends with an error unless training on was worth it."""
    argv = [sys.executable, "-c", RUN, str(TESTS), str(FOLDER / f"{name}.py")]
    done = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "trained with the pairs in place" in done.stdout
