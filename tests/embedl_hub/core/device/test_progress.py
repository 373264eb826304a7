"""A bar for what takes a while, where somebody is looking."""

import os
import pty
import subprocess
import sys

import pytest

from embedl_hub.core.device._ssh_transfer import progress

SHOW = """\
import sys, time
from embedl_hub.core.device._ssh_transfer import progress
with progress(sys.argv[1], int(sys.argv[2])) as advance:
    for _ in range(4):
        advance(int(sys.argv[2]) // 4)
        time.sleep(0.05)
"""


def shown_on_a_terminal(title: str, total_bytes: int) -> str:
    """Return what a terminal is sent."""
    ours, theirs = pty.openpty()
    with subprocess.Popen([sys.executable, "-c", SHOW, title, str(total_bytes)], stderr=theirs) as process:
        os.close(theirs)
        shown = b""
        try:
            while chunk := os.read(ours, 4096):
                shown += chunk
        except OSError:
            pass  # Linux reports the closed terminal of an ended process as an error.
        finally:
            os.close(ours)
    assert process.returncode == 0
    return shown.decode("utf-8", "replace")


@pytest.mark.parametrize("title", ["model.onnx to pi@board", "/a[/b]c [red] from board", "not \udcff UTF-8"])
def test_a_large_transfer_shows_a_bar(title: str) -> None:
    """On a terminal, with the name as it is."""
    shown = shown_on_a_terminal(title, 64 << 20)

    assert title.encode("utf-8", "backslashreplace").decode()[:10] in shown
    assert "MB" in shown


def test_a_small_transfer_shows_none() -> None:
    """It is over before anybody has read it."""
    assert shown_on_a_terminal("file to board", 1 << 20) == ""


def test_a_log_file_gets_no_bar(capfd: pytest.CaptureFixture[str]) -> None:
    """Where nobody is looking, nothing is drawn."""
    with progress("file to board", 64 << 20) as advance:
        advance(1 << 20)

    assert capfd.readouterr() == ("", "")
