"""The connection to a board: what can go wrong says so in time, and a lost one comes back by itself."""

import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import pytest
from support.faults import fault, silent_host, strange_host
from support.processes import running, unique_sleep, wait_until, with_words
from support.sshd import SSHServer

from embedl_hub.core.device import SSHCommandRunner, SSHConfig, _ssh_connection
from embedl_hub.core.device._ssh_connection import Capabilities
from embedl_hub.errors import CommandError, ConnectError

pytestmark = pytest.mark.usefixtures("ssh_client")
NewServer: TypeAlias = Callable[..., SSHServer]
Connect: TypeAlias = Callable[..., SSHCommandRunner]


def at_port(port: int, **changes: object) -> SSHCommandRunner:
    """Return a runner for a host on this machine that is no proper sshd."""
    settings = {"connect_timeout_s": 2, "config_file": "none", **changes}
    return SSHCommandRunner(SSHConfig("127.0.0.1", username="pi", port=port, **settings))  # type: ignore[arg-type]


def hello(runner: SSHCommandRunner) -> str:
    return runner.run(["echo", "hello"], hide=True, timeout_s=60).stdout


def test_a_wrong_host_key_is_refused(new_server: NewServer, connect: Connect) -> None:
    """A board that shows another key than the known one gets nothing, not even a login."""
    server, impostor = new_server(), new_server()
    key = impostor.known_hosts.read_text().split()[2]
    server.known_hosts.write_text(f"[127.0.0.1]:{server.port} ssh-ed25519 {key}\n")
    with fault(ConnectError, "is not the one known for it", f"ssh-keygen -R '[127.0.0.1]:{server.port}'", within_s=10):
        connect(server).run(["true"])

    assert "Accepted publickey" not in server.log.read_text()


def test_a_changed_host_key_is_refused(new_server: NewServer, connect: Connect) -> None:
    """accept_new trusts a board at first sight, and only then."""
    server = new_server()
    server.known_hosts.write_text("")
    assert hello(connect(server, host_key="accept_new")) == "hello\n"
    accepted = server.known_hosts.read_text()
    assert str(server.port) in accepted

    server.stop()
    server.change_host_key()
    server.start()
    server.known_hosts.write_text(accepted)
    for host_key in ("accept_new", "strict"):
        with fault(ConnectError, "re-installed, or somebody poses as it", "ssh-keygen -R", within_s=10):
            hello(connect(server, host_key=host_key))


def test_an_unknown_host_key_is_refused(new_server: NewServer, connect: Connect) -> None:
    """The default trusts nobody it does not know, and remembers nobody."""
    server = new_server()
    server.known_hosts.write_text("")
    with fault(
        ConnectError,
        "host key",
        "is not known here",
        f"-p {server.port}",
        f"{server.user}@127.0.0.1",
        "accept_new",
        within_s=10,
    ):
        hello(connect(server))

    assert server.known_hosts.read_text() == ""


def test_unverified_host_keys_warn(new_server: NewServer, connect: Connect) -> None:
    """host_key='off' works without knowing the board, says what that means, and remembers nothing."""
    server = new_server()
    server.known_hosts.write_text("")
    with pytest.warns(UserWarning, match="not verified .*anyone on the network can pose as it"):
        runner = connect(server, host_key="off")

    assert hello(runner) == "hello\n"
    assert server.known_hosts.read_text() == ""


def test_an_unreachable_host_is_said_so() -> None:
    """Nobody answers: the error comes at the connection limit."""
    with silent_host() as port, fault(ConnectError, "cannot be reached", "Is the board on", within_s=6):
        at_port(port).run(["true"])


def test_a_transfer_to_an_unreachable_host_does_not_try_again(tmp_path: Path) -> None:
    """What never was connected is said so at once, not after several limits."""
    (tmp_path / "file").write_bytes(b"x")
    with silent_host() as port, fault(ConnectError, "cannot be reached", within_s=6):
        at_port(port).put(tmp_path / "file", "/tmp/file")


def test_a_refused_port_is_said_so(new_server: NewServer, connect: Connect) -> None:
    """The machine is there and sshd is not."""
    server = new_server()
    server.stop()
    with fault(ConnectError, "nothing listens on that port", "Is sshd running there", within_s=5):
        hello(connect(server))


def test_a_refused_key_is_said_so(new_server: NewServer, connect: Connect, tmp_path: Path) -> None:
    """The message tells how to install the key or name another one."""
    server = new_server()
    other = tmp_path / "other_key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(other)], check=True)
    with fault(ConnectError, "refused the login", f"ssh-copy-id -p {server.port}", "identity_file", within_s=10):
        hello(connect(server, identity_file=other))


def test_an_unknown_host_name_is_said_so() -> None:
    """The name is the thing to check."""
    runner = SSHCommandRunner(SSHConfig("no-such-board.invalid", config_file="none", connect_timeout_s=5))
    with fault(ConnectError, "no-such-board.invalid", "host name is not known", "spelling", within_s=15):
        runner.run(["true"])


def test_a_host_that_never_speaks_is_said_so() -> None:
    """Something accepts the connection, and is no sshd."""
    with strange_host(b"") as port, fault(ConnectError, "does not speak SSH", "right port", within_s=6):
        at_port(port).run(["true"])


def test_a_host_that_falls_silent_is_said_so() -> None:
    """A login that never finishes ends at its own limit."""
    with (
        strange_host(b"SSH-2.0-OpenSSH_9.2\r\n") as port,
        fault(ConnectError, "did not finish the login within 6 s", "connect_timeout_s", within_s=9),
    ):
        at_port(port, connect_timeout_s=1).run(["true"])


def test_a_host_that_hangs_up_is_said_so() -> None:
    """A server that closes at once is overloaded, or something else."""
    with strange_host(b"", hang_up=True) as port, fault(ConnectError, "closed the connection", within_s=6):
        at_port(port).run(["true"])


def test_a_machine_without_ssh_is_said_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The one program we need here has a name to install."""
    monkeypatch.setenv("PATH", str(tmp_path))
    with fault(ConnectError, "no ssh program on this machine", "openssh-client", within_s=2):
        at_port(22).run(["true"])


def test_a_board_without_a_shell_is_said_so(new_server: NewServer, connect: Connect) -> None:
    """An account that only runs one program is no board."""
    server = new_server(settings=["ForceCommand echo This account is for backups only. >&2"])
    with fault(ConnectError, "has no POSIX shell", "for backups only", within_s=10):
        hello(connect(server))


def test_a_csh_is_refused(new_server: NewServer, connect: Connect) -> None:
    """A shell in which a newline in a name ends the command is not used."""
    server = new_server(environment={"SHELL": "/bin/tcsh"})
    with fault(ConnectError, "login shell tcsh", "change it to sh", within_s=10):
        hello(connect(server))
    wait_until(lambda: not server._sessions(), 5)


def test_a_shell_that_never_answers_is_said_so(
    new_server: NewServer, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A login script that waits for somebody does not hang us."""
    monkeypatch.setattr(_ssh_connection, "_SHELL_ANSWER_S", 1.0)
    server = new_server(settings=["ForceCommand sleep 600"])
    with fault(ConnectError, "its shell did not answer within 1 s", "by hand", within_s=10):
        hello(connect(server))


def test_a_board_without_a_hash_program_is_said_so(new_server: NewServer, connect: Connect, tmp_path: Path) -> None:
    """Files that cannot be checked are not sent."""
    for program in ("sh", "grep", "bash"):
        (tmp_path / program).symlink_to(f"/bin/{program}")
    server = new_server(environment={"PATH": str(tmp_path)})
    with fault(ConnectError, "no sha256sum, openssl or shasum", within_s=10):
        hello(connect(server))


def test_a_board_that_opens_few_sessions_is_waited_for(new_server: NewServer, connect: Connect) -> None:
    """More commands at once than the board allows take turns."""
    runner = connect(new_server(settings=["MaxSessions 2"]))
    runner.run(["true"], hide=True)
    results: list[str] = []

    def work() -> None:
        results.append(runner.run(["sh", "-c", "sleep 0.1; echo done"], hide=True).stdout)

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == ["done\n"] * 6


def test_a_board_that_opens_no_further_session_is_said_so(
    new_server: NewServer, connect: Connect, tmp_path: Path
) -> None:
    """The command that could not start fails with the setting to change; the one that runs is left alone."""
    runner = connect(new_server(settings=["MaxSessions 1"]), connect_timeout_s=1)
    with runner.lease(str(tmp_path / "lock"), "me", wait_s=1) as lease:
        with fault(ConnectError, "opens no further session", "MaxSessions", within_s=5):
            hello(runner)
        assert not lease.is_lost
        assert with_words("edgeproof-lease", str(tmp_path))
    assert hello(runner) == "hello\n"


def test_making_a_runner_does_no_traffic() -> None:
    """Only its first use connects."""
    runner = SSHCommandRunner(SSHConfig("no-such-board.invalid"))

    assert repr(runner) == "SSHCommandRunner(no-such-board.invalid)"


def test_a_connection_dropped_while_idle_comes_back(new_server: NewServer, connect: Connect, tmp_path: Path) -> None:
    """Commands, transfers and leases each connect again by themselves."""
    server = new_server()
    runner = connect(server)
    (tmp_path / "file").write_bytes(b"content")

    def take_lease() -> None:
        with runner.lease(str(tmp_path / "lock"), "me", wait_s=1) as lease:
            assert not lease.is_lost

    for use in (
        lambda: hello(runner),
        lambda: runner.put(tmp_path / "file", tmp_path / "there"),
        lambda: runner.get(tmp_path / "there", tmp_path / "back"),
        lambda: runner.put(tmp_path / "sshd0/home", tmp_path / "folder"),
        take_lease,
    ):
        hello(runner)
        server.drop_sessions()
        use()
    assert (tmp_path / "back").read_bytes() == b"content"


def test_a_restarted_board_is_found_again(new_server: NewServer, connect: Connect) -> None:
    """After a reboot the next command works as if nothing had been."""
    server = new_server()
    runner = connect(server)
    hello(runner)
    server.kill()
    server.start()

    assert hello(runner) == "hello\n"


def test_a_killed_master_is_replaced(new_server: NewServer, connect: Connect) -> None:
    """The ssh process behind a runner may go; its socket file stays, and is not trusted."""
    runner = connect(new_server())
    hello(runner)
    (master,) = with_words(runner._connection._socket_path)
    subprocess.run(["kill", "-9", str(master)], check=True)
    wait_until(lambda: not with_words(runner._connection._socket_path), 5)

    assert hello(runner) == "hello\n"


def test_a_command_cut_off_is_said_so_and_ends(new_server: NewServer, connect: Connect) -> None:
    """A command is never repeated by itself; its error says what became of it."""
    server = new_server()
    runner = connect(server)
    sleep = unique_sleep()

    def drop() -> None:
        wait_until(lambda: running(sleep), 20)
        server.drop_sessions()

    dropper = threading.Thread(target=drop)
    dropper.start()
    with fault(ConnectError, "was lost while 'sleep' was running", "Is the board still on", within_s=15):
        runner.run(sleep, hide=True)
    dropper.join()
    wait_until(lambda: not running(sleep), 5)

    assert hello(runner) == "hello\n"


def test_a_lost_connection_fails_every_command_on_it_and_no_other(new_server: NewServer, connect: Connect) -> None:
    """Several threads lose the same connection; one that reconnects first is not cut off by the others."""
    server = new_server()
    runner = connect(server)
    sleep = unique_sleep()
    outcomes: list[str] = []

    def work() -> None:
        try:
            runner.run(sleep, hide=True)
        except ConnectError:
            outcomes.append("lost, " + hello(runner))

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    wait_until(lambda: len(running(sleep)) == 6, 20)
    server.drop_sessions()
    for thread in threads:
        thread.join()

    assert outcomes == ["lost, hello\n"] * 6


def test_a_command_that_is_killed_with_its_shell_is_no_lost_connection(board: SSHCommandRunner) -> None:
    """The connection holds, so the command has failed."""
    with pytest.raises(CommandError) as caught:
        board.run(["sh", "-c", "kill -9 $PPID"], hide=True, timeout_s=20)

    assert caught.value.exit_code == 255


def test_a_closed_runner_leaves_nothing_running(new_server: NewServer, connect: Connect) -> None:
    """No ssh process and no login stay behind; the next use connects again."""
    server = new_server()
    runner = connect(server)
    hello(runner)
    socket_path = runner._connection._socket_path
    runner.close()
    wait_until(lambda: not with_words(socket_path) and not server._sessions(), 5)

    assert hello(runner) == "hello\n"


def test_a_runner_that_is_dropped_takes_its_connection_along(new_server: NewServer) -> None:
    """A forgotten close() leaves no ssh process and no folder."""
    server = new_server()
    runner = SSHCommandRunner(server.config())
    hello(runner)
    socket_path = Path(runner._connection._socket_path)
    assert socket_path.exists()
    del runner

    wait_until(lambda: not server._sessions(), 5)
    assert not socket_path.parent.exists()


@pytest.mark.slow
def test_a_command_dies_when_the_connection_falls_silent(new_server: NewServer, connect: Connect) -> None:
    """With the ssh process behind us stopped, no heartbeat arrives: the board ends the command, we use a new one."""
    runner = connect(new_server())
    hello(runner)
    (master,) = with_words(runner._connection._socket_path)
    sleep = unique_sleep()

    def work() -> None:
        with pytest.raises(CommandError, match="time limit"):
            runner.run(sleep, hide=True, timeout_s=40)

    thread = threading.Thread(target=work)
    thread.start()
    wait_until(lambda: running(sleep), 20)
    subprocess.run(["kill", "-STOP", str(master)], check=True)
    took_s = wait_until(lambda: not running(sleep), 40)
    print(f"ended after {took_s:.1f} s of silence")  # noqa: T201 - shown by pytest -rP
    assert 5 < took_s < 30
    assert hello(runner) == "hello\n"
    subprocess.run(["kill", "-9", str(master)], check=True)
    thread.join()


@pytest.mark.parametrize(
    ("tools", "size", "tool"),
    [
        ({"sha256sum", "openssl"}, 0, "sha256sum"),
        ({"sha256sum", "openssl"}, 1 << 30, "openssl"),
        ({"sha256sum"}, 1 << 30, "sha256sum"),
        ({"openssl", "shasum"}, 0, "openssl"),
        ({"shasum"}, 1 << 30, "shasum"),
    ],
)
def test_the_hash_program_fits_the_size(tools: set[str], size: int, tool: str) -> None:
    """Openssl is the faster one where starting it does not matter."""
    assert Capabilities(frozenset(tools), timed_read=False, aes=True).hash_tool(size) == tool


@pytest.mark.parametrize(
    ("tools", "timed_read", "watch"),
    [(set(), True, ("20", "sh")), ({"bash"}, False, ("20", "bash")), (set(), False, ("", "sh"))],
)
def test_the_watch_runs_where_a_read_can_wait(tools: set[str], timed_read: bool, watch: tuple[str, str]) -> None:
    """Without a shell that can, only the end of the connection counts."""
    assert Capabilities(frozenset(tools), timed_read, aes=True).watch == watch
