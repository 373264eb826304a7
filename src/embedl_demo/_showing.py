"""What the demo found: one table for the terminal, and the same on a page that leads to the others."""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, TextIO

from embedl_hub.terminal import styled_console

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from embedl_demo._building import Built
    from embedl_demo._measuring import Measured
    from embedl_device.statistics import Ratio
    from embedl_hub.core.invoke import Parity

NONE = "-"
_STYLE = """
:root { color-scheme: light dark; --ground: #fff; --ink: #222; --soft: #5c6670; --line: #e2e2e2; --link: #14599d;
  --bad: #9b1c1c; --bad-ground: #fde8e8; }
@media (prefers-color-scheme: dark) { :root { --ground: #15191c; --ink: #e3e7ea; --soft: #9aa5ae; --line: #30373d;
  --link: #7fbfe0; --bad: #f19a90; --bad-ground: #44201c; } }
body { font: 15px/1.5 system-ui, sans-serif; margin: 2.5rem auto; max-width: 1080px; padding: 0 1.2rem;
  color: var(--ink); background: var(--ground); overflow-wrap: anywhere; }
h1 { font-size: 1.5rem; margin-bottom: .2rem; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; margin: 1.4rem 0; }
th, td { text-align: left; vertical-align: top; padding: .4rem .9rem .4rem 0; border-bottom: 1px solid var(--line);
  overflow-wrap: normal; }
th { font-weight: 600; } tbody th { color: var(--soft); font-weight: 500; white-space: nowrap; }
.failed { background: var(--bad-ground); color: var(--bad); font-weight: 600; padding: .6rem .9rem;
  border-left: 4px solid #c81e1e; }
a { color: var(--link); } li { margin: .2rem 0; }
"""


@dataclass(frozen=True)
class Column:
    """One way of running the network.

    Attributes:
        title: What the table calls it.
        accuracy: In percent.
        built: What deploy made for it; None for PyTorch itself.
        measured: What running it told; None where it was not run here.
        is_float: Whether its file is the one in float.
        compiled: Where, or how far it got.
    """

    title: str
    accuracy: float
    built: Built | None = None
    measured: Measured | None = None
    is_float: bool = False
    compiled: str = NONE

    def cells(self, tests: int) -> dict[str, str]:
        """Return what the table says of it, by row."""
        built, measured = self.built, self.measured
        int8 = None if self.is_float else built
        simulated = built is not None and measured is None
        return {
            "proof of the file": _proof(int8) if int8 else NONE,
            f"accuracy, {tests:,} digits": f"{self.accuracy:.1f} %{' (simulated)' if simulated else ''}",
            "latency, median": _latency(measured) if measured else "not measured" if simulated else NONE,
            "verdict on it": str(measured.profile.verdict) if measured else NONE,
            "file": _size(measured.size_bytes if measured else built.file.stat().st_size) if built else NONE,
            "peak memory": _memory(measured) if measured else NONE,
            "parity with PyTorch": _parity(measured.parity) if measured else _verified(built) if built else NONE,
            "fused": _fused(built) if built else NONE,
            "layers in integers": _integers(int8) if int8 else NONE,
            "compiled": self.compiled,
        }


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    title: str
    cells: tuple[str, ...]


@dataclass(frozen=True)
class Table:
    """Everything that was found, a column for each way of running the network."""

    columns: tuple[Column, ...]
    tests: int

    @property
    def titles(self) -> tuple[str, ...]:
        """The heads of the columns."""
        return tuple(column.title for column in self.columns)

    def rows(self) -> list[Row]:
        """Return the lines of the table."""
        cells = [column.cells(self.tests) for column in self.columns]
        return [Row(title, tuple(each[title] for each in cells)) for title in cells[0]]

    def as_dict(self) -> dict[str, dict[str, str]]:
        """Return the lines by title, each by the heads of its columns."""
        return {row.title: dict(zip(self.titles, row.cells, strict=True)) for row in self.rows()}


def _proof(built: Built) -> str:
    found = built.verification
    return f"{'PASS' if found.passed else 'FAIL'}, {len(found.boundaries)} boundaries"


def failures(*all_built: Built) -> list[str]:
    """Say which files failed their proof, why, and what mends it; nothing when all passed."""
    return [f"{built.file.name}: {built.verification.verdict}" for built in all_built if not built.verification.passed]


def print_failures(failed: Sequence[str], out: TextIO) -> None:
    """Print what failed its proof in red, where it is read on a terminal."""
    console = styled_console(stderr=out is sys.stderr)
    for one in failed:
        console.print(one, style="bold red", soft_wrap=True)


def _latency(measured: Measured) -> str:
    times = measured.document["latency_ms"]
    median = times["median"]
    off = max(median - times["median_low"], times["median_high"] - median)
    # Rounded up: an uncertainty is never shown smaller than it is.
    return f"{median:.4f} ms ± {math.ceil(off * 1e4) / 1e4:.4f}"


def _memory(measured: Measured) -> str:
    peak = measured.profile.peak_memory_mb
    return NONE if peak is None else f"{peak.value:.0f} MB"


def _size(count: int) -> str:
    return f"{count / 1000:.0f} kB"


def _parity(parity: Parity) -> str:
    return "equal to the bit" if parity.max_abs_error == 0 else f"max error {parity.max_abs_error:.1e}"


def _verified(built: Built) -> str:
    rows = built.verification.boundaries
    return f"{sum(row.inside for row in rows)} of {len(rows)} boundaries"


def _fused(built: Built) -> str:
    fused = built.network.fused
    proof = "not proved" if fused.report.proof is None else "proved"
    return f"{len(fused.matches)} steps, {proof}"


def _integers(built: Built) -> str:
    done, whole = built.contract.coverage
    return f"{done} of {whole}"


def ratio_words(ratio: Ratio | None) -> str:
    """Say how much faster INT8 is, and how sure that is."""
    if ratio is None or ratio.low is None or ratio.high is None:
        return "How INT8 compares with float is not known: there are too few samples."
    factor = f"{1 / ratio.value:.2f} times as fast as float (95 %: {1 / ratio.high:.2f} to {1 / ratio.low:.2f})"
    if not ratio.shows_difference:
        return f"INT8 runs {factor}: no difference shown."
    return f"INT8 runs {factor}."


def text_table(table: Table) -> str:
    """Set the table for a terminal."""
    lines = [("", *table.titles), *((row.title, *row.cells) for row in table.rows())]
    widths = [max(len(line[place]) for line in lines) for place in range(len(lines[0]))]
    drawn = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines]
    return "\n".join([drawn[0], "-" * max(map(len, drawn)), *drawn[1:]])


def fused_lines(built: Built, title: str) -> str:
    """Say what was fused, pattern by pattern."""
    counts = ", ".join(f"{count} × {name}" for name, count in built.network.fused.report.counts().items())
    return f"Fused for {title}: {counts or 'nothing'}."


def write_page(
    path: Path, table: Table, failed: Sequence[str], remarks: Sequence[str], pages: Sequence[tuple[Path, str]]
) -> Path:
    """Write the table as a page with links to the other pages beside it; what failed its proof comes first."""
    alarm = "\n".join(f'<p class="failed">{escape(one)}</p>' for one in failed)
    head = "".join(f"<th>{escape(title)}</th>" for title in ("", *table.titles))
    body = "\n".join(
        f"<tr><th>{escape(row.title)}</th>{''.join(f'<td>{escape(cell)}</td>' for cell in row.cells)}</tr>"
        for row in table.rows()
    )
    links = "\n".join(f'<li><a href="{escape(page.name)}">{escape(text)}</a></li>' for page, text in pages)
    text = "\n".join(f"<p>{escape(remark)}</p>" for remark in remarks)
    path.write_text(
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta name="viewport" content="width=device-width"><title>Edgeproof: the demo</title>'
        f"<style>{_STYLE}</style></head><body>\n<h1>From PyTorch to a measured INT8 model</h1>\n"
        f'{alarm}<div class="scroll" tabindex="0" role="region" aria-label="Figures"><table>'
        f"<thead><tr>{head}</tr></thead><tbody>\n{body}\n</tbody></table></div>\n{text}\n<ul>\n{links}\n</ul>\n"
        "</body></html>\n",
        encoding="utf-8",
    )
    return path
