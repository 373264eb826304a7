"""The hub's own ways to a terminal: tables and bars with their styling, and the log; see ``embedl_device.terminal``."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING

from embedl_device.terminal import printable

if TYPE_CHECKING:
    from rich.console import Console


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
