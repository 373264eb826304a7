"""Tables of plans and reports: as plain text, and for pages of their own."""

from collections.abc import Sequence
from html import escape

STYLE = """
:root { color-scheme: light; }
body { font: 14px/1.45 system-ui, sans-serif; margin: 2rem auto; max-width: 1180px; padding: 0 1rem; color: #222; }
table { border-collapse: collapse; width: 100%; } th, td { text-align: left; padding: .2rem .6rem .2rem 0;
  border-bottom: 1px solid #e4e4e4; vertical-align: top; } th { color: #666; font-weight: 500; }
.dot { display: inline-block; width: .8em; height: .8em; border-radius: 50%; margin-right: .4em; }
"""


_LINES = 40


class Printed:
    """What prints as a table: its repr is one line, and a notebook shows the table."""

    def _line(self) -> str:
        """Return the whole in a few words."""
        return str(self).partition("\n")[0]

    def __repr__(self) -> str:
        words = self._line()
        return f"<{type(self).__name__}: {words if len(words) <= 90 else words[:87] + '...'}>"

    def _repr_html_(self) -> str:
        lines = str(self).splitlines()
        rest = [f"and {len(lines) - _LINES} lines more; print it to see them"] if len(lines) > _LINES else []
        return f"<pre>{escape(chr(10).join([*lines[:_LINES], *rest]))}</pre>"


def table(head: Sequence[str], rows: Sequence[Sequence[str]], *, widest: int = 100) -> str:
    """Set rows in columns under a head; a cell longer than `widest` is cut with three dots."""
    cut = [[cell if len(cell) <= widest else cell[: widest - 3] + "..." for cell in row] for row in (head, *rows)]
    widths = [max(len(row[column]) for row in cut) for column in range(len(head))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in cut]
    lines.insert(1, "  ".join("-" * width for width in widths))
    return "\n".join(lines)


def html_table(
    head: Sequence[str], rows: Sequence[Sequence[str]], *, marks: Sequence[str] = (), colors: Sequence[str] = ()
) -> str:
    """Set an HTML table; `marks` are classes of rows, `colors` those of a dot before each."""
    top = "".join(f"<th>{escape(cell)}</th>" for cell in head)
    dots = [f'<span class="dot" style="background:{color}"></span>' for color in colors] or [""] * len(rows)
    body = []
    for row, mark, dot in zip(rows, marks or [""] * len(rows), dots, strict=True):
        cells = "</td><td>".join(escape(cell) for cell in row)
        body.append(f"<tr class='{mark}'><td>{dot}{cells}</td></tr>" if mark else f"<tr><td>{dot}{cells}</td></tr>")
    return f"<table><thead><tr>{top}</tr></thead><tbody>{''.join(body)}</tbody></table>"


def html_page(title: str, style: str, body: Sequence[str]) -> str:
    head = f"<meta charset='utf-8'><title>{escape(title)}</title><style>{STYLE}{style}</style>"
    return "\n".join([f"<!doctype html><html lang='en'><head>{head}</head><body>", *body, "</body></html>"])
