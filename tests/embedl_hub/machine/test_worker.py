"""A request and its answer across two processes, and every way in which there is none."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from embedl_hub.errors import CommandError
from embedl_hub.machine.worker import call_worker
from embedl_hub.refusal import RefusedError

MODULE = """\
import os, sys
from dataclasses import dataclass
from embedl_hub.machine.worker import serve
from embedl_hub.refusal import RefusedError

@dataclass
class Request:
    do: str

def work(request, folder):
    print("what a library prints")
    if request.do == "refuse":
        raise RefusedError("too\\n  small")
    if request.do == "stumble":
        raise ValueError("a\\nb")
    if request.do == "crash":
        os.abort()
    return {"done": request.do, "is_new": not folder.exists()}

sys.exit(serve("The worker", work, Request))
"""


@dataclass(frozen=True)
class Request:
    """What the worker is asked."""

    do: str


def ended(error: CommandError) -> str:
    return f"ended with {error.exit_code}"


@pytest.fixture
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "edgeproof_worker.py").write_text(MODULE)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return tmp_path


def test_an_answer_comes_back(scratch: Path) -> None:
    """Behind whatever was printed before."""
    assert call_worker("edgeproof_worker", Request("it"), scratch, ended) == {"done": "it", "is_new": True}


@pytest.mark.parametrize(
    ("do", "reason"),
    [
        ("refuse", "^too small$"),
        ("stumble", "^The worker failed on this model: ValueError: a b$"),
        ("crash", r"^ended with \d+$"),
    ],
)
def test_why_there_is_none_is_one_line(scratch: Path, do: str, reason: str) -> None:
    """Its own reason where it has one; else what the asker makes of its end."""
    with pytest.raises(RefusedError, match=reason):
        call_worker("edgeproof_worker", Request(do), scratch, ended)
