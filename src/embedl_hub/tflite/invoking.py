"""Invoke: the user's arrays in the converted model's names, layouts and numbers; its answers back in the user's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from embedl_hub.core.invoke import InvokeError, TFLiteInvocationResult
from embedl_hub.errors import known
from embedl_hub.tflite.converter import as_converted, as_source
from embedl_hub.tflite.place import settings
from embedl_hub.tflite.profiling import log_model
from embedl_hub.toolchain.answers import infer, log_input_data, log_output
from embedl_hub.toolchain.model import Tensor, check_data
from embedl_hub.toolchain.refusal import RefusedError, refusals_as

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from embedl_hub.core.compile import TFLiteCompiledModel
    from embedl_hub.core.context import HubContext
    from embedl_hub.core.device import LiteRTConfig
    from embedl_hub.tflite.graph import Graph
    from embedl_hub.toolchain.place import Place


def invoke_model(
    ctx: HubContext,
    place: Place[LiteRTConfig],
    model: TFLiteCompiledModel,
    input_data: Mapping[str, np.ndarray],
    *,
    use_compiled_names: bool,
) -> TFLiteInvocationResult:
    """Run a model on a place."""
    with refusals_as(InvokeError):
        graph = log_model(ctx, model)
        data = to_compiled(model, graph, input_data, use_compiled_names=use_compiled_names)
        log_input_data(ctx, input_data)
        answer, told = infer(place, place.send(model.path), data, settings(place.config))
        output = to_original(model, answer, use_compiled_names=use_compiled_names)
    ctx.client.log_param("runtime_version", told.get("runtime_version"))
    log_output(ctx, output)
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
        raise RefusedError(f"Input {known(twice)} is given twice, under its original and its compiled name.")
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
            f"{known(unknown)} is no input of the model. Its inputs were called {known(before)}, the compiler made "
            f"{known(now)} of them."
        )


def _declared(tensor: Mapping[str, Any], given: Mapping[str, np.ndarray]) -> Tensor:
    """Return an input as the source declares it; integers that are already in the model's own format will do too."""
    array = given.get(tensor["name"])
    is_ready = array is not None and tensor["scale"] and array.dtype.name == tensor["compiled_dtype"]
    return Tensor(tensor["name"], tensor["compiled_dtype"] if is_ready else tensor["dtype"], tuple(tensor["shape"]))
