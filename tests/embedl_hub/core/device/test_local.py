"""What is this machine's own among the runners' promises; the rest is the contract."""

import os
import threading
from pathlib import Path

import pytest

from embedl_hub.core.device import LocalCommandRunner
from embedl_hub.errors import CommandError, TransferError


def test_a_relative_folder_starts_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As everywhere else on this machine, and -dash is no option."""
    (tmp_path / "-sub").mkdir()
    monkeypatch.chdir(tmp_path)

    assert LocalCommandRunner().run(["pwd"], "-sub", hide=True).stdout == f"{tmp_path}/-sub\n"


@pytest.fixture
def odd_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """PATH starts with what may not be read: a link to itself, since root may read every folder."""
    (tmp_path / "loop").symlink_to("loop")
    monkeypatch.setenv("PATH", f"{tmp_path / 'loop'}:{os.environ['PATH']}")


@pytest.mark.usefixtures("odd_path")
def test_a_missing_program_is_said_so_whatever_is_on_path() -> None:
    """Not that a folder on the way may not be read."""
    with pytest.raises(CommandError, match=r"(?s)was not found .*no-such-program-here: not found") as caught:
        LocalCommandRunner().run(["no-such-program-here"], hide=True)

    assert caught.value.exit_code == 127


def test_a_program_that_may_not_be_run_is_not_a_missing_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It lies there without the right to run it: code 126, as in every shell."""
    (tmp_path / "locked-program").write_text("#!/bin/sh\n")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with pytest.raises(CommandError, match=r"(?i)permission denied") as caught:
        LocalCommandRunner().run(["locked-program"], hide=True)

    assert caught.value.exit_code == 126


@pytest.mark.usefixtures("odd_path")
def test_an_argument_that_is_too_long_is_said_so() -> None:
    """The system's own word for it, as a failed command, whatever is on PATH."""
    with pytest.raises(CommandError, match="too long") as caught:
        LocalCommandRunner().run(["echo", "x" * 300_000], hide=True)

    assert caught.value.exit_code == 126


def test_an_interrupted_copy_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C in the middle of a copy leaves neither a part nor a target."""

    def interrupted(_: object, part: Path) -> None:
        part.write_bytes(b"half")
        raise KeyboardInterrupt

    monkeypatch.setattr("embedl_hub.core.device._local.shutil.copyfile", interrupted)
    (tmp_path / "file").write_bytes(b"whole")
    with pytest.raises(KeyboardInterrupt):
        LocalCommandRunner().put(tmp_path / "file", tmp_path / "copy")

    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_failed_folder_copy_keeps_the_empty_target(tmp_path: Path) -> None:
    """The folder in the way goes only when the new one is whole."""
    (tmp_path / "source").mkdir()
    (tmp_path / "source/bad").symlink_to("/proc/self/mem")
    (tmp_path / "target").mkdir()
    with pytest.raises(TransferError, match="source could not be copied"):
        LocalCommandRunner().put(tmp_path / "source", tmp_path / "target")

    assert sorted(path.name for path in tmp_path.iterdir()) == ["source", "target"]


def test_commands_in_threads_do_not_meet() -> None:
    """Each thread gets its own command's output."""
    runner = LocalCommandRunner()
    results: dict[int, str] = {}

    def work(number: int) -> None:
        results[number] = runner.run(["sh", "-c", f"sleep 0.1; echo {number}"], hide=True).stdout

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert results == {number: f"{number}\n" for number in range(8)}
