"""`embedl-deploy calibration check`, as a user types it."""

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from embedl_deploy.cli.main import cli
from embedl_deploy.errors import CalibrationError, InputError
from embedl_deploy.quantize._batch_norm_evidence import LayerFit

NET = """
import torch
from torch import nn

def pictures(count, seed):
    coarse = torch.rand(count, 3, 4, 4, generator=torch.Generator().manual_seed(seed))
    return nn.functional.interpolate(coarse, (16, 16), mode="bilinear")

def made():
    torch.manual_seed(0)
    stem = [nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU()]
    model = nn.Sequential(*stem, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4))
    for seed in range(40):
        model.train()(2 * pictures(32, 100 + seed) - 1)
    return model.eval()
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a network of pictures from -1 to 1, and right and wrong data for it."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "calibration_net.py").write_text(NET)
    scope: dict[str, object] = {}
    exec(NET, scope)  # noqa: S102 - the same text that the command imports
    for name, factor, offset in (("right", 2, -1), ("wrong", 1, 0)):
        (tmp_path / name).mkdir()
        for number in range(8):
            pictures = scope["pictures"](16, number)  # type: ignore[operator]
            np.save(tmp_path / name / f"{number}.npy", (factor * pictures + offset).numpy())
    np.save(tmp_path / "classes.npy", np.zeros(128, np.int64))
    return tmp_path


def call(*arguments: str) -> tuple[int, str]:
    """Run a command; return its exit code and what it prints."""
    result = CliRunner().invoke(cli, ["calibration", "check", *arguments], standalone_mode=False)
    if result.exception is not None:
        raise result.exception
    return result.return_value or 0, str(result.output)


def test_right_data_passes_and_wrong_data_exits_with_three(place: Path) -> None:
    """The table names the fault; the page and the JSON have the same verdict."""
    code, told = call("calibration_net:made", "--data", "right", "--backend", "onnxruntime")
    assert code == 0
    assert "fits the network's statistics" in told
    assert "Scales:" in told
    assert "SQNR: >=" in told
    code, told = call("calibration_net:made", "--data", "wrong", "--only-data", "--json", "--html", "verdict.html")
    assert code == 3
    document = json.loads(told)
    assert "values from 0 to 1, and the network fits values from -1 to 1" in document["evidence"]["fault"]
    assert document["scales"] is None
    assert "looks faulty" in (place / "verdict.html").read_text(encoding="utf-8")


def test_labels_give_the_drop_in_points(place: Path) -> None:
    """They are of the samples to evaluate on."""
    words = ("calibration_net:made", "--data", "right", "--backend", "onnxruntime")
    assert "points (99%, 128 unseen samples" in call(*words, "--evaluation", "right", "--labels", "classes.npy")[1]
    with pytest.raises(InputError, match="give --evaluation too"):
        call(*words, "--labels", "classes.npy")


def test_what_is_missing_is_said(place: Path) -> None:
    """No data, and shapes beside data."""
    with pytest.raises(InputError, match="give --data"):
        call("calibration_net:made")
    with pytest.raises(InputError, match="leave --shape out"):
        call("calibration_net:made", "--data", "right", "--shape", "1x3x16x16")


def test_what_is_asked_about_data_needs_no_target(place: Path) -> None:
    """It is quantized for this machine; of faulty data neither scales nor drop are told, as they would look fine."""
    code, told = call("calibration_net:made", "--data", "wrong")
    assert code == 3
    assert "looks faulty" in told
    assert "Scales and drop: not told" in told
    assert "SQNR" not in told


def test_pages_that_cannot_be_written_and_options_that_contradict_are_told(place: Path) -> None:
    """In one sentence, after the verdict was printed."""
    with pytest.raises(InputError, match=r"cannot be written to .*nosuch.*No such file"):
        call("calibration_net:made", "--data", "right", "--only-data", "--html", "nosuch/page.html")
    with pytest.raises(InputError, match="--only-data quantizes nothing: leave --evaluation"):
        call("calibration_net:made", "--data", "right", "--only-data", "--target", "here")


def test_numbers_beyond_what_counts_are_bounds() -> None:
    """A ratio of 255 is not measured as the 148 at which it is cut."""
    assert LayerFit("1", 8, 5.0, 5.0, 5.0).row()[3:] == ("> 5.00", "> x148.41")
    assert LayerFit("1", 8, 0.1, 0.07, 0.0).row()[3:] == ("0.07", "x1.00")


def test_a_file_that_does_not_fit_is_named(place: Path) -> None:
    """Where it is one of many, by the name that it has on the disk; more files than are looked at are no fault."""
    for number in range(140):
        np.save(place / "right" / f"more{number:03}.npy", np.load(place / "right/0.npy")[:1])
    code, _ = call("calibration_net:made", "--data", "right", "--only-data")
    assert code == 0
    np.save(place / "right" / "more070.npy", np.zeros((1, 16, 16, 3), np.float32))
    with pytest.raises(CalibrationError, match=r"'right/more070\.npy': the model does not take batch 79"):
        call("calibration_net:made", "--data", "right", "--backend", "onnxruntime")
