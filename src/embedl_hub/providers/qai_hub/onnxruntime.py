"""ONNX Runtime on Qualcomm's devices: compile, quantize, profile and inference jobs."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from embedl_hub.core.compile import CompileError, ONNXRuntimeCompiledModel, ONNXRuntimeCompiler
from embedl_hub.core.component import ProviderType
from embedl_hub.core.invoke import InvokeError, ONNXRuntimeInvocationResult, ONNXRuntimeInvoker
from embedl_hub.core.profile import ONNXRuntimeProfiler, ONNXRuntimeProfilingResult, ProfileError
from embedl_hub.providers.qai_hub.service import TOOLS, Service
from embedl_hub.toolchain.refusal import RefusedError, needed_packages, refusals_as

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np
    import onnx

    from embedl_hub.core.compile import CalibrationData
    from embedl_hub.core.context import HubContext

_RANGES = {None: "", "minmax": "--range_scheme min_max"}


@ONNXRuntimeCompiler.provider(ProviderType.QAI_HUB, tools=TOOLS)
def _compile_onnxruntime(
    ctx: HubContext,
    onnx_path: Path,
    *,
    device: str | None = None,
    input_shape: tuple[int, ...] | None = None,
    calibration_data: CalibrationData | None = None,
    calibration_method: str | None = None,
    per_channel: bool = False,
    quantize_io: bool = False,
) -> ONNXRuntimeCompiledModel:
    """Compile in the cloud; with calibration data a quantize job comes first, by the vendor's own scheme."""
    with needed_packages("ONNX Runtime models", "onnxruntime"):
        from embedl_hub.providers.qai_hub import files  # noqa: PLC0415 - vendor packages on use
        from embedl_hub.providers.qai_hub.compiling import Wishes, compile_model  # noqa: PLC0415
        from embedl_hub.toolchain import model as models  # noqa: PLC0415
    with refusals_as(CompileError), tempfile.TemporaryDirectory(prefix="edgeproof-qai-") as name:
        scratch = Path(name)
        if per_channel or calibration_method not in _RANGES:
            raise RefusedError(
                "Qualcomm AI Hub chooses scales itself: leave per_channel out, and calibration_method too unless it is "
                "'minmax'."
            )
        wishes = Wishes("onnx", input_shape, calibration_data, quantize_io, _RANGES[calibration_method])
        fetched = compile_model(
            ctx, onnx_path, scratch, wishes, lambda: Service(ctx, device, ONNXRuntimeCompiler, CompileError)
        )
        compiled = files.unpacked(fetched.path, ctx.artifact_dir / f"{onnx_path.stem}.compiled.onnx")
        graph = models.read_graph(compiled)
        into = files.renamed(fetched.inputs, models.inputs_of(graph))
        out = files.renamed(fetched.outputs, models.outputs_of(graph))
    ctx.client.log_artifact(compiled, name="path")
    ctx.client.log_param("precision", models.precision_of(graph))
    for key, mapping in (("input_name_mapping", into), ("output_name_mapping", out)):
        ctx.client.log_param(key, mapping)
    return ONNXRuntimeCompiledModel.from_current_run(ctx)


@ONNXRuntimeProfiler.provider(ProviderType.QAI_HUB, tools=TOOLS)
def _profile_onnxruntime(
    ctx: HubContext,
    model: ONNXRuntimeCompiledModel,
    *,
    device: str | None = None,
    require_provider: str | None = None,
    input_data: Mapping[str, np.ndarray] | None = None,
) -> ONNXRuntimeProfilingResult:
    """Profile in the cloud; ``require_provider`` is proven by the compute units the vendor reports."""
    with needed_packages("ONNX Runtime models", "onnxruntime"):
        from embedl_hub.onnxruntime.layers import map_layers  # noqa: PLC0415 - vendor packages on use
        from embedl_hub.providers.qai_hub import files, report  # noqa: PLC0415
        from embedl_hub.toolchain import model as models  # noqa: PLC0415
        from embedl_hub.toolchain.modules import with_modules  # noqa: PLC0415
    with refusals_as(ProfileError), tempfile.TemporaryDirectory(prefix="edgeproof-qai-") as name:
        packed, graph = _packed(ctx, model, Path(name))
        data = None if input_data is None else files.data_entries(input_data, models.inputs_of(graph))
        service = Service(ctx, device, ONNXRuntimeProfiler, ProfileError)
        uploaded = service.upload_model(packed)
        entries = None if data is None else service.upload_data(data)
        job, raw = service.profile(uploaded, entries)
        models.name_nodes(graph)
        document = report.document_of(
            raw, job, service.device, "onnxruntime", lambda rows: map_layers(rows, graph, graph)
        )
        report.log_document(ctx, raw, with_modules(document, graph))
        result = ONNXRuntimeProfilingResult.from_current_run(ctx)
        report.check_units(document, require_provider)
    return result


@ONNXRuntimeInvoker.provider(ProviderType.QAI_HUB, tools=TOOLS)
def _invoke_onnxruntime(
    ctx: HubContext,
    model: ONNXRuntimeCompiledModel,
    input_data: Mapping[str, np.ndarray],
    *,
    device: str | None = None,
    use_compiled_names: bool = False,
) -> ONNXRuntimeInvocationResult:
    """Run in the cloud; one entry per batch."""
    with needed_packages("ONNX Runtime models", "onnxruntime"):
        from embedl_hub.providers.qai_hub import files  # noqa: PLC0415 - vendor packages on use
        from embedl_hub.toolchain import answers  # noqa: PLC0415
        from embedl_hub.toolchain import model as models  # noqa: PLC0415
    with refusals_as(InvokeError), tempfile.TemporaryDirectory(prefix="edgeproof-qai-") as name:
        packed, graph = _packed(ctx, model, Path(name))
        named = answers.compiled_names(input_data, {} if use_compiled_names else model.input_name_mapping)
        entries = files.data_entries(named, models.inputs_of(graph))
        answers.log_input_data(ctx, input_data)
        service = Service(ctx, device, ONNXRuntimeInvoker, InvokeError)
        answer = service.infer(service.upload_model(packed), service.upload_data(entries))
        joined = files.joined(answer)
        output = answers.original_names(joined, {} if use_compiled_names else model.output_name_mapping)
    answers.log_output(ctx, output)
    return ONNXRuntimeInvocationResult.from_current_run(ctx, output=output)


def _packed(ctx: HubContext, model: ONNXRuntimeCompiledModel, scratch: Path) -> tuple[Path, onnx.ModelProto]:
    """Return a compiled model as one file for the cloud, and its graph."""
    from embedl_hub.toolchain import model as models  # noqa: PLC0415 - vendor packages on use

    ctx.client.log_artifact(model.path, name="input", ctx=ctx)
    ctx.client.log_param("$runtime", "onnx")
    local = model.path.to_local(ctx).local()
    graph = models.read_graph(local)
    ctx.client.log_param("precision", models.precision_of(graph))
    if not local.is_dir():
        return local, graph
    return models.write_model(models.read_model(local), scratch / f"{local.stem}.onnx"), graph
