"""What an MLflow server says of runs, read with care: every field may be missing, and every path may lead out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit

from embedl_hub.errors import TrackingError
from embedl_hub.mlflow import _words as words
from embedl_hub.mlflow._api import Api, objects, text_of, whole_of

MOST_FILES = 10_000
_DEEPEST = 32
_POINTS = 25_000


def object_of(facts: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return an object within another; an empty one where there is none."""
    found = facts.get(name)
    return found if isinstance(found, dict) else {}


def data_of(run: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
    """Return the params, metrics or tags of a run."""
    return objects(object_of(run, "data").get(name))


def tags_of(run: Mapping[str, Any]) -> dict[str, str]:
    """Return the tags of a run by name."""
    return {text_of(tag, "key"): text_of(tag, "value") for tag in data_of(run, "tags")}


def id_of(run: Mapping[str, Any]) -> str:
    """Return the server's own id of a run."""
    found = text_of(object_of(run, "info"), "run_id")
    if not found:
        raise TrackingError("The server answers with a run that has no id; that is no MLflow server's answer.")
    return found


def proxied(run: Mapping[str, Any]) -> str | None:
    """Return where the server's own proxy has the artifacts of a run; None when they are elsewhere."""
    parts = urlsplit(text_of(object_of(run, "info"), "artifact_uri"))
    return parts.path.strip("/") if parts.scheme == "mlflow-artifacts" else None


def history(api: Api, run_id: str, key: str) -> Iterator[dict[str, Any]]:
    """Yield the points of a metric that the server has; one that is no number is passed over."""
    asked = {"run_id": run_id, "metric_key": key, "max_results": _POINTS}
    for point in api.pages("metrics/get-history", "metrics", asked):
        value, time_ms = words.metric_here(point.get("value", 0.0)), whole_of(point, "timestamp")
        # What is zero is left out of an answer.
        step = whole_of(point, "step") if "step" in point else 0
        if value is not None and step is not None and time_ms is not None:
            yield {"key": key, "value": words.metric_there(value), "timestamp": time_ms, "step": step}


def listing(api: Api, run_id: str) -> Iterator[tuple[str, int]]:
    """Yield the path and size of each artifact that the server has of a run."""
    folders, seen = [""], 0
    while folders:
        folder = folders.pop()
        for item in api.pages("artifacts/list", "files", {"run_id": run_id, "path": folder or None}):
            seen += 1
            path = _check_path(text_of(item, "path"), folder)
            if seen > MOST_FILES or path.count("/") >= _DEEPEST:
                raise TrackingError(
                    f"Run {run_id} of {api.url} has more than {MOST_FILES} artifacts, or they lie more than {_DEEPEST} "
                    "folders deep."
                )
            if item.get("is_dir") is True:
                folders.append(path)
            else:
                yield path, whole_of(item, "file_size") or 0


def _check_path(path: str, folder: str) -> str:
    """Return the path of an artifact; refuse one that is not inside the folder that it was listed in."""
    is_below = path.startswith(f"{folder}/" if folder else "")
    if not is_below or "\0" in path or any(part in {"", ".", ".."} for part in path.split("/")):
        raise TrackingError(f"The server lists an artifact {path!r:.200} in folder {folder!r:.200}: it is not inside.")
    return path
