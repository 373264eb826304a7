"""How values show themselves: a repr of one line, and a small table for notebooks, without scripts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import is_dataclass
from html import escape
from typing import Any

from embedl_device.terminal import printable

_LINE = 110
_ROWS = 30
_CELL = 'style="text-align:left"'


def short(value: object) -> str:
    """Return a value in a few characters: a file by its name, an array by its type and shape."""
    value = getattr(value, "value", value)  # a metric, a parameter, a member of an enum
    if isinstance(value, Mapping | list | tuple):
        return _short_container(value)
    if isinstance(value, float):
        return f"{value:.4g}"
    if (name := getattr(value, "file_name", None)) is not None:
        return str(name)
    if (shape := getattr(value, "shape", None)) is not None and hasattr(value, "dtype"):
        return f"{getattr(value, 'dtype')}{list(shape)}"  # noqa: B009 - any array's
    text = type(value).__name__ if is_dataclass(value) else str(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _short_container(values: Mapping[Any, object] | Sequence[object]) -> str:
    if isinstance(values, Mapping):
        return "{" + ", ".join(f"{key}: {short(each)}" for key, each in list(values.items())[:3]) + _rest(values) + "}"
    if values and is_dataclass(values[0]):
        return f"{len(values)} × {type(values[0]).__name__}"
    return "[" + ", ".join(short(each) for each in values[:3]) + _rest(values) + "]"


def _rest(values: Mapping[Any, object] | Sequence[object]) -> str:
    return f", {len(values) - 3} more" if len(values) > 3 else ""


def line(name: str, parts: Iterable[str]) -> str:
    """Return a repr that fits a line: as many of the parts as do."""
    text = name + "("
    for number, part in enumerate(parts):
        longer = text + (", " if number else "") + " ".join(printable(part).splitlines())
        if len(longer) > _LINE:
            return (text + ", " if number else longer[:_LINE]) + "...)"
        text = longer
    return text + ")"


def table(title: str, rows: Iterable[Sequence[object]], head: Sequence[str] = ()) -> str:
    """Return a table as HTML; of many rows the first are shown, and how many there are."""
    all_rows = list(rows)
    top = "".join(f"<th {_CELL}>{escape(cell)}</th>" for cell in head)
    lines = [
        f"<tr>{''.join(f'<td {_CELL}>{escape(short(cell))}</td>' for cell in row)}</tr>" for row in all_rows[:_ROWS]
    ]
    if len(all_rows) > _ROWS:
        lines.append(f"<tr><td {_CELL}>and {len(all_rows) - _ROWS} more</td></tr>")
    return (
        f"<table><caption {_CELL}><b>{escape(title)}</b></caption>"
        f"{f'<thead><tr>{top}</tr></thead>' if top else ''}<tbody>{''.join(lines)}</tbody></table>"
    )
