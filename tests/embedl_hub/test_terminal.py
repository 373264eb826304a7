"""Text of a board or a bundle reaches the terminal as text: no title, clipboard, color or cursor moves by it."""

import io
import json
import logging
import pickle
import re
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.cli import hub

from embedl_device.terminal import GuardedStream, guarded, printable
from embedl_hub import notebook
from embedl_hub.core import HubContext
from embedl_hub.core.device import LocalCommandRunner
from embedl_hub.errors import BusyError, CommandError, HubError, UnknownDeviceError
from embedl_hub.terminal import styled_console
from embedl_hub.tracking import RunType

TITLE = "\x1b]0;owned\x07"
CLIPBOARD = "\x1b]52;c;ZXZpbA==\x1b\\"
EVIL = f"{TITLE}{CLIPBOARD}\x1b[2J\x9b31m\x9d0;owned\x9c\x7f\x08\r\u202etxt.exe\u2066\u061c\U000e0041"
ACTIVE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\U000e0000-\U000e007f]")


def assert_harmless(*texts: str) -> None:
    for text in texts:
        assert not ACTIVE.search(text), repr(text)


@given(st.text())
def test_whatever_is_made_printable_is_harmless_and_the_rest_stays(text: str) -> None:
    """Also twice; what has none of it is the same text."""
    shown = printable(text)
    assert_harmless(shown)
    shown.encode()
    assert printable(shown) == shown
    if text.isprintable():
        assert shown == text


@given(st.text())
def test_json_means_the_same_afterwards(text: str) -> None:
    """So that a guarded stream serves programs too."""
    assert json.loads(printable(json.dumps(text, ensure_ascii=False))) == text


def test_lines_and_tabs_stay() -> None:
    assert printable("a\tb\r\nc\n") == "a\tb\nc\n"
    assert printable("10 %\r20 %") == r"10 %\x0d20 %"
    assert printable("\x1b[1m \x9b \U000e0041 \udc80") == r"\x1b[1m \u009b \udb40\udc41 \udc80"


@pytest.mark.parametrize(
    "error",
    [HubError(EVIL), CommandError(["tool"], 1, EVIL, EVIL), BusyError(EVIL, EVIL), UnknownDeviceError(EVIL)],
    ids=lambda error: type(error).__name__,
)
def test_an_error_can_be_printed(error: HubError) -> None:
    """In a script or a notebook, where Python itself prints it; and after it went through a pipe."""
    again = pickle.loads(pickle.dumps(error))  # noqa: S301 - our own
    assert_harmless(str(error), str(again))
    assert str(error) == str(again)


def test_a_flood_of_lines_does_not_fill_the_screen() -> None:
    assert len(str(CommandError(["tool"], 1, "x\n" * 5000, "y\n" * 5000)).splitlines()) < 50


def test_a_command_that_echoes_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    """What runs on a board is seen as it comes."""
    LocalCommandRunner().run(["printf", "%s\n", f"first {EVIL}"])
    said = capsys.readouterr().err
    assert_harmless(said)
    assert r"first \x1b]0;owned\x07" in said


def test_the_log_is_printable(caplog: pytest.LogCaptureFixture) -> None:
    """Where a script has it on its terminal too."""
    logging.getLogger("embedl_hub").warning("the board says %s", EVIL)
    assert_harmless(caplog.records[-1].getMessage())


def test_a_guarded_stream_is_the_stream_in_all_else() -> None:
    stream = io.StringIO()
    guard = GuardedStream(stream)
    assert guard.write(TITLE) == len(TITLE)
    guard.writelines([CLIPBOARD, "\n"])
    assert_harmless(stream.getvalue())
    assert guard.isatty() is False
    with pytest.raises(AttributeError):
        guard.buffer  # noqa: B018 - who writes bytes would pass by it


def test_tables_and_bars_keep_their_own_styling(monkeypatch: pytest.MonkeyPatch) -> None:
    """And let none through that is in the text."""

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    with guarded():
        styled_console(width=200).print(f"red {EVIL}", style="bold red", soft_wrap=True)
    said = terminal.getvalue()
    assert said.startswith("\x1b[1;31mred ")
    assert_harmless(re.sub("\x1b\\[[0-9;]*m", "", said))


def test_a_repr_is_one_harmless_line() -> None:
    """A notebook or a prompt shows it unasked."""
    text = notebook.line("Run", [f"name={EVIL}", "other=a\nb"])
    assert_harmless(text)
    assert "\n" not in text


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A store with a run as a bundle or a server may have brought it: every text of it is foreign."""

    def fail(ctx: HubContext) -> None:
        with ctx.client.start_run(RunType.CUSTOM, "evil") as run:
            run.log_param("evil", {EVIL: EVIL})
            run.log_tag("evil", EVIL)
            raise RuntimeError(f"the board said {EVIL}")

    with HubContext("demo", [], home=tmp_path) as ctx, pytest.raises(RuntimeError):
        fail(ctx)
    return tmp_path


COMMANDS = [["run", "show", "LAST"], ["run", "show", "LAST", "--json"], ["run", "list"], ["-vv", "run", "show", EVIL]]


@pytest.mark.parametrize("arguments", COMMANDS, ids=["show", "json", "list", "unknown"])
def test_no_command_passes_on_what_a_run_has(home: Path, arguments: list[str]) -> None:
    last = next(path.name for path in (home / "runs").iterdir() if path.is_dir())
    done = hub(*(last if word == "LAST" else word for word in arguments), "--home", home)
    assert_harmless(done.stdout, done.stderr)
    assert "owned" in done.stdout + done.stderr or arguments[1] == "list"


def test_a_command_of_another_package_is_guarded_too(tmp_path: Path) -> None:
    """Whoever prints, and however: a new command needs to know nothing of it."""
    code = (
        "import sys, click, logging, warnings\n"
        "from embedl_hub.cli import main\n"
        "@main.cli.command('evil')\n"
        "def evil():\n"
        f"    text = {EVIL!r}\n"
        "    print(text); click.echo(text); click.echo(text.encode())\n"
        "    click.secho(text, fg='red'); click.echo(text, err=True)\n"
        "    sys.stdout.write(text); sys.stderr.writelines([text]); logging.getLogger('else').warning(text)\n"
        "    warnings.warn(text); raise ValueError(text)\n"
        "import click\n"
        "main.cli.get_command = lambda ctx, name: click.Group.get_command(main.cli, ctx, name)\n"
        "sys.argv = ['embedl-hub', 'evil']\n"
        "main.main()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False, cwd=tmp_path
    )
    assert_harmless(done.stdout, done.stderr)
    assert done.stdout.count("owned") >= 4
    assert "ValueError" in done.stderr
    assert done.returncode == 1
