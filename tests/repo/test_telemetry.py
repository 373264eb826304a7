"""Nothing of ours, nor what it uses, keeps notes for its makers or looks for them in the network."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.models import residual_net, save

SESSION = """
import sys
import {package}
import onnxruntime
onnxruntime.InferenceSession(sys.argv[1], providers=["CPUExecutionProvider"])
"""


@pytest.fixture
def bare(tmp_path: Path) -> dict[str, str]:
    """The environment of a user who never said anything about telemetry, with an empty home.

    Written from nothing: ONNX Runtime also keeps silent where a variable such as `CI` says that nobody is there.
    """
    (tmp_path / "home").mkdir()
    save(residual_net(), tmp_path / "net.onnx")
    return {"PATH": os.environ["PATH"], "HOME": str(tmp_path / "home"), "EMBEDL_HUB_PREDICTION": "off"}


def notes(environment: dict[str, str]) -> list[str]:
    """Return what ONNX Runtime wrote down in the user's home."""
    return [str(path) for path in Path(environment["HOME"]).rglob("*") if "onnxruntime" in path.name]


def run(environment: dict[str, str], tmp_path: Path, *argv: str) -> None:
    """Run a Python in the folder."""
    subprocess.run([sys.executable, *argv], env=environment, cwd=tmp_path, check=True, capture_output=True, timeout=120)


@pytest.mark.parametrize("package", ["embedl_hub", "embedl_deploy", "embedl_device", "embedl_onnxruntime"])
def test_onnxruntime_keeps_no_notes(bare: dict[str, str], tmp_path: Path, package: str) -> None:
    """Whichever of our packages comes first."""
    run(bare, tmp_path, "-c", SESSION.format(package=package), "net.onnx")
    assert notes(bare) == []


def test_it_would_otherwise(bare: dict[str, str], tmp_path: Path) -> None:
    """The notes are looked for in the right place."""
    run(bare, tmp_path, "-c", SESSION.format(package="sys"), "net.onnx")
    assert notes(bare)


WATCHED = """
import runpy, socket, sys, threading
import openvino_telemetry.main as telemetry

def refuse(*args, **kwargs):
    raise SystemExit("OpenVINO's telemetry was used")

telemetry.Telemetry.__init__ = refuse
{load}
"""
OURS = "sys.argv = ['x', 'doctor']; from embedl_openvino.cli import main; sys.exit(main())"


def test_openvino_reports_nothing(bare: dict[str, str], tmp_path: Path) -> None:
    """Its import alone would, without a question, unless its reporter cannot be imported."""
    argv = [sys.executable, "-c"]
    told = subprocess.run(
        [*argv, WATCHED.format(load="import openvino")], env=bare, cwd=tmp_path, capture_output=True, text=True,
        check=False, timeout=120,
    )  # fmt: skip
    assert "telemetry was used" in told.stderr
    silent = subprocess.run(
        [*argv, WATCHED.format(load=OURS)], env=bare, cwd=tmp_path, capture_output=True, text=True, check=False,
        timeout=120,
    )  # fmt: skip
    assert silent.returncode == 0, silent.stderr
    assert '"openvino": "' in silent.stdout
    assert not [path for path in Path(bare["HOME"]).rglob("*") if "intel" in str(path).lower()]


def test_a_profile_keeps_no_notes(bare: dict[str, str], tmp_path: Path) -> None:
    """Through the command line, the worker and the device program."""
    run(bare, tmp_path, "-m", "embedl_hub", "profile", "onnxruntime", "net.onnx", "--here")
    assert notes(bare) == []
