"""What the page shows of the kinds of measurement that are no plain profile: cold starts, and models at once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from embedl_hub.core.document import ProfileDocument, find_metric
from embedl_hub.core.profile import START_PARTS, concurrent_model
from embedl_hub.notebook import short


@dataclass(frozen=True)
class Row:
    """One line: what it is about, its cells, and a bar as long as its share of the longest."""

    name: str
    cells: tuple[str, ...]
    share: float | None = None


@dataclass(frozen=True)
class Table:
    """A kind of measurement as a table."""

    title: str
    hint: str
    columns: tuple[str, ...]
    rows: tuple[Row, ...]


def _cold_start(document: ProfileDocument) -> Table:
    kinds = {"cached": "Files in the page cache, ms", "cold": "Files read from storage, ms"}

    def median(kind: str, *path: str) -> float | None:
        value = document.fact(kind, *path, "median")
        return float(value) if isinstance(value, int | float) else None

    known = [kind for kind in kinds if median(kind, "total_ms") is not None]
    longest = max((median(kind, "total_ms") or 0.0 for kind in known), default=0.0)
    parts = [(find_metric(name).title, ("parts_ms", part)) for part, name in START_PARTS.items()]
    rows = []
    for title, path in (*parts, (find_metric("start_time").title, ("total_ms",))):
        values = [median(kind, *path) for kind in known]
        share = max((value or 0.0 for value in values), default=0.0) / longest if longest else None
        rows.append(Row(title, tuple("" if value is None else short(value) for value in values), share))
    problem = document.fact("cold_problem")
    hint = f"Medians over {document.numbers.get('starts'):.0f} starts of each kind, every one a process of its own."
    hint += " The bars are the longer of the two."
    hint += f" None without the page cache: {problem}." if problem else ""
    return Table(
        "From the start of a process to the first answer", hint, tuple(kinds[kind] for kind in known), tuple(rows)
    )


def _concurrent(document: ProfileDocument) -> Table:
    models = document.fact("models")
    found = [concurrent_model(row) for row in models] if isinstance(models, list) else []
    longest = max((each.latency_concurrent for each in found), default=0.0)
    rows = []
    for each in found:
        ratio = each.interference
        interval = "" if ratio.low is None or ratio.high is None else f" ({ratio.low:.3f} to {ratio.high:.3f})"
        cells = (
            short(each.latency_alone), short(each.latency_concurrent), f"× {ratio.value:.3f}{interval}",
            each.conclusion, short(each.fps_alone), short(each.fps_concurrent),
        )  # fmt: skip
        rows.append(Row(each.file_name, cells, each.latency_concurrent / longest if longest else None))
    columns = ("Alone, ms", "Beside the others, ms", "Ratio, 99 % interval", "", "Alone, 1/s", "Beside, 1/s")
    hint = f"Means over {document.numbers.get('rounds'):.0f} rounds; every model has a process of its own."
    hint += " The bars are the latency beside the others."
    return Table("Models at once", hint, columns, tuple(rows))


_KINDS: dict[str, Callable[[ProfileDocument], Table]] = {"cold_start": _cold_start, "concurrent": _concurrent}


def table_of(document: ProfileDocument) -> Table | None:
    """Return the table of a document that is of another kind than a profile; None where it is not, or not whole."""
    make = _KINDS.get(str(document.fact("kind")))
    if make is None:
        return None
    try:
        return make(document)
    except (KeyError, TypeError, ValueError, AttributeError):
        return None  # kept by another version, or by hand: the metrics are shown as those of any run
