"""The watch: on a schedule, after failures, over boards that come and go and hang."""

import dataclasses
import queue
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.processes import wait_until
from support.sshd import SSHServer

from embedl_hub.core import HubContext
from embedl_hub.core.device import CommandResult, Device, LocalCommandRunner, SSHCommandRunner
from embedl_hub.errors import ConfigError, UnknownDeviceError
from embedl_hub.health import Health, HealthChange, HealthLimits, HealthWatch, check_device
from embedl_hub.tracking import Store

LIMITS = HealthLimits(free_bytes=1 << 20, temperature_c=1000)
HOUR_S = 3600.0

Open = Callable[..., HubContext]
Make = Callable[..., Device]


class Stuck(LocalCommandRunner):
    """A runner of somebody who forgot about time limits; it answers when it is let go."""

    def __init__(self) -> None:
        super().__init__()
        self.let_go = threading.Event()

    def run(self, *arguments: Any, **options: Any) -> CommandResult:
        assert self.let_go.wait(120)
        return super().run(*arguments, **options)


@pytest.fixture
def here(tmp_path: Path) -> Callable[..., Device]:
    """Make boards that are this machine, for tests about the watch alone."""

    def make(name: str, runner: LocalCommandRunner | None = None) -> Device:
        lease_dir, root = str(tmp_path / f"lease of {name}"), tmp_path / f"root of {name}"
        return Device(
            name, runner or LocalCommandRunner(), provider_type="plain", artifact_root=root, lease_dir=lease_dir
        )

    return make


def checks_of(home: Path, name: str) -> int:
    with Store(home) as store:
        return store.count(f"name = 'health' and device = '{name}' and status != 'RUNNING'", archived=None)


def test_a_board_goes_out_and_comes_back(
    new_server: Callable[..., SSHServer], make_board: Make, open_context: Open
) -> None:
    """A reported failure is looked into at once; the board that is out is asked again by itself, and said so."""
    server, other = new_server(), new_server()
    ctx = open_context(make_board(server, "pi"), make_board(other, "jetson"))
    told: queue.Queue[HealthChange] = queue.Queue()
    with HealthWatch(ctx, every_s=HOUR_S, recheck_s=0.2, limits=LIMITS, listener=told.put) as watch:
        watch.report_failure("pi")
        assert watch.settled("pi", 60).state == "ok"
        assert watch.is_in("pi")
        seen = watch.changes
        server.stop()
        watch.report_failure("pi")
        assert watch.settled("pi", 60).state == "out"
        assert not watch.is_in("pi")
        assert watch.is_in("jetson")
        assert watch.wait_for_change(60, seen=seen)
        change = told.get(timeout=30)
        assert (change.device, change.before.state, change.after.state) == ("pi", "ok", "out")
        assert change.after.reason.startswith("reachable: ")
        seen = watch.changes
        server.start()
        assert watch.wait_for_change(60, seen=seen)
        assert watch.is_in("pi")
        assert told.get(timeout=30).after == watch.health("pi")
    assert told.empty(), "the other board never changed"


def test_on_schedule(open_context: Open, here: Callable[..., Device], home: Path) -> None:
    """Each board again and again; the next watch knows of the checks before and does not repeat them."""
    ctx = open_context(here("a"), here("b"))
    with HealthWatch(ctx, every_s=0.1, limits=LIMITS, names=["a"]):
        wait_until(lambda: checks_of(home, "a") >= 3, 60)
    assert checks_of(home, "b") == 0
    before = checks_of(home, "a")
    with HealthWatch(ctx, every_s=HOUR_S, limits=LIMITS) as watch:
        assert watch.health("a").state == "ok"
        assert watch.health("b") == Health()
        assert watch.is_in("b"), "never checked counts as in"
        watch.report_failure("b")
        assert watch.settled("b", 60).state == "ok"
        assert watch.changes == 0, "the first good check is no news"
    assert checks_of(home, "a") == before


def test_an_idle_watch_costs_nothing(open_context: Open, here: Callable[..., Device]) -> None:
    """It sleeps until something is due."""
    ctx = open_context(here("a"))
    check_device(ctx, "a", LIMITS)
    with HealthWatch(ctx, every_s=HOUR_S, limits=LIMITS) as watch:
        started, used = time.monotonic(), time.process_time()
        assert not watch.wait_for_change(1.0)
        assert time.monotonic() - started >= 1.0
        assert time.process_time() - used < 0.2


def test_a_board_that_hangs_hangs_alone(open_context: Open, here: Callable[..., Device], home: Path) -> None:
    """It is out after the limit, recorded so; the others go on; when it answers after all, it is back."""
    stuck = Stuck()
    ctx = open_context(here("stuck", stuck), here("fine"))
    # Long enough for the other one's check on a busy machine.
    limits = dataclasses.replace(LIMITS, whole_s=4.0)
    with HealthWatch(ctx, every_s=HOUR_S, recheck_s=0.2, limits=limits) as watch:
        assert watch.wait_for_change(60)
        assert not watch.is_in("stuck")
        watch.report_failure("stuck")
        assert watch.settled("stuck").state == "out", "without a limit of the caller's"
        assert watch.health("stuck").reason.startswith("hangs: its check did not end within 4 s.")
        assert checks_of(home, "stuck") == 1
        watch.report_failure("fine")
        assert watch.settled("fine", 60).state == "ok"
        seen = watch.changes
        stuck.let_go.set()
        assert watch.wait_for_change(60, seen=seen)
        assert watch.is_in("stuck")


def test_closing_does_not_wait_for_a_board_that_hangs(
    open_context: Open, here: Callable[..., Device], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its thread is left behind."""
    monkeypatch.setattr("embedl_hub.health._watch._LEAVE_S", 0.1)
    stuck = Stuck()
    with HealthWatch(open_context(here("left", stuck)), limits=LIMITS):
        started = time.monotonic()
    assert time.monotonic() - started < 10
    stuck.let_go.set()
    wait_until(lambda: not [each for each in threading.enumerate() if each.name == "edgeproof-health left"], 30)


def test_a_board_in_use_is_asked_later(
    ssh_server: SSHServer, make_board: Make, open_context: Open, connect: Callable[..., SSHCommandRunner], home: Path
) -> None:
    """Its state stays meanwhile."""
    device = make_board(ssh_server)
    ctx = open_context(device)
    limits = dataclasses.replace(LIMITS, lease_wait_s=0)
    with (
        connect(ssh_server).lease(str(device.lease_dir), "anna@lab", wait_s=5),
        HealthWatch(ctx, recheck_s=0.1, limits=limits) as watch,
    ):
        watch.report_failure("pi")
        assert watch.settled("pi", 60) == Health()
        assert watch.is_in("pi")
    assert checks_of(home, "pi") == 0
    with HealthWatch(ctx, recheck_s=0.1, limits=limits):
        wait_until(lambda: checks_of(home, "pi") == 1, 60)


def test_a_listener_that_fails_does_not_end_the_watch(
    open_context: Open, here: Callable[..., Device], caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    """Its mistake is logged."""
    ctx = open_context(here("a"))
    (tmp_path / "root of a").touch()

    def fail(_: HealthChange) -> None:
        raise ZeroDivisionError

    with HealthWatch(ctx, recheck_s=0.1, limits=LIMITS, listener=fail) as watch:
        wait_until(lambda: not watch.is_in("a"), 60)
        (tmp_path / "root of a").unlink()
        wait_until(lambda: watch.is_in("a"), 60)
        wait_until(lambda: caplog.text.count("listener of the health watch failed") == 2, 30)


def test_wrong_words_are_said(open_context: Open, here: Callable[..., Device]) -> None:
    """Names that are not watched, times that are none, limits that are none."""
    ctx = open_context(here("a"), here("b"))
    with pytest.raises(UnknownDeviceError, match="its devices are: 'a', 'b'"):
        HealthWatch(ctx, names=["c"])
    with pytest.raises(ConfigError, match="every_s is 0"):
        HealthWatch(ctx, every_s=0)
    with pytest.raises(ConfigError, match="free_bytes is -1"):
        HealthLimits(free_bytes=-1)
    with HealthWatch(ctx, names=["a"], limits=LIMITS) as watch:
        with pytest.raises(ConfigError, match="'b' is not watched"):
            watch.is_in("b")
        with pytest.raises(UnknownDeviceError):
            watch.report_failure("c")


def test_without_tracking_the_watch_remembers_itself(here: Callable[..., Device], tmp_path: Path) -> None:
    """Nothing is written anywhere."""
    with HubContext("lab", [here("a")], tracking=False) as ctx, HealthWatch(ctx, recheck_s=0.1, limits=LIMITS) as watch:
        watch.report_failure("a")
        assert watch.settled("a", 60).state == "ok"
    assert not (tmp_path / "home").exists()
