"""Kinds of measurement that every device program has, as a board runs them: cold starts, models at once."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest


def board(*arguments: object) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "embedl_onnxruntime", *map(str, arguments), "--threads", "1"]
    return subprocess.run(argv, capture_output=True, text=True, timeout=120, check=False)


def answered(*arguments: object) -> Any:
    done = board(*arguments)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    return json.loads(done.stdout)


def test_starts_are_fresh_processes(make_model: Any) -> None:
    """Each has its parts; cold ones are given only with the evidence that files were read."""
    answer = answered("cold-start", "--model", make_model(1), "--starts", 2)
    assert (answer["kind"], answer["starts"]) == ("cold_start", 2)
    parts = answer["cached"]["parts_ms"]
    assert set(parts) == {"process", "import", "load", "first_inference"}
    assert all(part["min"] > 0 for part in parts.values())
    assert all(len(samples) == 2 for samples in answer["cached"]["samples_us"].values())
    assert (answer["cold"] is None) == bool(answer["cold_problem"])
    assert answer["files"]["count"] > 1
    assert answer["runtime"]["name"] == "onnxruntime"


def test_models_run_at_once(make_model: Any, tmp_path: Path) -> None:
    """Each has windows alone and beside the others, as many as rounds."""
    one = make_model(1).rename(tmp_path / "one.onnx")
    two = make_model(1, name="other").rename(tmp_path / "two.onnx")
    answer = answered("concurrent", "--model", one, "--model", two, "--rounds", 2, "--window-seconds", 0.05)
    assert [row["file_name"] for row in answer["models"]] == ["one.onnx", "two.onnx"]
    for row in answer["models"]:
        for told in (row["alone"], row["concurrent"]):
            assert len(told["window_means_us"]) == 2 == answer["rounds"]
            assert told["inferences"] >= 2
            assert told["per_second"] > 0
    alone = answered("concurrent", "--model", one, "--idle", 1, "--rounds", 2, "--window-seconds", 0.05)
    assert alone["idle_processes"] == 1
    assert len(alone["models"]) == 1


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("cold-start", "--model", "nowhere.onnx"), "There is no model nowhere.onnx"),
        (("concurrent", "--model", "nowhere.onnx", "--idle", "1"), "There is no model nowhere.onnx"),
        (("concurrent", "--model", "nowhere.onnx"), "Give two models or more"),
        (("cold-start", "--model", "nowhere.onnx", "--starts", "0"), "must be at least 1"),
    ],
)
def test_what_fails_in_a_process_is_told_once(arguments: tuple[str, ...], told: str) -> None:
    """In the words of the process that met it."""
    done = board(*arguments)
    assert done.returncode != 0
    assert done.stdout == ""
    assert [line for line in done.stderr.splitlines() if "error: " in line and told in line]
    assert done.stderr.count("error: ") == 1
    assert "Traceback" not in done.stderr
