"""Plain text tables for plans and reports."""

from collections.abc import Sequence


def table(head: Sequence[str], rows: Sequence[Sequence[str]], *, widest: int = 100) -> str:
    """Set rows in columns under a head; a cell longer than `widest` is cut with three dots."""
    cut = [[cell if len(cell) <= widest else cell[: widest - 3] + "..." for cell in row] for row in (head, *rows)]
    widths = [max(len(row[column]) for row in cut) for column in range(len(head))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in cut]
    lines.insert(1, "  ".join("-" * width for width in widths))
    return "\n".join(lines)
