"""Measure one model or several in turns, or run one: by the device program where it runs; completed and kept here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from embedl_hub.core.document import MemoryProfile, ProfileDocument
from embedl_hub.core.invoke import InvokeError
from embedl_hub.core.profile import ProfileError, log_document
from embedl_hub.machine import program
from embedl_hub.machine.memory import told_memory
from embedl_hub.models.module_names import source_of, with_modules
from embedl_hub.models.onnx_file import check_data
from embedl_hub.refusal import refusals_as
from embedl_hub.toolchains.openvino.components import OpenVINOInvocationResult, OpenVINOProfilingResult
from embedl_hub.toolchains.openvino.ir import read_graph
from embedl_hub.toolchains.openvino.layers import led_back
from embedl_hub.toolchains.openvino.runtime import DRIVER, RUNTIME, settings

if TYPE_CHECKING:
    import numpy as np
    import onnx

    from embedl_hub.core.context import HubContext
    from embedl_hub.core.profile import PairedResult
    from embedl_hub.machine.machine import Machine
    from embedl_hub.toolchains.openvino.components import OpenVINOCompiledModel
    from embedl_hub.toolchains.openvino.config import OpenVINOConfig
    from embedl_hub.toolchains.openvino.ir import Graph

    Arrays = Mapping[str, np.ndarray]


def profile_model(
    ctx: HubContext,
    machine: Machine[OpenVINOConfig],
    model: OpenVINOCompiledModel,
    *,
    require_provider: str | None,
    input_data: Arrays | None,
    until: str | None,
) -> OpenVINOProfilingResult:
    """Measure a model on a machine."""
    with refusals_as(ProfileError):
        local, graph = _log_and_read(ctx, model)
        args = program.data_arguments(machine, graph.inputs, input_data) + _settings(machine, require_provider)
        entry = program.send_model(machine, model.path, local, RUNTIME.model_suffix)
        answer = program.profile_there(machine, RUNTIME, entry, args, until)
        document = completed(ProfileDocument.from_json(answer), source_of(ctx, model), machine.title)
        document = document.with_facts(memory=MemoryProfile.from_json(told_memory(answer, machine)).as_json())
    log_document(ctx, document)
    log_ran(ctx, answer)
    placement = answer.get("placement") or {}
    ctx.client.log_param("layers_by_device", {name: len(nodes) for name, nodes in placement.items()})
    return OpenVINOProfilingResult.from_document(ctx, document)


def pair_models(
    ctx: HubContext,
    machine: Machine[OpenVINOConfig],
    models: Sequence[OpenVINOCompiledModel],
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
    machine: Machine[OpenVINOConfig],
    model: OpenVINOCompiledModel,
    input_data: Arrays,
    *,
    use_compiled_names: bool,  # noqa: ARG001 - names stay as they are
) -> OpenVINOInvocationResult:
    """Run a model on a machine."""
    with refusals_as(InvokeError):
        local, graph = _log_and_read(ctx, model)
        check_data(graph.inputs, input_data, "input_data")
        program.log_input_data(ctx, input_data)
        entry = program.send_model(machine, model.path, local, RUNTIME.model_suffix)
        output, answer = program.infer(ctx, machine, RUNTIME, entry, input_data, settings(machine))
    log_ran(ctx, answer)
    program.log_output(ctx, output)
    return OpenVINOInvocationResult.from_current_run(ctx, output=output)


def log_ran(ctx: HubContext, answer: Mapping[str, Any]) -> None:
    """Record where a model ran and in what numbers, as the runtime itself says."""
    ran = answer.get("ran")
    if isinstance(ran, dict):
        ctx.client.log_param("ran", ran)


def completed(document: ProfileDocument, source: onnx.ModelProto | None, place: str) -> ProfileDocument:
    """Return the device program's document with layers led back to the source model, where that is known."""
    rows = led_back(document.rows, source)
    covered = {name for row in rows for name in row.source_nodes}
    nodes = [] if source is None else list(source.graph.node)
    facts = {
        "nodes": [{"name": node.name, "op_type": node.op_type} for node in nodes],
        "is_compiled_model": source is None,
        "nodes_without_layer": [node.name for node in nodes if node.name not in covered],
    }
    return with_modules(replace(document.with_rows(rows).with_facts(source=facts), place=place), source)


def _log_and_read(ctx: HubContext, model: OpenVINOCompiledModel) -> tuple[Path, Graph]:
    local = program.log_model(ctx, model, RUNTIME.name)
    graph = read_graph(local)
    ctx.client.log_param("precision", graph.precision)
    return local, graph


def _settings(machine: Machine[OpenVINOConfig], require_provider: str | None) -> list[str]:
    required = [] if require_provider is None else ["--require-provider", require_provider]
    return [*required, *settings(machine)]
