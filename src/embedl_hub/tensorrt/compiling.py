"""Compile: the model made ready here, the engine built by trtexec where it will run, or taken from what is there."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from embedl_hub.core.compile import CompileError, TensorRTCompiledModel
from embedl_hub.errors import TrackingError, TransferError
from embedl_hub.tensorrt.cache import engine_folder, find_engine, keep_engine, key_of, timing_cache, write_note
from embedl_hub.tensorrt.formats import parse_layer_info
from embedl_hub.tensorrt.log import parse_seconds, warnings
from embedl_hub.tensorrt.options import build_options, check_name
from embedl_hub.tensorrt.program import call, find_trtexec, gpu_words
from embedl_hub.tensorrt.shapes import shape_profile
from embedl_hub.tensorrt.types import log_precision, model_types, tensor_facts
from embedl_hub.toolchain.model import (
    fix_input_shape,
    gather,
    inputs_of,
    model_file,
    name_nodes,
    outputs_of,
    precision_of,
    read_model,
    write_model,
)
from embedl_hub.toolchain.refusal import RefusedError, refusals_as
from embedl_hub.tracking import LoggedArtifact, hash_file

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import onnx

    from embedl_hub.core.context import HubContext
    from embedl_hub.core.device import TrtexecConfig
    from embedl_hub.paths import RemotePath
    from embedl_hub.tensorrt.cache import Key
    from embedl_hub.tensorrt.formats import LayerInfo
    from embedl_hub.tensorrt.place import Place
    from embedl_hub.tensorrt.program import Answer, Trtexec
    from embedl_hub.toolchain.model import Tensor

_LOG = logging.getLogger("embedl_hub")
# What the builder may go down to, in the words of the other toolchains.
_FORMATS = {"fp16": "float16", "bf16": "bfloat16", "int8": "int8", "fp8": "float8", "best": "best"}
_ENGINE, _LAYERS, _NOTE = "engine.plan", "layers.json", "note.json"
# The settings that decide what an engine becomes.
_DECIDING = (
    "precision", "tf32", "gpu", "min_shapes", "opt_shapes", "max_shapes", "workspace_mib", "cli_args",
)  # fmt: skip
# What is done to a model before it is built; a change here makes other engines of the same model.
_PREPARATION = "fixed shape, named nodes, detailed layers; 1"


@dataclass(frozen=True)
class Prepared:
    """A model ready to be built.

    Attributes:
        artifact: Its file or folder.
        file_name: The ONNX file, or where it is in the folder.
        model: The model itself.
    """

    artifact: LoggedArtifact
    file_name: str
    model: onnx.ModelProto


def log_source(ctx: HubContext, scratch: Path, onnx_path: Path) -> LoggedArtifact:
    """Log the model as the user gave it, with its weights."""
    return ctx.client.log_artifact(gather(onnx_path, scratch), name="input")


def prepare(ctx: HubContext, scratch: Path, source: LoggedArtifact, input_shape: Sequence[int] | None) -> Prepared:
    """Fix a model's shape and name its nodes, so that layers can be led back to them."""
    model = read_model(source.local())
    if input_shape is not None:
        fix_input_shape(model, input_shape)
    name_nodes(model)
    for tensor in (*inputs_of(model), *outputs_of(model)):
        check_name(tensor.name)
    path = write_model(model, scratch / "prepared.onnx")
    if path.is_dir():
        return Prepared(ctx.client.log_artifact(path, name="prepared"), model_file(path).name, model)
    artifact = LoggedArtifact("prepared", path.name, path.stat().st_size, hash_file(path), local_path=path)
    return Prepared(artifact, "", model)


def compile_model(
    ctx: HubContext, place: Place, onnx_path: Path, input_shape: Sequence[int] | None
) -> TensorRTCompiledModel:
    """Build an engine at a place, or take the one that is kept there."""
    with refusals_as(CompileError):
        ctx.client.log_param("$runtime", "tensorrt")
        source = log_source(ctx, place.scratch, onnx_path)
        program = find_trtexec(place)
        key = key_of(program, source.sha256, _wishes(place.config, input_shape))
        file_name = f"{onnx_path.stem}.engine"
        taken = _take_kept(ctx, place, key, file_name)
        artifact, facts = taken or _build(
            ctx, place, program, key, file_name, prepare(ctx, place.scratch, source, input_shape)
        )
    _log_facts(ctx, facts, artifact)
    return TensorRTCompiledModel.from_current_run(ctx, engine=facts)


def _wishes(config: TrtexecConfig, input_shape: Sequence[int] | None) -> dict[str, Any]:
    """Return what decides an engine besides the model, the version and the GPU."""
    wishes = {name: getattr(config, name) for name in _DECIDING}
    return {**wishes, "input_shape": input_shape, "preparation": _PREPARATION}


def _facts(tensors: Sequence[Tensor]) -> list[Any]:
    return [tensor_facts(tensor.name, tensor.dtype, tensor.shape) for tensor in tensors]


def _take_kept(ctx: HubContext, place: Place, key: Key, file_name: str) -> tuple[LoggedArtifact, dict[str, Any]] | None:
    """Take an engine that was built before, or record why there is none to take."""
    if not place.config.use_cache:
        reason = "use_cache is off"
    elif not key.is_known:
        reason = "the machine does not say which GPU it has"
    else:
        note = find_engine(place, key)
        artifact = _bring(ctx, place, key, note, file_name) if note is not None else None
        if note is not None and artifact is not None:
            ctx.client.log_param("from_cache", value=True)
            _LOG.info("%s was built before for this GPU and version; taken from %s.", file_name, place.title)
            return artifact, dict(note["engine"])
        reason = "it was not built before for this model, options, version and GPU"
    ctx.client.log_param("from_cache", value=False)
    ctx.client.log_param("cached_reason", reason)
    return None


def _bring(ctx: HubContext, place: Place, key: Key, note: dict[str, Any], file_name: str) -> LoggedArtifact | None:
    """Bring a kept engine here, from our own store if it is there; a damaged one is as good as none."""
    folder = engine_folder(place, key)
    known = LoggedArtifact("path", file_name, int(note["size_bytes"]), str(note["sha256"]))
    try:
        path = ctx.bring_here(known)
    except TrackingError:
        path = place.scratch / file_name
        if not _got(place, folder / _ENGINE, path) or hash_file(path) != known.sha256:
            return None
    layers = place.scratch / f"kept-{_LAYERS}"
    if _got(place, folder / _LAYERS, layers):
        ctx.client.log_artifact(layers, name="layer_info", file_name=_LAYERS)
    return ctx.client.log_artifact(path, name="path", file_name=file_name)


def _build(
    ctx: HubContext, place: Place, program: Trtexec, key: Key, file_name: str, prepared: Prepared
) -> tuple[LoggedArtifact, dict[str, Any]]:
    """Build the engine there, bring it here and keep it there; return it with what is known about it."""
    profile = shape_profile(inputs_of(prepared.model), place.config)
    options, meaning = build_options(program.capabilities, place.config, model_types(prepared.model), profile)
    answer = _call(ctx, place, program, prepared, options)
    _log_layers(ctx, place)
    seconds = parse_seconds(answer.text, "Engine built")
    if seconds is not None:
        ctx.client.log_metric("build_time_s", seconds)
    facts: dict[str, Any] = {
        "tensorrt_version": program.capabilities.version_text,
        "gpu": dict(program.gpu),
        "precision": meaning,
        "number_format": _FORMATS.get(str(place.config.precision)) or precision_of(prepared.model),
        "options": options,
        "shapes": profile.as_value(),
        "inputs": _facts(inputs_of(prepared.model)),
        "outputs": _facts(outputs_of(prepared.model)),
        "key": key.hexdigest(),
        "device": answer.facts,
        "warnings": warnings(answer.text)[:50],
    }
    return _keep(ctx, place, key, file_name, facts), facts


def _log_layers(ctx: HubContext, place: Place) -> None:
    """Keep what the engine says of its layers, if it says anything; not every kind of engine does."""
    layers = place.scratch / _LAYERS
    found: tuple[LayerInfo, ...] = ()
    if _got(place, place.folder / _LAYERS, layers):
        ctx.client.log_artifact(layers, name="layer_info")
        found = parse_layer_info(layers.read_text(encoding="utf-8", errors="replace"))
    if not any(layer.kind for layer in found):
        _LOG.warning("TensorRT says nothing about the engine's layers but their names; a profile will show less.")


def _got(place: Place, there: RemotePath, here: Path) -> bool:
    """Bring a file here; tell whether there was one."""
    try:
        place.get(there, here)
    except TransferError:
        return False
    return True


def _call(ctx: HubContext, place: Place, program: Trtexec, prepared: Prepared, options: Sequence[str]) -> Answer:
    model = place.send(prepared.artifact)
    model = model / prepared.file_name if prepared.file_name else model
    words = [f"--onnx={model}", f"--saveEngine={_ENGINE}", f"--exportLayerInfo={_LAYERS}", *options]
    if program.capabilities.takes("--timingCacheFile"):
        words.append(f"--timingCacheFile={timing_cache(place, program)}")
    return call(ctx, place, program, "build", words)


def _keep(ctx: HubContext, place: Place, key: Key, file_name: str, facts: dict[str, Any]) -> LoggedArtifact:
    """Bring the engine here, and keep it there for the next time."""
    path = place.scratch / file_name
    if not _got(place, place.folder / _ENGINE, path) or path.stat().st_size == 0:
        raise RefusedError(
            f"trtexec on {place.title} ended well but wrote no engine; is the disk there full? What it printed is "
            "kept as 'trtexec-build.log'."
        )
    artifact = ctx.client.log_artifact(path, name="path")
    if place.config.use_cache and key.is_known:
        note = {"sha256": artifact.sha256, "size_bytes": artifact.size_bytes, "engine": facts}
        write_note(place.scratch / _NOTE, note)
        place.put(place.scratch / _NOTE, _NOTE)
        keep_engine(place, key, note, place.folder, file_name)
    return artifact


def _log_facts(ctx: HubContext, facts: dict[str, Any], artifact: LoggedArtifact) -> None:
    client = ctx.client
    client.log_param("engine", facts)
    client.log_param("runtime_version", facts["tensorrt_version"])
    log_precision(ctx, facts)
    client.log_param("gpu", gpu_words(facts["gpu"]))
    client.log_metric("model_size_mb", artifact.size_bytes / 1e6)
