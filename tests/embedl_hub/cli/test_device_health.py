"""The commands about many devices: health, pools, and lists by query."""

import json
import platform
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from support.cli import answer, hub
from support.processes import wait_until
from support.sshd import SSHServer

ARCH = platform.machine()


@pytest.fixture
def lab(tmp_path: Path) -> Path:
    """A home with two equal boards that are this machine, and one in the network that is not there."""
    (tmp_path / ".embedl").mkdir()
    tables = "".join(
        f"[devices.{name}]\ntype = 'local'\nartifact_root = '{tmp_path}/{name}'\nlease_dir = '{tmp_path}/l {name}'\n"
        for name in ("pi-1", "pi-2")
    )
    away = "[devices.away]\ntype = 'embedl_onnxruntime'\nssh = { host = '127.0.0.1', port = 9 }\n"
    (tmp_path / ".embedl" / "devices.toml").write_text(f"# our lab\n{tables}{away}")
    answer("trust", cwd=tmp_path)
    return tmp_path


def test_health_is_told_and_listed(lab: Path) -> None:
    """One is out with its reason and the exit code says so; lists show it and take queries."""
    listed = answer("list-devices", "--no-offered", cwd=lab)["devices"]
    assert {row["name"]: row["state"] for row in listed} == dict.fromkeys(("pi-1", "pi-2", "away"), "unknown")
    done = hub("device", "health", "--json", cwd=lab)
    assert done.returncode == 1
    assert "1 of 3 devices are unavailable:" in done.stderr
    assert "away: reachable:" in done.stderr
    found = {row["device"]: row for row in json.loads(done.stdout)["devices"]}
    assert {name: row["state"] for name, row in found.items()} == {"pi-1": "ok", "pi-2": "ok", "away": "out"}
    assert {check["name"] for check in found["pi-1"]["checks"]} >= {"reachable", "disk", "clock", "leftovers", "heat"}
    rows = {row["name"]: row for row in answer("list-devices", "--no-offered", cwd=lab)["devices"]}
    assert (rows["pi-1"]["state"], rows["away"]["state"]) == ("ok", "out")
    assert rows["away"]["reason"] == found["away"]["reason"]
    assert rows["pi-1"]["spec"]["architecture"] == ARCH
    chosen = answer("list-devices", "--where", f"arch={ARCH}, name=*-2", cwd=lab)["devices"]
    assert [row["name"] for row in chosen] == ["pi-2"]
    shown = hub("device", "health", "--where", f"arch={ARCH}, memory>=1MB", cwd=lab)
    assert shown.returncode == 0
    assert "leftovers" in shown.stdout
    none = hub("list-devices", "--where", "cores>=100000", cwd=lab)
    assert none.returncode == 1
    assert "away: its cores is not known" in none.stderr
    unknown = hub("device", "health", "attic", cwd=lab)
    assert "There is no device 'attic'" in unknown.stderr
    assert "must look like 30s, 10m" in hub("device", "health", "--every", "soon", cwd=lab).stderr


def test_what_many_would_type_for_a_list_leads_to_it(lab: Path) -> None:
    """And what was added says how to try it in the same home."""
    assert "embedl-hub list-devices" in hub("device", "list", cwd=lab).stderr
    added = hub("device", "add", "bench", "--type", "local", "--home", "a home", cwd=lab)
    assert "embedl-hub device test bench --home 'a home'" in added.stdout


def test_health_goes_on(lab: Path, new_server: Callable[..., SSHServer]) -> None:
    """A line when a board goes out and one when it comes back, until Ctrl-C."""
    server = new_server()
    ssh = f"{{ host = '127.0.0.1', port = {server.port}, username = '{server.user}', connect_timeout_s = 2, "
    ssh += f"identity_file = '{server.identity}', known_hosts = '{server.known_hosts}', "
    ssh += f"config_file = '{server.client_config}' }}"
    table = f"type = 'embedl_onnxruntime'\nssh = {ssh}\nlease_dir = ''\nconfig = {{ python_path = '{sys.executable}' }}"
    (lab / ".embedl" / "devices.toml").write_text(f"[devices.pi]\n{table}\n")
    answer("trust", cwd=lab)
    words = [sys.executable, "-m", "embedl_hub", "device", "health", "--every", "0.3s", "--json"]
    with subprocess.Popen(words, cwd=lab, stdout=subprocess.PIPE, text=True) as watching:
        try:
            assert watching.stdout is not None
            assert json.loads(watching.stdout.readline())["state"] == "ok"
            server.stop()
            assert json.loads(watching.stdout.readline())["state"] == "out"
            server.start()
            assert json.loads(watching.stdout.readline())["state"] == "ok"
            watching.send_signal(signal.SIGINT)
            assert watching.wait(30) == 130
        finally:
            watching.kill()
    wait_until(lambda: answer("list-devices", "--no-offered", cwd=lab)["devices"][0]["state"] == "ok", 30)


@pytest.mark.slow
def test_pools_by_command_line(lab: Path) -> None:
    """Made of a query or of names, listed with their boards, removed; comments and devices stay."""
    file = lab / ".embedl" / "devices.toml"
    hub("device", "health", "pi-1", "pi-2", cwd=lab)
    assert "No pools" in hub("device", "pool", "list", cwd=lab).stdout
    added = answer("device", "pool", "add", "pis", "--where", f"arch={ARCH}, name=pi-*", cwd=lab)
    assert added["members"] == ["pi-1", "pi-2"]
    answer("device", "pool", "add", "all", "--device", "pi-1", "--device", "away", "--mixed", cwd=lab)
    later = hub("device", "pool", "add", "jetsons", "--where", "name=jetson-*", cwd=lab)
    assert later.returncode == 0
    assert "No device is 'name=jetson-*'" in later.stderr
    pools = {row["name"]: row for row in answer("device", "pool", "list", cwd=lab)["pools"]}
    assert pools["pis"]["members"] == ["pi-1", "pi-2"]
    assert pools["all"]["members"] == ["pi-1", "away"]
    assert "its name is pi-1" in pools["jetsons"]["problem"]
    assert "jetson-*" in hub("device", "pool", "list", cwd=lab).stdout
    for words, expected in (
        (("add", "pis", "--where", "name=*"), "already"),
        (("add", "odd", "--device", "attic"), "'attic', which is no device"),
        (("add", "odd", "--device", "pi-1", "--device", "away"), "away's type is embedl_onnxruntime"),
        (("add", "odd"), "either a query"),
        (("remove", "odd"), "there are: 'all', 'jetsons', 'pis'"),
    ):
        refused = hub("device", "pool", *words, cwd=lab)
        assert refused.returncode == 1
        assert expected in refused.stderr
    for name in pools:
        answer("device", "pool", "remove", name, cwd=lab)
    assert file.read_text().startswith("# our lab\n")
    assert answer("device", "pool", "list", cwd=lab)["pools"] == []
    assert len(answer("list-devices", "--no-offered", cwd=lab)["devices"]) == 3
