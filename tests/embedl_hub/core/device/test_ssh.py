"""Boards as they are: small ones, odd shells, jump hosts, and the user's own ssh configuration."""

import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import pytest
from support.debian import require
from support.faults import fault
from support.names import NAMES, assert_nothing_was_run
from support.processes import running, unique_sleep, wait_until
from support.sampled import sampled
from support.sshd import SSHServer

from embedl_hub.core.device import SSHCommandRunner, SSHConfig
from embedl_hub.core.device._ssh import _plain_path
from embedl_hub.errors import CommandError, ConfigError, ConnectError, HubError, LeaseError
from embedl_hub.paths import RemotePath

NewServer: TypeAlias = Callable[..., SSHServer]
Connect: TypeAlias = Callable[..., SSHCommandRunner]


def tree(folder: Path) -> dict[str, bytes | None]:
    return {str(path.relative_to(folder)): None if path.is_dir() else path.read_bytes() for path in folder.rglob("*")}


def assert_all_works(runner: SSHCommandRunner, folder: Path, *, names: list[str] = NAMES) -> None:
    """Commands, time limits, files small and large, folders and leases, with every name."""
    script = 'for word in "$@"; do printf "%s" "$word" | od -A n -v -t x1 | tr -d " \\n"; echo; done'
    printed = runner.run(["sh", "-c", script, "label", *names], hide=True).stdout
    assert printed.split() == [os.fsencode(name).hex() for name in names]

    sleep = unique_sleep()
    with pytest.raises(CommandError, match="time limit"):
        runner.run(["sh", "-c", '"$@" & "$@"', "label", *sleep], hide=True, timeout_s=0.5)
    wait_until(lambda: not running(sleep), 5)

    source = folder / "source"
    for name in names:
        (source / "sub" / name).mkdir(parents=True)
        (source / name).write_bytes(os.fsencode(name) * 100)
        runner.put(source / name, folder / "files" / name)
        runner.get(folder / "files" / name, folder / "files back" / name)
    assert set(tree(folder / "files")) == set(tree(folder / "files back")) == set(names)
    large = folder / "large"
    large.write_bytes(os.urandom(1 << 20) * 40)
    runner.put(large, folder / "large there")
    runner.get(folder / "large there", folder / "large back")
    assert (folder / "large back").read_bytes() == large.read_bytes()

    runner.put(source, folder / "there")
    runner.get(folder / "there", folder / "back")
    assert tree(folder / "there") == tree(folder / "back") == tree(source)

    with runner.lease(str(folder / "lock"), "holder one", wait_s=1):
        assert (folder / f"lock/holder.{os.geteuid()}").read_text().startswith("holder one since ")
        second = runner.lease(str(folder / "lock"), "holder two", wait_s=1)
        with pytest.raises(LeaseError, match=r"in use by holder one since .* for all of 1 s"), second:
            pass
    with runner.lease(str(folder / "lock"), "holder two", wait_s=1) as lease:
        assert not lease.is_lost
    left = {path.name for end in ("part", "stream") for path in folder.rglob(f"*.{end}")}
    assert left <= {"a.part"}


def test_a_board_without_an_sftp_server_works(new_server: NewServer, connect: Connect, tmp_path: Path) -> None:
    """Files travel as plain pipes."""
    assert_all_works(connect(new_server(sftp=False)), tmp_path / "work")


def test_a_busybox_board_works(new_server: NewServer, connect: Connect, tmp_path: Path) -> None:
    """A board whose every program is busybox, its sh included."""
    busybox = require("busybox", "busybox")
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in subprocess.run([busybox, "--list"], capture_output=True, text=True, check=True).stdout.split():
        (programs / name).symlink_to(busybox)
    # Debian leaves this one out of its busybox; others have it, without a way to wait for a while.
    (programs / "flock").write_text('#!/bin/sh\n[ "$1" = -n ] || exit 1\nexec /usr/bin/flock -n "$2"\n')
    (programs / "flock").chmod(0o755)
    server = new_server(environment={"PATH": str(programs)})
    runner = connect(server)
    assert runner._connection.open().watch == ("20", "sh")
    assert_all_works(runner, tmp_path / "work")


def test_a_board_without_bash_works(new_server: NewServer, connect: Connect, tmp_path: Path) -> None:
    """A shell that cannot wait with a limit still ends a command when the connection does."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for path in Path("/usr/bin").iterdir():
        if path.name not in {"bash", "rbash", "sh"}:
            (programs / path.name).symlink_to(path)
    (programs / "sh").symlink_to(require("dash", "dash"))
    runner = connect(new_server(environment={"PATH": str(programs)}))
    assert runner._connection.open().watch == ("", "sh")
    assert_all_works(runner, tmp_path / "work")


@pytest.mark.parametrize(
    ("shell", "arguments"),
    sampled([("fish", "--no-config -c"), ("zsh", "-f -c"), ("mksh", "-c")], ("fish", "--no-config -c")),
)
def test_a_login_shell_of_another_kind_works(
    new_server: NewServer, connect: Connect, tmp_path: Path, shell: str, arguments: str
) -> None:
    """What sshd hands to the account's shell is read there as it was meant."""
    program = require(shell, shell)
    server = new_server(settings=[f'ForceCommand exec {program} {arguments} "$SSH_ORIGINAL_COMMAND"'])
    assert_all_works(connect(server), tmp_path / "work")
    assert_nothing_was_run(server.home)


def test_a_command_behind_a_wrapper_is_ended(new_server: NewServer, connect: Connect) -> None:
    """Where the account's wrapper leads the process group, the command still dies at its limit."""
    runner = connect(new_server(settings=['ForceCommand sh -c "$SSH_ORIGINAL_COMMAND"; exit $?']))
    sleep = unique_sleep()
    with pytest.raises(CommandError, match="time limit"):
        runner.run(sleep, hide=True, timeout_s=0.5)
    wait_until(lambda: not running(sleep), 5)


def test_an_alias_of_the_users_configuration_is_honored(new_server: NewServer, tmp_path: Path) -> None:
    """Host name, port, user and key may all come from the configuration."""
    server = new_server()
    config = tmp_path / "config"
    config.write_text(
        f"Host my-board\n  HostName 127.0.0.1\n  Port {server.port}\n  User {server.user}\n"
        f"  IdentityFile {server.identity}\n  UserKnownHostsFile {server.known_hosts}\n"
    )
    runner = SSHCommandRunner(SSHConfig("my-board", config_file=config))
    try:
        assert runner.run(["echo", "hello"], hide=True).stdout == "hello\n"
        assert repr(runner) == "SSHCommandRunner(my-board)"
    finally:
        runner.close()


def test_interactive_settings_of_the_user_do_no_harm(new_server: NewServer, connect: Connect, tmp_path: Path) -> None:
    """Terminals, commands, forwardings and shared connections set up for interactive work are not used by ours."""
    server = new_server()
    config = tmp_path / "config"
    config.write_text(
        "RemoteCommand echo hijacked\nRequestTTY force\nPermitLocalCommand yes\n"
        f"LocalCommand touch {tmp_path}/local_command\nControlMaster auto\nControlPath {tmp_path}/shared\n"
        f"LocalForward {tmp_path}/forward 127.0.0.1:1\nIdentitiesOnly yes\nStrictHostKeyChecking no\n"
    )
    runner = connect(server, config_file=config)
    assert runner.run(["echo", "hello"], hide=True).stdout == "hello\n"
    assert {path.name for path in tmp_path.iterdir()} == {"config", "sshd0"}

    server.known_hosts.write_text("")
    runner.close()
    with pytest.raises(ConnectError, match="not known here"):
        runner.run(["true"])


def test_a_real_jump_host_works(new_server: NewServer, tmp_path: Path) -> None:
    """Commands and files go through one sshd to another, each with its own verified key."""
    gate, server = new_server(), new_server()
    config = tmp_path / "config"
    config.write_text(
        f"Host gate\n  HostName 127.0.0.1\n  Port {gate.port}\n  User {gate.user}\n  IdentityFile {gate.identity}\n"
        f"  UserKnownHostsFile {gate.known_hosts}\nHost *\n  IdentitiesOnly yes\n"
    )
    runner = SSHCommandRunner(server.config(jump_host="gate", config_file=config))
    try:
        assert_all_works(runner, tmp_path / "work", names=["plain", "two words"])
    finally:
        runner.close()
    assert "Accepted publickey" in gate.log.read_text()

    gate.known_hosts.write_text("")
    with fault(ConnectError, "closed the connection", "goes through gate", "try ssh gate", within_s=15):
        runner.run(["true"])


def test_paths_with_spaces_and_percent_signs_are_one_file(
    new_server: NewServer, connect: Connect, tmp_path: Path
) -> None:
    """Ssh reads lists and placeholders where we mean one file."""
    server = new_server()
    known_hosts = tmp_path / "my 100%h known hosts"
    known_hosts.write_bytes(server.known_hosts.read_bytes())
    identity = tmp_path / "my key"
    identity.write_bytes(server.identity.read_bytes())
    identity.chmod(0o600)
    runner = connect(server, known_hosts=known_hosts, identity_file=identity)

    assert runner.run(["echo", "hello"], hide=True).stdout == "hello\n"


@pytest.mark.parametrize(("line", "cipher"), [("", "aes128-gcm@openssh.com"), ("Ciphers aes256-ctr\n", "aes256-ctr")])
def test_the_fast_cipher_is_used_unless_the_user_chose_one(
    new_server: NewServer, connect: Connect, line: str, cipher: str
) -> None:
    """Our preference for speed does not override the user's."""
    server = new_server(settings=["LogLevel DEBUG1"])
    with server.client_config.open("a") as file:
        file.write(line)
    if "\nflags" in Path("/proc/cpuinfo").read_text() and " aes " not in Path("/proc/cpuinfo").read_text() and not line:
        cipher = "chacha20-poly1305@openssh.com"
    connect(server).run(["true"], hide=True)

    assert f"kex: client->server cipher: {cipher}" in server.log.read_text()


@pytest.mark.parametrize(
    ("path", "plain"),
    [
        ("a", "./a"),
        ("-a", "./-a"),
        ("~/a", "./~/a"),
        ("./a", "./a"),
        ("/a", "/a"),
        ("a/", "./a"),
        ("/", "/"),
        ("//", "/"),
        (RemotePath("/a/b"), "/a/b"),
        (Path("a"), "./a"),
    ],
)
def test_a_remote_path_is_never_an_option(path: str | os.PathLike[str], plain: str) -> None:
    """Relative paths start at the login folder; no program takes one for an option, and none ends in a slash."""
    assert _plain_path(path) == plain


@pytest.mark.parametrize("path", ["", "a\0b"])
def test_an_impossible_remote_path_is_refused(path: str) -> None:
    """The message shows it."""
    with pytest.raises(ConfigError, match="must not be empty or contain NUL"):
        _plain_path(path)


def test_relative_paths_start_at_the_login_folder(board: SSHCommandRunner, tmp_path: Path) -> None:
    """Commands and transfers agree on where that is."""
    name = f"edgeproof-test-{os.getpid()}"
    (tmp_path / "file").write_bytes(b"x")
    try:
        board.put(tmp_path / "file", name)
        assert board.run(["cat", name], hide=True).stdout == "x"
    finally:
        board.run(["rm", "-f", name], hide=True)


def test_a_command_that_is_too_long_is_said_so(board: SSHCommandRunner) -> None:
    """The connection is not risked for it."""
    with pytest.raises(HubError, match=r"too long.*put the data in a file"):
        board.run(["echo", "x" * 300_000], hide=True)
    assert board.run(["echo", "hello"], hide=True).stdout == "hello\n"
