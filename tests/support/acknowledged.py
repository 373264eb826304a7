"""What a process was told is logged, and whether a run has it."""

from pathlib import Path
from typing import Any

from embedl_hub.tracking import Run, RunStatus, hash_file

SCRIPTS = Path(__file__).parents[1] / "embedl_hub/tracking/scripts"
Fact = tuple[str, str, str, Any]
"""The run, the kind of record, its name and its value."""


def is_there(run: Run, fact: Fact) -> bool:
    """Tell whether the run holds what its process was told is logged."""
    _, kind, name, value = fact
    if kind == "artifact":
        found: object = run.artifacts[name].sha256
        assert hash_file(run.artifacts[name].local()) == found
    elif kind == "metric":
        series = [[metric.value, metric.step] for metric in run.metrics if metric.name == name]
        found = value if value in series else series
    elif kind in {"param", "tag"}:
        found = run.params[name].value if kind == "param" else run.tags[name]
    else:
        found = None if kind == "start" or run.status == RunStatus.FINISHED else run.status
    return bool(found == value)
