"""The verdict of a recorded run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from embedl_device.statistics import Verdict

if TYPE_CHECKING:
    from embedl_hub.tracking import Run


def with_verdict(run: Run, extra: dict[str, object]) -> dict[str, object]:
    """Return what a result is built from, with the verdict that the run logged."""
    if "verdict" in run.params:
        extra.setdefault("verdict", Verdict.of(run.params["verdict"].value))
    return extra
