"""ONNX Runtime on Qualcomm's devices: compile, quantize, profile and inference jobs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from embedl_hub.clouds.qai_hub import jobs
from embedl_hub.clouds.qai_hub.service import Service
from embedl_hub.core.compile import CompileError
from embedl_hub.core.invoke import InvokeError
from embedl_hub.core.profile import ProfileError, log_document
from embedl_hub.machine import program
from embedl_hub.machine.machine import scratch_folder
from embedl_hub.models import onnx_file
from embedl_hub.models.module_names import with_modules
from embedl_hub.refusal import RefusedError, refusals_as
from embedl_hub.toolchains.onnxruntime.components import (
    ONNXRuntimeCompiledModel,
    ONNXRuntimeCompiler,
    ONNXRuntimeInvocationResult,
    ONNXRuntimeInvoker,
    ONNXRuntimeProfiler,
    ONNXRuntimeProfilingResult,
)
from embedl_hub.toolchains.onnxruntime.layers import map_layers
from embedl_hub.toolchains.onnxruntime.profile import log_and_read

if TYPE_CHECKING:
    import numpy as np
    import onnx

    from embedl_hub.core.compile import CalibrationData
    from embedl_hub.core.context import HubContext

_RANGES = {None: "", "minmax": "--range_scheme min_max"}


def compile_model(
    ctx: HubContext,
    onnx_path: Path,
    *,
    device: str | None,
    input_shape: tuple[int, ...] | None,
    calibration_data: CalibrationData | None,
    calibration_method: str | None,
    per_channel: bool,
    quantize_io: bool,
) -> ONNXRuntimeCompiledModel:
    """Compile in the cloud; with calibration data a quantize job comes first, by the vendor's own scheme."""
    with refusals_as(CompileError), scratch_folder() as scratch:
        if per_channel or calibration_method not in _RANGES:
            raise RefusedError(
                "Qualcomm AI Hub chooses scales itself: leave per_channel out, and calibration_method too unless it is "
                "'minmax'."
            )
        ranges = _RANGES[calibration_method]
        wanted = jobs.CompileOptions("onnx", input_shape, calibration_data, quantize_io, ranges)
        fetched = jobs.compile_model(ctx, ONNXRuntimeCompiler, device, onnx_path, scratch, wanted)
        compiled = jobs.unpacked(fetched.path, ctx.artifact_dir / f"{onnx_path.stem}.compiled.onnx")
        graph = onnx_file.read_graph(compiled)
        names = {
            "input_name_mapping": jobs.renamed(fetched.inputs, onnx_file.inputs_of(graph)),
            "output_name_mapping": jobs.renamed(fetched.outputs, onnx_file.outputs_of(graph)),
        }
    ctx.client.log_artifact(compiled, name="path")
    ctx.client.run.log_batch({"precision": onnx_file.precision_of(graph), **names})
    return ONNXRuntimeCompiledModel.from_current_run(ctx)


def profile_model(
    ctx: HubContext,
    model: ONNXRuntimeCompiledModel,
    *,
    device: str | None,
    require_provider: str | None,
    input_data: Mapping[str, np.ndarray] | None,
    until: str | None,
) -> ONNXRuntimeProfilingResult:
    """Profile in the cloud; ``require_provider`` is proven by the compute units the vendor reports."""
    with refusals_as(ProfileError), scratch_folder() as scratch:
        program.refuse_until(until, None, "Qualcomm AI Hub")
        packed, graph = _packed(ctx, model, scratch)
        data = None if input_data is None else jobs.data_entries(input_data, onnx_file.inputs_of(graph))
        service = Service(ctx, device, ONNXRuntimeProfiler, ProfileError)
        uploaded = service.upload_model(packed)
        entries = None if data is None else service.upload_data(data)
        job, raw = service.profile(uploaded, entries)
        onnx_file.name_nodes(graph)
        document = jobs.document_of(
            raw, job, service.device, "onnxruntime", lambda rows: map_layers(rows, graph, graph)
        )
        document = with_modules(document, graph)
        jobs.keep_raw(ctx, raw)
        log_document(ctx, document)
        result = ONNXRuntimeProfilingResult.from_document(ctx, document)
        jobs.check_units(document, require_provider)
    return result


def invoke_model(
    ctx: HubContext,
    model: ONNXRuntimeCompiledModel,
    input_data: Mapping[str, np.ndarray],
    *,
    device: str | None,
    use_compiled_names: bool,
) -> ONNXRuntimeInvocationResult:
    """Run in the cloud; one entry per batch."""
    with refusals_as(InvokeError), scratch_folder() as scratch:
        packed, graph = _packed(ctx, model, scratch)
        named = program.compiled_names(input_data, {} if use_compiled_names else model.input_name_mapping)
        entries = jobs.data_entries(named, onnx_file.inputs_of(graph))
        program.log_input_data(ctx, input_data)
        outputs = jobs.run_model(ctx, ONNXRuntimeInvoker, device, packed, entries)
        output = program.original_names(outputs, {} if use_compiled_names else model.output_name_mapping)
    program.log_output(ctx, output)
    return ONNXRuntimeInvocationResult.from_current_run(ctx, output=output)


def _packed(ctx: HubContext, model: ONNXRuntimeCompiledModel, scratch: Path) -> tuple[Path, onnx.ModelProto]:
    """Return a compiled model as one file for the cloud, and its graph."""
    local, graph = log_and_read(ctx, model)
    if not local.is_dir():
        return local, graph
    return onnx_file.write_model(onnx_file.read_model(local), scratch / f"{local.stem}.onnx"), graph
