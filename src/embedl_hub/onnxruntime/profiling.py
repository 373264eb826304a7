"""Profile: measured by the device program where the model runs; its document completed and kept here."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from embedl_hub.core.profile import ONNXRuntimeProfilingResult, ProfileError
from embedl_hub.onnxruntime.arrays import write_npz
from embedl_hub.onnxruntime.layers import map_layers
from embedl_hub.onnxruntime.model import check_data, inputs_of, model_file, name_nodes, read_graph
from embedl_hub.onnxruntime.program import call, settings
from embedl_hub.onnxruntime.refusal import RefusedError, refusals_as
from embedl_hub.paths import RemotePath

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy as np
    import onnx

    from embedl_hub.core.compile import ONNXRuntimeCompiledModel
    from embedl_hub.core.context import HubContext
    from embedl_hub.onnxruntime.model import Tensor
    from embedl_hub.onnxruntime.place import Place

_FORMAT = 1
_UNITS = {
    "CPU": "CPU", "XNNPACK": "CPU", "Dnnl": "CPU", "ACL": "CPU", "ArmNN": "CPU", "CUDA": "GPU", "Tensorrt": "GPU",
    "NvTensorRTRTX": "GPU", "ROCM": "GPU", "MIGraphX": "GPU", "Dml": "GPU", "WebGpu": "GPU", "JS": "GPU",
    "QNN": "NPU", "VitisAI": "NPU", "RKNPU": "NPU", "CANN": "NPU", "VSINPU": "NPU",
}  # fmt: skip


def profile_model(
    ctx: HubContext,
    place: Place,
    model: ONNXRuntimeCompiledModel,
    *,
    require_provider: str | None,
    input_data: Mapping[str, np.ndarray] | None,
) -> ONNXRuntimeProfilingResult:
    """Measure a model on a place."""
    with refusals_as(ProfileError):
        ctx.client.log_artifact(model.path, name="input", ctx=ctx)
        ctx.client.log_param("$runtime", "onnx")
        local = model.path.to_local(ctx).local()
        compiled = read_graph(local)
        inputs = inputs_of(compiled)
        words = _data_arguments(place, inputs, input_data)
        entry = RemotePath(place.send(model.path))
        entry = entry / model_file(local).name if local.is_dir() else entry
        trace = RemotePath(place.folder) / "trace.json"
        if require_provider is not None:
            words += ["--require-provider", require_provider]
        document = call(
            place,
            "profile",
            ["--model", str(entry), "--keep-trace", str(trace), *words, *settings(place.config), *_plan(place)],
        )
        if document.get("format") != _FORMAT:
            raise RefusedError(
                f"The device program on {place.title} writes profiles of format {document.get('format')!r}, this hub "
                f"reads {_FORMAT}. Install the same version of edgeproof-device there."
            )
        if place.config.layer_runs > 0:
            place.get(trace, ctx.artifact_dir / "trace.json")
            ctx.client.log_artifact(ctx.artifact_dir / "trace.json", name="trace")
        document = completed(document, compiled, _source(ctx, model), place)
    _log_document(ctx, document)
    return ONNXRuntimeProfilingResult.from_current_run(ctx)


def _data_arguments(place: Place, inputs: Sequence[Tensor], data: Mapping[str, np.ndarray] | None) -> list[str]:
    if data is not None:
        check_data(inputs, data, "input_data")
        path = place.scratch / "data.npz"
        write_npz(path, data)
        return ["--input-dir", str(RemotePath(place.put(path, "data/data.npz")).parent)]
    for tensor in inputs:
        if not tensor.is_fixed:
            wish = ", ".join(str(size) if isinstance(size, int) else "1" for size in tensor.shape)
            raise RefusedError(
                f"Input {tensor} has no fixed shape, so there is nothing to measure. Compile with "
                f"input_shape=({wish}), or profile with input_data={{{tensor.name!r}: ...}}."
            )
    return []


def _plan(place: Place) -> list[str]:
    config = place.config
    return [
        "--iterations", str(config.iterations), "--min-seconds", str(config.min_seconds),
        "--max-seconds", str(config.max_seconds), "--max-warmup-seconds", str(config.max_warmup_seconds),
        "--layer-runs", str(config.layer_runs),
    ]  # fmt: skip


def _source(ctx: HubContext, model: ONNXRuntimeCompiledModel) -> onnx.ModelProto | None:
    """Return the model that was compiled, if it is known and ONNX."""
    if model.input is None:
        return None
    try:
        source = read_graph(model.input.to_local(ctx).local())
    except RefusedError:
        return None
    name_nodes(source)
    return source


def completed(
    document: Mapping[str, Any], compiled: onnx.ModelProto, source: onnx.ModelProto | None, place: Place
) -> dict[str, Any]:
    """Return the device program's document with layers and placement led back to the source model."""
    rows = document["layers"]["rows"]
    origin = source or compiled
    origins = map_layers(rows, compiled, origin)
    placement = {}
    for provider, nodes in (document.get("placement") or {}).items():
        mapped = map_layers(nodes, compiled, origin)
        placement[provider] = [{**node, "source_nodes": list(names)} for node, names in zip(nodes, mapped, strict=True)]
    covered = {name for names in origins for name in names}
    return {
        **document,
        "place": place.title,
        "source": {
            "nodes": [{"name": node.name, "op_type": node.op_type} for node in origin.graph.node],
            "is_compiled_model": source is None,
            "nodes_without_layer": [node.name for node in origin.graph.node if node.name not in covered],
        },
        "layers": {
            **document["layers"],
            "rows": [
                {
                    **row,
                    "compute_unit": compute_unit(row["provider"]),
                    "source_nodes": list(names),
                    "added_by_runtime": not names,
                }
                for row, names in zip(rows, origins, strict=True)
            ],
        },
        "placement": placement or None,
    }


def compute_unit(provider: str) -> str:
    """Return what an execution provider computes on; its own name where that depends."""
    name = provider.removesuffix("ExecutionProvider")
    return _UNITS.get(name, name or "unknown")


def _log_document(ctx: HubContext, document: Mapping[str, Any]) -> None:
    client = ctx.client
    path = ctx.artifact_dir / "profile.json"
    path.write_text(json.dumps(document, indent=1), encoding="utf-8")
    client.log_artifact(path, name="output_file")
    log_metrics(ctx, document)
    placement = document["placement"] or {}
    client.log_param("nodes_by_execution_provider", {name: len(nodes) for name, nodes in placement.items()})


def log_metrics(ctx: HubContext, document: Mapping[str, Any]) -> None:
    """Log what every profile has in common; what is not known is left out."""
    client = ctx.client
    latency = document["latency_ms"]
    metrics = {
        "latency": latency["mean"], "latency_median": latency["median"], "latency_p90": latency["p90"],
        "latency_p99": latency["p99"], "latency_min": latency["min"], "latency_std": latency["std"],
        "fps": 1e3 / latency["mean"] if latency["mean"] else None, "load_time": document["load_time_ms"],
        "first_latency": document["first_latency_ms"], "peak_memory_mb": document["peak_memory_mb"],
        "iterations": document["iterations"], "warmup": document["warmup"],
    }  # fmt: skip
    for name, value in metrics.items():
        if value is not None:
            client.log_metric(name, value)
    client.log_param("verdict", document["verdict"])
    client.log_param("verdict_reason", document["verdict_reason"])
    client.log_param("memory_method", document["memory_method"])
    client.log_param("runtime_version", document["runtime"]["version"])
