"""Deploy's examples run, and its reference names everything public."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from embedl_hub.tracking import Store

ROOT = Path(__file__).resolve().parents[2]


def test_every_error_and_pattern_is_in_the_reference() -> None:
    """A new public name needs a line."""
    import embedl_deploy.errors
    import embedl_deploy.lattice
    import embedl_deploy.onnxruntime
    import embedl_deploy.tensorrt

    text = (ROOT / "docs" / "reference" / "deploy.md").read_text(encoding="utf-8")
    names = [name for name in embedl_deploy.errors.__all__ if name.endswith("Error") and name != "DeployError"]
    for backend in (embedl_deploy.tensorrt, embedl_deploy.lattice, embedl_deploy.onnxruntime):
        names += [name for name in backend.__all__ if name.endswith("Pattern") or name.startswith("Fused")]
    missing = [name for name in names if name not in text]
    assert not missing


def run(script: Path, *arguments: str, path: str = "") -> str:
    """Run a script in a fresh interpreter."""
    environment = {**os.environ, "PYTHONPATH": path}
    done = subprocess.run(
        [sys.executable, str(script), *arguments],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_example_transform(tmp_path: Path) -> None:
    """The example prints a plan and a report and writes the page."""
    out = run(ROOT / "examples" / "transform" / "main.py", str(tmp_path))
    assert "ConvBNAddReLUPattern" in out
    assert "Whole model, before and after: exact" in out
    assert (tmp_path / "report.html").read_text(encoding="utf-8").startswith("<!doctype html>")


@pytest.mark.slow
def test_example_qat() -> None:
    """Training with pairs in place gives back what four bits cost; the example asserts it."""
    out = run(ROOT / "examples" / "qat" / "main.py")
    assert "trained with the pairs in place" in out


@pytest.mark.slow
def test_example_own_pytorch(tmp_path: Path) -> None:
    """From training to a profile of the INT8 file, which stays within a point of float; the example asserts it."""
    out = run(ROOT / "examples" / "own_pytorch" / "main.py", str(tmp_path))
    assert re.search(r"^INT8 +[\d.]+ % +[\d.]+ ms", out, re.MULTILINE)
    assert (tmp_path / "report.html").read_text(encoding="utf-8").startswith("<!doctype html>")
    with Store(tmp_path / ".embedl") as store:
        assert sorted(run.type for run in store.runs()) == ["COMPILE"] * 2 + ["INFERENCE"] * 2 + ["PROFILE"] * 2


@pytest.mark.slow
def test_example_mixed_precision() -> None:
    """The search reaches the target with some layers in float, not all; the example asserts the first."""
    out = run(ROOT / "examples" / "mixed_precision" / "main.py")
    found = re.search(r"Goal met.*Float islands: (.+)", out)
    assert found is not None
    assert 1 <= len(found[1].split(", ")) <= 3


def test_example_backend_installs_and_runs(tmp_path: Path) -> None:
    """The third-party package is built, installed apart, discovered by its entry point and used."""
    package = ROOT / "examples" / "custom_backend"
    source = tmp_path / "source"
    (source / "src").mkdir(parents=True)
    for file in (package / "pyproject.toml", *package.rglob("src/*/*.py")):
        target = source / file.relative_to(package)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(file.read_bytes())
    site = tmp_path / "site"
    done = subprocess.run(
        [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--no-index",
         "--disable-pip-version-check", "--target", str(site), str(source)],
        capture_output=True, text=True, check=False, timeout=200,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    out = run(package / "main.py", path=str(site))
    assert "ConvBNClampPattern" in out
    assert "8 groups, the target has 4 lanes" in out
