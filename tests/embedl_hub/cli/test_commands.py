"""Commands are found by their files and by entry points; global options stand anywhere."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.cli import answer, hub

from embedl_hub.cli import main


def _commands() -> list[str]:
    text = hub("--help").stdout
    return [
        line.split()[0]
        for line in text.partition("Commands:")[2].splitlines()
        if line.startswith("  ") and line[2] != " "
    ]


def test_every_file_is_a_command_with_its_line() -> None:
    """Nothing else must be edited to add one."""
    assert _commands() == sorted({*main.own_commands(), *main._foreign_commands()})
    for path in main.own_commands().values():
        line = main._first_line(path)
        assert line[0].isupper(), path.name
        assert line.endswith("."), path.name
        assert any(isinstance(node, ast.FunctionDef | ast.Assign) for node in ast.parse(path.read_text()).body)


def test_a_package_of_somebody_else_adds_a_command(tmp_path: Path) -> None:
    """By entry point; one that cannot be loaded is one clean line."""
    package = tmp_path / "bread-1.0.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: bread\nVersion: 1.0\n")
    (package / "entry_points.txt").write_text(
        "[embedl_hub.commands]\ntoast = bread:toast\nburn = bread:gone\nsweep-up = crumbs.cli:command\n"
    )
    (tmp_path / "bread.py").write_text("import click\n@click.command()\ndef toast(): click.echo('crisp')\n")
    (tmp_path / "crumbs").mkdir()
    (tmp_path / "crumbs/__init__.py").write_text("raise RuntimeError('the help imports nothing')")
    (tmp_path / "crumbs/cli.py").write_text('"""``embedl-hub sweep-up``: collect the crumbs."""')
    path = {"PYTHONPATH": str(tmp_path)}
    told = " ".join(hub("--help", **path).stdout.split())
    assert "toast From bread." in told  # which says nothing of itself
    assert "sweep-up Collect the crumbs." in told
    assert hub("toast", **path).stdout == "crisp\n"
    burnt = hub("burn", **path)
    assert burnt.returncode == 1
    assert "'burn' of bread cannot be loaded" in burnt.stderr
    assert "Traceback" not in burnt.stderr


def test_json_and_verbosity_stand_anywhere(tmp_path: Path) -> None:
    """In front of the command and behind it."""
    home = ("--home", tmp_path)
    assert json.loads(hub("--json", "-vv", "show", *home).stdout) == json.loads(
        hub("show", *home, "--json", "-v").stdout
    )
    assert hub("compile", "onnxruntime", "-v", "--help").returncode == 0
    assert hub("device", "add", "-vvv", "--help").returncode == 0


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_is_printed_for_both_names(shell: str) -> None:
    """And the program answers the shell's question."""
    text = hub("completion", shell).stdout
    assert "_EMBEDL_HUB_COMPLETE" in text
    assert "_EHUB_COMPLETE" in text


def test_the_shell_gets_commands_and_options() -> None:
    """As click's own protocol wants it."""
    program = Path(sys.executable).with_name("embedl-hub")
    asked = (("embedl-hub pro", "1", "plain,profile"), ("embedl-hub gate --ba", "2", "--baseline"))
    for words, number, wanted in asked:
        environment = {**os.environ, "_EMBEDL_HUB_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": number}
        done = subprocess.run([program], capture_output=True, text=True, check=True, env=environment)
        assert wanted in done.stdout


def test_init_use_and_show(tmp_path: Path) -> None:
    """A project of its own, found from folders below it; choices are kept with comments around them."""
    (tmp_path / "below").mkdir()
    assert answer("init", "shapes", cwd=tmp_path) == {
        "home": str(tmp_path / ".embedl"), "project": "shapes", "is_new": True,
    }  # fmt: skip
    assert "runs/" in (tmp_path / ".embedl" / ".gitignore").read_text()
    shown = answer("show", cwd=tmp_path / "below")
    assert (shown["project"], shown["home"], shown["devices"]) == ("shapes", str(tmp_path / ".embedl"), [])
    settings = tmp_path / ".embedl" / "config.toml"
    settings.write_text("# mine\n" + settings.read_text())
    assert hub("device", "add", "here", "--type", "local", cwd=tmp_path).returncode == 0
    assert answer("use", "--project", "forms", "--device", "here", cwd=tmp_path)["device"] == "here"
    assert settings.read_text().startswith("# mine\n")
    assert "device" not in answer("use", "--device", "", cwd=tmp_path)
    assert answer("init", cwd=tmp_path)["project"] == "forms"
    assert "forms" in hub("show", cwd=tmp_path).stdout


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["use"], 1, "Nothing was chosen"),
        (["use", "--device", "moon"], 1, "There is no device 'moon'"),
        (["use", "--project", " "], 1, "project name"),
        (["init", "--folder", "/nonexistent/place"], 1, "no folder"),
        (["device", "test", "moon"], 1, "There is no device 'moon'"),
        (["device", "add", "x", "--type", "toaster"], 1, "no kind of device 'toaster'"),
        (["device", "add", "x", "--type", "local", "--set", "threads"], 2, "KEY=VALUE"),
        (["compare", "a"], 2, "two runs or more"),
        (["compare", "a", "b"], 1, "no store"),
        (["gate", "a", "--baseline", "b", "--tolerance", "much"], 2, "5% or 0.05"),
        (["compile", "onnxruntime", "nothing.onnx"], 1, "neither a file here nor a run"),
        (["compile", "onnxruntime", "nothing.onnx", "--here", "--device", "x"], 2, "contradict"),
        (["compile", "toast", "x"], 2, "No such command 'toast'"),
        (["doctor", "--install", "moon"], 1, "no installer 'moon'"),
        (["auth"], 1, "No server is known"),
        (["auth", "--remove", "--check"], 2, "goes alone"),
        (["auth", "hub"], 1, "no address"),
    ],
)  # fmt: skip
def test_slips_are_one_clean_message(tmp_path: Path, arguments: list[str], code: int, words: str) -> None:
    """1 for what a user can fix, 2 for wrong usage; never a traceback."""
    variables = {"XDG_CONFIG_HOME": str(tmp_path / "config"), "EMBEDL_HUB_HOME": str(tmp_path / "home")}
    done = hub(*arguments, cwd=tmp_path, stdin="eh_x\n", **variables)
    assert done.returncode == code, done.stderr
    assert words in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("name", ["config.toml", "devices.toml"])
def test_a_damaged_file_is_said_by_name(tmp_path: Path, name: str) -> None:
    """Whatever is in it."""
    for text in ("rubbish", "surprise = 1", "project = 3\ndevices = 3"):
        (tmp_path / name).write_text(text)
        done = hub("show", "--home", tmp_path)
        assert done.returncode == 1
        assert name in done.stderr
        assert "Traceback" not in done.stderr
