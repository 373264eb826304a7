"""The command line knows TensorRT without a line of its own about it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.models import images, residual_net, save

from embedl_hub.toolchains.tensorrt.config import check_trtexec as doctor


def say(*words: object) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "embedl_hub", *map(str, words)],
        capture_output=True, text=True, timeout=120, check=False, env=dict(os.environ),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def call(*words: object) -> Any:
    return json.loads(say(*words, "--json"))


def test_all_three_steps(
    programs: dict[str, Path], model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A device written down, a model compiled, profiled and run, each by the run before."""
    monkeypatch.setenv("PATH", f"{programs['8.6.1'].parents[1] / 'gpu'}:/usr/bin:/bin")
    home = tmp_path / "home"
    home.mkdir()
    config = f'trtexec_path = "{programs["11.1.0"]}", min_seconds = 0.02, warmup_seconds = 0.01, iterations = 5'
    (home / "devices.toml").write_text(
        f'[devices.orin]\ntype = "trtexec"\nrunner = "local"\nlease_dir = ""\n'
        f'artifact_root = "{tmp_path / "root"}"\nconfig = {{ {config} }}\n'
    )
    np.savez(tmp_path / "data.npz", x=images())
    compiled = call("compile", "tensorrt", model, "--home", home)
    assert (compiled["provider"], compiled["device"]) == ("trtexec", "orin")
    profiled = call("profile", "tensorrt", compiled["run"], "--home", home)
    assert profiled["verdict"]
    assert profiled["metrics"]["latency"] > 0
    invoked = call("invoke", "tensorrt", compiled["run"], "--input-data", tmp_path / "data.npz", "--home", home)
    with np.load(invoked["artifacts"]["output_file"]) as arrays:
        assert arrays["y"].shape == (1, 10)


def test_rtx_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine for a generation, by the command line alone."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    home = tmp_path / "home"
    home.mkdir()
    (home / "devices.toml").write_text('[devices.ada]\ntype = "tensorrt_rtx"\n')
    path = save(residual_net(), tmp_path / "net.onnx")
    compiled = call("compile", "tensorrt", path, "--home", home)
    assert compiled["provider"] == "tensorrt_rtx"
    assert Path(compiled["artifacts"]["path"]).stat().st_size > 1000
    assert "from cache" in say("compile", "tensorrt", path, "--home", home)


def test_doctor_names_both(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, programs: dict[str, Path]) -> None:
    """Through the seam that every provider has."""
    titles = {row["title"]: row for row in call("doctor", "--home", tmp_path)}
    assert {"provider trtexec", "provider tensorrt_rtx", "trtexec", "tensorrt-rtx"} <= set(titles)
    monkeypatch.setenv("PATH", str(programs["8.6.1"].parent))
    assert [(result.is_ok, result.message) for result in doctor()] == [(True, str(programs["8.6.1"]))]
    monkeypatch.setenv("PATH", "/nowhere")
    assert [result.is_ok for result in doctor()] == [None]
