"""Further processes of the same device program: each has a runtime of its own, as every app has."""

from __future__ import annotations

import contextlib
import subprocess
from argparse import Namespace
from pathlib import Path
from typing import IO, Any, Dict, List, Sequence

import embedl_device
from embedl_device.errors import BoardError
from embedl_device.interpreter import python_argv
from embedl_device.readers import parse_json

_LONGEST_LINE = 64_000_000
_FAREWELL_S = 10.0


class Child:
    """A process that is told one line at a time and answers each with one JSON object."""

    def __init__(self, arguments: Namespace, words: Sequence[str]) -> None:
        self._process = subprocess.Popen(
            [*_argv(arguments.program), *arguments.words, *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )

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
