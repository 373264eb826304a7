"""`board` on a real sshd: one command from an ONNX file to figures of a board that was never prepared."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click
import numpy as np
import pytest
from support.cli import answer, hub
from support.models import residual_net, save
from support.sshd import SSHServer

from embedl_hub.cli._on_board import read_subject
from embedl_hub.cli.board import command
from embedl_hub.errors import ConfigError, HubError
from embedl_hub.tracking import RunStatus, Store

QUICK = ("--set", "min_seconds=0.02", "--set", "iterations=20", "--set", "max_warmup_seconds=0.2", "--set", "threads=1")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return save(residual_net(), tmp_path / "net.onnx")


def words(server: SSHServer, **changes: Any) -> list[str]:
    """Return how a user would name this board."""
    known_hosts = changes.get("known_hosts", server.known_hosts)
    return [
        f"{server.user}@127.0.0.1:{changes.get('port', server.port)}",
        str(changes["model"]),
        "--identity", str(server.identity), "--known-hosts", str(known_hosts),
        "--config-file", str(server.client_config),
    ]  # fmt: skip


@pytest.mark.slow
def test_a_board_with_nothing_but_python(ssh_server: SSHServer, model: Path, tmp_path: Path) -> None:
    """What is missing is sent there, once; float and INT8 are measured; the device is kept."""
    home, report = tmp_path / "home", tmp_path / "report.html"
    calibration = tmp_path / "samples.npz"
    np.savez(calibration, x=np.random.default_rng(0).normal(size=(32, 3, 16, 16)).astype(np.float32))
    said = answer(
        "board", *words(ssh_server, model=model), "--name", "bench", "--calibration-data", calibration, *QUICK,
        "--report", report, "--home", home,
    )  # fmt: skip
    plain, small = said["results"]
    assert (plain["precision"], small["precision"]) == ("float32", "int8")
    assert plain["latency_ms"]["median"] > 0
    assert small["size_bytes"] < plain["size_bytes"]
    assert plain["differences"][0]["max_abs_error"] < 1e-4
    assert 0.9 < small["differences"][0]["cosine"] < 1
    python = said["python"]
    assert python["path"].startswith(str(ssh_server.home))
    assert all(python["packages"].values())
    assert "INT8" not in " ".join(said["notes"])
    assert "<html" in report.read_text()
    with Store(home) as store:
        runs = {run.id: run for run in store.runs()}
        assert {run.status for run in runs.values()} == {RunStatus.FINISHED}
        (prepared,) = [run for run in runs.values() if run.name == "prepare board"]
        wheels = prepared.params["wheels"].value
        assert isinstance(wheels, list)
        assert any(str(wheel).startswith("onnxruntime-") for wheel in wheels)
        assert prepared.params["wheels_checked_by_hash"].value is True
        assert small["runs"]["profile"] in [run.id for run in store.lineage(small["runs"]["compile"]).used_by]
    again = hub("board", "bench", model, "--float-only", "--report", report, "--home", home)
    assert again.returncode == 0, again.stderr
    assert "as on this machine" in again.stdout
    assert f"Python there: {python['path']}" in again.stdout
    assert "int8" not in again.stdout
    with Store(home) as store:
        assert not any("wheels" in run.params for run in store.runs() if run.id not in runs)


@pytest.mark.slow
def test_made_up_calibration_is_said(ssh_server: SSHServer, model: Path, tmp_path: Path) -> None:
    """Speed is real, answers are not; the board's own Python is used where it has what is needed."""
    done = hub(
        "board", *words(ssh_server, model=model), "--python", sys.executable, *QUICK, "--home", tmp_path / "home",
        cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "mean nothing" in done.stdout
    assert "INT8 was calibrated on made-up numbers" in done.stdout
    assert f"Python there: {sys.executable}" in done.stdout
    assert list(tmp_path.glob("net-*.html"))
    assert not (tmp_path / "home" / "devices.toml").exists()
    with Store(tmp_path / "home") as store:
        assert "INT8, calibrated on made-up numbers" in {run.name for run in store.runs("type = 'COMPILE'")}


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["me@board", "missing.onnx"], "There is no model missing.onnx"),
        (["me@board", "text.onnx"], "is not an ONNX model"),
        (["me@", "net.onnx"], "is no address; write user@host or user@host:port"),
        (["me@board:22", "net.onnx", "--port", "23"], "The address says port 22, --port 23"),
        (["me@board", "net.onnx", "--report", "r.pdf"], "name it .html"),
        (["me@board", "net.onnx", "--report", "nowhere/r.html"], "for the report; make it first"),
        (["me@board", "net.onnx", "--calibration-data", "nothing"], "nothing"),
        (["me@board", "net.onnx", "--float-only", "--calibration-data", "x"], "contradict each other"),
        (["me@board", "net.onnx", "--set", "fast=1"], "has 'fast'; known:"),
        (["me@board", "net.onnx", "--input-shape", "1,2"], "fits no input of the model"),
        (["me@board", "net.onnx", "--input-shape", "one"], "it must be sizes"),
    ],
    ids=lambda value: " ".join(value[1:]) if isinstance(value, list) else "",
)
def test_slips_are_said_before_a_board_is_asked(
    arguments: list[str], says: str, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each names what is wrong, and no board is needed to learn it."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.onnx").write_text("this is text")
    with pytest.raises((HubError, click.ClickException)) as caught:
        command.main([*arguments, "--home", str(tmp_path / "home")], standalone_mode=False)
    assert says in str(caught.value)
    assert not (tmp_path / "home").exists()


def test_a_host_key_that_is_not_known_is_refused(ssh_server: SSHServer, model: Path, tmp_path: Path) -> None:
    """Strict stays strict; the next step is a line to type."""
    (tmp_path / "none").touch()
    done = hub(
        "board",
        *words(ssh_server, model=model, known_hosts=tmp_path / "none"),
        "--home",
        tmp_path / "home",
        cwd=tmp_path,
    )
    assert done.returncode == 1
    assert "is not known here" in done.stderr
    assert "connect once by hand" in done.stderr


def test_a_board_that_is_not_there(ssh_server: SSHServer, model: Path, tmp_path: Path) -> None:
    """Nothing listens; nothing is kept under the name that was asked for."""
    done = hub(
        "board", *words(ssh_server, model=model, port=1), "--name", "gone", "--home", tmp_path / "home", cwd=tmp_path
    )
    assert done.returncode == 1
    assert "refused the connection" in done.stderr
    assert not (tmp_path / "home" / "devices.toml").exists()


def test_a_python_that_is_not_there(ssh_server: SSHServer, model: Path, tmp_path: Path) -> None:
    """The board answers, its Python does not."""
    done = hub(
        "board",
        *words(ssh_server, model=model),
        "--python",
        "/nowhere/python",
        "--home",
        tmp_path / "home",
        cwd=tmp_path,
    )
    assert done.returncode == 1
    assert "has no '/nowhere/python'. Install Python 3.8 or newer there" in done.stderr


def test_a_kept_device_stands_for_its_address_alone(model: Path, tmp_path: Path) -> None:
    """Half of an address would be passed over in silence; a device of another type cannot do it."""
    (tmp_path / "devices.toml").write_text(
        "[devices.pi]\ntype = 'embedl_onnxruntime'\nssh = { host = 'pi' }\n[devices.phone]\ntype = 'qai_hub'\n"
    )
    for arguments, says in (
        (["pi", str(model), "--port", "2222"], "device edit pi"),
        (["me@other", str(model), "--name", "pi"], "There is a device 'pi'"),
        (["phone", str(model)], "needs one of type 'embedl_onnxruntime'"),
    ):
        with pytest.raises((HubError, click.ClickException), match=says):
            command.main([*arguments, "--home", str(tmp_path)], standalone_mode=False)


def test_an_open_batch_is_one_and_other_open_sizes_are_asked_for(tmp_path: Path) -> None:
    """Made-up data has the shape that is compiled; a size nobody knows is not guessed."""
    batch = save(residual_net(batch="n"), tmp_path / "batch.onnx")
    subject = read_subject(batch, None, {}, None, with_int8=True)
    assert subject.input_shape is not None
    assert subject.input_shape[0] == 1
    assert subject.is_made_up
    assert subject.calibration is subject.data
    with pytest.raises(ConfigError, match="fits no input"):
        read_subject(batch, (1, 1), {}, None, with_int8=True)
    given = {name: array[:1] for name, array in subject.data.items()}
    own = read_subject(batch, None, given, None, with_int8=False)
    assert own.calibration is None
    assert not own.is_made_up
    assert own.data_words == "your data"
