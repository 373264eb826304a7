"""``predict`` on the command line, and what ``compile`` says of the gain."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from support.cli import answer, hub
from support.models import images, residual_net, save


@pytest.mark.slow
def test_a_gain_is_asked_for_and_told_by_compile(tmp_path: Path) -> None:
    """The first question measures this machine; compile then finds the table in the home."""
    home, model = tmp_path / "home", save(residual_net("n"), tmp_path / "net.onnx")
    variables = {"EMBEDL_HUB_HOME": str(home), "EMBEDL_HUB_PREDICTION": "on"}
    refused = hub("predict", model, "--here", **variables)
    assert refused.returncode == 1
    assert "open sizes" in refused.stderr
    told = answer("predict", model, "--here", "--input-shape", "1,3,16,16", **variables)
    assert told["measured_now"]
    assert told["low"] <= told["speedup"] <= told["high"]
    shown = hub("predict", model, "--here", "--input-shape", "1,3,16,16", **variables)
    assert f"{told['speedup']:.2f}x ({told['low']:.2f} to {told['high']:.2f})" in shown.stdout
    np.savez(tmp_path / "data.npz", x=images(4))
    words = ("compile", "onnxruntime", model, "--here", "--input-shape", "1,3,16,16")
    done = hub(*words, "--calibration-data", tmp_path / "data.npz", **variables)
    assert done.returncode == 0, done.stderr
    assert "INT8 predicted" in done.stdout
    assert "INT8 made for" in done.stdout
    if told["speedup"] < 1:
        assert "INT8 does not pay on this machine" in done.stderr
    float_run = answer(*words, **variables)
    assert "predicted_speedup" not in float_run["metrics"]


def test_words_that_contradict_are_usage(tmp_path: Path) -> None:
    """As for every step."""
    model = save(residual_net(), tmp_path / "net.onnx")
    done = hub("predict", model, "--here", "--device", "b", EMBEDL_HUB_HOME=str(tmp_path))
    assert done.returncode == 2
    done = hub("predict", model, "--here", "--input-shape", "1,x", EMBEDL_HUB_HOME=str(tmp_path))
    assert done.returncode == 1
    assert "--input-shape is '1,x'" in done.stderr
