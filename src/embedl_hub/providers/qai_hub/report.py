"""The vendor's profile as our document: microseconds and bytes in, milliseconds and MB out, nothing made up."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

from embedl_hub.onnxruntime.profiling import compute_unit
from embedl_hub.toolchain.profiles import log_metrics
from embedl_hub.toolchain.refusal import RefusedError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from embedl_hub.core.context import HubContext

_FOR_P99 = 100


Sources: TypeAlias = "Callable[[Sequence[Mapping[str, Any]]], Sequence[Sequence[str]]]"


def document_of(raw: Mapping[str, Any], job: Any, device: Any, runtime: str, sources: Sources) -> dict[str, Any]:  # noqa: ANN401 - the vendor's objects
    """Return our document for the vendor's profile.

    Args:
        raw: What the vendor's client downloaded.
        job: The vendor's job.
        device: The vendor's device.
        runtime: What ran the model there.
        sources: Gives the source's nodes of each layer.
    """
    summary, detail = raw.get("execution_summary"), raw.get("execution_detail") or ()
    if not isinstance(summary, Mapping) or not _is_table(detail):
        raise RefusedError(f"Qualcomm AI Hub: the profile of job {job.job_id} has an unknown form. See {job.url}")
    times = summary.get("all_inference_times") or ()
    numbers = [_number(time) for time in times] if isinstance(times, list | tuple) else [None]
    samples = [time for time in numbers if time is not None]
    estimate = _number(summary.get("estimated_inference_time"))
    if len(samples) != len(numbers) or (not samples and estimate is None):
        raise RefusedError(
            f"Qualcomm AI Hub: the profile of job {job.job_id} holds no inference time, or one that is no time. "
            f"See {job.url}"
        )
    memory = _number(summary.get("estimated_inference_peak_memory"))
    return {
        "format": 1,
        "tool": {"name": "qai_hub", "job_id": job.job_id, "url": job.url},
        "runtime": {"name": runtime, "version": None, "available": []},
        "place": device.name,
        "latency_ms": latency_ms(samples, estimate),
        "estimated_inference_time_ms": _scaled(estimate, 1e-3),
        "load_time_ms": _scaled(_number(summary.get("warm_load_time")), 1e-3),
        "first_load_time_ms": _scaled(_number(summary.get("first_load_time")), 1e-3),
        "first_latency_ms": samples[0] / 1e3 if samples else None,
        "samples_us": samples,
        "warmup_us": [],
        "iterations": len(samples) or None,
        "warmup": None,
        "verdict": "indicative",
        "verdict_reason": "measured in the vendor's cloud, which tells nothing of clocks, temperature or load",
        "peak_memory_mb": _scaled(memory, 1e-6),
        "memory_method": "estimated_inference_peak_memory of the vendor's profile",
        "layers": {"rows": _rows(detail, sources), "runs": None},
        "placement": None,
        "environment": {"board": {"model": device.name, "system": device.os}},
        "method": {"clock": "the vendor's", "percentile_rule": "nearest rank"},
    }


def latency_ms(samples_us: Sequence[float], estimate_us: float | None) -> dict[str, float | None]:
    """Return the headline numbers of the samples; without samples only the vendor's one figure."""
    if not samples_us:
        nothing = dict.fromkeys(("median", "p90", "p99", "min", "max", "std"))
        return {"mean": _scaled(estimate_us, 1e-3), **nothing}
    ordered = sorted(samples_us)

    def rank(percent: int) -> float:
        return ordered[max(0, -(-percent * len(ordered) // 100) - 1)] / 1e3

    return {
        "mean": statistics.fmean(ordered) / 1e3,
        "median": rank(50),
        "p90": rank(90),
        "p99": rank(99) if len(ordered) >= _FOR_P99 else None,
        "min": ordered[0] / 1e3,
        "max": ordered[-1] / 1e3,
        "std": statistics.stdev(ordered) / 1e3 if len(ordered) > 1 else 0.0,
    }


def _rows(detail: Sequence[Mapping[str, Any]], sources: Sources) -> list[dict[str, Any]]:
    rows = [{"name": str(row.get("name", "")), "op_type": str(row.get("type", ""))} for row in detail]
    times = [_number(row.get("execution_time")) for row in detail]
    total = sum(time for time in times if time is not None)
    return [
        {
            **row,
            "provider": "",
            "compute_unit": str(layer.get("compute_unit", "UNSPECIFIED")),
            "time_ms": _scaled(time, 1e-3),
            "share": time / total if time is not None and total else None,
            "cycles": layer.get("execution_cycles"),
            "source_nodes": list(names),
            "added_by_runtime": not names,
        }
        for row, layer, time, names in zip(rows, detail, times, sources(rows), strict=True)
    ]


def check_units(document: Mapping[str, Any], required: str | None) -> None:
    """Refuse layers that ran elsewhere than on the unit of the execution provider that was required."""
    if required is None:
        return
    unit = compute_unit(required)
    elsewhere = [row for row in document["layers"]["rows"] if row["compute_unit"] != unit]
    if elsewhere or not document["layers"]["rows"]:
        some = ", ".join(f"{row['name']} ({row['compute_unit']})" for row in elsewhere[:5]) or "no layer is known"
        raise RefusedError(
            f"{required} was required, which runs on the {unit}, but {len(elsewhere)} of "
            f"{len(document['layers']['rows'])} layers ran elsewhere: {some}."
        )


def log_document(ctx: HubContext, raw: Mapping[str, Any], document: Mapping[str, Any]) -> None:
    """Keep the vendor's profile and ours."""
    for name, file_name, content in (("raw", "qai_hub_profile.json", raw), ("output_file", "profile.json", document)):
        path = ctx.artifact_dir / file_name
        path.write_text(json.dumps(content, indent=1), encoding="utf-8")
        ctx.client.log_artifact(path, name=name)
    log_metrics(ctx, document)


def _is_table(detail: object) -> bool:
    return isinstance(detail, list | tuple) and all(isinstance(row, Mapping) for row in detail)


def _number(value: object) -> float | None:
    """Return a time or a size as a number; None for what is none."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value < 0:
        return None
    return float(value)


def _scaled(value: float | None, factor: float) -> float | None:
    return None if value is None else value * factor
