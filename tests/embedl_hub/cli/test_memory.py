"""``memory`` on the command line: the peak, the layer, the verdict and a picture, without a run."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree as ET

from support.cli import answer, hub
from support.models import residual_net, save
from support.tflite import conv_tflite


def test_a_model_is_held_against_a_size(tmp_path: Path) -> None:
    """It fits or it does not, and the exit code says so; the picture is a file of its own."""
    model, drawn = save(residual_net(), tmp_path / "net.onnx"), tmp_path / "memory.svg"
    home = {"EMBEDL_HUB_HOME": str(tmp_path / "home")}
    fits = hub("memory", model, "--memory", "1GB", "--picture", drawn, **home)
    assert fits.returncode == 0, fits.stderr
    assert fits.stdout.startswith("Fits: ")
    assert "of 1000 MB, at layer" in fits.stdout
    root = ET.fromstring(drawn.read_text())  # noqa: S314 - our own file
    assert any("most in use" in (each.text or "") for each in root.iter())
    told = answer("memory", model, "--memory", "1GB", **home)
    assert told["fits"] is True
    assert told["toolchain"] == "onnxruntime"
    assert told["rows"]
    tight = hub("memory", model, "--memory", "16MiB", **home)
    assert tight.returncode == 1
    assert tight.stdout.startswith("Will not fit: ")


def test_this_machine_has_the_name_that_other_commands_give_it(tmp_path: Path) -> None:
    """``--device here`` is ``--here``."""
    model = save(residual_net(), tmp_path / "net.onnx")
    home = {"EMBEDL_HUB_HOME": str(tmp_path / "home")}
    assert answer("memory", model, "--device", "here", **home) == answer("memory", model, "--here", **home)


def test_what_is_not_known_is_said_and_no_failure(tmp_path: Path) -> None:
    """A delegate's memory is its own; a setting lets it be predicted; a wrong one is named."""
    model = tmp_path / "m.tflite"
    model.write_bytes(conv_tflite())
    home = {"EMBEDL_HUB_HOME": str(tmp_path / "home")}
    done = hub("memory", model, "--memory", "1MB", **home)
    assert done.returncode == 0
    assert done.stdout.startswith("Whether it fits is not known: the XNNPACK delegate")
    own = hub("memory", model, "--memory", "1MB", "--set", "xnnpack=false", **home)
    assert own.returncode == 1
    wrong = hub("memory", model, "--set", "speed=11", **home)
    assert "'speed' is no setting of TFLite; it has" in wrong.stderr
    (tmp_path / "net.txt").write_text("x")
    other = hub("memory", tmp_path / "net.txt", **home)
    assert "cannot be predicted; that of files ending in" in other.stderr
