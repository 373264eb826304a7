"""Invoke: data checked here, run by the device program, outputs back as arrays and as one file."""

from __future__ import annotations

from typing import TYPE_CHECKING

from embedl_hub.core.invoke import InvokeError, ONNXRuntimeInvocationResult
from embedl_hub.onnxruntime.kernels import tell_kernels
from embedl_hub.onnxruntime.place import settings
from embedl_hub.paths import RemotePath
from embedl_hub.toolchain.answers import compiled_names, infer, log_input_data, log_output, original_names
from embedl_hub.toolchain.model import check_data, inputs_of, model_file, precision_of, read_graph
from embedl_hub.toolchain.refusal import refusals_as

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np

    from embedl_hub.core.compile import ONNXRuntimeCompiledModel
    from embedl_hub.core.context import HubContext
    from embedl_hub.core.device import ONNXRuntimeConfig
    from embedl_hub.toolchain.place import Place


def invoke_model(
    ctx: HubContext,
    place: Place[ONNXRuntimeConfig],
    model: ONNXRuntimeCompiledModel,
    input_data: Mapping[str, np.ndarray],
    *,
    use_compiled_names: bool,
) -> ONNXRuntimeInvocationResult:
    """Run a model on a place."""
    with refusals_as(InvokeError):
        ctx.client.log_artifact(model.path, name="input", ctx=ctx)
        ctx.client.log_param("$runtime", "onnx")
        local = model.path.to_local(ctx).local()
        data = compiled_names(input_data, {} if use_compiled_names else model.input_name_mapping)
        compiled = read_graph(local)
        ctx.client.log_param("precision", precision_of(compiled))
        check_data(inputs_of(compiled), data, "input_data")
        log_input_data(ctx, input_data)
        entry = RemotePath(place.send(model.path))
        entry = entry / model_file(local).name if local.is_dir() else entry
        answer, told = infer(place, entry, data, settings(place.config))
        output = original_names(answer, {} if use_compiled_names else model.output_name_mapping)
    ctx.client.log_param("runtime_version", told.get("runtime_version"))
    tell_kernels(ctx, place, told, local)
    log_output(ctx, output)
    return ONNXRuntimeInvocationResult.from_current_run(ctx, output=output)
