"""A stranger's folder: nothing in it runs, reaches a host or is sent before the user has trusted it."""

from __future__ import annotations

import fcntl
import json
import os
import stat
from pathlib import Path

import pytest
from support.cli import answer, hub
from support.debian import leave_off
from support.models import residual_net, save
from support.sampled import sampled

from embedl_hub import trust
from embedl_hub.core import HubContext
from embedl_hub.core.device import Device
from embedl_hub.errors import UntrustedError
from embedl_hub.fleet import Ray, stop_node
from embedl_hub.fleet._ray_cluster import node_address
from embedl_hub.tracking import find_home


@pytest.fixture
def clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository of somebody else's, with a model and a .embedl in it; the user works two levels further down."""
    monkeypatch.delenv("EMBEDL_HUB_HOME", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    folder = tmp_path / "clone"
    (folder / ".embedl").mkdir(parents=True)
    inner = folder / "models" / "small"
    inner.mkdir(parents=True)
    save(residual_net(), inner / "net.onnx")
    monkeypatch.chdir(inner)
    return folder


def _plant(clone: Path, table: str) -> None:
    (clone / ".embedl" / "devices.toml").write_text(f"[devices.board]\n{table}\n")


def _program(clone: Path) -> tuple[Path, Path]:
    """Return a program that leaves a trace, and the trace."""
    trace, path = clone.parent / "ran", clone / "tool"
    path.write_text(f"#!/bin/sh\ntouch '{trace}'\nexit 1\n")
    path.chmod(0o755)
    return path, trace


def _attacks(clone: Path, program: Path) -> dict[str, tuple[str, list[str]]]:
    """Return what a .embedl can say to have a program run, and a harmless command that would do it."""
    (clone / ".embedl" / "ssh_config").write_text(f"Host *\n  ProxyCommand {program}\n")
    (clone / ".embedl" / "exec_config").write_text(f'Match exec "{program}"\n  User nobody\n')
    model = str(clone / "models" / "small" / "net.onnx")
    profile = ["profile", "onnxruntime", model]
    ssh = "type = 'embedl_onnxruntime'\nssh = {{ host = 'board', config_file = '{}' }}"
    local = "type = 'embedl_onnxruntime'\nrunner = 'local'\nconfig = {{ {} = '{}' }}"
    return {
        "ProxyCommand": (ssh.format(clone / ".embedl" / "ssh_config"), profile),
        "Match exec": (ssh.format(clone / ".embedl" / "exec_config"), profile),
        "trtexec_path": (
            f"type = 'trtexec'\nrunner = 'local'\nconfig = {{ trtexec_path = '{program}' }}",
            ["compile", "tensorrt", model],
        ),
        "python_path": (local.format("python_path", program), ["device", "test", "board"]),
        "embedl_onnxruntime_path": (local.format("embedl_onnxruntime_path", program), profile),
    }  # fmt: skip


WAYS = ("ProxyCommand", "Match exec", "trtexec_path", "python_path", "embedl_onnxruntime_path")


@pytest.mark.parametrize("way", sampled(WAYS, "ProxyCommand", "trtexec_path", "python_path"))
def test_a_planted_device_runs_nothing(clone: Path, way: str) -> None:
    """Whatever a found .embedl names is not run before it is trusted, and then it is: the attack is a real one."""
    program, trace = _program(clone)
    table, words = _attacks(clone, program)[way]
    _plant(clone, table)
    for command in (words, ["device", "test", "board"], ["doctor", "--devices"]):
        done = hub(*command)
        assert done.returncode == 1, done.stdout
        assert not trace.exists(), command
        told = done.stderr + done.stdout
        assert "embedl-hub trust" in " ".join(told.split())
        assert "Traceback" not in told
    named = answer("trust")
    assert any("board" in line for line in named["acts"])
    hub(*words)
    assert trace.exists()


def test_changed_content_asks_again(clone: Path) -> None:
    """Another program path, another content of a file in the folder; a comment and our own commands do not count."""
    program, trace = _program(clone)
    table, words = _attacks(clone, program)["ProxyCommand"]
    _plant(clone, table)
    answer("trust")
    file, config = clone / ".embedl" / "devices.toml", clone / ".embedl" / "ssh_config"
    file.write_text("# ours\n" + file.read_text())
    answer("device", "add", "second", "--type", "local")
    assert [row["state"] for row in answer("trust", "--list")] == ["as trusted"]
    config.write_text(config.read_text() + "# another\n")
    refused = hub(*words)
    assert "has changed since you trusted it" in refused.stderr
    assert f"{config}, a file of the project that these name (changed)" in refused.stderr
    assert "second" not in refused.stderr
    assert [row["state"] for row in answer("trust", "--list")] == ["changed since"]
    answer("trust", clone)
    assert answer("trust", clone / ".embedl", "--remove")["was_trusted"]
    assert "is not trusted" in hub(*words).stderr
    assert not trace.exists()


def test_what_a_trusted_file_names_is_trusted_with_it(clone: Path) -> None:
    """A file that an ssh configuration includes, and the program that it runs: a later one asks again."""
    program, trace = _program(clone)
    table, words = _attacks(clone, program)["ProxyCommand"]
    included = clone / "extra.conf"
    included.write_text("# nothing yet\n")
    (clone / ".embedl" / "ssh_config").write_text(f"Include {clone}/ex*.conf\n")
    _plant(clone, table)
    answer("trust")
    included.write_text(f"Host *\n  ProxyCommand {program}\n")
    assert f"{included}, a file of the project that these name (changed)" in hub(*words).stderr
    answer("trust")
    program.write_text(program.read_text() + "# another\n")
    assert f"{program}, a file of the project that these name (changed)" in hub(*words).stderr
    assert not trace.exists()


def test_relative_paths_start_from_the_project(clone: Path) -> None:
    """What was trusted is what is used, from every folder of the project."""
    program, trace = _program(clone)
    (clone / ".embedl" / "ssh_config").write_text(f"Host *\n  ProxyCommand {program}\n")
    _plant(clone, "type = 'embedl_onnxruntime'\nssh = { host = 'board', config_file = '.embedl/ssh_config' }")
    assert str(clone / ".embedl" / "ssh_config") in hub("device", "test", "board").stderr
    answer("trust")
    hub("device", "test", "board")
    assert trace.exists()


def test_what_needs_no_trust(clone: Path) -> None:
    """Work on this machine, looking at runs, and a home that is named."""
    program, trace = _program(clone)
    table, words = _attacks(clone, program)["embedl_onnxruntime_path"]
    _plant(clone, table)
    answer(*words, "--here")
    assert len(answer("run", "list")["runs"]) == 2
    assert answer("show")["devices"] == ["board"]
    assert not trace.exists()
    hub(*words, "--home", clone / ".embedl")
    assert trace.exists()


def test_a_home_of_another_account_is_refused(clone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where it holds nothing; root by sudo works for the user who called it."""
    owner = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    with pytest.raises(UntrustedError, match="belongs to another account"):
        find_home(uses_devices=False)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setenv("SUDO_UID", str(owner))
    assert find_home() == clone / ".embedl"
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    trust.trust(clone / ".embedl")
    assert find_home() == clone / ".embedl"


def test_a_home_of_nobody_runs_nothing(clone: Path) -> None:
    """The folder two levels up belongs to nobody: its program is not run by root."""
    if os.geteuid() != 0:
        leave_off("root, to give a folder away", "run ./test as root")
    program, trace = _program(clone)
    table, words = _attacks(clone, program)["trtexec_path"]
    _plant(clone, table)
    for path in (clone, *clone.rglob("*")):
        os.chown(path, 65534, 65534)
    for command in (words, ["run", "list"], ["ui", "--no-browser"], [*words, "--here"]):
        done = hub(*command)
        assert done.returncode == 1
        assert "belongs to another account (number 65534)" in done.stderr
    assert not trace.exists()


def test_a_home_that_all_can_write_in_is_refused(clone: Path) -> None:
    """Whoever can write there can plant devices at any time."""
    (clone / ".embedl").chmod(0o777)
    with pytest.raises(UntrustedError, match="written by every account"):
        find_home(uses_devices=False)


@pytest.mark.parametrize("name", ["runs", "hub.db", "blobs", "devices.toml", "."])
def test_links_lead_nowhere_unasked(clone: Path, name: str) -> None:
    """A link in the home would have runs, contents or an index written where it leads."""
    private, home = clone.parent / "private", clone / ".embedl"
    private.mkdir()
    if name == ".":
        home.rmdir()
        home.symlink_to(private)
    else:
        (home / name).symlink_to(private / "something")
    for uses_devices in (True, False):
        with pytest.raises(UntrustedError, match="links that lead somewhere else"):
            find_home(uses_devices=uses_devices)
    with pytest.raises(UntrustedError):
        HubContext("mine")
    assert not list(private.iterdir())
    trust.trust(home)
    assert find_home(uses_devices=False) == home


def test_a_pipe_in_place_of_devices_is_not_waited_for(clone: Path) -> None:
    """A FIFO called devices.toml would hold every command for ever."""
    os.mkfifo(clone / ".embedl" / "devices.toml")
    done = hub("profile", "onnxruntime", "net.onnx")
    assert done.returncode == 1
    assert "no plain file" in done.stderr


def test_a_planted_note_directs_neither_ray_nor_kill(clone: Path) -> None:
    """The note of a node is the user's own; one in the home, locked by its author, means nothing."""
    note = clone / ".embedl" / "fleet-node"
    with note.open("w") as file:
        file.write(f"{os.getpid()} 203.0.113.7:6379")
        file.flush()
        fcntl.flock(file, fcntl.LOCK_EX)
        assert node_address(clone / ".embedl") is None
        assert not stop_node(clone / ".embedl")


def test_a_sweep_by_ray_uses_no_planted_devices(clone: Path) -> None:
    """Processes of Ray read the home's devices: they must be trusted in Python, too."""
    _plant(clone, "type = 'local'\nlease_dir = ''")
    with HubContext("mine", [Device("board")]) as ctx, pytest.raises(UntrustedError), Ray().open(ctx, ()):
        pass


def test_the_list_of_trusted_folders_is_private(clone: Path) -> None:
    """Only the user can read it; one that is broken is an error with the next step."""
    trust.trust(clone / ".embedl")
    file = Path(os.environ["XDG_CONFIG_HOME"]) / "edgeproof" / "trusted.json"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    kept = file.read_text()
    try:
        file.write_text("[" * 10_000)
        _plant(clone, "type = 'local'")
        done = hub("profile", "onnxruntime", "net.onnx")
        assert "remove it" in done.stderr
        assert "Traceback" not in done.stderr
    finally:
        file.write_text(kept)
    assert str(clone / ".embedl") in json.loads(kept)
