"""What every benchmark prints: the machine it ran on, and a table."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import sqlite3
from pathlib import Path
from typing import TYPE_CHECKING

import embedl_hub

if TYPE_CHECKING:
    from collections.abc import Sequence


def machine() -> dict[str, object]:
    """Return what a reader needs to judge a number."""
    cpuinfo = Path("/proc/cpuinfo")
    models = [line.partition(": ")[2] for line in cpuinfo.read_text().splitlines() if line.startswith("model name")]
    return {
        "cpu": models[0] if models else platform.processor(),
        "cores": os.cpu_count(),
        "system": platform.platform(),
        "python": platform.python_version(),
        "sqlite": sqlite3.sqlite_version,
        "edgeproof-hub": embedl_hub.__version__,
        "load_before": os.getloadavg()[0],
    }


def version_of(distribution: str) -> str | None:
    """Return an installed distribution's version."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def print_table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print rows as a Markdown table with aligned columns."""
    widths = [max(len(row[index]) for row in (titles, *rows)) for index in range(len(titles))]

    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)) + " |"

    print(line(titles))
    print("|" + "|".join("-" * (width + 2) for width in widths) + "|")
    for row in rows:
        print(line(row))
