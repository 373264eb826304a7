"""The command line, as a user types it."""

import json
import subprocess
import sys
from pathlib import Path

import click
import numpy as np
import onnx
import onnxruntime
import pytest
from click.testing import CliRunner
from support.qdq import sample, tensorrt_residual

from embedl_deploy.cli import main as entry
from embedl_deploy.cli.main import cli
from embedl_deploy.dialect import family_here
from embedl_deploy.errors import DeployError

NET = """
import torch
from torch import nn

def small():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.Flatten(), nn.Linear(16 * 36, 10))

number = 3
def nothing():
    return 1

def needs(width):
    return nn.Linear(width, 1)
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a module, data and a file."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "cli_net.py").write_text(NET)
    (tmp_path / "data").mkdir()
    for number in range(3):
        values = np.random.default_rng(number).normal(size=(2, 3, 8, 8)).astype(np.float32)
        np.save(tmp_path / "data" / f"{number}.npy", values)
    np.savez(tmp_path / "sample.npz", x=sample(1)["x"])
    onnx.save(tensorrt_residual(), tmp_path / "trt.onnx")
    return tmp_path


def call(*arguments: str, code: int = 0) -> str:
    """Run a command and return what it prints."""
    result = CliRunner().invoke(cli, list(arguments), standalone_mode=False)
    if result.exception is not None:
        raise result.exception
    assert (result.return_value or 0) == code
    return str(result.output)


def test_from_a_module_to_a_verified_file(place: Path) -> None:
    """plan, quantize, export, check, relower, verify in a row."""
    told = call("plan", "cli_net:small", "--data", "data", "--backend", "onnxruntime")
    assert "quantized" in told
    assert "'embedl-deploy check FILE' tells" in told
    plan = json.loads(call("plan", "cli_net:small", "--shape", "2x3x8x8", "--backend", "onnxruntime", "--json"))
    assert plan["backend"] == "onnxruntime"
    assert any(layer["runs"] == "quantized" for layer in plan["layers"])
    told = call("quantize", "cli_net:small", "--data", "data", "--backend", "onnxruntime", "-o", "net.cal", "--json")
    assert json.loads(told)["batches"] == 3
    call("export", "cli_net:small", "--data", "data", "--calibration", "net.cal", "--method", "percentile",
         "--dialect", "onnxruntime-x86", "-o", "net.onnx")  # fmt: skip
    assert "2 of 2 weighted operators" in call(
        "check", "net.onnx", "--dialect", "onnxruntime-x86", "--fail-on", "float"
    )
    assert "tensorrt" in call("relower", "net.onnx", "back.onnx", "--dialect", "tensorrt")
    found = json.loads(
        call("verify", "net.onnx", "--data", "data", "--model", "cli_net:small", "--html", "r.html", "--json")
    )
    assert found["passed"] is True
    assert (place / "r.html").exists()
    arguments = ["verify", "net.onnx", "--data", "data", "--model", "cli_net:small"]
    assert "below the bound of 300.0 dB" in call(*arguments, "--min-sqnr", "300", code=3)
    call("export", "cli_net:small", "--shape", "2x3x8x8", "--dialect", "tensorrt", "--float", "-o", "float.onnx")
    assert not any(node.op_type == "QuantizeLinear" for node in onnx.load("float.onnx").graph.node)


def test_check_fails_when_asked_to(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 3 and a line per operator."""
    assert call("check", "trt.onnx", "--dialect", "onnxruntime-x86")
    text = call("check", "trt.onnx", "--dialect", "onnxruntime-x86", "--fail-on", "unfused", code=3)
    assert "unfused: Conv Conv:c0: Relu" in text
    data = json.loads(call("check", "trt.onnx", "--dialect", "litert", "--json"))
    assert data["coverage"] == [1, 3]


def test_relower_observes_ranges(place: Path) -> None:
    """With --data the x86 file is complete; --json tells the counts."""
    onnx.save(tensorrt_residual(ranges=False), "bare.onnx")
    told = call("relower", "bare.onnx", "x86.onnx", "--dialect", "onnxruntime-x86", "--data", "sample.npz", "--json")
    assert json.loads(told)["notes"] == []
    assert "FP16" not in call("relower", "trt.onnx", "half.onnx", "--dialect", "tensorrt", "--float-type", "float16")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["check", "none.onnx", "--dialect", "litert"], "no file 'none.onnx'"),
        (["check", "cli_net.py", "--dialect", "litert"], "cannot be read as an ONNX model"),
        (["relower", "trt.onnx", "no/out.onnx", "--dialect", "litert"], "no folder"),
        (["relower", "trt.onnx", "o.onnx", "--dialect", "litert", "--data", "nowhere"], "no data at 'nowhere'"),
        (["relower", "trt.onnx", "o.onnx", "--dialect", "litert", "--data", "cli_net.py"], "cannot be read as .npy"),
        (["relower", "trt.onnx", "o.onnx", "--dialect", "litert", "--float-type", "float16"], "not 'float16'"),
        (["verify", "trt.onnx", "--data", "data"], "does not fit the model"),
        (["plan", "cli_net", "--shape", "1x3x8x8", "--backend", "tensorrt"], "names no model"),
        (["plan", "cli_net:smal", "--shape", "1x3x8x8", "--backend", "tensorrt"], "has no 'smal'; it has .*'small'"),
        (["plan", "no_such:x", "--shape", "1x3x8x8", "--backend", "tensorrt"], "cannot be imported"),
        (["plan", "cli_net:nothing", "--shape", "1x3x8x8", "--backend", "tensorrt"], "gives a int"),
        (
            ["quantize", "cli_net:number", "--data", "data", "--backend", "tensorrt", "-o", "c"],
            "is a int; a torch.nn.Mod",
        ),
        (
            ["quantize", "cli_net:needs", "--data", "data", "--backend", "tensorrt", "-o", "c"],
            "argument: 'width'; name",
        ),
        (["plan", "none.pt2", "--shape", "1x3x8x8", "--backend", "tensorrt"], "there is no file 'none.pt2'"),
        (["plan", "cli_net:small", "--shape", "1xax3", "--backend", "tensorrt"], "'1xax3' is no shape"),
        (["plan", "cli_net:small", "--backend", "tensorrt"], "give --data, or --shape"),
        (
            ["plan", "cli_net:small", "--shape", "1x3x8x8", "--backend", "none"],
            "no backend is called 'none'; installed: 'lattice'",
        ),
        (["plan", "cli_net:small", "--shape", "1x3x8x8"], "name a target or a backend .--target, --backend."),
        (["quantize", "cli_net:small", "--shape", "1x3x8x8", "-o", "c"], "give --data"),
        (["export", "cli_net:small", "--shape", "1x3x8x8", "-o", "o", "--dialect", "tensorrt"], "give --float"),
    ],
)
def test_errors_are_one_clear_line(place: Path, arguments: list[str], words: str) -> None:
    """The message says what is wrong and what to do."""
    with pytest.raises(DeployError, match=words) as caught:
        call(*arguments)
    assert "\n" not in str(caught.value).strip()


def test_the_entry_point_exits_cleanly(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One line and 1 for an error, 2 for wrong usage, 3 for a contract that does not hold, 0 for help."""
    for arguments, code in (
        (["check", "none.onnx", "--dialect", "litert"], 1),
        (["check", "trt.onnx", "--dialect", "nothing"], 2),
        (["check", "trt.onnx", "--dialect", "onnxruntime-x86", "--fail-on", "float"], 3),
        (["nonsense"], 2),
        (["--help"], 0),
        (["verify", "--help"], 0),
    ):
        monkeypatch.setattr("sys.argv", ["embedl-deploy", *arguments])
        with pytest.raises(SystemExit) as caught:
            entry.main()
        assert caught.value.code == code, arguments
    assert "embedl-deploy: There is no file 'none.onnx'." in capsys.readouterr().err


def test_every_command_has_help() -> None:
    """And says in a line what it does."""
    listed = call("--help")
    for name in ("check", "export", "plan", "quantize", "relower", "show", "verify"):
        assert name in listed
        assert "Usage" in call(name, "--help")


def test_the_package_runs_as_a_module() -> None:
    """With -m it is the same command line."""
    done = subprocess.run(
        [sys.executable, "-m", "embedl_deploy", "--version"], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.startswith("embedl-deploy, version")


def test_a_target_instead_of_a_dialect(place: Path) -> None:
    """The processor decides; both, or neither, is one clear error."""
    assert "onnxruntime-x86," in call("relower", "trt.onnx", "avx2.onnx", "--target", "x86-avx2")
    assert "onnxruntime-x86-vnni" in call("relower", "trt.onnx", "vnni.onnx", "--target", "x86-vnni")
    with pytest.raises(click.UsageError, match="Give --target or --dialect"):
        call("relower", "trt.onnx", "x.onnx")
    with pytest.raises(DeployError, match="x86-avx2"):
        call("relower", "trt.onnx", "x.onnx", "--target", "toaster")
    with pytest.raises(DeployError, match="dialect or target, not both"):
        call("relower", "trt.onnx", "x.onnx", "--target", "x86-avx2", "--dialect", "litert")


def test_what_other_processors_answer(place: Path) -> None:
    """A row for every family; a file of all 8 bits differs on one without VNNI, the portable one nowhere on x86."""
    call("relower", "trt.onnx", "vnni.onnx", "--dialect", "onnxruntime-x86-vnni", "--data", "sample.npz")
    call("relower", "trt.onnx", "portable.onnx", "--dialect", "onnxruntime-x86", "--data", "sample.npz")
    options = ("--data", "sample.npz", "--family", "all", "--json")
    portable = json.loads(call("verify", "portable.onnx", *options))
    # On a processor without VNNI this file fails its proof, and the exit code says so.
    code = 3 if family_here().saturates else 0
    found = json.loads(call("verify", "vnni.onnx", *options, code=code))
    rows = {row["family"]: row for row in found["families"]}
    assert all(row["same"] for row in portable["families"] if row["family"].startswith("x86"))
    assert not rows["x86-avx2"]["same"]
    assert rows["x86-avx2"]["kernel"].startswith("Q")
    assert rows["x86-avx2"]["lsb"] > 0
    assert portable["passed"]
    assert ("no VNNI" in found["cause"]) == bool(code)


def test_a_named_processor_must_give_the_same_bits(place: Path) -> None:
    """All of them inform; the one that is named counts."""
    call("relower", "trt.onnx", "vnni.onnx", "--dialect", "onnxruntime-x86-vnni")
    told = call("relower", "trt.onnx", "portable.onnx", "--dialect", "onnxruntime-x86", "--data", "sample.npz")
    assert "portable, no input can saturate" in told
    assert "DIFFER" in call("verify", "vnni.onnx", "--data", "sample.npz", "--family", "x86-avx2", code=3)
    assert "same bits" in call("verify", "portable.onnx", "--data", "sample.npz", "--family", "x86-avx2")


def test_a_file_of_integer_operators_is_not_called_proved(place: Path) -> None:
    """What cannot be predicted is refused, and what was not judged is said."""
    call("relower", "trt.onnx", "portable.onnx", "--dialect", "onnxruntime-x86")
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = "compiled.onnx"
    onnxruntime.InferenceSession("portable.onnx", options, providers=["CPUExecutionProvider"])
    with pytest.raises(DeployError, match="integer operators"):
        call("verify", "compiled.onnx", "--data", "sample.npz", "--family", "all")
    assert "their kernels were not judged" in call("verify", "compiled.onnx", "--data", "sample.npz")


def test_the_current_folder_stands_in_for_no_installed_package(place: Path) -> None:
    """Its modules can be named, and none of them is taken for one that a model needs."""
    (place / "colorsys.py").write_text("open('ran', 'w')\n")
    (place / "cli_net2.py").write_text("import colorsys\n" + NET)
    sys.modules.pop("colorsys", None)
    assert "Conv" in call("plan", "cli_net2:small", "--shape", "1x3x8x8", "--backend", "tensorrt")
    assert not (place / "ran").exists()


def test_names_in_a_file_move_no_terminal(place: Path) -> None:
    """A layer is called by what would set the terminal's title and write to the clipboard."""
    model = tensorrt_residual()
    for node in model.graph.node:
        node.name = f"{node.name}\x1b]0;owned\x07\x1b]52;c;ZXZpbA==\x1b\\"
    onnx.save(model, place / "named.onnx")
    argv = [sys.executable, "-m", "embedl_deploy", "check", str(place / "named.onnx"), "--dialect", "tensorrt"]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=120)
    assert "owned" in done.stdout + done.stderr
    assert "\x1b" not in done.stdout + done.stderr


def test_labels_of_the_samples(place: Path) -> None:
    """Accuracies are compared too; a file of another length is one clear error."""
    call("relower", "trt.onnx", "portable.onnx", "--dialect", "onnxruntime-x86", "--data", "sample.npz")
    with np.load("sample.npz") as held:
        count = len(next(iter(held.values())))
    np.save("labels.npy", np.zeros(count, np.int64))
    found = json.loads(call("verify", "portable.onnx", "--data", "sample.npz", "--labels", "labels.npy", "--json"))
    assert [row["stage"] for row in found["metrics"]] == ["file"]
    assert found["unjudged"][0].startswith("the quality against the float model")
    np.save("labels.npy", np.zeros((count + 1, 2)))
    with pytest.raises(DeployError, match=rf"give one class for each of the {count} samples"):
        call("verify", "portable.onnx", "--data", "sample.npz", "--labels", "labels.npy")
