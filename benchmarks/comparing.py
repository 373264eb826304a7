"""Two results of one benchmark: each figure old and new, and whether the new one keeps to what was stated."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from figures import Figure, read
from report import number


@dataclass(frozen=True)
class Compared:
    """One figure, then and now."""

    what: str
    old: Figure | None
    new: Figure | None
    verdict: str

    def cells(self) -> tuple[str, ...]:
        """Return a row of the table."""
        stated = self.old or self.new
        assert stated is not None
        ends = f"{stated.low:.3g} to {stated.high:.3g}"
        return (self.what, _shown(self.old), _shown(self.new), ends, stated.spread, self.verdict)


def compared(old: dict[str, Any], new: dict[str, Any]) -> list[Compared]:
    """Hold every figure of two results against each other."""
    then, now = read(old["figures"]), read(new["figures"])
    if (was := _weights(old)) and (has := _weights(new)) and any(was.get(net) != digest for net, digest in has.items()):
        return [Compared(what, then.get(what), figure, "not comparable: other weights") for what, figure in now.items()]
    return [
        Compared(what, then.get(what), now.get(what), verdict(then.get(what), now.get(what))) for what in then | now
    ]


def verdict(old: Figure | None, new: Figure | None) -> str:
    """Say whether two figures agree: one's value lies in the other's spread."""
    if old is None or new is None:
        return "new" if old is None else "not measured"
    if (old.ratio is None) != (new.ratio is None):
        return f"not comparable: {new.failed or old.failed or 'another shape'}"
    if old.low <= new.value <= old.high or new.low <= old.value <= new.high:
        return "within"
    kind = " (absolute: look at the loads)" if new.ratio is None and new.low != new.high else ""
    return f"outside: {new.value / old.value:.2f} times the old{kind}" if old.value else "outside"


def _weights(result: dict[str, Any]) -> dict[str, str]:
    """Return which trained weights a result is about."""
    weights: dict[str, str] = result["data"].get("weights", {})
    return weights


def _shown(figure: Figure | None) -> str:
    if figure is None:
        return "-"
    return number(figure.ours, figure.unit) if figure.ratio is None else f"{figure.ratio:.3g}"
