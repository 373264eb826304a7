"""The contract of a command runner, held by both that ship."""

import os
import signal
import stat
import time
from pathlib import Path, PurePosixPath

import pytest
from support.names import NAMES
from support.processes import running, unique_sleep, wait_until

from embedl_hub.core.device import CommandRunner, LeasingRunner, LocalCommandRunner, SSHCommandRunner
from embedl_hub.core.device._runner import as_argv
from embedl_hub.errors import CommandError, ConfigError, HubError, TransferError
from embedl_hub.paths import RemotePath
from embedl_hub.tracking import LoggedArtifact

CONTENT = bytes(range(256)) * 400


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """A folder of ours."""
    folder = tmp_path / "here"
    folder.mkdir()
    return folder


@pytest.fixture
def there(tmp_path: Path) -> Path:
    """A folder of the board; the board is this machine, so a test can look into it."""
    folder = tmp_path / "there"
    folder.mkdir()
    return folder


def tree(folder: Path) -> dict[str, bytes | None]:
    """Return a folder's files with their contents, and its folders with None."""
    return {str(path.relative_to(folder)): None if path.is_dir() else path.read_bytes() for path in folder.rglob("*")}


def test_both_are_runners_with_leases(runner: CommandRunner) -> None:
    """The protocols can be asked for at run time."""
    assert isinstance(runner, CommandRunner)
    assert isinstance(runner, LeasingRunner)


def test_a_command_returns_what_it_printed(runner: CommandRunner) -> None:
    """Standard output, standard error and the code come back apart."""
    result = runner.run(["sh", "-c", "echo out; echo err >&2"], hide=True)

    assert (result.stdout, result.stderr, result.exit_code) == ("out\n", "err\n", 0)


def test_a_failed_command_carries_its_facts(runner: CommandRunner) -> None:
    """The error has argv, code and output as attributes and in its text."""
    argv = ["sh", "-c", "echo result; echo reason >&2; exit 42"]
    with pytest.raises(CommandError) as caught:
        runner.run(argv, hide=True)

    error = caught.value
    assert (error.argv, error.exit_code, error.stdout, error.stderr) == (argv, 42, "result\n", "reason\n")
    assert "failed with exit code 42" in str(error)
    assert "stderr: reason" in str(error)
    assert "stdout: result" in str(error)


@pytest.mark.parametrize("name", ["SIGSEGV", "SIGKILL", "SIGTERM"])
def test_a_signal_is_named(runner: CommandRunner, name: str) -> None:
    """A command that crashes says by which signal."""
    number = signal.Signals[name].value
    with pytest.raises(CommandError, match=rf"ended by {name} \(exit code {128 + number}\)") as caught:
        runner.run(["sh", "-c", f"kill -{number} $$"], hide=True)

    assert caught.value.exit_code == 128 + number


def test_an_interrupt_reaches_a_command(runner: CommandRunner) -> None:
    """SIGINT is not ignored: meters and loggers are stopped by it, as by ``timeout -s INT``."""
    with pytest.raises(CommandError, match="ended by SIGINT"):
        runner.run(["sh", "-c", "kill -INT $$; echo survived"], hide=True)


@pytest.mark.parametrize("code", [1, 2, 74, 126, 200, 255])
def test_every_code_is_the_commands_own(runner: CommandRunner, code: int) -> None:
    """No code is taken for one of ours, not even the one ssh uses for itself."""
    with pytest.raises(CommandError) as caught:
        runner.run(["sh", "-c", f"exit {code}"], hide=True)

    assert caught.value.exit_code == code


def test_a_missing_program_is_said_so(runner: CommandRunner) -> None:
    """The message for code 127 tells what it means."""
    with pytest.raises(CommandError, match=r"was not found .*installed there and on PATH") as caught:
        runner.run(["no-such-program-here"], hide=True)

    assert caught.value.exit_code == 127


@pytest.mark.parametrize("name", ["plain", "two words", "-dash", "$(x)'\n"])
def test_a_command_runs_in_its_folder(runner: CommandRunner, there: Path, name: str) -> None:
    """The folder may have any name and any path type."""
    (there / name).mkdir()
    for folder in (there / name, str(there / name), RemotePath(there / name)):
        assert runner.run(["pwd"], folder, hide=True).stdout == f"{there / name}\n"


def test_a_missing_folder_is_said_so(runner: CommandRunner, there: Path) -> None:
    """The command does not start somewhere else instead."""
    with pytest.raises(CommandError, match="nowhere") as caught:
        runner.run(["touch", str(there / "started")], there / "nowhere", hide=True)

    assert caught.value.exit_code == 1
    assert not (there / "started").exists()


def test_arguments_arrive_intact(runner: CommandRunner) -> None:
    """Whatever an argument contains, the program gets it, and no shell reads it."""
    words = [*NAMES, "", "a b  c", "${x:-y}", "\\", '"', "'", "\\\\'\"", "x" * 10_000]
    # stdout is text; od keeps bytes that are not.
    script = 'for word in "$@"; do printf "%s" "$word" | od -A n -v -t x1 | tr -d " \\n"; echo; done'
    printed = runner.run(["sh", "-c", script, "label", *words], hide=True).stdout

    assert printed.splitlines() == [os.fsencode(word).hex() for word in words]


def test_paths_are_arguments(runner: CommandRunner) -> None:
    """Path objects of both kinds stand for their text."""
    assert runner.run(["echo", Path("/a b"), RemotePath("/c")], hide=True).stdout == "/a b /c\n"


def test_a_command_has_no_input(runner: CommandRunner) -> None:
    """A command that reads its standard input sees its end at once."""
    assert runner.run(["cat"], hide=True, timeout_s=10).stdout == ""


def test_output_that_is_not_text_is_replaced(runner: CommandRunner) -> None:
    """Bytes that are not UTF-8 do not stop a command."""
    assert runner.run(["printf", r"a\377b"], hide=True).stdout == "a\N{REPLACEMENT CHARACTER}b"


def test_a_command_may_close_its_output_and_go_on(runner: CommandRunner) -> None:
    """Its code counts, not the end of its output."""
    with pytest.raises(CommandError) as caught:
        runner.run(["sh", "-c", "exec >&- 2>&-; sleep 0.3; exit 9"], hide=True)

    assert caught.value.exit_code == 9


def test_a_running_command_is_echoed_to_stderr(runner: CommandRunner, capfd: pytest.CaptureFixture[str]) -> None:
    """What a command prints is seen while it runs, and standard output stays free for results."""
    runner.run(["sh", "-c", "printf 'out \\303'; sleep 0.2; printf '\\245\\n'; echo err >&2"])
    shown = capfd.readouterr()

    assert "out å\n" in shown.err
    assert "err\n" in shown.err
    assert shown.out == ""


def test_a_hidden_command_is_not_echoed(runner: CommandRunner, capfd: pytest.CaptureFixture[str]) -> None:
    """With hide=True nothing reaches the terminal."""
    runner.run(["sh", "-c", "echo out; echo err >&2"], hide=True)

    assert capfd.readouterr() == ("", "")


def test_output_without_end_is_stopped(runner: CommandRunner) -> None:
    """A command that floods us is ended, and the error says why and what to do."""
    marker = unique_sleep()[1]
    with pytest.raises(CommandError, match=r"printed more than 64 MiB.* file") as caught:
        runner.run(["yes", marker], hide=True, timeout_s=60)

    print(caught.value)  # noqa: T201 - shown by pytest -rP
    wait_until(lambda: not running(["yes", marker]), 5)


def test_the_time_limit_ends_a_command(runner: CommandRunner) -> None:
    """It ends within its limit and a moment, says so, keeps what was printed and leaves nothing running."""
    sleep = unique_sleep()
    started = time.monotonic()
    with pytest.raises(CommandError) as caught:
        runner.run(["sh", "-c", 'echo begun; "$@"; echo done', "label", *sleep], hide=True, timeout_s=0.5)
    took_s = time.monotonic() - started

    print(caught.value)  # noqa: T201 - shown by pytest -rP
    assert took_s < 4
    assert "was stopped at its time limit of 0.5 s (pass a larger timeout_s if it needs longer)" in str(caught.value)
    assert (caught.value.exit_code, caught.value.timeout_s, caught.value.stdout) == (None, 0.5, "begun\n")
    wait_until(lambda: not running(sleep), 5)


def test_the_time_limit_ends_what_ignores_it(runner: CommandRunner) -> None:
    """A command that ignores SIGTERM is killed, with its children."""
    sleep = unique_sleep()
    started = time.monotonic()
    with pytest.raises(CommandError, match="time limit"):
        runner.run(["sh", "-c", 'trap "" TERM; "$@"; "$@"', "label", *sleep], hide=True, timeout_s=0.3)

    assert time.monotonic() - started < 6
    wait_until(lambda: not running(sleep), 5)


def test_the_time_limit_ends_a_command_that_keeps_printing(runner: CommandRunner) -> None:
    """Output that never pauses does not put the limit off."""
    started = time.monotonic()
    with pytest.raises(CommandError, match="time limit"):
        runner.run(["sh", "-c", "while :; do echo x; done"], hide=True, timeout_s=0.5)

    assert time.monotonic() - started < 5


def test_a_child_that_holds_the_output_counts_as_running(runner: CommandRunner) -> None:
    """The time limit holds for what a command that ended has left behind."""
    sleep = unique_sleep()
    started = time.monotonic()
    with pytest.raises(CommandError, match="time limit"):
        runner.run(["sh", "-c", '"$@" &', "label", *sleep], hide=True, timeout_s=0.5)

    assert time.monotonic() - started < 6
    if isinstance(runner, SSHCommandRunner):
        # sshd cuts the lifeline with the end of the command; what is left behind there is nobody's any more.
        for pid in running(sleep):
            os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not running(sleep), 5)


def test_the_last_words_of_a_child_are_waited_for(runner: CommandRunner) -> None:
    """Output printed by a child after the command itself ended is not cut off."""
    assert runner.run(["sh", "-c", "(sleep 0.3; echo late) & echo early"], hide=True).stdout == "early\nlate\n"


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        ("echo hi", r"list of arguments such as \['tool'.*not 'echo hi'"),
        ([], "starts with the name of a program"),
        ([""], "starts with the name of a program"),
        (["-x"], "starts with the name of a program"),
        (["echo", "a\0b"], "text without NUL"),
        (["echo", b"x"], r"write os.fsdecode\(b'x'\)"),
    ],
)
def test_a_bad_command_is_refused(runner: CommandRunner, argv: list[str], says: str) -> None:
    """The message shows what was given and what is right."""
    with pytest.raises(ConfigError, match=says):
        runner.run(argv)


def test_as_argv_takes_every_path_type() -> None:
    """Words and paths become plain text."""
    assert as_argv(["echo", PurePosixPath("/x"), Path("y")]) == ["echo", "/x", "y"]


@pytest.mark.parametrize("name", NAMES, ids=lambda name: ascii(name[:30]))
def test_a_file_of_any_name_moves_intact(runner: CommandRunner, here: Path, there: Path, name: str) -> None:
    """There and back, under its own name, and nothing else is left on either side."""
    (here / name).write_bytes(CONTENT)
    runner.put(here / name, there / name)
    back = here.parent / "back"
    runner.get(there / name, back / name)

    assert tree(there) == tree(back) == {name: CONTENT}


def test_an_empty_file_moves(runner: CommandRunner, here: Path, there: Path) -> None:
    """A file without content is a file."""
    (here / "empty").touch()
    runner.put(here / "empty", there / "empty")
    runner.get(there / "empty", here / "back")

    assert (there / "empty").read_bytes() == (here / "back").read_bytes() == b""


@pytest.mark.parametrize("executable", [True, False])
def test_the_executable_bit_goes_along(runner: CommandRunner, here: Path, there: Path, executable: bool) -> None:
    """A program stays a program; a file stays a file."""
    (here / "file").write_bytes(b"#!/bin/sh\necho ran\n")
    (here / "file").chmod(0o755 if executable else 0o644)
    runner.put(here / "file", there / "file")
    runner.put(here, there / "folder")

    for path in (there / "file", there / "folder/file"):
        assert bool(path.stat().st_mode & stat.S_IXUSR) == executable


def test_missing_parent_folders_are_made(runner: CommandRunner, here: Path, there: Path) -> None:
    """A target may lie in folders that are not there yet."""
    (here / "file").write_bytes(CONTENT)
    runner.put(here / "file", there / "a/b/file")
    runner.get(there / "a/b/file", here / "c/d/file")

    assert (here / "c/d/file").read_bytes() == CONTENT


def test_text_and_paths_name_files(runner: CommandRunner, here: Path, there: Path) -> None:
    """Plain text, local and remote paths are all accepted."""
    (here / "file").write_bytes(CONTENT)
    runner.put(str(here / "file"), RemotePath(there) / "file")
    runner.get(str(there / "file"), str(here / "back"))

    assert (here / "back").read_bytes() == CONTENT


def test_a_slash_at_the_end_is_no_folder(runner: CommandRunner, here: Path, there: Path) -> None:
    """A target is what the file becomes, however it is spelled."""
    (here / "file").write_bytes(CONTENT)
    runner.put(here / "file", f"{there}/new/")

    assert tree(there) == {"new": CONTENT}


def test_an_existing_file_is_replaced(runner: CommandRunner, here: Path, there: Path) -> None:
    """The new content takes the name, whole."""
    (here / "file").write_bytes(CONTENT)
    (there / "file").write_bytes(b"old" * 1_000_000)
    runner.put(here / "file", there / "file")
    (there / "file").write_bytes(b"new")
    runner.get(there / "file", here / "file")

    assert (there / "file").read_bytes() == (here / "file").read_bytes() == b"new"


def test_a_file_never_replaces_a_folder(runner: CommandRunner, here: Path, there: Path) -> None:
    """A folder in the way is left alone, even an empty one, and the message says it is one."""
    (here / "file").write_bytes(CONTENT)
    (there / "folder").mkdir()
    with pytest.raises(TransferError, match="is a folder"):
        runner.put(here / "file", there / "folder")
    with pytest.raises(TransferError, match="is a folder"):
        runner.get(here / "file", there / "folder")

    assert tree(there) == {"folder": None}


@pytest.mark.parametrize("name", ["nothing", "-x", "a b"])
def test_what_is_not_there_is_said_so(runner: CommandRunner, here: Path, there: Path, name: str) -> None:
    """Both ways, the message names the path, and nothing appears."""
    with pytest.raises(TransferError, match=name):
        runner.put(here / name, there / "file")
    with pytest.raises(TransferError, match=name):
        runner.get(there / name, here / "file")

    assert tree(there) == tree(here) == {}


def test_a_file_that_cannot_be_read_is_said_so(runner: CommandRunner, there: Path) -> None:
    """A local read error is a transfer error and leaves nothing behind."""
    with pytest.raises(TransferError, match="/proc/self/mem"):
        runner.put("/proc/self/mem", there / "file")

    assert tree(there) == {}


def test_a_path_under_a_file_is_refused(runner: CommandRunner, here: Path, there: Path) -> None:
    """A folder that cannot be made is an error that names it."""
    (here / "file").write_bytes(CONTENT)
    (there / "file").write_bytes(b"in the way")
    for local in (here / "file", here):
        with pytest.raises(TransferError, match="there/file/below") as caught:
            runner.put(local, there / "file/below")
        print(caught.value)  # noqa: T201 - shown by pytest -rP
    with pytest.raises(TransferError, match="here/file/below"):
        runner.get(there / "file", here / "file/below")

    assert tree(there) == {"file": b"in the way"}
    assert tree(here) == {"file": CONTENT}


def test_a_folder_of_any_names_moves_intact(runner: CommandRunner, here: Path, there: Path) -> None:
    """Files, sub-folders and empty folders arrive under their names, there and back."""
    for name in NAMES:
        (here / name).write_bytes(name.encode("utf-8", "surrogateescape"))
        (here / "sub" / name).mkdir(parents=True)
        (here / "deep" / name).mkdir(parents=True)
        (here / "deep" / name / "file").write_bytes(CONTENT)
    runner.put(here, there / "folder")
    runner.get(there / "folder", there / "back")

    assert tree(there / "folder") == tree(there / "back") == tree(here)


def test_an_empty_folder_moves(runner: CommandRunner, here: Path, there: Path) -> None:
    """A folder without content is a folder."""
    runner.put(here, there / "empty")
    runner.get(there / "empty", here / "back")

    assert tree(there) == {"empty": None}
    assert tree(here) == {"back": None}


def test_a_folder_takes_the_place_of_an_empty_one(runner: CommandRunner, here: Path, there: Path) -> None:
    """An empty folder holds nobody's data."""
    (here / "file").write_bytes(CONTENT)
    (there / "folder").mkdir()
    runner.put(here, there / "folder")
    (there / "back").mkdir()
    runner.get(there / "folder", there / "back")

    assert tree(there) == {"folder": None, "folder/file": CONTENT, "back": None, "back/file": CONTENT}


@pytest.mark.parametrize("kind", ["folder", "file"])
def test_a_folder_replaces_nothing(runner: CommandRunner, here: Path, there: Path, kind: str) -> None:
    """What is there is somebody's data: refused, and left as it was."""
    (here / "source").mkdir()
    (here / "source/file").write_bytes(CONTENT)
    taken = there / "taken"
    if kind == "folder":
        taken.mkdir()
        (taken / "data").write_bytes(b"mine")
    else:
        taken.write_bytes(b"mine")
    before = tree(there)
    with pytest.raises(TransferError, match="taken"):
        runner.put(here / "source", taken)
    with pytest.raises(TransferError, match="taken"):
        runner.get(here / "source", taken)

    assert tree(there) == before


def test_links_in_a_folder_arrive_as_what_they_point_to(runner: CommandRunner, here: Path, there: Path) -> None:
    """What we send is self-contained: links inside and out of it become files and folders."""
    (here.parent / "outside").write_bytes(b"outside")
    (here / "sub").mkdir()
    (here / "sub/file").write_bytes(CONTENT)
    (here / "file_link").symlink_to("sub/file")
    (here / "folder_link").symlink_to("sub")
    (here / "out_link").symlink_to(here.parent / "outside")
    runner.put(here, there / "folder")

    assert not [path for path in (there / "folder").rglob("*") if path.is_symlink()]
    assert tree(there / "folder") == {
        "sub": None,
        "sub/file": CONTENT,
        "file_link": CONTENT,
        "folder_link": None,
        "folder_link/file": CONTENT,
        "out_link": b"outside",
    }


@pytest.mark.parametrize(
    ("aim", "says"), [(".", "contains itself"), ("..", "contains itself"), ("gone", "leads nowhere")]
)
def test_a_link_without_an_end_is_refused(runner: CommandRunner, here: Path, there: Path, aim: str, says: str) -> None:
    """A loop or a dangling link is named before anything moves."""
    (here / "sub").mkdir()
    (here / "sub/link").symlink_to(aim)
    with pytest.raises(HubError, match=f"sub/link.*{says}"):
        runner.put(here, there / "folder")

    assert tree(there) == {}


def test_hard_links_in_a_folder_arrive_as_files(runner: CommandRunner, here: Path, there: Path) -> None:
    """Two names of one file on the board are two files here."""
    (there / "one").write_bytes(CONTENT)
    (there / "sub").mkdir()
    os.link(there / "one", there / "sub/two")
    runner.get(there, here / "back")

    assert tree(here / "back") == {"one": CONTENT, "sub": None, "sub/two": CONTENT}


def test_what_is_no_path_says_what_to_write() -> None:
    """An artifact has a path here and one on the board; a number is written as text."""
    artifact = LoggedArtifact("path", "net", 1, "0" * 64)
    for value, words in ((3, r"write str\(3\)"), (artifact, r"artifact.to_local\(ctx\).local\(\).*to_remote")):
        with pytest.raises(ConfigError, match=words):
            as_argv(["tool", value])  # type: ignore[list-item]
        with pytest.raises(ConfigError, match=words):
            LocalCommandRunner().put(value, "there")  # type: ignore[arg-type]
