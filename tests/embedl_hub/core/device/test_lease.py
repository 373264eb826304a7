"""One user at a time on a board, and a board that is free again when its user is gone."""

import contextlib
import functools
import itertools
import logging
import os
import pickle
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import pytest
from support.clients import line_of, start_client
from support.faults import fault
from support.keepers import shell_command
from support.processes import wait_until, with_words
from support.sshd import SSHServer

from embedl_hub.core.device import LeasingRunner, LocalCommandRunner, SSHCommandRunner, SSHConfig
from embedl_hub.core.device._script import KEEP_LEASE_BY_FOLDER
from embedl_hub.errors import BusyError, LeaseError

NewServer: TypeAlias = Callable[..., SSHServer]
Connect: TypeAlias = Callable[..., SSHCommandRunner]

NOTE = f"holder.{os.geteuid()}"

HOLD = """\
with runner.lease(sys.argv[2], sys.argv[3], wait_s=60):
    print("held", flush=True)
    time.sleep(600)
"""

TAKE_TURNS = """\
for _ in range(3):
    with runner.lease(sys.argv[2], sys.argv[3], wait_s=60):
        start = time.monotonic()
        time.sleep(0.15)
        print(start, time.monotonic(), flush=True)
"""


@pytest.fixture(params=["local", "ssh"])
def config(request: pytest.FixtureRequest) -> SSHConfig | None:
    """How a client of its own reaches its board; None for this machine."""
    if request.param == "local":
        return None
    server: SSHServer = request.getfixturevalue("ssh_server")
    return server.config()


@pytest.fixture
def lock(tmp_path: Path) -> Path:
    """A lease folder; all runners here share one machine, so they share it."""
    return tmp_path / "lease dir"


def start_holding(config: SSHConfig | None, lock: Path, holder: str) -> subprocess.Popen[str]:
    """Return a client that holds the lease."""
    client = start_client(config, HOLD, str(lock), holder)
    assert line_of(client) == "held"
    return client


def seconds_to_take(runner: LeasingRunner, lock: Path, *, wait_s: float) -> float:
    started = time.monotonic()
    with runner.lease(str(lock), "next", wait_s=wait_s) as lease:
        assert not lease.is_lost
        return time.monotonic() - started


def test_a_lease_says_who_holds_it(runner: LeasingRunner, lock: Path) -> None:
    """A note in the folder, as long as it is held, whatever the holder is called; every account may use the folder."""
    holder = "$(id) 'me'; \"you\" \\ é"
    with runner.lease(str(lock), holder, wait_s=1) as lease:
        assert not lease.is_lost
        assert (lock / NOTE).read_text().startswith(f"{holder} since ")
        assert stat.S_IMODE(lock.stat().st_mode) == 0o1777
    assert not (lock / NOTE).exists()


def test_a_lease_ends_with_its_block(runner: LeasingRunner, lock: Path) -> None:
    """Also when the block fails."""
    with pytest.raises(RuntimeError, match="in the block"), runner.lease(str(lock), "me", wait_s=1):
        raise RuntimeError("in the block")

    assert seconds_to_take(runner, lock, wait_s=1) < 2
    assert not (lock / NOTE).exists()


@pytest.mark.parametrize("first", ["local", "ssh"])
@pytest.mark.parametrize("second", ["local", "ssh"])
def test_a_busy_board_names_its_holder(
    board: SSHCommandRunner, lock: Path, first: str, second: str, caplog: pytest.LogCaptureFixture
) -> None:
    """This machine's lease and a remote user's are one lock; who waits is told for whom."""
    runners: dict[str, LeasingRunner] = {"local": LocalCommandRunner(), "ssh": board}
    with (
        caplog.at_level(logging.WARNING),
        runners[first].lease(str(lock), "anna@lab", wait_s=1),
        fault(BusyError, "was in use by anna@lab since ", "for all of 1 s", "Try later", within_s=4),
        runners[second].lease(str(lock), "bert@lab", wait_s=1),
    ):
        pass

    assert "in use by anna@lab since " in caplog.text


def test_who_holds_a_board_survives_a_process_boundary() -> None:
    """The error is data: a worker elsewhere hands it on whole."""
    again = pickle.loads(pickle.dumps(BusyError("pi was in use by anna@lab.", "anna@lab")))  # noqa: S301 - our own
    assert (str(again), again.holder) == ("pi was in use by anna@lab.", "anna@lab")


def test_waiting_for_a_lease_works(runner: LeasingRunner, lock: Path) -> None:
    """Who waits gets it soon after it is free."""
    times: dict[str, float] = {}

    def wait() -> None:
        with runner.lease(str(lock), "second", wait_s=30):
            times["taken"] = time.monotonic()

    with runner.lease(str(lock), "first", wait_s=1):
        thread = threading.Thread(target=wait)
        thread.start()
        time.sleep(0.5)
        times["free"] = time.monotonic()
    thread.join()

    assert 0 <= times["taken"] - times["free"] < 2


def test_holders_never_overlap(ssh_server: SSHServer, lock: Path) -> None:
    """Six processes, here and over SSH, three turns each: no two at the same time."""
    clients = [
        start_client(config, TAKE_TURNS, str(lock), f"client {number}")
        for number, config in enumerate([ssh_server.config(), None] * 3)
    ]
    turns = []
    for client in clients:
        out, err = client.communicate(timeout=100)
        assert client.returncode == 0, err
        turns += [tuple(map(float, line.split())) for line in out.splitlines()]
    turns.sort()

    assert len(turns) == 18
    for (_, end), (start, _) in itertools.pairwise(turns):
        assert end <= start


def test_a_killed_holder_frees_the_board_at_once(config: SSHConfig | None, lock: Path) -> None:
    """Kill -9 of the holder: free within five seconds."""
    with start_holding(config, lock, "doomed") as client:
        client.kill()
        took_s = seconds_to_take(LocalCommandRunner(), lock, wait_s=10)
    assert took_s < 5


@pytest.mark.slow
def test_a_silent_holder_frees_the_board(ssh_server: SSHServer, board: SSHCommandRunner, lock: Path) -> None:
    """A holder that is stopped, its connection open, loses the lease within 30 seconds."""
    with start_holding(ssh_server.config(), lock, "frozen") as client:
        client.send_signal(signal.SIGSTOP)
        took_s = seconds_to_take(board, lock, wait_s=40)
        client.kill()
    print(f"free after {took_s:.1f} s of silence")  # noqa: T201 - shown by pytest -rP
    assert 5 < took_s < 30


def test_a_held_lease_lasts(board: SSHCommandRunner, lock: Path) -> None:
    """Beats go out while the holder does something else."""
    with board.lease(str(lock), "me", wait_s=1) as lease:
        (keeper,) = with_words("edgeproof-lease", str(lock))
        before = _beats_seen(keeper)
        wait_until(lambda: _beats_seen(keeper) > before, 8)
        assert not lease.is_lost


def _beats_seen(keeper: int) -> int:
    text = Path(f"/proc/{keeper}/io").read_text()
    return next(int(line.split()[1]) for line in text.splitlines() if line.startswith("rchar:"))


def test_a_lost_lease_is_noticed(board: SSHCommandRunner, lock: Path) -> None:
    """A keeper killed on the board: the holder learns within a beat or two."""
    with board.lease(str(lock), "me", wait_s=1) as lease:
        (keeper,) = with_words("edgeproof-lease", str(lock))
        os.kill(keeper, signal.SIGKILL)
        wait_until(lambda: lease.is_lost, 12)


def test_a_lease_lost_with_the_connection_is_noticed(new_server: NewServer, connect: Connect, lock: Path) -> None:
    """A cut connection frees the board, and the holder knows."""
    server = new_server()
    with connect(server).lease(str(lock), "me", wait_s=1) as lease:
        server.drop_sessions()
        assert seconds_to_take(LocalCommandRunner(), lock, wait_s=10) < 5
        wait_until(lambda: lease.is_lost, 12)


def test_a_board_in_use_still_takes_commands(board: SSHCommandRunner, lock: Path) -> None:
    """The lease keeps users apart, not the holder's own commands."""
    with board.lease(str(lock), "me", wait_s=1):
        assert board.run(["echo", "hello"], hide=True).stdout == "hello\n"


def test_a_lock_folder_that_cannot_be_is_said_so(runner: LeasingRunner, tmp_path: Path) -> None:
    """The message names the folder and the setting to change."""
    (tmp_path / "file").touch()
    with (
        fault(LeaseError, "could not be taken", "file/lock", "lease_dir", within_s=5),
        runner.lease(str(tmp_path / "file/lock"), "me", wait_s=1),
    ):
        pass


def test_a_linked_lock_folder_is_refused(runner: LeasingRunner, tmp_path: Path) -> None:
    """In a folder open to everybody a link may lead anywhere."""
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "lock").symlink_to("elsewhere")
    with (
        fault(LeaseError, "could not be taken", "is a link", "lease_dir", within_s=5),
        runner.lease(str(tmp_path / "lock"), "me", wait_s=1),
    ):
        pass
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_a_note_is_not_written_through(runner: LeasingRunner, lock: Path, tmp_path: Path) -> None:
    """A link that another account left under the note's name is replaced, and its aim stays as it was."""
    lock.mkdir()
    (tmp_path / "precious").write_text("precious")
    (lock / NOTE).symlink_to(tmp_path / "precious")
    with runner.lease(str(lock), "me", wait_s=1):
        assert not (lock / NOTE).is_symlink()
    assert (tmp_path / "precious").read_text() == "precious"


def test_a_note_cannot_pretend_that_we_hold_the_lease(board: SSHCommandRunner, lock: Path) -> None:
    """Only its first line is read, as a name."""
    with LocalCommandRunner().lease(str(lock), "me", wait_s=1):
        (lock / NOTE).unlink()
        (lock / NOTE).write_text("somebody\nheld\n")
        with (
            fault(LeaseError, "in use by somebody for all of 1 s", within_s=5),
            board.lease(str(lock), "you", wait_s=1),
        ):
            pass


@pytest.fixture
def no_flock(new_server: NewServer, tmp_path: Path) -> SSHServer:
    """A board without flock."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for path in Path("/usr/bin").iterdir():
        if path.name != "flock":
            (programs / path.name).symlink_to(path)
    return new_server(environment={"PATH": str(programs)})


def test_a_board_without_flock_is_leased_by_a_folder(
    no_flock: SSHServer, connect: Connect, lock: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It is said once; one who comes meanwhile is told who has the board; it is free afterwards."""
    runner, other = connect(no_flock), connect(no_flock)
    for _ in range(2):
        with runner.lease(str(lock), "me", wait_s=5), fault(BusyError, "in use by me", within_s=10):
            other.lease(str(lock), "you", wait_s=1).__enter__()
    with other.lease(str(lock), "you", wait_s=5) as lease:
        assert not lease.is_lost
    told = [record.getMessage() for record in caplog.records if "no flock" in record.getMessage()]
    assert len(told) == 2  # once per runner


def test_a_killed_client_frees_a_board_without_flock(no_flock: SSHServer, connect: Connect, lock: Path) -> None:
    """At once: its keeper reads end of file."""
    with start_holding(no_flock.config(), lock, "gone") as client:
        client.kill()
    with connect(no_flock).lease(str(lock), "next", wait_s=20):
        pass


KEEP_AND_COUNT = """\
import os, subprocess, sys, time
script, folder, inside, tries, shell = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]), sys.argv[5:]
for _ in range(tries):
    keeper = subprocess.Popen([*shell, "-c", script, "lease", folder, "me", "60", "", "3"],
                              stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    while (line := keeper.stdout.readline().split()[:1]) != ["held"]:
        assert line == ["busy"], line
    handle = os.open(inside, os.O_CREAT | os.O_EXCL)
    time.sleep(0.002)
    os.close(handle)
    os.unlink(inside)
    print("turn", flush=True)
    keeper.stdin.close()
    assert keeper.wait() == 0
print(tries, "turns", flush=True)
"""


@pytest.mark.slow
@pytest.mark.parametrize("name", ["dash", "busybox"])
def test_two_processes_never_overlap_without_flock(tmp_path: Path, name: str) -> None:
    """500 turns of two, and a third that is killed with its keeper while it holds the lease."""
    shell = shell_command(name)
    inside, lock = tmp_path / "inside", tmp_path / "lock"
    command = [sys.executable, "-c", KEEP_AND_COUNT, KEEP_LEASE_BY_FOLDER, str(lock), str(inside)]
    with contextlib.ExitStack() as stack:
        start = functools.partial(subprocess.Popen, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        turns = [stack.enter_context(start([*command, "250", *shell])) for _ in range(2)]
        for turn in turns:
            assert line_of(turn) == "turn"
        arguments = ("lease", str(lock), "killed", "100", "", "3")
        keeper = stack.enter_context(start([*shell, "-c", KEEP_LEASE_BY_FOLDER, *arguments]))
        while line_of(keeper) != "held":
            pass
        keeper.kill()
        for turn in turns:
            assert turn.wait(timeout=120) == 0
            # Not communicate(): it reads past what line_of() took in beyond its line.
            assert turn.stdout is not None
            assert turn.stdout.read().endswith("250 turns\n")
