"""Measure one model or several in turns, or run one, by the device program where it runs; completed and kept here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeGuard

import numpy as np

from embedl_hub.core.document import ProfileDocument
from embedl_hub.core.invoke import InvokeError
from embedl_hub.core.profile import ProfileError, log_document
from embedl_hub.errors import quoted_list
from embedl_hub.machine import program
from embedl_hub.machine.driver import Driver
from embedl_hub.machine.machine import Machine, Runtime
from embedl_hub.machine.memory import foresee_memory, told_memory, with_memory
from embedl_hub.models.module_names import source_of, with_modules
from embedl_hub.models.onnx_file import Tensor, check_data
from embedl_hub.refusal import RefusedError, refusals_as
from embedl_hub.toolchains.tflite.components import TFLiteInvocationResult, TFLiteProfilingResult
from embedl_hub.toolchains.tflite.config import EmbedlLiteRTConfig, LiteRTConfig
from embedl_hub.toolchains.tflite.converter import as_converted, as_source
from embedl_hub.toolchains.tflite.graph import read_graph
from embedl_hub.toolchains.tflite.memory.predict import measured_memory, plan_file

if TYPE_CHECKING:
    from embedl_hub.core.context import HubContext
    from embedl_hub.core.profile import PairedResult
    from embedl_hub.toolchains.tflite.components import TFLiteCompiledModel
    from embedl_hub.toolchains.tflite.graph import Graph

RUNTIME = Runtime(
    "LiteRT", "tflite", module="embedl_litert", packages="numpy and ai-edge-litert", extra="tflite",
    extra_of_program="litert", board_config="EmbedlLiteRTConfig",
    after_a_crash="xnnpack=False in its config or another version of ai-edge-litert may do.",
)  # fmt: skip


def has_benchmark(machine: Machine[LiteRTConfig]) -> TypeGuard[Machine[EmbedlLiteRTConfig]]:
    """Tell whether a machine is a board that measures with Google's ``benchmark_model``."""
    config = machine.config
    return not machine.is_local and isinstance(config, EmbedlLiteRTConfig) and config.benchmark_model_path is not None


def settings(config: LiteRTConfig) -> list[str]:
    """Return the arguments that every command with a model takes."""
    args = [] if config.threads is None else ["--threads", str(config.threads)]
    return args if config.xnnpack else [*args, "--no-xnnpack"]


def _read_inputs(path: Path) -> tuple[Tensor, ...]:
    return read_graph(path).inputs


def _refusal(machine: Machine[LiteRTConfig]) -> str | None:
    if not has_benchmark(machine):
        return None
    return (
        f"{machine.title.capitalize()} is configured with benchmark_model, which measures one model by itself and "
        "knows no other way. Use a device with ai-edge-litert."
    )


DRIVER = Driver(
    RUNTIME, (LiteRTConfig, EmbedlLiteRTConfig), lambda machine: settings(machine.config), _read_inputs, _refusal
)


def profile_model(
    ctx: HubContext, machine: Machine[LiteRTConfig], model: TFLiteCompiledModel, *, until: str | None
) -> TFLiteProfilingResult:
    """Measure a model on a machine with the device program."""
    with refusals_as(ProfileError):
        graph = log_model(ctx, model)
        args = [*program.data_arguments(machine, graph.inputs, None), *settings(machine.config)]
        local = ctx.bring_here(model.path)
        predicted = foresee_memory(ctx, machine, lambda: plan_file(local, machine.config))
        answer = program.profile_there(machine, RUNTIME, machine.send(model.path), args, until)
        measured = measured_memory(told_memory(answer, machine), local)
    document = completed(ProfileDocument.from_json(answer), graph, model, machine.title)
    return keep_profile(ctx, model, with_memory(document, measured, predicted))


def keep_profile(ctx: HubContext, model: TFLiteCompiledModel, document: ProfileDocument) -> TFLiteProfilingResult:
    """Keep a document with the modules that its source names, and return the result."""
    document = with_modules(document, source_of(ctx, model))
    log_document(ctx, document)
    return TFLiteProfilingResult.from_document(ctx, document)


def log_model(ctx: HubContext, model: TFLiteCompiledModel) -> Graph:
    """Record which model is measured or run, and read it."""
    graph = read_graph(program.log_model(ctx, model, RUNTIME.name))
    ctx.client.log_param("precision", graph.precision)
    return graph


def completed(document: ProfileDocument, graph: Graph, model: TFLiteCompiledModel, place: str) -> ProfileDocument:
    """Return a document with its layers led back to the source model, where the runtime's own operators ran.

    A delegate fuses and reorders without telling which operators it took, so its layers stand for themselves.
    """
    sources, rows = model.source_of_tensors, []
    for row in document.rows:
        node = row.extra.get("node")
        names = _sources(node, graph, sources)
        # A layer that tells no operator stands for some of the model's, nobody knows which.
        is_added = not names and isinstance(node, int)
        rows.append(replace(row, compute_unit=row.compute_unit or "CPU", source_nodes=names, added_by_runtime=is_added))
    source = {"nodes": [], "is_compiled_model": not sources, "nodes_without_layer": []}
    return replace(document.with_rows(rows).with_facts(source=source), place=place)


def _sources(node: object, graph: Graph, sources: Mapping[str, str]) -> tuple[str, ...]:
    if not isinstance(node, int) or not 0 <= node < len(graph.operators):
        return ()
    names = (sources.get(tensor) for tensor in graph.operators[node].outputs)
    return tuple(name for name in names if name)


def pair_models(
    ctx: HubContext, machine: Machine[LiteRTConfig], models: Sequence[TFLiteCompiledModel], *, samples: int
) -> PairedResult:
    """Measure models in turns on a machine."""
    if has_benchmark(machine):
        raise ProfileError(
            f"{machine.title.capitalize()} is configured with benchmark_model, which measures one model in a process "
            "and cannot take turns. Use a device with ai-edge-litert, or compare profiles with embedl-hub gate."
        )
    with refusals_as(ProfileError):
        args = settings(machine.config)
        return program.measure_in_turns(ctx, machine, RUNTIME, models, _read_inputs, args, samples=samples)


def invoke_model(
    ctx: HubContext,
    machine: Machine[LiteRTConfig],
    model: TFLiteCompiledModel,
    input_data: Mapping[str, np.ndarray],
    *,
    use_compiled_names: bool,
) -> TFLiteInvocationResult:
    """Run a model on a machine."""
    if has_benchmark(machine):
        raise InvokeError(
            f"{machine.title.capitalize()} is configured with benchmark_model, which measures and does not give "
            "outputs back. Invoke on a device with ai-edge-litert, or on this machine."
        )
    with refusals_as(InvokeError):
        graph = log_model(ctx, model)
        data = to_compiled(model, graph, input_data, use_compiled_names=use_compiled_names)
        program.log_input_data(ctx, input_data)
        foresee_memory(ctx, machine, lambda: plan_file(ctx.bring_here(model.path), machine.config))
        outputs, _ = program.infer(ctx, machine, RUNTIME, machine.send(model.path), data, settings(machine.config))
        output = to_original(model, outputs, use_compiled_names=use_compiled_names)
    program.log_output(ctx, output)
    return TFLiteInvocationResult.from_current_run(ctx, output=output)


def to_compiled(
    model: TFLiteCompiledModel, graph: Graph, data: Mapping[str, np.ndarray], *, use_compiled_names: bool
) -> dict[str, np.ndarray]:
    """Return the user's arrays as the converted model takes them.

    Under original names arrays have the original layout and numbers; under compiled names they are taken as they are.
    """
    tensors = [] if use_compiled_names else _tensors(model, "inputs")
    if not tensors:
        check_data(graph.inputs, data, "input_data")
        return {name: np.asarray(array) for name, array in data.items()}
    _check_names(data, tensors)
    own = {tensor["name"]: tensor for tensor in tensors}
    by_compiled = {tensor["compiled_name"]: tensor for tensor in tensors if tensor["compiled_name"] not in own}
    given = {name: np.asarray(array) for name, array in data.items() if name in own}
    already = {name: np.asarray(array) for name, array in data.items() if name in by_compiled}
    if twice := {by_compiled[name]["name"] for name in already} & set(given):
        raise RefusedError(f"Input {quoted_list(twice)} is given twice, under its original and its compiled name.")
    wanted = [_declared(tensor, given) for tensor in tensors if tensor["compiled_name"] not in already]
    check_data(wanted, given, "input_data")
    check_data([tensor for tensor in graph.inputs if tensor.name in already], already, "input_data")
    return {**already, **{own[name]["compiled_name"]: as_converted(own[name], array) for name, array in given.items()}}


def to_original(
    model: TFLiteCompiledModel, output: Mapping[str, np.ndarray], *, use_compiled_names: bool
) -> dict[str, np.ndarray]:
    """Return the converted model's answers under the original names, in the original layout and numbers."""
    tensors = {tensor["compiled_name"]: tensor for tensor in _tensors(model, "outputs")}
    if use_compiled_names or not tensors:
        return dict(output)
    return {tensors[name]["name"]: as_source(tensors[name], array) for name, array in output.items()}


def _tensors(model: TFLiteCompiledModel, kind: str) -> list[dict[str, Any]]:
    return list(model.tensors.get(kind, ()))


def _check_names(data: Mapping[str, np.ndarray], tensors: Sequence[Mapping[str, Any]]) -> None:
    before, now = {tensor["name"] for tensor in tensors}, {tensor["compiled_name"] for tensor in tensors}
    if unknown := set(data) - before - now:
        raise RefusedError(
            f"{quoted_list(unknown)} is no input of the model. Its inputs were called {quoted_list(before)}, the "
            f"compiler made {quoted_list(now)} of them."
        )


def _declared(tensor: Mapping[str, Any], given: Mapping[str, np.ndarray]) -> Tensor:
    """Return an input as the source declares it; integers that are already in the model's own format will do too."""
    array = given.get(tensor["name"])
    is_ready = array is not None and tensor["scale"] and array.dtype.name == tensor["compiled_dtype"]
    return Tensor(tensor["name"], tensor["compiled_dtype"] if is_ready else tensor["dtype"], tuple(tensor["shape"]))
