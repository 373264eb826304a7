"""``kernel-costs`` as a board runs it."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnxruntime
import pytest

from embedl_kernels import read_costs
from embedl_onnxruntime.costs import fastest_quarter


def costs(models: Path, *more: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "embedl_onnxruntime", "kernel-costs", "--models", str(models), "--threads", "1"]
    return subprocess.run(
        [*argv, "--seconds", "0.2", *more], capture_output=True, text=True, timeout=120, check=False
    )  # fmt: skip


@pytest.fixture
def folder(make_model: Callable[..., Path], tmp_path: Path) -> Path:
    """A folder of two models."""
    made = tmp_path / "models"
    made.mkdir()
    for batch in (1, 4):
        make_model(batch).rename(made / f"net{batch}.onnx")
    return made


def test_each_kernel_has_its_shapes_and_its_time(folder: Path) -> None:
    """Weights are among the inputs, though kernels pack them away."""
    said: Any = json.loads(costs(folder).stdout)
    assert said["runtime_version"] == onnxruntime.__version__
    assert said["kernels"]["u8s8"] in {"exact", "saturating"}
    assert said["rounds"] >= 3
    assert set(said["models"]) == {"net1", "net4"}
    (conv,) = [node for node in said["models"]["net4"]["nodes"] if "Conv" in node["op"]]
    assert [4, 3, 3, 3] in [sizes for value in conv["inputs"] for sizes in value.values()] or len(conv["inputs"]) > 1
    assert conv["us"] > 0
    assert read_costs(said).kernels


def test_an_archive_does_as_well(folder: Path, tmp_path: Path) -> None:
    """It is one file to send."""
    with zipfile.ZipFile(tmp_path / "models.zip", "w") as archive:
        for path in folder.iterdir():
            archive.write(path, path.name)
    assert set(json.loads(costs(tmp_path / "models.zip").stdout)["models"]) == {"net1", "net4"}


def test_what_is_no_folder_of_models_is_refused(tmp_path: Path) -> None:
    """In one line, whatever it is."""
    (tmp_path / "empty").mkdir()
    (tmp_path / "bad.zip").write_bytes(b"PK no")
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "m.onnx").write_bytes(b"no model")
    for name, words in (("empty", "no .onnx files"), ("bad.zip", "not a .zip"), ("broken", "cannot load")):
        done = costs(tmp_path / name)
        assert done.returncode == 1
        assert words in done.stderr
        assert "Traceback" not in done.stderr


def test_other_work_does_not_count() -> None:
    """A quarter of the runs is enough that had the processor for themselves."""
    assert fastest_quarter([10.0, 10.0, 500.0, 40.0, 300.0, 10.0, 99.0, 12.0]) == 10.0
    assert fastest_quarter([7.0]) == 7.0
