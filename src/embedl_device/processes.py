"""Further processes of the same device program: each has a runtime of its own, as every app has."""

from __future__ import annotations

import contextlib
import subprocess
from argparse import Namespace
from pathlib import Path
from typing import IO, Any, Dict, List, Optional, Sequence

import embedl_device
from embedl_device.errors import BoardError
from embedl_device.interpreter import python_argv
from embedl_device.readers import parse_json

_LONGEST_LINE = 64_000_000
_FAREWELL_S = 10.0


class Child:
    """A process that is told one line at a time and answers each with one JSON object."""

    def __init__(self, arguments: Namespace, words: Sequence[str]) -> None:
        self._start([*_argv(arguments.program), *arguments.words, *words])

    @classmethod
    def of(cls, program: str, words: Sequence[str], python: Optional[str], program_file: Optional[Path]) -> Child:
        """Start a program with other words; by another Python, from its one file."""
        child = cls.__new__(cls)
        start = _argv(program) if python is None else python_argv(python, file=str(program_file))
        child._start([*start, *words])  # noqa: SLF001 - its own
        return child

    def _start(self, argv: Sequence[str]) -> None:
        try:
            self._process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        except OSError as error:
            raise BoardError("{} cannot be started: {}.".format(argv[0], error.strerror)) from error

    def tell(self, line: str) -> None:
        """Send a line."""
        try:
            stream = _open(self._process.stdin)
            stream.write(line.encode() + b"\n")
            stream.flush()
        except (OSError, ValueError):
            raise self._ended() from None

    def answer(self) -> Dict[str, Any]:
        """Wait for the next answer."""
        line = _open(self._process.stdout).readline(_LONGEST_LINE)
        if not line:
            raise self._ended()
        answer: Dict[str, Any] = parse_json(line)
        if "error" in answer:
            raise BoardError(answer["error"])
        return answer

    def close(self) -> None:
        """End it, by force if it does not end by itself."""
        # It may have ended already, with words of ours unread.
        with contextlib.suppress(OSError):
            _open(self._process.stdin).close()
        try:
            self._process.wait(_FAREWELL_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        _open(self._process.stdout).close()

    def _ended(self) -> BoardError:
        code = self._process.wait(_FAREWELL_S)
        return BoardError("A process that was started to run the model ended with code {}.".format(code))


def _open(stream: Any) -> IO[bytes]:
    assert stream is not None  # noqa: S101 - both are pipes
    found: IO[bytes] = stream
    return found


def _argv(program: str) -> List[str]:
    """Return the start of a command that runs a device program again, as it was found: in one file, or installed."""
    root = Path(embedl_device.__file__).parents[1]
    if root.is_file():
        return python_argv(file=str(root))
    return python_argv(module=program.replace("-", "_"))
