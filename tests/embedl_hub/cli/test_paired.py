"""``embedl-hub compare --paired``: runs and files measured in turns, shown in compare's words."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.cli import answer, hub
from support.models import residual_net, save


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home of its own."""
    return tmp_path / "home"


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """A small net."""
    return save(residual_net(), tmp_path / "small.onnx")


@pytest.fixture
def large(tmp_path: Path) -> Path:
    """One with sixteen times as many pixels."""
    return save(residual_net(size=64), tmp_path / "large.onnx")


@pytest.mark.slow
def test_a_compile_run_a_profile_run_and_a_file(home: Path, small: Path, large: Path) -> None:
    """Each stands for its model; the slow one is last and told apart."""
    compiled = answer("compile", "onnxruntime", small, "--home", home)["run"]
    profiled = answer("profile", "onnxruntime", compiled, "--home", home)["run"]
    words = ["compare", "--paired", compiled, profiled, large, "--samples", 30, "--home", home]
    found = answer(*words)
    assert [model["given"] for model in found["models"]] == [compiled, profiled, str(large)]
    assert found["models"][0]["ratio"] == {"value": 1.0, "low": None, "high": None}
    assert found["models"][2]["ratio"]["low"] > 1
    assert found["models"][2]["conclusion"] == "slower"
    assert [each["number"] for each in found["ranking"]][2] == 2
    assert found["ranking"][1]["is_significant"]
    assert found["rounds"] >= 30
    shown = hub(*words)
    assert shown.returncode == 0, shown.stderr
    assert "slower" in shown.stdout
    assert "From the fastest: " in shown.stdout
    assert f"< C {large}" in shown.stdout
    again = answer("run", "show", found["run"], "--home", home)
    assert again["component"] == "ONNXRuntimePairedProfiler"


def test_what_cannot_be_told_is_said(home: Path, tmp_path: Path, small: Path) -> None:
    """Files of no known kind, of two kinds, and words that are nothing."""
    unknown = tmp_path / "model.bin"
    unknown.write_bytes(b"x")
    lite = tmp_path / "model.tflite"
    lite.write_bytes(b"x")
    for words, message in (
        ((small, unknown), "It cannot be told what runs"),
        ((small, lite), "must be of one toolchain"),
        ((small, "nothing"), "neither a file here nor a run"),
    ):
        done = hub("compare", "--paired", *words, "--home", home)
        assert done.returncode != 0
        assert message in done.stderr
        assert "Traceback" not in done.stderr


def test_options_of_measuring_need_the_flag(home: Path) -> None:
    """Without it nothing is measured, and nothing may look as if it were."""
    done = hub("compare", "a", "b", "--samples", 10, "--here", "--home", home)
    assert done.returncode == 2
    assert "--samples, --here says how to measure; add --paired" in done.stderr


def test_the_paired_step_is_no_command_of_profile(home: Path) -> None:
    """It takes several models; profile takes one."""
    shown = hub("profile", "--help")
    assert "onnxruntime" in shown.stdout
    assert "paired" not in shown.stdout
