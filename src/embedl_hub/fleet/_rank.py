"""The seam to paired measurement: ranking options against each other on one board, in turns."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from embedl_hub.fleet._model import Sweep


def check_rank(sweep: Sweep) -> list[str]:
    """Return what keeps a sweep from ranking; nothing where it can."""
    return [f"rank = true: this version measures the options of {sweep.name!r} one by one only; leave rank out"]
