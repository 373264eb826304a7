"""Measure one model or several in turns, or run one: by the device program where it runs; completed and kept here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from embedl_hub.core.component import RunType
from embedl_hub.core.document import LayerRow, ProfileDocument
from embedl_hub.core.invoke import InvokeError
from embedl_hub.core.profile import ProfileError, log_document
from embedl_hub.errors import TrackingError
from embedl_hub.machine import program
from embedl_hub.machine.memory import foresee_memory, told_memory, with_memory
from embedl_hub.models.module_names import source_of, with_modules
from embedl_hub.models.onnx_file import check_data, inputs_of, loose_inputs, precision_of, read_graph
from embedl_hub.refusal import refusals_as
from embedl_hub.toolchains.onnxruntime.components import ONNXRuntimeInvocationResult, ONNXRuntimeProfilingResult
from embedl_hub.toolchains.onnxruntime.layers import map_layers
from embedl_hub.toolchains.onnxruntime.memory.file import predicted_memory
from embedl_hub.toolchains.onnxruntime.memory.measured import measured_memory
from embedl_hub.toolchains.onnxruntime.runtime import DRIVER, RUNTIME, settings, warn_of_kernels

if TYPE_CHECKING:
    import onnx

    from embedl_hub.core.context import HubContext
    from embedl_hub.core.profile import PairedResult
    from embedl_hub.machine.machine import Machine
    from embedl_hub.toolchains.onnxruntime.components import ONNXRuntimeCompiledModel
    from embedl_hub.toolchains.onnxruntime.config import ONNXRuntimeConfig

    Arrays = Mapping[str, np.ndarray]

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
    machine: Machine[ONNXRuntimeConfig],
    model: ONNXRuntimeCompiledModel,
    *,
    require_provider: str | None,
    input_data: Arrays | None,
    until: str | None,
) -> ONNXRuntimeProfilingResult:
    """Measure a model on a machine."""
    with refusals_as(ProfileError):
        local, compiled = log_and_read(ctx, model)
        args = program.data_arguments(machine, inputs_of(compiled), input_data)
        shapes = {name: np.shape(array) for name, array in (input_data or {}).items()}
        predicted = foresee_memory(
            ctx, machine, lambda: predicted_memory(machine, compiled, shapes, _unoptimized(ctx, model, local))
        )
        trace = machine.folder / "trace.json"
        args += ["--keep-trace", str(trace), *_settings(machine, require_provider)]
        answer = program.profile_there(machine, RUNTIME, program.send_model(machine, model.path, local), args, until)
        if machine.config.layer_runs > 0:
            machine.get(trace, ctx.artifact_dir / "trace.json")
            ctx.client.log_artifact(ctx.artifact_dir / "trace.json", name="trace")
        document = completed(ProfileDocument.from_json(answer), compiled, source_of(ctx, model), machine)
        told = told_memory(answer, machine)
        document = with_memory(document, measured_memory(told, compiled, shapes), predicted)
    log_document(ctx, document)
    warn_of_kernels(ctx, machine, answer, local)
    placement = answer.get("placement") or {}
    ctx.client.log_param("nodes_by_execution_provider", {name: len(nodes) for name, nodes in placement.items()})
    return ONNXRuntimeProfilingResult.from_document(ctx, document)


def pair_models(
    ctx: HubContext,
    machine: Machine[ONNXRuntimeConfig],
    models: Sequence[ONNXRuntimeCompiledModel],
    *,
    samples: int,
    require_provider: str | None,
    input_data: Arrays | None,
) -> PairedResult:
    """Measure models in turns on a machine."""
    with refusals_as(ProfileError):
        args = _settings(machine, require_provider)
        return program.measure_in_turns(
            ctx, machine, RUNTIME, models, DRIVER.read_inputs, args, samples=samples, data=input_data
        )


def invoke_model(
    ctx: HubContext,
    machine: Machine[ONNXRuntimeConfig],
    model: ONNXRuntimeCompiledModel,
    input_data: Arrays,
    *,
    use_compiled_names: bool,
) -> ONNXRuntimeInvocationResult:
    """Run a model on a machine."""
    with refusals_as(InvokeError):
        local, compiled = log_and_read(ctx, model)
        mapping = {} if use_compiled_names else model.input_name_mapping
        inputs = inputs_of(compiled)
        given = program.with_elements(input_data, loose_inputs(inputs), mapping)
        data = program.compiled_names(given, mapping)
        check_data(inputs, data, "input_data")
        program.log_input_data(ctx, given)
        shapes = {name: np.shape(array) for name, array in data.items()}
        foresee_memory(
            ctx, machine, lambda: predicted_memory(machine, compiled, shapes, _unoptimized(ctx, model, local))
        )
        entry = program.send_model(machine, model.path, local)
        outputs, answer = program.infer(ctx, machine, RUNTIME, entry, data, settings(machine.config))
        output = program.original_names(outputs, {} if use_compiled_names else model.output_name_mapping)
    warn_of_kernels(ctx, machine, answer, local)
    program.log_output(ctx, output)
    return ONNXRuntimeInvocationResult.from_current_run(ctx, output=output)


def _unoptimized(ctx: HubContext, model: ONNXRuntimeCompiledModel, local: Path) -> Path | None:
    """Return the file of a model that no compiler of ours made, as far as the store tells."""
    store, run_id = ctx.client.store, model.path.run_id
    if store is None or run_id is None:
        return None
    try:
        return None if store.run(run_id).type == RunType.COMPILE else local
    except TrackingError:
        return None  # made elsewhere, and not sent along


def log_and_read(ctx: HubContext, model: ONNXRuntimeCompiledModel) -> tuple[Path, onnx.ModelProto]:
    """Record which model is measured or run, and return its path here and its graph."""
    local = program.log_model(ctx, model, RUNTIME.name)
    graph = read_graph(local)
    ctx.client.log_param("precision", precision_of(graph))
    return local, graph


def _settings(machine: Machine[ONNXRuntimeConfig], require_provider: str | None) -> list[str]:
    required = [] if require_provider is None else ["--require-provider", require_provider]
    return [*required, *settings(machine.config)]


def completed(
    document: ProfileDocument,
    compiled: onnx.ModelProto,
    source: onnx.ModelProto | None,
    machine: Machine[ONNXRuntimeConfig],
) -> ProfileDocument:
    """Return the device program's document with layers and placement led back to the source model."""
    origin = source or compiled
    origins = map_layers(document.rows, compiled, origin)
    rows = [
        replace(
            row,
            compute_unit=compute_unit(row.provider),
            source_nodes=names,
            added_by_runtime=not names,
            integer=computes_in_integers(row.op_type),
        )
        for row, names in zip(document.rows, origins, strict=True)
    ]
    covered = {name for names in origins for name in names}
    mapped = document.with_rows(rows).with_facts(
        source={
            "nodes": [{"name": node.name, "op_type": node.op_type} for node in origin.graph.node],
            "is_compiled_model": source is None,
            "nodes_without_layer": [node.name for node in origin.graph.node if node.name not in covered],
        },
        placement=_placement(document.fact("placement"), compiled, origin),
    )
    return with_modules(replace(mapped, place=machine.title), origin)


def _placement(facts: object, compiled: onnx.ModelProto, origin: onnx.ModelProto) -> dict[str, list[object]] | None:
    """Return the nodes of each execution provider with those of the source that they stand for."""
    placement: dict[str, list[object]] = {}
    for provider, nodes in facts.items() if isinstance(facts, dict) else ():
        mapped = map_layers([LayerRow(node["name"], node["op_type"]) for node in nodes], compiled, origin)
        placement[provider] = [{**node, "source_nodes": list(names)} for node, names in zip(nodes, mapped, strict=True)]
    return placement or None


def computes_in_integers(op_type: str) -> bool | None:
    """Say whether a kernel of ONNX Runtime computes in integers; None for one that only moves or converts."""
    if op_type in _MOVERS:
        return None
    return op_type.startswith(_INTEGER_KERNELS) or op_type.endswith(("Integer", "IntegerToFloat"))


def compute_unit(provider: str) -> str:
    """Return what an execution provider computes on; its own name where that depends."""
    name = provider.removesuffix("ExecutionProvider")
    return _UNITS.get(name, name or "unknown")
