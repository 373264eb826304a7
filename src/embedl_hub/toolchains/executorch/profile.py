"""Measure one model or several in turns, or run one, by the device program where it runs; completed and kept here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from embedl_device.readers import UnreadableError, read_json
from embedl_hub.core.document import ProfileDocument
from embedl_hub.core.invoke import InvokeError
from embedl_hub.core.profile import ProfileError, log_document
from embedl_hub.machine import program
from embedl_hub.machine.memory import foresee_memory, told_memory, with_memory
from embedl_hub.models.module_names import source_of, with_modules
from embedl_hub.refusal import refusals_as
from embedl_hub.toolchains.executorch.components import ExecuTorchInvocationResult, ExecuTorchProfilingResult
from embedl_hub.toolchains.executorch.layers import Operator, led_back, read_operators
from embedl_hub.toolchains.executorch.memory import measured_memory, plan_file
from embedl_hub.toolchains.executorch.runtime import DRIVER, RUNTIME, settings

if TYPE_CHECKING:
    import numpy as np

    from embedl_hub.core.context import HubContext
    from embedl_hub.core.profile import PairedResult
    from embedl_hub.machine.machine import Machine
    from embedl_hub.toolchains.executorch.components import ExecuTorchCompiledModel
    from embedl_hub.toolchains.executorch.config import ExecuTorchConfig


def profile_model(
    ctx: HubContext, machine: Machine[ExecuTorchConfig], model: ExecuTorchCompiledModel, *, until: str | None
) -> ExecuTorchProfilingResult:
    """Measure a model on a machine with the device program."""
    with refusals_as(ProfileError):
        operators = log_model(ctx, model)
        local = ctx.bring_here(model.path)
        predicted = foresee_memory(ctx, machine, lambda: plan_file(local))
        answer = program.profile_there(machine, RUNTIME, machine.send(model.path), settings(machine.config), until)
        measured = measured_memory(told_memory(answer, machine), local)
    document = completed(ProfileDocument.from_json(answer), operators, machine.title)
    document = with_memory(document, measured, predicted)
    document = with_modules(document, source_of(ctx, model))
    log_document(ctx, document)
    return ExecuTorchProfilingResult.from_document(ctx, document)


def log_model(ctx: HubContext, model: ExecuTorchCompiledModel) -> tuple[Operator, ...]:
    """Record which model is measured or run, and return what its compilation told of its operators."""
    program.log_model(ctx, model, RUNTIME.name)
    if model.delegation is None:
        return ()
    try:
        told = read_json(ctx.bring_here(model.delegation))
        operators = read_operators(told["operators"])
    except (OSError, UnreadableError, ValueError, KeyError, TypeError, AttributeError):
        # A remark: one that cannot be read leaves the layers as the runtime calls them.
        return ()
    ctx.client.log_param("precision", "int8" if any(each.integer for each in operators) else "float32")
    return operators


def completed(document: ProfileDocument, operators: Sequence[Operator], place: str) -> ProfileDocument:
    """Return a document with its layers led back to the source."""
    rows = led_back(document.rows, operators)
    covered = {node for row in rows for node in row.source_nodes}
    names = dict.fromkeys(node for each in operators for node in each.nodes)
    source = {
        "nodes": [{"name": name, "op_type": ""} for name in names],
        "is_compiled_model": not operators,
        "nodes_without_layer": [name for name in names if name not in covered],
    }
    return replace(document.with_rows(rows).with_facts(source=source), place=place)


def pair_models(
    ctx: HubContext, machine: Machine[ExecuTorchConfig], models: Sequence[ExecuTorchCompiledModel], *, samples: int
) -> PairedResult:
    """Measure models in turns on a machine."""
    with refusals_as(ProfileError):
        args = settings(machine.config)
        return program.measure_in_turns(ctx, machine, RUNTIME, models, DRIVER.read_inputs, args, samples=samples)


def invoke_model(
    ctx: HubContext,
    machine: Machine[ExecuTorchConfig],
    model: ExecuTorchCompiledModel,
    input_data: Mapping[str, np.ndarray],
    *,
    use_compiled_names: bool,  # noqa: ARG001 - the compiler keeps names
) -> ExecuTorchInvocationResult:
    """Run a model on a machine."""
    with refusals_as(InvokeError):
        log_model(ctx, model)
        foresee_memory(ctx, machine, lambda: plan_file(ctx.bring_here(model.path)))
        program.log_input_data(ctx, input_data)
        entry = machine.send(model.path)
        output, _ = program.infer(ctx, machine, RUNTIME, entry, input_data, settings(machine.config))
    program.log_output(ctx, output)
    return ExecuTorchInvocationResult.from_current_run(ctx, output=output)
