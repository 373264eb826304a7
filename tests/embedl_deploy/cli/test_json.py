"""What commands print with --json has the shape that `schema` promises; errors are JSON as well."""

import json
import sys
from pathlib import Path
from typing import Any

import click
import jsonschema
import numpy as np
import onnx
import pytest
from click.testing import CliRunner
from support.cli import check_shape
from support.qdq import sample, tensorrt_residual

from embedl_deploy.cli import main as entry
from embedl_deploy.cli.main import cli
from embedl_deploy.errors import InputError
from embedl_device.json_output import printing, schema_of

NET = """
import torch
from torch import nn

def made():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.Flatten(), nn.Linear(16 * 36, 10))
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a module, data and a file."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "json_net.py").write_text(NET)
    (tmp_path / "data").mkdir()
    for number in range(3):
        values = np.random.default_rng(number).normal(size=(8, 3, 8, 8)).astype(np.float32)
        np.save(tmp_path / "data" / f"{number}.npy", values)
    np.save(tmp_path / "labels.npy", np.zeros(24, np.int64))
    np.savez(tmp_path / "sample.npz", x=sample(1)["x"])
    onnx.save(tensorrt_residual(), tmp_path / "trt.onnx")
    return tmp_path


def test_commands_print_what_their_schemas_say(place: Path) -> None:
    """Each is run for real, and none that takes --json is left out."""
    ran: set[str] = set()

    def run(name: str, *arguments: str, code: int = 0) -> Any:
        words = [*name.split(), *arguments, "--json"]
        result = CliRunner().invoke(cli, words, standalone_mode=False)
        if result.exception is not None:
            raise result.exception
        assert (result.return_value or 0) == code
        document = json.loads(result.stdout, parse_constant=pytest.fail)
        check_shape(words, document, "embedl-deploy")
        ran.add(name)
        return document

    net, data = "json_net:made", ("--data", "data")
    run("schema")
    run("plan", net, *data, "--target", "onnxruntime-x86")
    run("quantize", net, *data, "--target", "onnxruntime-x86", "-o", "net.cal")
    run("export", net, *data, "--calibration", "net.cal", "--target", "onnxruntime-x86", "-o", "net.onnx")
    run("export", net, *data, "--target", "onnxruntime-x86", "--runtime-version", "1.18", "-o", "old.onnx")
    run("export", net, *data, "--float", "--target", "onnxruntime-x86", "-o", "float.onnx")
    run("check", "net.onnx", "--target", "onnxruntime-x86")
    run("check", "trt.onnx", "--target", "onnxruntime-x86", "--fail-on", "unfused", code=3)
    run("relower", "trt.onnx", "portable.onnx", "--target", "onnxruntime-x86", "--data", "sample.npz")
    models = ("--model", net, "--calibration", "net.cal", "--target", "onnxruntime-x86", "--family", "all")
    run("verify", "net.onnx", *data, *models, "--labels", "labels.npy")
    run("verify", "portable.onnx", "--data", "sample.npz")
    run("show", net, *data, "--target", "onnxruntime-x86")
    run("calibration check", net, *data, "--target", "onnxruntime-x86")
    run("calibration check", net, *data, "--only-data")
    changes = run("dialect diff", "onnxruntime", "1.18", "1.31")["changes"]
    of_gemm = run("dialect diff", "onnxruntime", "1.18", "1.31", "Gemm")["changes"]
    assert of_gemm == [each for each in changes if each["operator"] == "Gemm"] != []
    learned = run("dialect learn", "onnxruntime", "--operator", "Abs", "--folder", "learned")["versions"]
    assert [each["failed"] for each in learned] == [""]
    every, of_one = run("dialect rules", "onnxruntime", "1.31"), run("dialect rules", "onnxruntime", "1.31", "Conv")
    assert {rule[0] for rule in of_one["rules"]} == {"Conv"} < {rule[0] for rule in every["rules"]}
    assert ran == dict(printing(cli, click.Context(cli))).keys()


def test_every_schema_is_one() -> None:
    """By the rules of its own dialect."""
    for name, command in printing(cli, click.Context(cli)):
        jsonschema.Draft202012Validator.check_schema(schema_of("embedl-deploy", name, command))


def test_a_schema_is_asked_for_by_the_words_of_a_command() -> None:
    """A wrong one is answered with those there are."""
    found = CliRunner().invoke(cli, ["schema", "dialect", "diff"], standalone_mode=False)
    assert json.loads(found.stdout)["title"] == "embedl-deploy dialect diff --json"
    with pytest.raises(InputError, match=r"no command 'dialect' with --json; there are: 'dialect diff', 'dialect l"):
        cli(["schema", "dialect"], standalone_mode=False)


@pytest.mark.parametrize(
    ("words", "code", "kind"),
    [(["check", "none.onnx", "--target", "here"], 1, "ModelFileError"), (["check"], 2, "MissingParameter")],
)
def test_an_error_is_one_line_of_json(
    words: list[str], code: int, kind: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """On standard error, with its kind; the exit code stays."""
    monkeypatch.setattr(sys, "argv", ["embedl-deploy", *words, "--json"])
    with pytest.raises(SystemExit) as ended:
        entry.main()
    said = capsys.readouterr()
    error = json.loads(said.err)["error"]
    assert (ended.value.code, said.out, error["kind"], error["exit_code"]) == (code, "", kind, code)
