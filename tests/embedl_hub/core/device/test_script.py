"""Quoting for every login shell we may meet, and the scripts in each sh."""

import contextlib
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.debian import require
from support.names import NAMES
from support.processes import group, running, unique_sleep, wait_until

from embedl_hub.core.device._script import CAPABILITIES, SUPERVISE, WATCH, command_line, quote
from embedl_hub.errors import ConfigError

# Program, Debian package, and what makes it read a command line without a user's own settings.
LOGIN_SHELLS = {
    "sh": ("sh", "dash", ["-c"]),
    "dash": ("dash", "dash", ["-c"]),
    "bash": ("bash", "bash", ["--norc", "-c"]),
    "busybox": ("busybox", "busybox", ["sh", "-c"]),
    "zsh": ("zsh", "zsh", ["-f", "-c"]),
    "fish": ("fish", "fish", ["--no-config", "-c"]),
    "mksh": ("mksh", "mksh", ["-c"]),
}
SH = {"dash": ("dash", "dash", []), "bash": ("bash", "bash", []), "busybox": ("busybox", "busybox", ["sh"])}

WORD = st.binary(max_size=40).map(lambda data: os.fsdecode(data.replace(b"\0", b"")))
TRICKY = st.text(alphabet="'\"\\$`!~*?[]{}()<>|&;#=%^@ \t\nabé", max_size=20)


@pytest.fixture(params=LOGIN_SHELLS, scope="module")
def login_shell(request: pytest.FixtureRequest) -> list[str]:
    """A shell that an account may have, as sshd would call it."""
    program, package, arguments = LOGIN_SHELLS[request.param]
    return [require(program, package), *arguments]


@pytest.fixture(params=SH)
def sh(request: pytest.FixtureRequest) -> list[str]:
    """A shell that a board may have under the name sh."""
    program, package, arguments = SH[request.param]
    return [require(program, package), *arguments]


def words_through(shell: list[str], line: str) -> list[str]:
    """Return what a program started by the shell sees as its arguments."""
    done = subprocess.run([*shell, line], capture_output=True, check=False, timeout=60, stdin=subprocess.DEVNULL)
    assert (done.returncode, done.stderr) == (0, b"")
    return [os.fsdecode(word) for word in done.stdout.split(b"\0")[:-1]]


@settings(max_examples=40, deadline=None, derandomize=True)
@given(words=st.lists(WORD | TRICKY, max_size=8))
@example(words=NAMES)
@example(words=["", "=ls", "%self", "~", "-n", "\\", "'", "\\'", "'\\", "\n"])
def test_a_quoted_word_is_read_as_itself(login_shell: list[str], words: list[str]) -> None:
    """Whatever is in a word, each login shell hands it on unchanged."""
    line = " ".join(["/usr/bin/printf", quote("%s\\0"), "first", *map(quote, words)])

    assert words_through(login_shell, line) == ["first", *words]


@settings(max_examples=15, deadline=None, derandomize=True)
@given(words=st.lists(WORD | TRICKY, max_size=8))
@example(words=NAMES)
def test_a_scripts_arguments_are_read_as_themselves(login_shell: list[str], words: list[str]) -> None:
    """Through a login shell and the sh that it becomes."""
    line = command_line('exec /usr/bin/printf "%s\\0" "$0" "$@"', "label", *words)

    assert words_through(login_shell, line) == ["label", *words]


def test_plain_words_stay_readable() -> None:
    """What no shell reads in another way is not quoted."""
    assert quote("/usr/bin/a-b_c.d:e@f+g,h") == "/usr/bin/a-b_c.d:e@f+g,h"
    assert quote("a=b") == "'a=b'"


def test_nul_is_refused() -> None:
    """No argument of any program can hold it."""
    with pytest.raises(ConfigError, match="NUL"):
        quote("a\0b")


def test_every_login_shell_answers_what_it_can_do(login_shell: list[str]) -> None:
    """The one question asked at connection is understood everywhere."""
    answer = subprocess.run(
        [*login_shell, f"exec sh -c '{CAPABILITIES}'"], capture_output=True, text=True, check=True, timeout=60
    ).stdout

    assert "tool=sha256sum" in answer
    assert "tool=tar" in answer
    assert answer.endswith("end=yes\n")


def test_a_timed_read_is_known(sh: list[str]) -> None:
    """Dash cannot wait for a heartbeat with a limit, the others can."""
    answer = subprocess.run([*sh, "-c", CAPABILITIES], capture_output=True, text=True, check=True, timeout=60).stdout

    assert ("timed_read=yes" in answer) == (sh[0].rpartition("/")[2] != "dash")


def supervise(sh: list[str], *command: str, limit: str = "", **options: Any) -> subprocess.Popen[bytes]:
    """Start a command under supervision, with the watch in the same kind of shell."""
    # The watch's shell is one word; busybox is one program under many names.
    watch_shell = "bash" if sh[0].endswith("bash") else "sh"
    return subprocess.Popen(
        [*sh, "-c", SUPERVISE, "label", limit, watch_shell, WATCH, "", *command],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
        **options,
    )  # fmt: skip


@pytest.mark.parametrize(("script", "code"), [("exit 7", 7), ("kill -9 $$", 137), ("kill -2 $$", 130), ("true", 0)])
def test_a_supervised_command_keeps_its_code(sh: list[str], script: str, code: int) -> None:
    """Codes and signals come through every sh, and no sh adds words of its own."""
    with supervise(sh, "sh", "-c", f"echo out; echo err >&2; {script}") as process:
        assert process.wait(20) == code
        assert process.stdout is not None
        assert process.stderr is not None
        assert (process.stdout.read(), process.stderr.read()) == (b"out\n", b"err\n")


@pytest.mark.parametrize("path", ["{0}:/usr/bin:/bin", "/usr/bin:{0}:/bin", "/usr/bin:/bin:{0}", "/usr/bin:/bin"])
def test_a_missing_program_has_one_code_in_every_sh(
    sh: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    """Also where a folder on PATH may not be read; and one that is there and may not be run has another code."""
    locked, open_one = tmp_path / "locked", tmp_path / "open"
    locked.mkdir(mode=0)
    open_one.mkdir()
    (open_one / "not-for-us").write_text("")
    # Root may read every folder, so its shell runs as nobody, who may not even come as far as these.
    somebody: dict[str, Any] = {"user": 65534, "group": 65534, "extra_groups": []} if os.geteuid() == 0 else {}
    monkeypatch.setenv("PATH", path.format(locked))
    for program, code in (("no-such-program", 127), ("true", 0)):
        with supervise(sh, program, cwd="/", **somebody) as process:
            assert process.wait(20) == code
    monkeypatch.setenv("PATH", f"{path.format(locked)}:{open_one}")
    with supervise(sh, "not-for-us", cwd="/") as process:
        assert process.wait(20) == 126


def test_a_program_of_the_folder_itself_is_found(
    sh: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An empty entry of PATH means the folder that the command runs in, also as the last one."""
    (tmp_path / "own").write_text("#!/bin/sh\necho own $#\n")
    (tmp_path / "own").chmod(0o755)
    monkeypatch.setenv("PATH", "/usr/bin:/bin:")
    monkeypatch.chdir(tmp_path)
    with supervise(sh, "own", "*", "a b") as process:
        assert process.wait(20) == 0
        assert process.stdout is not None
        assert process.stdout.read() == b"own 2\n"


def test_the_watch_ends_a_command_whose_client_is_gone(sh: list[str]) -> None:
    """End of file on the lifeline ends the command and what it started."""
    sleep = unique_sleep()
    with supervise(sh, "sh", "-c", '"$@" & wait', "label", *sleep) as process:
        wait_until(lambda: running(sleep), 10)
        assert process.stdin is not None
        process.stdin.close()
        wait_until(lambda: not running(sleep), 5)


def test_the_watch_ends_a_command_whose_client_is_silent() -> None:
    """No heartbeat within the limit counts as gone, even with the line open."""
    sleep = unique_sleep()
    with supervise(["bash"], *sleep, limit="1") as process:
        wait_until(lambda: running(sleep), 10)
        waited_s = wait_until(lambda: not running(sleep), 5)
        assert process.wait(10) == 128 + 15 or process.returncode == -15
    assert waited_s > 0.5


def test_heartbeats_keep_a_command_alive() -> None:
    """As long as they come, the limit does not count."""
    with supervise(["bash"], "sleep", "2.5", limit="1") as process:
        assert process.stdin is not None
        while process.poll() is None:
            process.stdin.write(b"\n")
            process.stdin.flush()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(0.2)
        assert process.returncode == 0


def test_the_watch_ends_a_command_in_anothers_group() -> None:
    """Where a wrapper leads the process group, the command itself is still ended."""
    sleep = unique_sleep()
    wrapper = "import subprocess, sys; subprocess.run(sys.argv[1:])"
    argv = [sys.executable, "-c", wrapper, "bash", "-c", SUPERVISE, "label", "", "bash", WATCH, "", *sleep]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, start_new_session=True) as process:
        wait_until(lambda: running(sleep), 10)
        assert process.stdin is not None
        process.stdin.close()
        wait_until(lambda: not running(sleep), 5)


def test_the_watch_goes_with_its_command(sh: list[str]) -> None:
    """A command that ended by itself leaves no watch behind."""
    marker = f"marker-{unique_sleep()[1]}"
    with supervise(sh, "echo", marker) as process:
        assert process.wait(20) == 0

    wait_until(lambda: not group(process.pid), 5)
