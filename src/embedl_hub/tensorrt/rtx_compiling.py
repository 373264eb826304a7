"""Compile with TensorRT-RTX: the model made ready as for trtexec, the engine built on this machine."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from embedl_hub.core.compile import CompileError, TensorRTCompiledModel
from embedl_hub.core.device import LocalCommandRunner
from embedl_hub.errors import NoProviderError
from embedl_hub.paths import RemotePath
from embedl_hub.tensorrt.cache import Key, engine_folder, find_engine, keep_engine, write_note
from embedl_hub.tensorrt.compiling import log_source, prepare
from embedl_hub.tensorrt.place import LOCAL_CAP_BYTES, own_cache
from embedl_hub.tensorrt.rtx import Request, build, is_installed, version
from embedl_hub.tensorrt.shapes import shape_profile
from embedl_hub.tensorrt.types import log_precision, tensor_facts
from embedl_hub.toolchain.model import inputs_of, outputs_of, precision_of
from embedl_hub.toolchain.place import scratch_folder
from embedl_hub.toolchain.refusal import refusals_as
from embedl_hub.tracking import hash_file

if TYPE_CHECKING:
    from collections.abc import Sequence

    from embedl_hub.core.context import HubContext
    from embedl_hub.core.device import CommandRunner, TensorRTRTXConfig
    from embedl_hub.tensorrt.compiling import Prepared
    from embedl_hub.tracking import LoggedArtifact


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
        source = log_source(ctx, scratch, onnx_path)
        key = _key(config, source.sha256, input_shape)
        file_name = f"{onnx_path.stem}.engine"
        taken = _take_kept(ctx, key, file_name)
        ctx.client.log_param("from_cache", value=taken is not None)
        artifact, facts = taken or _build(
            ctx, config, key, file_name, prepare(ctx, scratch, source, input_shape), scratch
        )
    ctx.client.log_param("engine", facts)
    ctx.client.log_param("runtime_version", facts["tensorrt_rtx_version"])
    log_precision(ctx, facts)
    ctx.client.log_metric("model_size_mb", artifact.size_bytes / 1e6)
    return TensorRTCompiledModel.from_current_run(ctx, engine=facts)


@dataclass(frozen=True)
class _Shelf:
    """The user's cache folder on this machine."""

    runner: CommandRunner = field(default_factory=LocalCommandRunner)
    cache: RemotePath = field(default_factory=own_cache)
    contents: RemotePath | None = None
    cache_cap_bytes: int = LOCAL_CAP_BYTES


def _key(config: TensorRTRTXConfig, model: str, input_shape: Sequence[int] | None) -> Key:
    names = ("min_shapes", "opt_shapes", "max_shapes", "workspace_mib")
    options = {**{name: getattr(config, name) for name in names}, "input_shape": input_shape}
    return Key(model, options, f"rtx {version()}", {"name": ",".join(config.compute_capabilities)})


def _take_kept(ctx: HubContext, key: Key, file_name: str) -> tuple[LoggedArtifact, dict[str, Any]] | None:
    """Take an engine that was built here before; a damaged one is as good as none."""
    note = find_engine(_Shelf(), key)
    path = Path(engine_folder(_Shelf(), key) / "engine.plan")
    if note is None or hash_file(path) != note["sha256"]:
        return None
    return ctx.client.log_artifact(path, name="path", file_name=file_name), dict(note["engine"])


def _build(
    ctx: HubContext, config: TensorRTRTXConfig, key: Key, file_name: str, prepared: Prepared, scratch: Path
) -> tuple[LoggedArtifact, dict[str, Any]]:
    """Build the engine and keep it; return it with what is known about it."""
    model = prepared.artifact.to_local(ctx).local()
    model = model / prepared.file_name if prepared.file_name else model
    profile = shape_profile(inputs_of(prepared.model), config)
    engine = scratch / "engine.plan"
    targets = list(config.compute_capabilities)
    request = Request(str(model), str(engine), targets, profile.as_value(), config.workspace_mib)
    answer = build(request, scratch, config.timeout_s)
    artifact = ctx.client.log_artifact(engine, name="path", file_name=file_name)
    facts = {
        "tensorrt_rtx_version": answer["version"],
        "compute_capabilities": targets,
        "precision": "the model's own types; TensorRT-RTX has nothing else",
        "number_format": precision_of(prepared.model),
        "shapes": profile.as_value(),
        "inputs": [tensor_facts(tensor.name, tensor.dtype, tensor.shape) for tensor in inputs_of(prepared.model)],
        "outputs": [tensor_facts(tensor.name, tensor.dtype, tensor.shape) for tensor in outputs_of(prepared.model)],
        "network_layers": answer["layers"],
        "warnings": answer["warnings"],
        "key": key.hexdigest(),
    }
    note = {"sha256": artifact.sha256, "size_bytes": artifact.size_bytes, "engine": facts}
    write_note(scratch / "note.json", note)
    keep_engine(_Shelf(), key, note, RemotePath(scratch), file_name)
    return artifact, facts
