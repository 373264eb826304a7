"""The scripted board: real files, told commands."""

from __future__ import annotations

from pathlib import Path

import pytest

from embedl_hub.core.device import CommandRunner
from embedl_hub.errors import CommandError, ConfigError
from embedl_hub.testing import Answer, ScriptedRunner, scripted_device, temporary_context


def test_it_is_a_runner(tmp_path: Path) -> None:
    """It fits the seam it stands in for."""
    assert isinstance(ScriptedRunner(tmp_path), CommandRunner)


def test_answers_are_chosen_by_the_first_words(tmp_path: Path) -> None:
    """Output, failure and side effects are told; the commands asked are kept."""
    runner = ScriptedRunner(
        tmp_path,
        [
            Answer(["tool", "--version"], stdout="1.2\n"),
            Answer(["tool", "break"], stderr="no\n", exit_code=3),
            Answer(["tool"], does=lambda argv, folder: (folder / argv[-1]).write_text("made")),
        ],
    )
    assert runner.run(["tool", "--version"]).stdout == "1.2\n"
    with pytest.raises(CommandError) as caught:
        runner.run(["tool", "break", "it"])
    assert (caught.value.exit_code, caught.value.stderr) == (3, "no\n")
    runner.run(["tool", "make", "out.bin"])
    runner.get("/out.bin", tmp_path / "fetched")
    assert (tmp_path / "fetched").read_text() == "made"
    assert [command[1] for command in runner.commands] == ["--version", "break", "make"]


def test_an_unknown_command_lists_the_known(tmp_path: Path) -> None:
    """A test that asks for too much should say so at once."""
    with pytest.raises(ConfigError, match=r"\['other'\]; it knows: 'tool --version'"):
        ScriptedRunner(tmp_path, [Answer(["tool", "--version"])]).run(["other"])


def test_housekeeping_is_real(tmp_path: Path) -> None:
    """Run folders and the content store work on it, and are not in the list of commands."""
    device = scripted_device(tmp_path)
    with temporary_context([device]) as ctx, ctx.client.start_run():
        assert Path(ctx.devices["board"].artifact_dir).is_dir()
    assert isinstance(device.runner, ScriptedRunner)
    assert device.runner.commands == []
