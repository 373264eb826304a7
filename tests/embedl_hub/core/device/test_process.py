"""A command ends with whoever asked for it, here and on a board."""

import os
import signal
import subprocess
import threading
import time

import pytest
from support.clients import start_client
from support.processes import group, open_files, running, unique_sleep, wait_until
from support.sshd import SSHServer

from embedl_hub.core.device import (
    CommandRunner,
    Commands,
    LocalCommandRunner,
    SSHCommandRunner,
    SSHConfig,
    stoppable_commands,
)
from embedl_hub.core.device._process import ProcessGroup, execute, stop
from embedl_hub.errors import CommandError

RUN = "print('ready', flush=True); runner.run(sys.argv[2:], hide=True)"


@pytest.fixture(params=["local", "ssh"])
def config(request: pytest.FixtureRequest) -> SSHConfig | None:
    """How a client of its own reaches its board; None for this machine."""
    if request.param == "local":
        return None
    server: SSHServer = request.getfixturevalue("ssh_server")
    return server.config()


def start_sleeping(config: SSHConfig | None) -> tuple[subprocess.Popen[str], list[str]]:
    """Return a client whose command is running, and that command."""
    sleep = unique_sleep()
    client = start_client(config, RUN, *sleep)
    wait_until(lambda: running(sleep), 20)
    return client, sleep


def test_a_command_dies_with_a_killed_client(config: SSHConfig | None) -> None:
    """After kill -9 of the client nothing runs on, within a few seconds."""
    client, sleep = start_sleeping(config)
    with client:
        client.kill()
        took_s = wait_until(lambda: not running(sleep), 5)
    assert took_s < 3


def test_a_command_dies_at_an_interrupt(config: SSHConfig | None) -> None:
    """Ctrl-C ends the command first and then the client, as KeyboardInterrupt."""
    client, sleep = start_sleeping(config)
    with client:
        client.send_signal(signal.SIGINT)
        assert client.wait(10) != 0
        assert client.stderr is not None
        assert "KeyboardInterrupt" in client.stderr.read()
        assert not running(sleep)


def test_a_terminals_interrupt_does_not_reach_a_command() -> None:
    """The command is in a session of its own: who holds the keyboard decides through us."""
    with ProcessGroup(["sleep", "60"]) as process:
        assert os.getsid(process.pid) == process.pid
        stop_by_force(process)


def stop_by_force(process: ProcessGroup) -> None:
    process.kill()
    assert process.wait(10) == -signal.SIGKILL


def test_stopping_cuts_the_lifeline_first() -> None:
    """A process that minds its input ends by itself."""
    process = ProcessGroup(["cat"])
    started = time.monotonic()
    stop(process)
    assert (process.returncode, time.monotonic() - started < 2) == (0, True)
    close(process)


def test_stopping_ends_what_does_not_mind() -> None:
    """A process that ignores the end of its input is killed after a while, with its children."""
    sleep = unique_sleep()
    process = ProcessGroup(["sh", "-c", '"$@" & "$@"', "label", *sleep])
    wait_until(lambda: len(running(sleep)) == 2, 10)
    started = time.monotonic()
    stop(process)
    assert time.monotonic() - started < 8
    assert process.returncode == -signal.SIGKILL
    wait_until(lambda: not group(process.pid), 5)
    close(process)


def close(process: ProcessGroup) -> None:
    for stream in (process.stdin, process.stdout, process.stderr):
        assert stream is not None
        stream.close()


def test_nothing_is_left_open() -> None:
    """Many commands leave no file of ours open."""
    runner = LocalCommandRunner()
    runner.run(["true"], hide=True)
    before = open_files()
    for _ in range(20):
        runner.run(["true"], hide=True)
    assert open_files() == before


def test_nothing_is_left_open_over_ssh(board: SSHCommandRunner) -> None:
    """Many sessions, good and bad, leave no file of ours open."""
    board.run(["true"], hide=True)
    before = open_files()
    for _ in range(10):
        board.run(["true"], hide=True)
        with pytest.raises(CommandError):
            board.run(["false"], hide=True)
        with pytest.raises(CommandError):
            board.run(["sleep", "60"], hide=True, timeout_s=0.05)
    assert open_files() == before


def test_heartbeats_are_sent() -> None:
    """A lifeline is beaten while its command is silent."""
    process = ProcessGroup(["sh", "-c", "read -r beat && echo beaten"])
    outcome = execute(process, timeout_s=20, echo=False)

    assert (outcome.stdout, outcome.exit_code) == ("beaten\n", 0)


def test_several_commands_run_at_once(board: SSHCommandRunner) -> None:
    """Twelve at a time go through one connection, though sshd allows ten sessions."""
    results: list[str] = []

    def work(number: int) -> None:
        results.append(board.run(["sh", "-c", f"sleep 0.2; echo {number}"], hide=True, timeout_s=30).stdout)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert sorted(results, key=int) == [f"{number}\n" for number in range(12)]


@pytest.mark.slow
def test_a_command_dies_when_its_client_falls_silent(ssh_server: SSHServer) -> None:
    """Without a heartbeat, the connection still open, the board ends the command within its limit."""
    client, sleep = start_sleeping(ssh_server.config())
    with client:
        client.send_signal(signal.SIGSTOP)
        took_s = wait_until(lambda: not running(sleep), 40)
        client.kill()
    print(f"ended after {took_s:.1f} s of silence")  # noqa: T201 - shown by pytest -rP
    assert 5 < took_s < 30


@pytest.mark.parametrize("place", ["here", "board"])
def test_another_thread_can_stop_what_a_block_runs(place: str, board: SSHCommandRunner) -> None:
    """The command ends with what it started, its thread comes free, and what the block starts later ends too."""
    runner: CommandRunner = board if place == "board" else LocalCommandRunner()
    seen: list[Commands] = []
    errors: list[CommandError] = []

    def work() -> None:
        with stoppable_commands() as commands:
            seen.append(commands)
            for _ in range(2):
                with pytest.raises(CommandError) as caught:
                    runner.run(["sh", "-c", "sleep 60 & wait"], hide=True)
                errors.append(caught.value)

    thread = threading.Thread(target=work)
    thread.start()
    wait_until(lambda: bool(seen), 10)
    time.sleep(0.3)
    seen[0].stop()
    thread.join(20)
    assert not thread.is_alive()
    assert [error.exit_code for error in errors] == [None, None]
    assert "was stopped on" in str(errors[0])
    assert runner.run(["echo", "free"], hide=True).stdout == "free\n"
