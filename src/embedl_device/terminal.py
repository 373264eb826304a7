"""What reaches a terminal: foreign text is shown, and never obeyed.

A terminal acts on control characters: it sets its title, writes to the clipboard, answers as if somebody had typed.
:func:`printable` shows them as escapes, and :func:`guarded` applies it to all that a command line prints, whoever
prints it.
"""

from __future__ import annotations

import contextlib
import re
import sys
from typing import Any, Iterable, Iterator, TextIO

# C0 without tab and newline, DEL, C1; then what turns the direction of text or hides it, and halves of characters.
_CONTROLS = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    "\ud800-\udfff\U000e0000-\U000e007f]"
)


def printable(text: str) -> str:
    r"""Return text with what a terminal would act on as escapes, such as ``\x1b``; newlines and tabs stay."""
    return _CONTROLS.sub(_escape, text.replace("\r\n", "\n") if "\r" in text else text)


def _escape(found: re.Match[str]) -> str:
    code = ord(found[0])
    if code < 0x20:
        return f"\\x{code:02x}"
    # As JSON writes them: what was JSON means the same afterwards.
    units = found[0].encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at] << 8 | units[at + 1]:04x}" for at in range(0, len(units), 2))


class GuardedStream:
    """A text stream that shows control characters instead of passing them on; in all else it is the stream."""

    def __init__(self, stream: TextIO) -> None:
        self.unguarded = stream

    def write(self, text: str | bytes) -> int:
        """Write text, made printable; click hands bytes to a stream that has nothing below it for them."""
        self.unguarded.write(printable(text if isinstance(text, str) else text.decode("utf-8", "replace")))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        """Write lines, made printable."""
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        if name == "buffer":
            # Who writes bytes would pass by us.
            raise AttributeError(name)
        return getattr(self.unguarded, name)


@contextlib.contextmanager
def guarded() -> Iterator[None]:
    """Guard both streams of this process for the length of a block."""
    kept = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = (GuardedStream(stream) for stream in kept)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = kept
