"""Invoke: data checked here, run by the device program, outputs back as arrays and as one file."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from embedl_hub.core.invoke import InvokeError, ONNXRuntimeInvocationResult
from embedl_hub.errors import known
from embedl_hub.onnxruntime.arrays import read_outputs, write_npz
from embedl_hub.onnxruntime.model import check_data, inputs_of, model_file, read_graph
from embedl_hub.onnxruntime.program import call, settings
from embedl_hub.onnxruntime.refusal import RefusedError, refusals_as
from embedl_hub.paths import RemotePath

if TYPE_CHECKING:
    from collections.abc import Mapping

    from embedl_hub.core.compile import ONNXRuntimeCompiledModel
    from embedl_hub.core.context import HubContext
    from embedl_hub.onnxruntime.place import Place


def invoke_model(
    ctx: HubContext,
    place: Place,
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
        check_data(inputs_of(read_graph(local)), data, "input_data")
        log_input_data(ctx, input_data)
        entry = RemotePath(place.send(model.path))
        entry = entry / model_file(local).name if local.is_dir() else entry
        path = place.scratch / "data.npz"
        write_npz(path, data)
        source = RemotePath(place.put(path, "input/data.npz")).parent
        target = RemotePath(place.folder) / "output"
        answer = call(
            place,
            "run-inference",
            ["--model", entry, "--input-dir", source, "--output-dir", target, "--use-npz", *settings(place.config)],
        )
        fetched = place.scratch / "fetched"
        place.get(target, fetched)
        output = original_names(read_outputs(fetched), {} if use_compiled_names else model.output_name_mapping)
    ctx.client.log_param("runtime_version", answer.get("runtime_version"))
    return log_output(ctx, output)


def log_input_data(ctx: HubContext, data: Mapping[str, np.ndarray]) -> None:
    """Keep the data with the run, so that another model can be held against its answers later."""
    path = ctx.artifact_dir / "input_data.npz"
    write_npz(path, data)
    ctx.client.log_artifact(path, name="input_data")


def log_output(ctx: HubContext, output: Mapping[str, np.ndarray]) -> ONNXRuntimeInvocationResult:
    """Keep the outputs as one file and return the result."""
    path = ctx.artifact_dir / "output.npz"
    write_npz(path, output)
    ctx.client.log_artifact(path, name="output_file")
    return ONNXRuntimeInvocationResult.from_current_run(ctx, output=dict(output))


def compiled_names(data: Mapping[str, np.ndarray], mapping: Mapping[str, str]) -> dict[str, np.ndarray]:
    """Return the data under the compiled names; original and compiled ones are taken."""
    now = set(mapping.values())
    named: dict[str, np.ndarray] = {}
    for name, array in data.items():
        if mapping and name not in mapping and name not in now:
            raise RefusedError(
                f"{name!r} is no input of the model. Its inputs were called {known(mapping)}, the compiler made "
                f"{known(now)} of them."
            )
        target = mapping.get(name, name)
        if target in named:
            raise RefusedError(f"Input {target!r} is given twice, under its original and its compiled name.")
        named[target] = np.asarray(array)
    return named


def original_names(output: Mapping[str, np.ndarray], mapping: Mapping[str, str]) -> dict[str, np.ndarray]:
    """Return the outputs under their original names."""
    back = {now: before for before, now in mapping.items()}
    return {back.get(name, name): array for name, array in output.items()}
