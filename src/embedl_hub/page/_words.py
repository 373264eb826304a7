"""Numbers, sizes and times as people read them. The exact value stands beside, in a title."""

from __future__ import annotations

import json
import math
from datetime import UTC, datetime

_SPANS = (("year", 31_557_600), ("month", 2_629_800), ("day", 86_400), ("hour", 3600), ("minute", 60))
NONE = "\N{EN DASH}"
_MINUS = "\N{MINUS SIGN}"
_SIZES = ("B", "kB", "MB", "GB", "TB")


def number(value: float | None) -> str:
    """Return a number with four digits that count; a dash for none."""
    if value is None:
        return NONE
    if not math.isfinite(value):
        return {math.inf: "∞", -math.inf: f"{_MINUS}∞"}.get(value, "not a number")
    if value == int(value) and abs(value) < 1e15:
        return f"{int(value):,}".replace("-", _MINUS)
    size = abs(value)
    if not 1e-4 <= size < 1e7:
        return f"{value:.3e}".replace("-", _MINUS)
    decimals = max(0, 3 - math.floor(math.log10(size)))
    return f"{value:,.{decimals}f}".replace("-", _MINUS)


def percent(share: float | None) -> str:
    """Return a share in percent."""
    return NONE if share is None else f"{share * 100:.1f} %"


def size(count: float) -> str:
    """Return a number of bytes."""
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
    """Return how long ago a moment was."""
    seconds = (now_ms - time_ms) / 1000
    for name, span in _SPANS:
        if seconds >= span:
            count = int(seconds // span)
            return f"{count} {name}{'s' if count > 1 else ''} ago"
    return "just now"


def span(milliseconds: float | None) -> str:
    """Return how long something took."""
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
