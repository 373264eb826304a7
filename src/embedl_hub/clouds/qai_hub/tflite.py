"""TFLite on Qualcomm's devices: compile, quantize, profile and inference jobs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from embedl_hub.clouds.qai_hub import jobs
from embedl_hub.clouds.qai_hub.service import Service
from embedl_hub.core.compile import CompileError
from embedl_hub.core.invoke import InvokeError
from embedl_hub.core.profile import ProfileError
from embedl_hub.machine import program
from embedl_hub.machine.machine import scratch_folder
from embedl_hub.refusal import RefusedError, refusals_as
from embedl_hub.toolchains.tflite import profile as tflite
from embedl_hub.toolchains.tflite.components import (
    TFLiteCompiledModel,
    TFLiteCompiler,
    TFLiteInvocationResult,
    TFLiteInvoker,
    TFLiteProfiler,
    TFLiteProfilingResult,
)
from embedl_hub.toolchains.tflite.converter import axes_between, described
from embedl_hub.toolchains.tflite.graph import Graph, read_graph

if TYPE_CHECKING:
    import numpy as np

    from embedl_hub.core.compile import CalibrationData
    from embedl_hub.core.context import HubContext
    from embedl_hub.core.document import LayerRow
    from embedl_hub.models.onnx_file import Tensor


def compile_model(
    ctx: HubContext,
    onnx_path: Path,
    *,
    device: str | None,
    input_shape: tuple[int, ...] | None,
    calibration_data: CalibrationData | None,
    quantize_io: bool,
) -> TFLiteCompiledModel:
    """Compile in the cloud; with calibration data a quantize job comes first, by the vendor's own scheme."""
    with refusals_as(CompileError), scratch_folder() as scratch:
        if quantize_io and calibration_data is None:
            raise RefusedError("quantize_io is for INT8, which needs calibration_data; give it, or leave it out.")
        wanted = jobs.CompileOptions("tflite", input_shape, calibration_data, quantize_io)
        fetched = jobs.compile_model(ctx, TFLiteCompiler, device, onnx_path, scratch, wanted)
        compiled = jobs.unpacked(fetched.path, ctx.artifact_dir / f"{onnx_path.stem}.tflite")
        graph = read_graph(compiled)
        params = {
            "tensors": {
                "inputs": _tensors(fetched.inputs, graph.inputs, graph),
                "outputs": _tensors(fetched.outputs, graph.outputs, graph),
            },
            "precision": graph.precision,
            "input_name_mapping": jobs.renamed(fetched.inputs, graph.inputs),
            "output_name_mapping": jobs.renamed(fetched.outputs, graph.outputs),
        }
    ctx.client.log_artifact(compiled, name="path")
    ctx.client.run.log_batch(params)
    return TFLiteCompiledModel.from_current_run(ctx)


def profile_model(
    ctx: HubContext, model: TFLiteCompiledModel, *, device: str | None, until: str | None
) -> TFLiteProfilingResult:
    """Profile in the cloud, on data that the vendor makes up."""
    with refusals_as(ProfileError):
        program.refuse_until(until, None, "Qualcomm AI Hub")
        tflite.log_model(ctx, model)
        service = Service(ctx, device, TFLiteProfiler, ProfileError)
        job, raw = service.profile(service.upload_model(ctx.bring_here(model.path)), None)
        sources = model.source_of_tensors

        def source_nodes(rows: Sequence[LayerRow]) -> list[list[str]]:
            return [[sources[row.name]] if row.name in sources else [] for row in rows]

        document = jobs.document_of(raw, job, service.device, "tflite", source_nodes)
        jobs.keep_raw(ctx, raw)
        return tflite.keep_profile(ctx, model, document)


def invoke_model(
    ctx: HubContext,
    model: TFLiteCompiledModel,
    input_data: Mapping[str, np.ndarray],
    *,
    device: str | None,
    use_compiled_names: bool,
) -> TFLiteInvocationResult:
    """Run in the cloud; one entry per batch."""
    with refusals_as(InvokeError):
        graph = tflite.log_model(ctx, model)
        data = tflite.to_compiled(model, graph, input_data, use_compiled_names=use_compiled_names)
        entries = jobs.data_entries(data, graph.inputs)
        program.log_input_data(ctx, input_data)
        outputs = jobs.run_model(ctx, TFLiteInvoker, device, ctx.bring_here(model.path), entries)
        output = tflite.to_original(model, outputs, use_compiled_names=use_compiled_names)
    program.log_output(ctx, output)
    return TFLiteInvocationResult.from_current_run(ctx, output=output)


def _tensors(before: Sequence[Tensor], after: Sequence[Tensor], graph: Graph) -> list[dict[str, object]]:
    """Return tensors before and after; the vendor keeps the order of axes unless its options say otherwise."""
    jobs.renamed(before, after)
    found = []
    for old, new in zip(before, after, strict=True):
        now = [size for size in new.shape if isinstance(size, int)]
        shape = [size if isinstance(size, int) else now[at] for at, size in enumerate(old.shape) if at < len(now)]
        orders = axes_between(shape, now)
        if not orders:
            raise RefusedError(f"Qualcomm AI Hub made {new} of {old}; how its axes are ordered is not known.")
        scale, zero_point = graph.numbers.get(new.name, (None, None))
        facts: dict[str, object] = {"name": new.name, "dtype": new.dtype, "shape": list(new.shape)}
        facts |= {"scale": scale, "zero_point": zero_point}
        found.append(described({"name": old.name, "dtype": old.dtype, "shape": shape}, facts, orders[-1]))
    return found
