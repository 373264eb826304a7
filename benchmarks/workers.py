"""Sides of a benchmark as processes of their own, each with its own Python, asked by JSON lines."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path


class Worker:
    """A side in a process of its own: ``SCRIPT --worker NAME --folder FOLDER``, which calls `answer_requests`."""

    def __init__(self, python: Path, script: str, name: str, folder: Path) -> None:
        self.name = name
        self._process = subprocess.Popen(
            [str(python), script, "--worker", name, "--folder", str(folder)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(BrokenPipeError):
            self._process.communicate(timeout=60)

    def send(self, do: str, **facts: object) -> None:
        """Ask for something without waiting."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"do": do, **facts}) + "\n")
        self._process.stdin.flush()

    def receive(self) -> dict[str, Any]:
        """Wait for the answer."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            sys.exit(f"The worker of {self.name!r} ended early; see its message above.")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def ask(self, do: str, **facts: object) -> dict[str, Any]:
        """Ask and wait."""
        self.send(do, **facts)
        return self.receive()


@contextlib.contextmanager
def workers(pythons: Mapping[str, Path], script: str, folder: Path) -> Iterator[list[Worker]]:
    """Start one worker per side."""
    with contextlib.ExitStack() as running:
        yield [running.enter_context(Worker(python, script, name, folder)) for name, python in pythons.items()]


def answer_requests(make_answer: Callable[[], Callable[[dict[str, Any]], Mapping[str, object]]]) -> None:
    """Make what answers, then answer requests on stdin, one JSON line each, until there are no more."""
    # Whatever a library prints must not get between the answers.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    answer = make_answer()
    for line in sys.stdin:
        answers.write(json.dumps(answer(json.loads(line))) + "\n")
        answers.flush()
