"""Vela from outside the tree: a package that is installed apart, driven by command line, sweep, page and Python.

Nothing of the hub knows Vela; the compiler and tflite-micro are real.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from ai_edge_litert.interpreter import Interpreter
from starlette.testclient import TestClient
from support import cli
from support.tflite import picture_net, pictures

from embedl_device.readers import read_npz
from embedl_hub import page
from embedl_hub.comparison import compare
from embedl_hub.core.document import document_of
from embedl_hub.machine.environment import CACHE_VARIABLE
from embedl_hub.models.calibration import write_npz
from embedl_hub.tracking import Store

PACKAGE = Path(__file__).parents[2] / "examples" / "vela_toolchain"
NET, FLOAT_IO = PACKAGE / "net_int8.tflite", PACKAGE / "net_float_io.tflite"
MARK = '<span class="mark">estimated</span>'


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the installed package, and nothing else."""
    folder = tmp_path_factory.mktemp("vela")
    source = folder / "source"
    shutil.copytree(PACKAGE, source, ignore=shutil.ignore_patterns("build", "*.egg-info", "__pycache__"))
    done = subprocess.run(
        [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--no-index",
         "--disable-pip-version-check", "--target", str(folder / "site"), str(source)],
        capture_output=True, text=True, check=False, timeout=200,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return folder / "site"


# The command line many times in one process, which costs no start each: the same function, arguments and streams.
COMMANDS = """
import contextlib, io, json, os, sys
from embedl_hub.cli.main import main
for line in sys.stdin:
    request, ended, streams = json.loads(line), 0, (io.StringIO(), io.StringIO())
    sys.argv, os.environ["EMBEDL_HUB_HOME"] = ["embedl-hub", *request["arguments"]], request["home"]
    with contextlib.redirect_stdout(streams[0]), contextlib.redirect_stderr(streams[1]):
        try:
            main()
        except SystemExit as end:
            ended = end.code or 0
    print(json.dumps([ended, *(stream.getvalue() for stream in streams)]), flush=True)
"""


@dataclass(frozen=True)
class Outside:
    """The command line of a user who installed the package."""

    process: subprocess.Popen[str]
    site: Path
    home: Path

    def hub(self, *arguments: object) -> tuple[int, str, str]:
        """Run a command; return its exit code and what it wrote."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        request = {"arguments": list(map(str, arguments)), "home": str(self.home)}
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        code, stdout, stderr = json.loads(self.process.stdout.readline())
        return code, stdout, stderr

    def answer(self, *arguments: object) -> Any:
        """Run a command that succeeds and return its JSON."""
        code, stdout, stderr = self.hub(*arguments, "--json")
        assert code == 0, stderr
        return json.loads(stdout)

    def text(self, *arguments: object) -> str:
        """Run a command that succeeds and return what it prints."""
        code, stdout, stderr = self.hub(*arguments)
        assert code == 0, stderr
        return stdout

    def refusal(self, *arguments: object, ends: int = 1) -> str:
        """Run a command that is refused and return the sentence."""
        code, stdout, stderr = self.hub(*arguments)
        assert code == ends, stdout + stderr
        assert "Traceback" not in stderr
        return stderr


@pytest.fixture(scope="module")
def process(site: Path) -> Iterator[subprocess.Popen[str]]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("EMBEDL_HUB_")}
    with subprocess.Popen(
        [sys.executable, "-c", COMMANDS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        env={**kept, "PYTHONPATH": str(site), "COLUMNS": "200"},
    ) as process:  # fmt: skip
        yield process
        assert process.stdin is not None
        process.stdin.close()


@pytest.fixture
def outside(process: subprocess.Popen[str], site: Path, tmp_path: Path) -> Outside:
    return Outside(process, site, tmp_path / "home")


@pytest.fixture(scope="module")
def samples(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("data") / "samples.npz"
    np.savez(path, x=np.random.default_rng(0).normal(size=(5, 16, 16, 1)).astype(np.float32))
    return path


def test_the_steps_by_command_line_and_page(outside: Outside, samples: Path) -> None:
    """Compile, profile, invoke; the estimate is marked beside every number, and the record says what was run."""
    compiled = outside.answer("compile", "vela", FLOAT_IO, "--accelerator", "ethos-u55-64")
    assert compiled["artifacts"]["path"].endswith("net_float_io_vela.tflite")
    assert b"ethos-u" in Path(compiled["artifacts"]["path"]).read_bytes()
    assert (compiled["metrics"]["npu_operators"], compiled["metrics"]["cpu_operators"]) == (38, 2)
    assert "Total SRAM used" in Path(compiled["artifacts"]["report"]).read_text()
    done = cli.hub("profile", "vela", compiled["run"], PYTHONPATH=str(outside.site), EMBEDL_HUB_HOME=str(outside.home))
    shown = done.stdout
    assert "estimated: by Vela 5.2.0 for an ethos-u55-64 at 500 MHz; nothing was run" in shown
    profiled = outside.answer("profile", "vela", compiled["run"])
    assert profiled["verdict"] == "estimated"
    assert "2 operators on the CPU (Dequantize, Quantize) is not in it" in profiled["verdict_reason"]
    # By the profile's run, not the compiler's: the model comes whole all the same.
    invoked = outside.answer("invoke", "vela", profiled["run"], "--input-data", samples)
    with Store(outside.home) as store:
        run = store.run(profiled["run"])
        document, problem = document_of(run)
        assert problem is None
        assert document.latency_ms.median == pytest.approx(profiled["metrics"]["estimated_cycles"] / 500e3)
        assert sum(row.time_ms or 0 for row in document.rows) == pytest.approx(document.latency_ms.median)
        rows = {(row.op_type, row.compute_unit): row for row in document.rows}
        assert rows["Quantize", "CPU"].time_ms is None
        assert "unsupported DataType Float32" in str(rows["Quantize", "CPU"].extra["reason"])
        assert rows["MaxPool", "NPU"].source_nodes == ("y",)  # a part of the softmax
        assert "before Vela compiled it" in str(store.run(invoked["run"]).params["ran"].value)
        visitor = TestClient(page.app(lambda: store))
        text = visitor.get(f"/runs/{run.id}").text
        assert f"<h2>Median latency {MARK}</h2>" in text
        assert "by Vela 5.2.0 for an ethos-u55-64" in text
        assert "added by the runtime" not in text
        assert "VelaInvoker" in visitor.get(f"/runs/{invoked['run']}").text


def test_answers_are_those_of_the_integer_model(outside: Outside, samples: Path) -> None:
    """Against LiteRT, within one step of the output; integers go in and come out where they are asked for."""
    compiled = outside.answer("compile", "vela", NET)["run"]
    output = read_npz(_output(outside.answer("invoke", "vela", compiled, "--input-data", samples)))["y"]
    assert output.shape == (5, 4)
    first = np.load(samples)["x"][:1]
    integers = np.clip(np.round(first / 0.02243179) + 5, -128, 127).astype(np.int8)
    path = samples.with_name("integers.npz")
    np.savez(path, x=integers)
    raw = outside.answer("invoke", "vela", compiled, "--input-data", path, "--use-compiled-names")
    scores = read_npz(_output(raw))["y"]
    assert scores.dtype == np.int8
    np.testing.assert_allclose((scores.astype(np.float32) + 128) / 256, output[:1])
    other = outside.answer("invoke", "tflite", NET, "--input-data", path)
    assert np.abs(read_npz(_output(other))["y"].astype(int) - scores).max() <= 1


def test_devices_sweep_matrix_compare_and_gate(outside: Outside, samples: Path, tmp_path: Path) -> None:
    """Two NPUs in devices.toml, in one table; estimates are held against each other, not against a measurement."""
    for name, accelerator in (("small", "ethos-u55-64"), ("large", "ethos-u65-512")):
        outside.answer("device", "add", name, "--type", "ethos_u", "--set", f"accelerator={accelerator}")
    np.save(tmp_path / "labels.npy", np.zeros(5, int))
    plan = tmp_path / "plan.toml"
    plan.write_text(
        '[sweep]\nname = "npus"\ntoolchain = "vela"\nsteps = ["compile", "profile", "invoke"]\n'
        f'[models.net]\npath = "{NET}"\ndata = {{ test = "{samples}", labels = "labels.npy" }}\n'
        '[options.fast]\n[devices]\nnames = ["small", "large"]\n'
    )
    swept = outside.answer("sweep", plan)
    cells = {cell["target"]: cell for cell in swept["cells"]}
    assert {cell["verdict"] for cell in cells.values()} == {"estimated"}
    assert 0 <= cells["small"]["metrics"]["accuracy"] <= 1
    assert cells["large"]["metrics"]["latency_median"] < cells["small"]["metrics"]["latency_median"]
    small, large = (cells[name]["runs"]["profile"] for name in ("small", "large"))
    brief = ("iterations=5", "min_seconds=0.01", "max_warmup_seconds=0.01", "layer_runs=0")
    outside.answer("device", "add", "here", "--type", "local", *(word for each in brief for word in ("--set", each)))
    measured = outside.answer("profile", "tflite", NET, "--device", "here")["run"]
    with Store(outside.home) as store:
        visitor = TestClient(page.app(lambda: store))
        assert visitor.get(f"/sweeps/{swept['sweep']}").text.count('<span class="mark">estimated</span>') >= 2
        text = visitor.get("/compare", params={"run": [measured, small]}).text
        assert f'<span class="letter run-2">B</span> {MARK}' in text
        assert f'<span class="letter run-1">A</span> {MARK}' not in text
        assert [run.is_estimated for run in compare([store.run(measured), store.run(small)]).runs] == [False, True]
        assert MARK in visitor.get("/device?name=small").text
    table = outside.text("compare", small, large)
    assert "(estimated)" in table
    assert f"The numbers of run {large} are estimated, not measured" in table.replace("\n", " ")
    assert "estimated" in outside.text("run", "list", "--columns", "metrics.latency_median")
    code, said, _ = outside.hub("gate", small, "--baseline", large)
    assert code == 1
    assert "both numbers are estimated, nothing was measured" in said
    refused = outside.refusal("gate", small, "--baseline", measured, ends=2)
    assert "again on" not in refused
    assert "are estimated and those of the other run are measured" in refused
    refused = outside.refusal("compile", "vela", NET, "--device", "small", "--accelerator", "ethos-u55-32")
    assert "'small' has an ethos-u55-64" in refused
    refused = outside.refusal("profile", "vela", cells["large"]["runs"]["compile"], "--device", "small")
    assert "was compiled for an ethos-u65-512, and device 'small' has an ethos-u55-64" in refused


def test_bad_input_is_one_clear_sentence(outside: Outside, tmp_path: Path) -> None:
    """No vendor's traceback, the known names, the next step."""
    float_net = str(resources.files("tflite_micro") / "python/tflite_micro/sine_float.tflite")
    refused = outside.refusal("compile", "vela", float_net)
    assert "goes to the NPU: all 3 operators would stay on the CPU" in refused
    assert "unsupported DataType Float32" in refused
    assert "quantize the model first" in refused
    (tmp_path / "junk.tflite").write_text("no model")
    assert "junk.tflite is no TFLite model" in outside.refusal("compile", "vela", tmp_path / "junk.tflite")
    (tmp_path / "cut.tflite").write_bytes(NET.read_bytes()[:2000])
    assert "it crashed (exit code 139)" in outside.refusal("compile", "vela", tmp_path / "cut.tflite")
    refused = outside.refusal("compile", "vela", NET, "--accelerator", "ethos-u99")
    assert "There is no accelerator 'ethos-u99'; Vela knows: ethos-u55-32, " in refused
    refused = outside.refusal("compile", "vela", NET, "--memory-mode", "Sram")
    assert "vela.ini has no memory_mode 'Sram'; known: 'Dedicated_Sram'" in refused
    refused = outside.refusal("compile", "vela", NET, "--optimize", "speed")
    assert "it is one of 'Performance', 'Size'" in refused
    shown = outside.text("compile", "vela", NET)
    assert re.search(r"^ *cpu_operators +0\b.*\n.*\n *npu_operators +38\b.*\n *sram_kib +2\.672\b", shown, re.MULTILINE)
    compiled = next(word for word in shown.split() if word.endswith("_vela.tflite"))
    assert "was compiled by Vela already" in outside.refusal("compile", "vela", compiled)
    assert "Give the run of embedl-hub compile vela" in outside.refusal("profile", "vela", compiled)
    refused = outside.refusal("compare", "--paired", compiled, compiled)
    assert "Models of 'vela' cannot be measured in turns" in refused


def test_wrong_data_is_named(outside: Outside, tmp_path: Path) -> None:
    """With the input's name, its shape and its type."""
    compiled = outside.answer("compile", "vela", NET)["run"]
    for arrays, words in (
        ({"z": np.zeros((1, 16, 16, 1), np.float32)}, "The model's inputs are 'x', not 'z'"),
        (
            {"x": np.zeros((1, 1, 16, 16), np.float32)},
            "has the shape [1, 1, 16, 16]; the model takes [1, 16, 16, 1]",
        ),
        ({"x": np.zeros((1, 16, 16, 1), np.int32)}, "Input 'x' is int32; the model takes int8"),
    ):
        np.savez(tmp_path / "bad.npz", **arrays)
        assert words in outside.refusal("invoke", "vela", compiled, "--input-data", tmp_path / "bad.npz")


def test_a_missing_compiler_is_named_with_its_line(site: Path, tmp_path: Path) -> None:
    """By doctor and by the step; the other toolchains still work."""
    (tmp_path / "hidden").mkdir()
    (tmp_path / "hidden" / "sitecustomize.py").write_text(
        "import sys\n"
        "class Hide:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.partition('.')[0] == 'ethosu':\n"
        "            raise ModuleNotFoundError(name)\n"
        "sys.meta_path.insert(0, Hide())\n"
    )
    hidden = {
        "PYTHONPATH": f"{tmp_path / 'hidden'}{os.pathsep}{site}",
        "EMBEDL_HUB_HOME": str(tmp_path / "home"),
    }
    line = "pip install ethos-u-vela==5.2.0"
    assert line in cli.hub("compile", "vela", NET, **hidden).stderr
    checks = {each["title"]: each for each in json.loads(cli.hub("doctor", "--json", **hidden).stdout)}
    assert (checks["ethos-u-vela"]["is_ok"], checks["ethos-u-vela"]["advice"]) == (False, line)
    assert checks["tflite-micro"]["is_ok"]
    assert checks["provider ethos_u"]["is_ok"]


CONFORMS = """
import sys
from pathlib import Path
from embedl_hub.core.device import Device
from embedl_hub.testing import check_provider, temporary_context
from vela_toolchain.components import VelaCompiler, VelaProfiler
from vela_toolchain.config import EthosUConfig

net = Path(sys.argv[1])
board = Device("npu", provider_type="ethos_u", provider_config=EthosUConfig("ethos-u55-64"))
check_provider(VelaCompiler(), "ethos_u", net, devices=[board], bad_args=[net.with_name("nothing")])
with temporary_context() as ctx:
    compiled = VelaCompiler().run(ctx, net)
    check_provider(VelaProfiler(), "local", compiled)
print("kept")
"""


def test_its_providers_conform(site: Path, tmp_path: Path) -> None:
    """They keep the rules that ours keep."""
    assert _python(site, tmp_path, "-c", CONFORMS, str(NET)) == "kept\n"


def test_the_example_runs_as_its_page_says(site: Path, tmp_path: Path) -> None:
    """Line by line, up to where the runs are."""
    shown = (PACKAGE / "README.md").read_text().partition("```text\n")[2].partition("```")[0]
    out = _python(site, tmp_path, str(PACKAGE / "main.py"))
    assert out.splitlines()[:-1] == shown.splitlines()[:-1]
    assert out.splitlines()[-1] == f"runs stored in {tmp_path / '.embedl'}"


@pytest.mark.slow
def test_from_onnx_to_the_command_stream(outside: Outside, tmp_path: Path, converter: Path) -> None:
    """The hub's TFLite toolchain quantizes, Vela compiles what it made; its answers are LiteRT's."""
    onnx.save(picture_net(), tmp_path / "net.onnx")
    data, calibration, made = pictures(16), tmp_path / "calibration.npz", tmp_path / "net.tflite"
    write_npz(calibration, {"x:0": data})
    done = cli.hub(
        "compile", "tflite", tmp_path / "net.onnx", "--calibration-data", calibration, "--output", made,
        EMBEDL_HUB_HOME=str(outside.home), **{CACHE_VARIABLE: str(converter.parent)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    compiled = outside.answer("compile", "vela", made)
    assert compiled["metrics"]["npu_operators"] > compiled["metrics"]["cpu_operators"]
    litert = Interpreter(str(made))
    litert.allocate_tensors()
    (given,), told = litert.get_input_details(), litert.get_output_details()
    channels_last = np.ascontiguousarray(data.transpose(0, 2, 3, 1))
    write_npz(tmp_path / "data.npz", {given["name"]: channels_last})
    output = read_npz(_output(outside.answer("invoke", "vela", compiled["run"], "--input-data", tmp_path / "data.npz")))
    assert set(output) == {each["name"] for each in told}
    for place in range(len(data)):
        litert.set_tensor(given["index"], channels_last[place : place + 1])
        litert.invoke()
        for each in told:
            wanted = litert.get_tensor(each["index"])[0]
            # One step of the convolution, through the sigmoid.
            np.testing.assert_allclose(output[each["name"]][place], wanted, rtol=0, atol=0.03)


def _python(site: Path, folder: Path, *words: str) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "error", *words], cwd=folder, env={**os.environ, "PYTHONPATH": str(site)},
        capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def _output(told: dict[str, Any]) -> Path:
    return Path(told["artifacts"]["output_file"])
