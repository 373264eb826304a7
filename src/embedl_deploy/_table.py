"""Tables of plans and reports: as plain text, and for pages of their own."""

from collections.abc import Sequence
from html import escape

STYLE = """
:root { color-scheme: light dark; --ground: #ffffff; --ink: #222222; --soft: #5c6670; --line: #e4e4e4; --edge: #b0b0b0;
  --good-ground: #e6f6e8; --bad-ground: #fde8e8; }
@media (prefers-color-scheme: dark) { :root { --ground: #15191c; --ink: #e3e7ea; --soft: #9aa5ae; --line: #30373d;
  --edge: #66707a; --good-ground: #1b3323; --bad-ground: #44201c; } }
body { font: 14px/1.45 system-ui, sans-serif; margin: 2rem auto; max-width: 1180px; padding: 0 1rem;
  color: var(--ink); background: var(--ground); overflow-wrap: anywhere; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; } th, td { text-align: left; padding: .2rem .6rem .2rem 0;
  border-bottom: 1px solid var(--line); vertical-align: top; overflow-wrap: normal; }
th { color: var(--soft); font-weight: 500; }
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
    inside = f"<table><thead><tr>{top}</tr></thead><tbody>{''.join(body)}</tbody></table>"
    return f"<div class='scroll' tabindex='0' role='region' aria-label='{escape(head[0])}'>{inside}</div>"


def html_page(title: str, style: str, body: Sequence[str]) -> str:
    phone = "<meta name='viewport' content='width=device-width, initial-scale=1'>"
    head = f"<meta charset='utf-8'>{phone}<title>{escape(title)}</title><style>{STYLE}{style}</style>"
    return "\n".join([f"<!doctype html><html lang='en'><head>{head}</head><body>", *body, "</body></html>"])
