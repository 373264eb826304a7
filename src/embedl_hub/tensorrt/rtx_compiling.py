"""Compile with TensorRT-RTX: the model made ready as for trtexec, the engine built on this machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from embedl_hub.core.compile import CompileError, TensorRTCompiledModel
from embedl_hub.errors import NoProviderError
from embedl_hub.tensorrt.compiling import log_source, prepare
from embedl_hub.tensorrt.rtx import Request, build, is_installed
from embedl_hub.tensorrt.shapes import shape_profile
from embedl_hub.tensorrt.types import tensor_facts
from embedl_hub.toolchain.model import inputs_of, outputs_of
from embedl_hub.toolchain.place import scratch_folder
from embedl_hub.toolchain.refusal import refusals_as

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from embedl_hub.core.context import HubContext
    from embedl_hub.core.device import TensorRTRTXConfig


def compile_model(
    ctx: HubContext, config: TensorRTRTXConfig, onnx_path: Path, input_shape: Sequence[int] | None
) -> TensorRTCompiledModel:
    """Build an engine for the generations that the settings name."""
    if not is_installed():
        raise NoProviderError(
            "TensorRT-RTX is not installed for this Python. Install it with: pip install 'edgeproof-hub[tensorrt-rtx]'"
        )
    with refusals_as(CompileError), scratch_folder() as scratch:
        ctx.client.log_param("$runtime", "tensorrt_rtx")
        prepared = prepare(ctx, scratch, log_source(ctx, scratch, onnx_path), input_shape)
        model = prepared.artifact.to_local(ctx).local()
        model = model / prepared.file_name if prepared.file_name else model
        profile = shape_profile(inputs_of(prepared.model), config)
        engine = scratch / f"{onnx_path.stem}.engine"
        targets = list(config.compute_capabilities)
        request = Request(str(model), str(engine), targets, profile.as_value(), config.workspace_mib)
        answer = build(request, scratch, config.timeout_s)
        artifact = ctx.client.log_artifact(engine, name="path")
    facts = {
        "tensorrt_rtx_version": answer["version"],
        "compute_capabilities": targets,
        "precision": "the model's own types; TensorRT-RTX has nothing else",
        "shapes": profile.as_value(),
        "inputs": [tensor_facts(tensor.name, tensor.dtype, tensor.shape) for tensor in inputs_of(prepared.model)],
        "outputs": [tensor_facts(tensor.name, tensor.dtype, tensor.shape) for tensor in outputs_of(prepared.model)],
        "network_layers": answer["layers"],
        "warnings": answer["warnings"],
    }
    ctx.client.log_param("engine", facts)
    ctx.client.log_param("runtime_version", answer["version"])
    ctx.client.log_param("precision", facts["precision"])
    ctx.client.log_metric("model_size_mb", artifact.size_bytes / 1e6)
    return TensorRTCompiledModel.from_current_run(ctx, engine=facts)
