"""A device's history: how fast each model was on it, over time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from embedl_hub.page._scope import NotHereError, quoted

if TYPE_CHECKING:
    from embedl_hub.page._scope import Scope
    from embedl_hub.tracking import DeviceSummary, Run

_NEWEST = 200


@dataclass(frozen=True)
class Point:
    """One profile of a model; its median, or its mean where the tool tells no median."""

    run_id: str
    started_ms: int
    latency_ms: float
    verdict: str | None


@dataclass(frozen=True)
class History:
    """A device over time.

    Attributes:
        runs: The newest runs on it, whatever they did.
        models: The profiles of each model, oldest first; of the newest profiles only.
    """

    device: DeviceSummary
    runs: tuple[Run, ...]
    models: dict[str, list[Point]]


def history_of(scope: Scope, name: str) -> History:
    """Return what is known of a device."""
    device = next((one for one in scope.devices() if one.name == name), None)
    if device is None:
        raise NotHereError(f"No run here was made on a device {name!r}.")
    on_it = f"device = {quoted(name)}"
    profiles = scope.find([on_it, "type = 'PROFILE'", "metrics.latency is not null"], limit=_NEWEST).runs
    models: dict[str, list[Point]] = {}
    for run in reversed(profiles):
        latency, verdict = run.metric("latency_median") or run.metric("latency"), run.params.get("verdict")
        if latency is not None:
            point = Point(run.id, run.started_ms, latency.value, None if verdict is None else str(verdict.value))
            models.setdefault(_model(scope, run), []).append(point)
    return History(device, scope.find([on_it], limit=50).runs, models)


def _model(scope: Scope, run: Run) -> str:
    # A page of runs comes without artifacts; a model is known by its content, not by the run's name.
    artifact = scope.run(run.id).artifacts.get("input")
    return run.name if artifact is None else f"{artifact.file_name} ({artifact.sha256[:8]})"
