"""The OpenVINO program on its own: one JSON object, errors in words."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from support.models import images, residual_net, save

import embedl_openvino
from embedl_device.errors import BoardError
from embedl_openvino.profile import check_placement
from embedl_openvino.session import Settings, check_device, said, trim

QUICK = ("--iterations", 10, "--min-seconds", 0.01, "--max-warmup-seconds", 0.1)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small net as ONNX."""
    return save(residual_net(), tmp_path_factory.mktemp("net") / "net.onnx")


def call(*words: object) -> subprocess.CompletedProcess[str]:
    """Run the program."""
    argv = [sys.executable, "-m", "embedl_openvino", *map(str, words)]
    return subprocess.run(argv, capture_output=True, text=True, check=False, timeout=120)


def test_compile_and_profile(model: Path, tmp_path: Path) -> None:
    """A model is written with every weight as it is, and measured."""
    made = call("compile", "--model", model, "--output", tmp_path / "net.xml", "--shape", "x=2,3,16,16")
    assert made.returncode == 0, made.stderr
    answer = json.loads(made.stdout)
    weights = (tmp_path / "net.bin").stat().st_size
    assert answer["size_bytes"] == weights + (tmp_path / "net.xml").stat().st_size
    assert answer["inputs"] == [{"name": "x", "dtype": "float32", "shape": [2, 3, 16, 16]}]
    assert [tensor["name"] for tensor in answer["outputs"]] == ["y"]
    assert weights >= sum(tensor.nbytes for tensor in map(np.asarray, [np.zeros((8, 8, 3, 3), np.float32)]))
    done = call("profile", "--model", tmp_path / "net.xml", *QUICK)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["tool"] == {"name": "embedl-openvino", "version": embedl_openvino.__version__}
    assert document["model"]["size_bytes"] == answer["size_bytes"]
    assert document["data"]["inputs"]["x"]["shape"] == [2, 3, 16, 16]
    assert len(document["samples_us"]) == document["iterations"] >= 10
    assert sum(row["share"] for row in document["layers"]["rows"]) == pytest.approx(1)
    bad = call("compile", "--model", model, "--output", tmp_path / "net.onnx")
    assert bad.returncode == 1
    assert "must end in .xml" in bad.stderr


def test_models_in_turns_and_answers(model: Path, tmp_path: Path) -> None:
    """One document for both models; outputs under their names."""
    done = call("pair", "--model", model, "--model", model, *QUICK, "--loads", 1)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["kind"] == "paired"
    assert [row["ran"]["execution_devices"] for row in document["models"]] == [["CPU"], ["CPU"]]
    np.save(tmp_path / "x.npy", images(1))
    answer = call("run-inference", "--model", model, "--input-dir", tmp_path, "--output-dir", tmp_path / "out")
    assert answer.returncode == 0, answer.stderr
    assert np.load(tmp_path / "out" / "y.npy").shape == (1, 10)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("profile", "--model", "{}", "--device", "GPU"), "has no device 'GPU' here; it has: CPU"),
        (("profile", "--model", "{}", "--device", "HETERO"), "HETERO needs to know its devices"),
        (("profile", "--model", "{}.none"), "There is no model"),
        (("profile", "--model", "{}", "--shape", "z=1"), "A shape is given for z"),
        (("compile", "--model", "{}", "--output", "o.xml", "--shape", "z=1"), "A shape is given for z"),
        (("compile", "--model", "{}", "--output", "o.xml", "--shape", "x=1,4,16,16"), "cannot take the shapes"),
    ],
)
def test_refusals(model: Path, tmp_path: Path, words: tuple[str, ...], told: str) -> None:
    """One line on stderr, exit code 1."""
    argv = [sys.executable, "-m", "embedl_openvino", *(word.format(model) for word in words)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=120, cwd=tmp_path)
    assert done.returncode == 1
    assert told in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr


def test_doctor() -> None:
    """The version and the devices."""
    answer = json.loads(call("doctor").stdout)
    assert answer["openvino"].count(".") == 2
    assert "CPU" in [device["name"] for device in answer["devices"]]
    assert answer["board"]["architecture"]


def test_names_of_devices() -> None:
    """Short ones stand for any of a kind, exact ones for one; AUTO for all."""
    available = ["CPU", "GPU.0", "GPU.1"]
    assert check_device("CPU", available) == ["CPU"]
    assert check_device("GPU", available) == ["GPU.0", "GPU.1"]
    assert check_device("GPU.1", available) == ["GPU.1"]
    assert check_device("AUTO", available) == available
    assert check_device("AUTO:GPU.1,CPU", available) == ["CPU", "GPU.1"]
    assert check_device("GPU.0", ["CPU", "GPU"]) == ["GPU"]
    with pytest.raises(BoardError, match=r"has no device 'NPU' here; it has: CPU, GPU\.0, GPU\.1"):
        check_device("HETERO:NPU,CPU", available)


def test_layers_elsewhere_are_refused() -> None:
    """With their names, and where they ran."""
    placement = {"CPU": [{"name": f"n{at}", "op_type": "Convolution"} for at in range(7)], "GPU.0": []}
    check_placement({"GPU.1": placement["CPU"]}, Settings("AUTO"), "GPU")
    with pytest.raises(BoardError, match=r"GPU was required, but of 7 layers 7 on CPU: n0 .* and 2 more. .* on AUTO"):
        check_placement(placement, Settings("AUTO"), "GPU")
    with pytest.raises(BoardError, match="does not tell"):
        check_placement(None, Settings("AUTO"), "GPU")


def test_what_openvino_says_is_cleaned() -> None:
    """Its source files are nothing to act on."""
    text = "Exception from src/core.cpp:84:\nCheck 'a == b' failed at src/x.cpp:9:\nStart-end tags mismatch\n\n"
    assert said(RuntimeError(text)) == "Start-end tags mismatch"


def test_the_cache_is_trimmed(tmp_path: Path) -> None:
    """The oldest goes first."""
    import os

    for age, name in enumerate(("new", "middle", "old")):
        (tmp_path / name).write_bytes(b"1234")
        os.utime(tmp_path / name, (1000 - age, 1000 - age))
    trim(tmp_path, 8)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["middle", "new"]
