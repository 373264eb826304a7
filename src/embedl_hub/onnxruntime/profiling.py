"""Profile: measured by the device program where the model runs; its document completed and kept here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from embedl_hub.core.profile import ONNXRuntimeProfilingResult, ProfileError
from embedl_hub.onnxruntime.kernels import tell_kernels
from embedl_hub.onnxruntime.layers import map_layers
from embedl_hub.onnxruntime.place import settings
from embedl_hub.paths import RemotePath
from embedl_hub.toolchain.model import inputs_of, model_file, precision_of, read_graph
from embedl_hub.toolchain.modules import source_of, with_modules
from embedl_hub.toolchain.profiles import check_format, data_arguments, log_document
from embedl_hub.toolchain.program import call, plan_arguments
from embedl_hub.toolchain.refusal import refusals_as

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np
    import onnx

    from embedl_hub.core.compile import ONNXRuntimeCompiledModel
    from embedl_hub.core.context import HubContext
    from embedl_hub.core.device import ONNXRuntimeConfig
    from embedl_hub.toolchain.place import Place

_UNITS = {
    "CPU": "CPU", "XNNPACK": "CPU", "Dnnl": "CPU", "ACL": "CPU", "ArmNN": "CPU", "CUDA": "GPU", "Tensorrt": "GPU",
    "NvTensorRTRTX": "GPU", "ROCM": "GPU", "MIGraphX": "GPU", "Dml": "GPU", "WebGpu": "GPU", "JS": "GPU",
    "QNN": "NPU", "VitisAI": "NPU", "RKNPU": "NPU", "CANN": "NPU", "VSINPU": "NPU",
}  # fmt: skip
_INTEGER_KERNELS = ("QLinear", "QGemm", "QAttention", "DynamicQuantize")
_MOVERS = frozenset({
    "QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear", "ReorderInput", "ReorderOutput", "Transpose", "Cast",
    "Reshape", "Identity", "Flatten", "MemcpyToHost", "MemcpyFromHost", "Unsqueeze", "Squeeze", "MaxPool", "Slice",
    "Concat", "Gather", "Shape",
})  # fmt: skip


def profile_model(
    ctx: HubContext,
    place: Place[ONNXRuntimeConfig],
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
        ctx.client.log_param("precision", precision_of(compiled))
        inputs = inputs_of(compiled)
        words = data_arguments(place, inputs, input_data)
        entry = RemotePath(place.send(model.path))
        entry = entry / model_file(local).name if local.is_dir() else entry
        trace = RemotePath(place.folder) / "trace.json"
        if require_provider is not None:
            words += ["--require-provider", require_provider]
        document = call(
            place,
            "profile",
            [
                "--model",
                str(entry),
                "--keep-trace",
                str(trace),
                *words,
                *settings(place.config),
                *plan_arguments(place.config),
            ],
        )
        check_format(document, place)
        if place.config.layer_runs > 0:
            place.get(trace, ctx.artifact_dir / "trace.json")
            ctx.client.log_artifact(ctx.artifact_dir / "trace.json", name="trace")
        document = completed(document, compiled, source_of(ctx, model), place)
    log_document(ctx, document)
    tell_kernels(ctx, place, document, local)
    placement = document["placement"] or {}
    ctx.client.log_param("nodes_by_execution_provider", {name: len(nodes) for name, nodes in placement.items()})
    return ONNXRuntimeProfilingResult.from_current_run(ctx)


def completed(
    document: Mapping[str, Any],
    compiled: onnx.ModelProto,
    source: onnx.ModelProto | None,
    place: Place[ONNXRuntimeConfig],
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
    told = {
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
                    "integer": computes_in_integers(row["op_type"]),
                }
                for row, names in zip(rows, origins, strict=True)
            ],
        },
        "placement": placement or None,
    }
    return with_modules(told, origin)


def computes_in_integers(op_type: str) -> bool | None:
    """Say whether a kernel of ONNX Runtime computes in integers; None for one that only moves or converts."""
    if op_type in _MOVERS:
        return None
    return op_type.startswith(_INTEGER_KERNELS) or op_type.endswith(("Integer", "IntegerToFloat"))


def compute_unit(provider: str) -> str:
    """Return what an execution provider computes on; its own name where that depends."""
    name = provider.removesuffix("ExecutionProvider")
    return _UNITS.get(name, name or "unknown")
