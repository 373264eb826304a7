"""TFLite on Qualcomm's devices: compile, quantize, profile and inference jobs."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from embedl_hub.core.compile import CompileError, TFLiteCompiledModel, TFLiteCompiler
from embedl_hub.core.component import ProviderType
from embedl_hub.core.invoke import InvokeError, TFLiteInvocationResult, TFLiteInvoker
from embedl_hub.core.profile import ProfileError, TFLiteProfiler, TFLiteProfilingResult
from embedl_hub.providers.qai_hub.service import TOOLS, Service
from embedl_hub.toolchain.refusal import RefusedError, needed_packages, refusals_as

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy as np

    from embedl_hub.core.compile import CalibrationData
    from embedl_hub.core.context import HubContext
    from embedl_hub.tflite.graph import Graph
    from embedl_hub.toolchain.model import Tensor

_WHAT = ("TFLite models", "tflite")


@TFLiteCompiler.provider(ProviderType.QAI_HUB, tools=TOOLS)
def _compile_tflite(
    ctx: HubContext,
    onnx_path: Path,
    *,
    device: str | None = None,
    input_shape: tuple[int, ...] | None = None,
    calibration_data: CalibrationData | None = None,
    quantize_io: bool = False,
) -> TFLiteCompiledModel:
    """Compile in the cloud; with calibration data a quantize job comes first, by the vendor's own scheme."""
    with needed_packages(*_WHAT):
        from embedl_hub.providers.qai_hub import files  # noqa: PLC0415 - vendor packages on use
        from embedl_hub.providers.qai_hub.compiling import Wishes, compile_model  # noqa: PLC0415
        from embedl_hub.tflite.graph import read_graph  # noqa: PLC0415
    with refusals_as(CompileError), tempfile.TemporaryDirectory(prefix="edgeproof-qai-") as name:
        scratch = Path(name)
        if quantize_io and calibration_data is None:
            raise RefusedError("quantize_io is for INT8, which needs calibration_data; give it, or leave it out.")
        wishes = Wishes("tflite", input_shape, calibration_data, quantize_io)
        fetched = compile_model(
            ctx, onnx_path, scratch, wishes, lambda: Service(ctx, device, TFLiteCompiler, CompileError)
        )
        inputs, outputs = fetched.inputs, fetched.outputs
        compiled = files.unpacked(fetched.path, ctx.artifact_dir / f"{onnx_path.stem}.tflite")
        graph = read_graph(compiled)
        tensors = {"inputs": _tensors(inputs, graph.inputs, graph), "outputs": _tensors(outputs, graph.outputs, graph)}
    ctx.client.log_artifact(compiled, name="path")
    ctx.client.log_param("tensors", tensors)
    ctx.client.log_param("precision", graph.precision)
    for kind, (before, after) in {
        "input": (inputs, graph.inputs),
        "output": (outputs, graph.outputs),
    }.items():
        ctx.client.log_param(f"{kind}_name_mapping", files.renamed(before, after))
    return TFLiteCompiledModel.from_current_run(ctx)


@TFLiteProfiler.provider(ProviderType.QAI_HUB, tools=TOOLS)
def _profile_tflite(ctx: HubContext, model: TFLiteCompiledModel, *, device: str | None = None) -> TFLiteProfilingResult:
    """Profile in the cloud, on data that the vendor makes up."""
    with needed_packages(*_WHAT):
        from embedl_hub.providers.qai_hub import report  # noqa: PLC0415 - vendor packages on use
        from embedl_hub.tflite.profiling import log_model  # noqa: PLC0415
        from embedl_hub.toolchain.modules import source_of, with_modules  # noqa: PLC0415
    with refusals_as(ProfileError):
        log_model(ctx, model)
        service = Service(ctx, device, TFLiteProfiler, ProfileError)
        uploaded = service.upload_model(model.path.to_local(ctx).local())
        job, raw = service.profile(uploaded, None)
        sources = model.source_of_tensors
        document = report.document_of(
            raw, job, service.device, "tflite", lambda rows: [_source(row, sources) for row in rows]
        )
        report.log_document(ctx, raw, with_modules(document, source_of(ctx, model)))
    return TFLiteProfilingResult.from_current_run(ctx)


@TFLiteInvoker.provider(ProviderType.QAI_HUB, tools=TOOLS)
def _invoke_tflite(
    ctx: HubContext,
    model: TFLiteCompiledModel,
    input_data: Mapping[str, np.ndarray],
    *,
    device: str | None = None,
    use_compiled_names: bool = False,
) -> TFLiteInvocationResult:
    """Run in the cloud; one entry per batch."""
    with needed_packages(*_WHAT):
        from embedl_hub.providers.qai_hub import files  # noqa: PLC0415 - vendor packages on use
        from embedl_hub.tflite.invoking import to_compiled, to_original  # noqa: PLC0415
        from embedl_hub.tflite.profiling import log_model  # noqa: PLC0415
        from embedl_hub.toolchain import answers  # noqa: PLC0415
    with refusals_as(InvokeError):
        graph = log_model(ctx, model)
        data = to_compiled(model, graph, input_data, use_compiled_names=use_compiled_names)
        entries = files.data_entries(data, graph.inputs)
        answers.log_input_data(ctx, input_data)
        service = Service(ctx, device, TFLiteInvoker, InvokeError)
        uploaded = service.upload_model(model.path.to_local(ctx).local())
        answer = service.infer(uploaded, service.upload_data(entries))
        output = to_original(model, files.joined(answer), use_compiled_names=use_compiled_names)
    answers.log_output(ctx, output)
    return TFLiteInvocationResult.from_current_run(ctx, output=output)


def _tensors(before: Sequence[Tensor], after: Sequence[Tensor], graph: Graph) -> list[dict[str, Any]]:
    """Return tensors before and after; the vendor keeps the order of axes unless its options say otherwise."""
    from embedl_hub.providers.qai_hub import files  # noqa: PLC0415 - vendor packages on use
    from embedl_hub.tflite.converter import axes_between, described  # noqa: PLC0415

    files.renamed(before, after)
    found = []
    for old, new in zip(before, after, strict=True):
        now = [size for size in new.shape if isinstance(size, int)]
        shape = [size if isinstance(size, int) else now[at] for at, size in enumerate(old.shape) if at < len(now)]
        orders = axes_between(shape, now)
        if not orders:
            raise RefusedError(f"Qualcomm AI Hub made {new} of {old}; how its axes are ordered is not known.")
        scale, zero_point = graph.numbers.get(new.name, (None, None))
        facts: dict[str, Any] = {"name": new.name, "dtype": new.dtype, "shape": list(new.shape)}
        facts |= {"scale": scale, "zero_point": zero_point}
        found.append(described({"name": old.name, "dtype": old.dtype, "shape": shape}, facts, orders[-1]))
    return found


def _source(row: Mapping[str, Any], sources: Mapping[str, str]) -> list[str]:
    name = sources.get(str(row["name"]))
    return [] if name is None else [name]
