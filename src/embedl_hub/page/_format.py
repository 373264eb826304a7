"""Values as people read them, the exact one beside in a title, and as the plain JSON that the pages' twins answer."""

from __future__ import annotations

import json
import math
from datetime import UTC, datetime

from embedl_hub.core.invoke import is_ruined
from embedl_hub.tracking import Lineage, LoggedMetric, Run, plain_value

_SPANS = (("year", 31_557_600), ("month", 2_629_800), ("day", 86_400), ("hour", 3600), ("minute", 60))
NONE = "\N{EN DASH}"
_MINUS = "\N{MINUS SIGN}"
_SIZES = ("B", "kB", "MB", "GB", "TB")
_HEAD = (
    "id", "project", "type", "name", "status", "started_ms", "ended_ms", "parent_id", "component", "provider", "device",
    "archived",
)  # fmt: skip


def number(value: float | None, decimals: int | None = None) -> str:
    """Return a number with four digits that count, or so many behind the point; a dash for none."""
    if value is None:
        return NONE
    if not math.isfinite(value):
        return {math.inf: "∞", -math.inf: f"{_MINUS}∞"}.get(value, "not a number")
    if decimals:
        return f"{value:,.{decimals}f}".replace("-", _MINUS)
    if value == int(value) and abs(value) < 1e15:
        return f"{int(value):,}".replace("-", _MINUS)
    size = abs(value)
    if not 1e-4 <= size < 1e7:
        return f"{value:.3e}".replace("-", _MINUS)
    decimals = max(0, 3 - math.floor(math.log10(size)))
    return f"{value:,.{decimals}f}".replace("-", _MINUS)


def percent(share: float | None) -> str:
    return NONE if share is None else f"{share * 100:.1f} %"


def size(count: float) -> str:
    steps = 0
    while count >= 1000 and steps < len(_SIZES) - 1:
        count /= 1000
        steps += 1
    return f"{count:.0f} {_SIZES[0]}" if steps == 0 else f"{count:.3g} {_SIZES[steps]}"


def moment(time_ms: int) -> str:
    """Return a moment exactly, in this machine's time."""
    return datetime.fromtimestamp(time_ms / 1000, UTC).astimezone().strftime("%Y-%m-%d %H:%M:%S %Z")


def moment_iso(time_ms: int) -> str:
    """Return a moment for machines."""
    return datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(timespec="milliseconds")


def ago(time_ms: int, now_ms: int) -> str:
    seconds = (now_ms - time_ms) / 1000
    for name, span in _SPANS:
        if seconds >= span:
            count = int(seconds // span)
            return f"{count} {name}{'s' if count > 1 else ''} ago"
    return "just now"


def span(milliseconds: float | None) -> str:
    if milliseconds is None:
        return NONE
    seconds = milliseconds / 1000
    if seconds < 100:
        return f"{seconds:.3g} s" if seconds < 1 else f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {rest:02d} s"


def value(of: object) -> str:
    """Return a logged value as one text."""
    return of if isinstance(of, str) else json.dumps(of, ensure_ascii=False)


def dumps(values: object) -> bytes:
    """Return JSON that every reader takes, whatever it is made from: numbers that are none become text."""
    return json.dumps(plain_value(values), ensure_ascii=False, allow_nan=False).encode("utf-8", "replace")


def for_script(values: object) -> str:
    """Return JSON that can stand inside a script element, whatever it holds."""
    return dumps(values).decode().replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def ruined_cosine(run: Run) -> float | None:
    """Return how far a run's answers are from float's where that is too far to be of use; None where it is not."""
    found = [metric.value for name in ("cosine", "calibration_cosine") if (metric := run.metric(name)) is not None]
    return next((value for value in found if is_ruined(value)), None)


def run_head(run: Run) -> dict[str, object]:
    """Return what a link to a run needs."""
    return {name: getattr(run, name) for name in _HEAD}


def run_row(run: Run) -> dict[str, object]:
    """Return a run as a row of a list: the last value of each metric."""
    return {
        **run_head(run),
        "error": run.error,
        "params": {name: param.value for name, param in run.params.items()},
        "metrics": {metric.name: metric.value for metric in run.metrics},
        "tags": dict(run.tags),
    }


def run_whole(run: Run) -> dict[str, object]:
    names = ("file_name", "size_bytes", "sha256", "is_folder")
    return {
        **run_row(run),
        "metrics": run.metrics,
        "artifacts": {key: {name: getattr(item, name) for name in names} for key, item in run.artifacts.items()},
        "traceback": run.traceback,
    }


def lineage(found: Lineage) -> dict[str, object]:
    return {
        **{name: list(map(run_head, getattr(found, name))) for name in ("made_from", "used_by", "parts")},
        "parent": None if found.parent is None else run_head(found.parent),
    }


def series(run: Run) -> dict[str, list[LoggedMetric]]:
    """Return the values of each metric, in the order they were logged."""
    values: dict[str, list[LoggedMetric]] = {}
    for metric in run.metrics:
        values.setdefault(metric.name, []).append(metric)
    return values
