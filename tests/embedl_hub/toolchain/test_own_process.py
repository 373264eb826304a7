"""A request and its answer across two processes, and every way in which there is none."""

from __future__ import annotations

from pathlib import Path

import pytest

from embedl_hub.errors import CommandError
from embedl_hub.toolchain.own_process import ask
from embedl_hub.toolchain.refusal import RefusedError

MODULE = """\
import os, sys
from embedl_hub.toolchain.own_process import answer
from embedl_hub.toolchain.refusal import RefusedError

def work(request, folder):
    print("what a library prints")
    if request["do"] == "refuse":
        raise RefusedError("too\\n  small")
    if request["do"] == "stumble":
        raise ValueError("a\\nb")
    if request["do"] == "crash":
        os.abort()
    return {"done": request["do"], "is_new": not folder.exists()}

sys.exit(answer("The worker", work))
"""


def ended(error: CommandError) -> str:
    return f"ended with {error.exit_code}"


@pytest.fixture
def note(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "edgeproof_worker.py").write_text(MODULE)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return tmp_path / "request.json"


def test_an_answer_comes_back(note: Path) -> None:
    """Behind whatever was printed before."""
    assert ask("edgeproof_worker", {"do": "it"}, note, ended) == {"done": "it", "is_new": True}


@pytest.mark.parametrize(
    ("do", "reason"),
    [
        ("refuse", "^too small$"),
        ("stumble", "^The worker failed on this model: ValueError: a b$"),
        ("crash", r"^ended with \d+$"),
    ],
)
def test_why_there_is_none_is_one_line(note: Path, do: str, reason: str) -> None:
    """Its own reason where it has one; else what the asker makes of its end."""
    with pytest.raises(RefusedError, match=reason):
        ask("edgeproof_worker", {"do": do}, note, ended)
