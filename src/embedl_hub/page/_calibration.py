"""The verdict on calibration data that a run recorded: `embedl-deploy calibration check --json`, as artifact."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from embedl_device.readers import UnreadableError, read_json

if TYPE_CHECKING:
    from collections.abc import Mapping

    from embedl_hub.tracking import Run

ARTIFACT = "calibration"
_VERDICTS = ("fits", "differs", "faulty", "no evidence")
_MOST_ROWS = 500


@dataclass(frozen=True)
class CalibrationRow:
    """One layer: how far its input lies from what it keeps of its training data."""

    name: str
    channels: int | None
    distance: float | None
    shift: float | None


@dataclass(frozen=True)
class CalibrationShown:
    """What the page shows of a verdict."""

    verdict: str
    lines: tuple[str, ...] = ()
    rows: tuple[CalibrationRow, ...] = ()
    problem: str = ""


def calibration_of(run: Run) -> CalibrationShown | None:
    """Return the verdict among a run's artifacts; None where there is none."""
    artifact = run.artifacts.get(ARTIFACT)
    if artifact is None or artifact.is_folder or not artifact.local_path:
        return None
    try:
        found = read_json(artifact.local_path)
    except (OSError, UnreadableError) as error:
        return CalibrationShown("no evidence", problem=f"the recorded verdict cannot be read: {error}")
    evidence = found.get("evidence") if isinstance(found, dict) else None
    if not isinstance(evidence, dict) or evidence.get("verdict") not in _VERDICTS:
        return None
    lines = found.get("lines")
    layers = evidence.get("layers")
    return CalibrationShown(
        evidence["verdict"],
        tuple(str(line) for line in lines[:_MOST_ROWS]) if isinstance(lines, list) else (),
        tuple(_row(each) for each in layers[:_MOST_ROWS] if isinstance(each, dict)) if isinstance(layers, list) else (),
    )


def _row(layer: Mapping[str, Any]) -> CalibrationRow:
    channels, distance, shift = (
        value if isinstance(value, int | float) and not isinstance(value, bool) else None
        for value in (layer.get("channels"), layer.get("distance"), layer.get("shift"))
    )
    return CalibrationRow(str(layer.get("name", "")), None if channels is None else int(channels), distance, shift)
