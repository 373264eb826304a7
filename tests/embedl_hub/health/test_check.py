"""One check of one board: what takes it out, what brings it back, and what does not disturb it."""

import dataclasses
import platform
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from support.processes import unique_sleep, wait_until
from support.sshd import SSHServer

from embedl_hub.core import HubContext
from embedl_hub.core.device import Device, EmbedlONNXRuntimeConfig, SSHCommandRunner, recall_spec
from embedl_hub.health import Health, HealthCheck, HealthLimits, HealthReport, check_device, device_health
from embedl_hub.machine.environment import CACHE_VARIABLE
from embedl_hub.tracking import RunStatus, Store

# Other tests fill this machine's disk and heat it as they like.
LIMITS = HealthLimits(free_bytes=1 << 20, temperature_c=1000)

Open = Callable[..., HubContext]
Make = Callable[..., Device]


def verdicts(report: HealthReport) -> dict[str, str]:
    return {check.name: check.outcome for check in report.checks}


def found(report: HealthReport, name: str) -> HealthCheck:
    return next(check for check in report.checks if check.name == name)


def store_of(ctx: HubContext) -> Store:
    assert ctx.client.store is not None
    return ctx.client.store


def test_a_healthy_board(ssh_server: SSHServer, make_board: Make, open_context: Open, home: Path) -> None:
    """Every check passes, is a run with its figures, and what the board is stays known."""
    ctx = open_context(make_board(ssh_server))
    assert device_health(store_of(ctx), ["pi"]) == {"pi": Health()}
    report = check_device(ctx, "pi", LIMITS)
    assert list(verdicts(report)) == ["reachable", "disk", "clock", "leftovers", "heat"]
    assert not report.failures
    assert report.health.state == "ok"
    run = store_of(ctx).run(str(report.health.run_id))
    assert (run.type, run.name, run.device, run.status) == ("CUSTOM", "health", "pi", RunStatus.FINISHED)
    assert run.tags == {"health": "ok"}
    assert run.params["disk"].value == "ok"
    assert "MB free" in str(run.params["disk.says"].value)
    for name in ("connect_s", "answer_ms", "free_bytes", "clock_skew_s", "leftovers"):
        assert run.metric(name) is not None, name
    skew = run.metric("clock_skew_s")
    assert skew is not None
    assert abs(skew.value) < 5, "board and hub are one machine"
    assert device_health(store_of(ctx), ["pi"])["pi"] == report.health
    assert recall_spec(home, ctx.devices["pi"]).architecture == platform.machine()


def test_out_and_back(new_server: Callable[..., SSHServer], make_board: Make, open_context: Open) -> None:
    """A stopped sshd takes the board out, with since when and what to do; a started one brings it back.

    Lists show the changes; checks that say the same again are kept aside.
    """
    server = new_server()
    ctx = open_context(make_board(server))
    first = check_device(ctx, "pi", LIMITS)
    server.stop()
    gone = check_device(ctx, "pi", LIMITS)
    assert verdicts(gone) == {"reachable": "failed"}
    assert "embedl-hub device test pi" in gone.health.reason
    still = check_device(ctx, "pi", LIMITS)
    assert (still.health.state, still.health.since_ms) == ("out", gone.health.since_ms)
    assert still.health.run_id != gone.health.run_id
    assert device_health(store_of(ctx), ["pi"])["pi"] == still.health
    run = store_of(ctx).run(str(still.health.run_id))
    assert (run.status, run.tags["health"], run.error) == (RunStatus.FAILED, "failed", still.health.reason)
    server.start()
    back = check_device(ctx, "pi", LIMITS)
    assert back.health.state == "ok"
    assert back.health.since_ms != first.health.since_ms
    assert [each.tags["health"] for each in store_of(ctx).runs(order="started")] == ["ok", "failed", "ok"]
    assert [each.id for each in store_of(ctx).runs(archived=True)] == [still.health.run_id]


def test_what_its_provider_needs(ssh_server: SSHServer, make_board: Make, open_context: Open) -> None:
    """A kind's commands are checked, each by its name; the first words of the failure name it."""
    settings = {"provider_type": "embedl_onnxruntime"}
    good = EmbedlONNXRuntimeConfig(python_path=sys.executable)
    bad = EmbedlONNXRuntimeConfig(python_path="/nowhere/python")
    ctx = open_context(
        make_board(ssh_server, "good", provider_config=good, **settings),
        make_board(ssh_server, "bad", provider_config=bad, **settings),
    )
    assert check_device(ctx, "good", LIMITS).health.state == "ok"
    report = check_device(ctx, "bad", LIMITS)
    assert [check.name for check in report.failures] == ["python", "numpy", "onnxruntime"]
    assert report.health.reason.startswith("python: Command was not found")
    assert "'embedl_onnxruntime' needs it" in report.health.reason


def test_a_full_disk(small_disk: Path, ssh_server: SSHServer, make_board: Make, open_context: Open) -> None:
    """Too little space and no space at all are told apart, and both say what to do."""
    ctx = open_context(make_board(ssh_server, artifact_root=small_disk / "root"))
    assert check_device(ctx, "pi", LIMITS).health.state == "ok"
    little = check_device(ctx, "pi", dataclasses.replace(LIMITS, free_bytes=64 << 20))
    assert "8 MB are free in its folder, 67 MB must be." in little.health.reason
    subprocess.run(
        ["dd", "if=/dev/zero", f"of={small_disk / 'ballast'}", "bs=64k"], stderr=subprocess.DEVNULL, check=False
    )
    full = check_device(ctx, "pi", LIMITS)
    assert [check.name for check in full.failures] == ["disk"]
    assert "nothing can be written to its folder (0 MB free)" in full.health.reason
    assert "artifact_root" in full.health.reason


def test_a_board_in_use_keeps_its_state(
    ssh_server: SSHServer, make_board: Make, open_context: Open, connect: Callable[..., SSHCommandRunner]
) -> None:
    """Somebody else's lease is no failure: it is said who, nothing is recorded, and the state stays."""
    device = make_board(ssh_server)
    ctx = open_context(device)
    before = check_device(ctx, "pi", LIMITS)
    other, quick = connect(ssh_server), dataclasses.replace(LIMITS, lease_wait_s=0)
    with other.lease(str(device.lease_dir), "anna@lab (yolo)", wait_s=5):
        busy = check_device(ctx, "pi", quick)
    assert busy.busy.startswith("anna@lab (yolo) since ")
    assert busy.health == before.health
    assert not busy.failures
    assert len(store_of(ctx).runs(archived=None)) == 1


def test_a_thread_of_this_program_is_not_disturbed(ssh_server: SSHServer, make_board: Make, open_context: Open) -> None:
    """A claim in another thread is waited for as long as told, and no longer."""
    ctx = open_context(make_board(ssh_server))
    claimed, done = threading.Event(), threading.Event()

    def measure() -> None:
        with ctx.claim("pi"):
            claimed.set()
            done.wait(60)

    thread = threading.Thread(target=measure)
    thread.start()
    try:
        assert claimed.wait(30)
        report = check_device(ctx, "pi", dataclasses.replace(LIMITS, lease_wait_s=0.1))
        assert report.busy == "another thread of this program"
    finally:
        done.set()
        thread.join()
    assert check_device(ctx, "pi", LIMITS).health.state == "ok"


@pytest.mark.slow
def test_a_board_that_hangs(
    new_server: Callable[..., SSHServer], make_board: Make, open_context: Open, tmp_path: Path
) -> None:
    """A program, then the whole board: each costs its limit, not forever."""
    slow = tmp_path / "slow"
    slow.write_text("#!/bin/sh\nexec sleep 900\n")
    slow.chmod(0o755)
    server = new_server()
    config = EmbedlONNXRuntimeConfig(python_path=str(slow))
    ctx = open_context(make_board(server, provider_type="embedl_onnxruntime", provider_config=config))
    report = check_device(ctx, "pi", dataclasses.replace(LIMITS, command_s=1))
    assert [check.name for check in report.failures] == ["python", "numpy", "onnxruntime"]
    assert "time limit of 1 s" in report.health.reason
    started = time.monotonic()
    with server.hanging():
        report = check_device(ctx, "pi", LIMITS)
    assert verdicts(report) == {"reachable": "failed"}
    assert "timed out" in report.health.reason
    assert time.monotonic() - started < 30


def test_leftovers_of_earlier_runs(ssh_server: SSHServer, make_board: Make, open_context: Open) -> None:
    """A process in a run's folder would disturb every measurement; it is named, and gone the board is back."""
    device = make_board(ssh_server)
    ctx = open_context(device)
    folder = Path(str(device.artifact_root)) / "runs" / "abc"
    folder.mkdir(parents=True)
    left = subprocess.Popen(unique_sleep(), cwd=folder)
    given = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(900)", f"{folder}/model.onnx"])
    try:
        wait_until(lambda: Path(f"/proc/{left.pid}/comm").read_text() == "sleep\n", 10)
        report = check_device(ctx, "pi", LIMITS)
        assert [check.name for check in report.failures] == ["leftovers"]
        assert f"{left.pid} sleep" in report.health.reason
        assert f"{given.pid} python" in report.health.reason
        assert "on pi: kill" in found(report, "leftovers").next_step
    finally:
        for process in (left, given):
            process.kill()
            process.wait()
    assert check_device(ctx, "pi", LIMITS).health.state == "ok"


def test_a_lease_that_cannot_be_had(
    ssh_server: SSHServer, make_board: Make, open_context: Open, tmp_path: Path
) -> None:
    """That is a failure: nobody could be kept off the board."""
    (tmp_path / "link").symlink_to(tmp_path)
    ctx = open_context(make_board(ssh_server, lease_dir=str(tmp_path / "link")))
    report = check_device(ctx, "pi", LIMITS)
    assert verdicts(report) == {"reachable": "ok", "lease": "failed"}
    assert "is a link" in report.health.reason


def test_a_folder_that_cannot_be_made(
    ssh_server: SSHServer, make_board: Make, open_context: Open, tmp_path: Path
) -> None:
    """The rest is still looked at."""
    (tmp_path / "file").touch()
    config = EmbedlONNXRuntimeConfig(python_path=sys.executable)
    kind = {"provider_type": "embedl_onnxruntime", "provider_config": config}
    ctx = open_context(make_board(ssh_server, artifact_root=tmp_path / "file" / "root", **kind))
    report = check_device(ctx, "pi", LIMITS)
    assert [check.name for check in report.failures] == ["folder"]
    assert verdicts(report)["onnxruntime"] == "ok"
    assert "file/root" in report.health.reason


def test_a_cloud_is_asked_through_its_provider(
    open_context: Open, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It has no disk of ours; a client that is not set up takes it out."""
    monkeypatch.setenv("QAIHUB_CLIENT_INI", str(tmp_path / "no.ini"))
    ctx = open_context(Device("phone", provider_type="qai_hub"), Device("made up", provider_type="plain"))
    assert verdicts(check_device(ctx, "made up", LIMITS)) == {"provider": "ok"}
    phone = check_device(ctx, "phone", LIMITS)
    assert verdicts(phone) == {"provider": "failed"}
    assert "qai-hub configure" in phone.health.reason


def test_this_machine_is_not_out_for_a_toolchain_that_is_not_set_up(
    open_context: Open, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The others still work; what is missing is said."""
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path))
    report = check_device(open_context(Device("here")), "here", LIMITS)
    assert [(check.outcome, check.message) for check in report.checks] == [("ok", "not set up: tflite converter")]
    assert report.health.state == "ok"
