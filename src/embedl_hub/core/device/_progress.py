"""A bar for what takes a while, where somebody is looking."""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_WORTH_A_BAR_BYTES = 8 << 20


@contextlib.contextmanager
def progress(title: str, total_bytes: int) -> Iterator[Callable[[int], None]]:
    """Yield a function that takes the bytes moved since it was last called."""
    if total_bytes < _WORTH_A_BAR_BYTES or not sys.stderr.isatty():
        yield lambda _: None
        return
    # Imported here: most processes never draw a bar.
    from rich.console import Console  # noqa: PLC0415
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn  # noqa: PLC0415

    # A file's name may look like markup.
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(title, total=total_bytes)
        yield lambda moved: bar.advance(task, moved)
