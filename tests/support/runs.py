"""Recorded profiles made up on the spot, with documents of the published format."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from embedl_hub.tracking import LoggedArtifact, LoggedMetric, LoggedParam, Run, RunStatus


def layer(name: str, time_ms: float | None, *nodes: str, op_type: str = "Conv") -> dict[str, Any]:
    """Return a layer row."""
    return {"name": name, "op_type": op_type, "time_ms": time_ms, "compute_unit": "CPU", "source_nodes": list(nodes)}


def samples(center_us: float, *, count: int = 200, spread: float = 0.02, seed: int = 0) -> list[float]:
    """Return samples around a time."""
    return [float(value) for value in np.random.default_rng(seed).normal(center_us, spread * center_us, count)]


def document(times_us: Sequence[float], *, rows: Sequence[dict[str, Any]] = (), **changes: Any) -> dict[str, Any]:
    """Return a profile document."""
    content = {
        "format": 1,
        "runtime": {"name": "onnxruntime", "version": "1.31.1"},
        "settings": {"providers": ["CPUExecutionProvider"], "threads": 1, "level": "all"},
        "data": {"source": "made up", "inputs": {"x": {"dtype": "float32", "shape": [1, 3, 8, 8]}}},
        "samples_us": list(times_us),
        "layers": {"rows": list(rows)},
        "environment": {
            "board": {"system": "Linux-6.1", "cpu": "A CPU", "cores_usable": 2},
            "before": {"governor": "performance", "clock_limit_mhz": 2400},
        },
        "place": "this machine",
    }
    return {**content, **changes}


def profile_run(
    folder: Path,
    run_id: str,
    times_us: Sequence[float],
    *,
    verdict: str = "stable",
    model: str = "a" * 64,
    params: dict[str, Any] | None = None,
    metrics: dict[str, float] | None = None,
    tags: Iterable[tuple[str, str]] = (),
    **changes: Any,
) -> Run:
    """Return a finished profile with its document on the disk."""
    path = folder / f"{run_id}.json"
    path.write_text(json.dumps(document(times_us, **changes)))
    times = np.asarray(times_us)
    values = {
        "latency_median": float(np.median(times)) / 1e3,
        "latency": float(times.mean()) / 1e3,
        "latency_min": float(times.min()) / 1e3,
        "fps": 1e6 / float(times.mean()),
        **(metrics or {}),
    }
    logged = {"verdict": verdict, "verdict_reason": "as the test says", **(params or {})}
    return Run(
        run_id, "shapes", "PROFILE", "profile", RunStatus.FINISHED, 0, 1, component="ONNXRuntimeProfiler",
        provider="local",
        params={name: LoggedParam(name, value) for name, value in logged.items()},
        metrics=tuple(LoggedMetric(name, value) for name, value in values.items()),
        tags=dict(tags),
        artifacts={
            "output_file": LoggedArtifact("output_file", "profile.json", 1, "0" * 64, run_id=run_id, local_path=path),
            "input": LoggedArtifact("input", "net.onnx", 1, model, run_id=run_id),
        },
    )  # fmt: skip
