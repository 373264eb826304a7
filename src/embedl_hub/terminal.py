"""What reaches a terminal: text of boards, bundles and servers is shown, and never obeyed.

A terminal acts on control characters: it sets its title, writes to the clipboard, answers as if somebody had typed.
:func:`printable` shows them as escapes. It is applied where text leaves: to every error of the hub, to its log, to
what commands echo, and by :func:`guarded` to all that the command line prints, whoever prints it.
"""

from __future__ import annotations

import contextlib
import logging
import re
import sys
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from rich.console import Console

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

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - the stream's own
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


def styled_console(*, stderr: bool = False, width: int | None = None) -> Console:
    """Return a console for tables and bars: its own styling reaches the terminal, what is in the text does not."""
    # Imported here: most processes never draw anything.
    from rich.console import Console, ConsoleOptions, RenderableType  # noqa: PLC0415
    from rich.segment import Segment  # noqa: PLC0415

    class Careful(Console):
        def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
            for segment in super().render(renderable, options):
                yield segment if segment.control else Segment(printable(segment.text), segment.style)

    stream = sys.stderr if stderr else sys.stdout
    # markup and emoji off: values are data, never styling; ":warning:" is nine letters.
    return Careful(file=getattr(stream, "unguarded", stream), width=width, markup=False, emoji=False, highlight=False)


class PrintableRecords(logging.Filter):
    """Makes the text of a log record printable; it may have been a board's."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Let the record pass, with its text finished."""
        record.msg, record.args = printable(record.getMessage()), ()
        return True


# Every module logs under this one name, and a script may have its log on the terminal without asking us.
logging.getLogger("embedl_hub").addFilter(PrintableRecords())
