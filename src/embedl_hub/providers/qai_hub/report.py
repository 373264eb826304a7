"""The vendor's profile as our document: microseconds and bytes in, milliseconds and MB out, nothing made up."""

from __future__ import annotations

import json
import statistics
from typing import TYPE_CHECKING, Any

from embedl_hub.core.profile import ONNXRuntimeProfilingResult
from embedl_hub.onnxruntime.layers import map_layers
from embedl_hub.onnxruntime.profiling import compute_unit
from embedl_hub.toolchain.model import name_nodes
from embedl_hub.toolchain.profiles import log_metrics
from embedl_hub.toolchain.refusal import RefusedError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import onnx

    from embedl_hub.core.context import HubContext

_FOR_P99 = 100


def document_of(raw: Mapping[str, Any], job: Any, device: Any, graph: onnx.ModelProto) -> dict[str, Any]:  # noqa: ANN401 - the vendor's objects
    """Return our document for the vendor's profile."""
    summary = raw["execution_summary"]
    samples = [float(time) for time in summary.get("all_inference_times") or ()]
    estimate = summary.get("estimated_inference_time")
    if not samples and estimate is None:
        raise RefusedError(f"Qualcomm AI Hub: the profile of job {job.job_id} holds no inference time. See {job.url}")
    memory = summary.get("estimated_inference_peak_memory")
    name_nodes(graph)
    return {
        "format": 1,
        "tool": {"name": "qai_hub", "job_id": job.job_id, "url": job.url},
        "runtime": {"name": "onnxruntime", "version": None, "available": []},
        "place": device.name,
        "latency_ms": latency_ms(samples, estimate),
        "estimated_inference_time_ms": _scaled(estimate, 1e-3),
        "load_time_ms": _scaled(summary.get("warm_load_time"), 1e-3),
        "first_load_time_ms": _scaled(summary.get("first_load_time"), 1e-3),
        "first_latency_ms": samples[0] / 1e3 if samples else None,
        "samples_us": samples,
        "warmup_us": [],
        "iterations": len(samples) or None,
        "warmup": None,
        "verdict": "indicative",
        "verdict_reason": "measured in the vendor's cloud, which tells nothing of clocks, temperature or load",
        "peak_memory_mb": _scaled(memory, 1e-6),
        "memory_method": "estimated_inference_peak_memory of the vendor's profile",
        "layers": {"rows": _rows(raw.get("execution_detail") or (), graph), "runs": None},
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


def _rows(detail: Sequence[Mapping[str, Any]], graph: onnx.ModelProto) -> list[dict[str, Any]]:
    rows = [{"name": str(row.get("name", "")), "op_type": str(row.get("type", ""))} for row in detail]
    times = [row.get("execution_time") for row in detail]
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
        for row, layer, time, names in zip(rows, detail, times, map_layers(rows, graph, graph), strict=True)
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


def log_document(ctx: HubContext, raw: Mapping[str, Any], document: Mapping[str, Any]) -> ONNXRuntimeProfilingResult:
    """Keep the vendor's profile and ours, and return the result."""
    for name, file_name, content in (("raw", "qai_hub_profile.json", raw), ("output_file", "profile.json", document)):
        path = ctx.artifact_dir / file_name
        path.write_text(json.dumps(content, indent=1), encoding="utf-8")
        ctx.client.log_artifact(path, name=name)
    log_metrics(ctx, document)
    return ONNXRuntimeProfilingResult.from_current_run(ctx)


def _scaled(value: float | None, factor: float) -> float | None:
    return None if value is None else value * factor
