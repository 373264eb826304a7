"""The whole journey by command line alone, on a real model: device, compile, profile, invoke, compare, gate."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import numpy as np
import onnx
import onnxruntime
import pytest
from support.cli import answer, hub
from support.models import images, residual_net, save
from support.qai_hub import DEVICE, StandIn
from support.sampled import sampled
from support.sshd import SSHServer

from embedl_hub.tracking import Store

PROGRAM = Path(sys.executable).with_name("embedl-onnxruntime")
QUICK = ("iterations=20", "min_seconds=0.02", "max_warmup_seconds=0.2", "layer_runs=3", "threads=1")


def _set(*pairs: str) -> list[str]:
    return [word for pair in pairs for word in ("--set", pair)]


def _add_board(server: SSHServer, folder: Path, **changes: str) -> None:
    words = [
        "--host", "127.0.0.1", "--port", server.port, "--username", server.user, "--identity-file", server.identity,
        "--known-hosts", server.known_hosts, "--config-file", server.client_config, "--lease-dir", folder / "lock",
        "--artifact-root", folder / "board",
    ]  # fmt: skip
    python = f"python_path={sys.executable}"
    path = f"embedl_onnxruntime_path={PROGRAM}"
    for key, value in changes.items():
        words += [f"--{key.replace('_', '-')}", value]
    answer("device", "add", "board", "--type", "embedl_onnxruntime", *words, *_set(*QUICK, path, python), cwd=folder)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder with a project, a model and data."""
    assert hub("init", "journey", cwd=tmp_path).returncode == 0
    save(residual_net(), tmp_path / "net.onnx")
    wide = residual_net(size=32)
    save(wide, tmp_path / "wide.onnx")
    np.savez(tmp_path / "data.npz", x=images())
    return tmp_path


@pytest.fixture(params=sampled(["here", "board"], "board"))
def device(request: pytest.FixtureRequest, project: Path) -> str:
    """This machine and a board over SSH, in turn, in use in the project."""
    if request.param == "here":
        answer("device", "add", "here", "--type", "local", "--lease-dir", "", *_set(*QUICK), cwd=project)
    else:
        _add_board(request.getfixturevalue("ssh_server"), project)
    answer("use", "--device", request.param, cwd=project)
    return str(request.param)


def test_the_whole_journey(project: Path, device: str) -> None:
    """Each step takes the run of the one before; the answers are right and the gate tells worse from fine."""
    tested = answer("device", "test", device, cwd=project)
    assert tested["is_ok"]
    compiled = answer("compile", "onnxruntime", "net.onnx", "--output", project / "out.onnx", cwd=project)
    assert compiled["device"] == device
    onnx.checker.check_model(onnx.load(project / "out.onnx"), full_check=False)
    shown = hub("profile", "onnxruntime", compiled["run"], "--name", "first", cwd=project).stdout
    assert "latency_median" in shown
    assert "verdict" in shown
    first = answer("profile", "onnxruntime", compiled["run"], cwd=project)
    assert first["device"] == device
    invoked = answer("invoke", "onnxruntime", compiled["run"], "--input-data", "data.npz", cwd=project)
    with np.load(invoked["artifacts"]["output_file"]) as outputs:
        (expected,) = onnxruntime.InferenceSession(project / "net.onnx").run(None, {"x": images()})
        np.testing.assert_allclose(outputs["y"], expected, rtol=1e-4, atol=1e-5)
    # Four times the pixels: a worsening that no noise explains.
    wide = answer("compile", "onnxruntime", "wide.onnx", cwd=project)
    second = answer("profile", "onnxruntime", wide["run"], cwd=project)
    compared = answer("compare", first["run"], second["run"], cwd=project)
    assert {row["name"] for row in compared["facts"] if row["differs"]} == {"model", "batch"}
    assert any("conv/1" in row["name"] for row in compared["layers"])
    shown = hub("compare", first["run"], second["run"], cwd=project).stdout
    assert "slower" in shown
    assert f"A ONNXRuntimeProfiler: {first['run']}, on {device}" in shown
    gated = hub("gate", second["run"], "--baseline", first["run"], "--junit", "gate.xml", "--json", cwd=project)
    assert gated.returncode == 1, gated.stdout + gated.stderr
    result = json.loads(gated.stdout)
    assert result["decision"] == "worse"
    assert result["worsening"]["value"] > 1.5
    # Its repeats are kept aside, with a tag to find them by.
    listed = {run["name"] for run in answer("run", "list", cwd=project)["runs"]}
    assert not any(name.startswith("gate:") for name in listed)
    with Store(project / ".embedl") as store:
        assert len(store.runs("tags.gate is not null", archived=True)) == 2 * len(result["pairs"])
    assert ET.parse(project / "gate.xml").getroot().get("failures") == "1"  # noqa: S314 - our own file
    # The other way round there is nothing to complain of.
    fine = hub("gate", first["run"], "--baseline", second["run"], "--tolerance", "0.05", cwd=project)
    assert fine.returncode == 0
    assert fine.stdout.splitlines()[-1].startswith("ok: latency_median")


def test_int8_by_command_line(project: Path) -> None:
    """Options of the component are options of the command; the comparison says what differs."""
    np.savez(project / "calibration.npz", x=images(8))
    words = ("--here", "--calibration-data", "calibration.npz", "--per-channel", "--input-shape", "1,3,16,16")
    quantized = answer("compile", "onnxruntime", "net.onnx", *words, cwd=project)
    run = answer("run", "show", quantized["run"], cwd=project)
    assert run["params"]["per_channel"] is True
    assert run["params"]["quantize_io"] is False
    assert run["params"]["input_shape"] == [1, 3, 16, 16]
    float_run = answer("compile", "onnxruntime", quantized["run"], "--here", cwd=project)
    compared = answer("compare", float_run["run"], quantized["run"], cwd=project)
    assert {"per_channel", "calibration_data"} <= {row["name"] for row in compared["params"]}


def test_a_file_can_be_profiled_and_gated_by_tag(project: Path) -> None:
    """A model that was never compiled here; the baseline is found by its tag; a tag nobody has is said."""
    answer("device", "add", "here", "--type", "local", "--lease-dir", "", *_set(*QUICK), cwd=project)
    words = ("--device", "here", "--tag", "stage=trial", "--tag", "by=hand")
    first = answer("profile", "onnxruntime", "net.onnx", *words, cwd=project)
    missing = hub("gate", first["run"], "--baseline", "stage=main", cwd=project)
    assert missing.returncode == 2
    assert "has the tag stage=main" in missing.stderr
    kept = answer("run", "show", first["run"], cwd=project)
    assert kept["artifacts"]["input"]["file_name"] == "input_net.onnx"
    assert kept["tags"] == {"stage": "trial", "by": "hand"}
    second = answer("profile", "onnxruntime", "net.onnx", "--device", "here", cwd=project)
    unrepeated = answer("gate", second["run"], "--baseline", "stage=trial", "--no-repeat", cwd=project)
    assert unrepeated["baseline_id"] == first["run"]
    assert unrepeated["pairs"] == []


def test_repeats_are_measured_where_the_records_were(project: Path) -> None:
    """Profiles of this machine are gated and paired here though a board was added since; one that is gone is code 3."""
    runs = [answer("profile", "onnxruntime", name, cwd=project)["run"] for name in ("net.onnx", "wide.onnx")]
    answer("device", "add", "board", "--type", "local", "--lease-dir", "", *_set(*QUICK), cwd=project)

    gated = hub("gate", runs[1], "--baseline", runs[0], "--json", cwd=project)
    paired = answer("compare", "--paired", *runs, "--samples", "5", cwd=project)

    assert gated.returncode == 1, gated.stderr
    assert json.loads(gated.stdout)["measured_on"] == "this machine"
    assert "Measuring again on this machine." in gated.stderr
    assert paired["device"] == "here"
    words = ("profile", "onnxruntime", "net.onnx", "--device", "board")
    there, again = (answer(*words, cwd=project)["run"] for _ in range(2))
    gated = hub("gate", again, "--baseline", there, "--most-pairs", "3", "--json", cwd=project)
    assert gated.returncode in (0, 1), gated.stderr
    assert json.loads(gated.stdout)["measured_on"] == "device board"
    mixed = hub("compare", "--paired", there, runs[0], cwd=project)
    assert mixed.returncode == 2
    assert "'board', 'here'" in mixed.stderr
    answer("device", "remove", "board", cwd=project)
    gone = hub("gate", there, "--baseline", runs[0], "--junit", "gate.xml", cwd=project)
    assert gone.returncode == 3, gone.stderr
    assert "'board', which is not there any more" in gone.stderr
    report = ET.parse(project / "gate.xml").getroot()  # noqa: S314 - our own file
    assert (report.get("errors"), report.get("failures")) == ("1", "0")
    moved = hub("gate", there, "--baseline", runs[0], "--here", "--most-pairs", "3", cwd=project)
    assert moved.returncode in (0, 1), moved.stderr


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_twenty_gates_of_this_machine_never_go_to_the_board(project: Path, ssh_server: SSHServer) -> None:
    """The board is the first device of the context, in use, and works; each repeat is looked up by its own record."""
    runs = [answer("profile", "onnxruntime", "net.onnx", cwd=project)["run"] for _ in range(21)]
    _add_board(ssh_server, project)
    answer("use", "--device", "board", cwd=project)
    measured = []
    for run in runs[1:]:
        done = hub("gate", run, "--baseline", runs[0], "--most-pairs", "3", "--tolerance", "0%", "--json", cwd=project)
        assert done.returncode in (0, 1), done.stderr
        measured.append(json.loads(done.stdout)["measured_on"])
    with Store(project / ".embedl") as store:
        repeats = store.runs("tags.gate is not null", archived=True)
    assert {"this machine", None} >= set(measured)
    assert repeats
    assert {run.device for run in repeats} == {"here"}


def test_wrong_arrays_are_said(project: Path) -> None:
    """Files that are none, names that do not fit."""
    (project / "bad.npz").write_text("rubbish")
    np.save(project / "x.npy", images())
    for words, expected in (
        (["--input-data", "bad.npz"], "cannot be read"),
        (["--input-data", "x.npy"], "NAME=FILE.npy"),
        (["--input-data", "y=x.npy"], "'y'"),
        ([], "Missing option '--input-data'"),
    ):
        done = hub("invoke", "onnxruntime", "net.onnx", "--here", *words, cwd=project)
        assert done.returncode in (1, 2)
        assert expected in done.stderr
        assert "Traceback" not in done.stderr
    fine = hub("invoke", "onnxruntime", "net.onnx", "--here", "--input-data", "x=x.npy", cwd=project)
    assert "output y" in fine.stdout


def test_a_device_that_is_not_ready_says_why(project: Path, ssh_server: SSHServer) -> None:
    """A wrong Python, then a wrong port; edited and removed by command line, comments kept."""
    _add_board(ssh_server, project)
    file = project / ".embedl" / "devices.toml"
    file.write_text("# our lab\n" + file.read_text())
    answer("device", "edit", "board", "--set", "python_path=/nowhere/python", cwd=project)
    failed = hub("device", "test", "board", "--json", cwd=project)
    assert failed.returncode == 1
    steps = {step["title"]: step for step in json.loads(failed.stdout)["steps"]}
    assert steps["connect"]["is_ok"]
    assert "x86_64" in steps["spec"]["says"] or "aarch64" in steps["spec"]["says"]
    assert steps["lease"]["is_ok"]
    assert not steps["onnxruntime"]["is_ok"]
    assert "not ready: python" in failed.stderr
    answer("device", "edit", "board", "--port", "9", "--unset", "artifact_root", cwd=project)
    unreachable = hub("device", "test", "board", cwd=project)
    assert unreachable.returncode == 1
    assert "connect" in unreachable.stderr
    assert "Traceback" not in unreachable.stderr
    assert "artifact_root" not in file.read_text()
    assert "FAILS" in hub("doctor", "--devices", cwd=project).stdout
    answer("device", "remove", "board", cwd=project)
    assert file.read_text().startswith("# our lab\n")
    assert answer("list-devices", "--no-offered", cwd=project)["devices"] == []


def test_doctor_says_what_is_here(project: Path) -> None:
    """As a table and as JSON, with the line to install what is missing."""
    results = {result["title"]: result for result in answer("doctor", cwd=project, QAIHUB_CLIENT_INI="/nonexistent")}
    assert results["extra onnxruntime"]["is_ok"]
    assert results["provider local"]["is_ok"]
    assert results["store"]["is_ok"]
    assert results["qai_hub client"]["is_ok"] is None
    assert "qai-hub configure" in results["qai_hub client"]["advice"]
    assert "ok" in hub("doctor", cwd=project).stdout


def test_a_toolchain_brings_its_installer(tmp_path: Path) -> None:
    """For what pip cannot set up."""
    package = tmp_path / "bread-1.0.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: bread\nVersion: 1.0\n")
    (package / "entry_points.txt").write_text("[embedl_hub.toolchains]\noven = bread:TOOLCHAIN\n")
    (tmp_path / "bread.py").write_text(
        "import dataclasses\nfrom embedl_hub.toolchains.tensorrt import TOOLCHAIN as LIKE\n"
        "TOOLCHAIN = dataclasses.replace(LIKE, name='oven', install=lambda: print('the oven is hot'))\n"
    )
    done = hub("doctor", "--install", "oven", "--home", tmp_path, PYTHONPATH=str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert "the oven is hot" in done.stdout
    unknown = hub("doctor", "--install", "moon", PYTHONPATH=str(tmp_path))
    assert "there are: 'executorch', 'oven', 'tflite'" in unknown.stderr


@pytest.fixture
def cloud(tmp_path: Path) -> Callable[[], Any]:
    """Ask for the devices of a stand-in for the cloud."""

    def ask() -> Any:
        service = StandIn(tmp_path).start()
        try:
            return answer("list-devices", "--match", "galaxy", cwd=tmp_path, QAIHUB_CLIENT_INI=str(service.ini))
        finally:
            service.stop()

    return ask


def test_a_cloud_offers_its_devices(cloud: Callable[[], Any]) -> None:
    """Through the vendor's real client; one that is not set up is one line."""
    listed = cloud()
    assert [row["device_name"] for row in listed["offered"]] == [DEVICE]
    assert listed["problems"] == {}
    unset = hub("list-devices", QAIHUB_CLIENT_INI="/nonexistent/client.ini")
    assert unset.returncode == 0
    assert "qai-hub configure" in unset.stderr
