"""Compile: the model made ready here, the engine built by trtexec where it will run and kept there for the next time.

<cache>/engines/<key>/engine.plan, layers.json, note.json    <cache>/timing/<key>.cache

An engine's key is the SHA-256 of everything that decides it: the model's content, the options, TensorRT's version and
the GPU. What is used least recently goes first when the engines outgrow their limit.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from embedl_hub.core.answer import parse_answer
from embedl_hub.core.compile import CompileError
from embedl_hub.errors import CommandError, TrackingError, TransferError
from embedl_hub.machine.machine import Machine, unlogged
from embedl_hub.machine.program import log_source, send_model
from embedl_hub.models.onnx_file import inputs_of, outputs_of, precision_of, prepared_model, write_model
from embedl_hub.refusal import RefusedError, refusals_as
from embedl_hub.toolchains.tensorrt.components import TensorRTCompiledModel
from embedl_hub.toolchains.tensorrt.layers import parse_layer_info, read_file
from embedl_hub.toolchains.tensorrt.log import parse_facts, parse_seconds, warnings
from embedl_hub.toolchains.tensorrt.options import build_options, log_precision, model_types, quoted, shape_profile
from embedl_hub.toolchains.tensorrt.program import call, find_trtexec, gpu_words
from embedl_hub.tracking import LoggedArtifact, hash_file

if TYPE_CHECKING:
    import onnx

    from embedl_hub.core.context import HubContext
    from embedl_hub.core.device import ProviderConfig
    from embedl_hub.models.onnx_file import Tensor
    from embedl_hub.paths import RemotePath
    from embedl_hub.toolchains.tensorrt.config import TrtexecConfig
    from embedl_hub.toolchains.tensorrt.program import Trtexec

_QUICK_S = 120.0
FOLDER = "tensorrt"
_LABEL = "edgeproof-tensorrt"
_ABSENT = 3

# $1 cache, $2 key
_FIND = """\
cd -- "$1/engines/$2" 2>/dev/null || exit 3
[ -s engine.plan ] && [ -s note.json ] || exit 3
touch -- . && cat note.json
"""

# $1 cache, $2 key, $3 folder with engine.plan, layers.json and note.json, $4 folder of contents or nothing, $5 the
# engine's hash, $6 its name, $7 cap in KiB. What was kept under that key is replaced; contents are linked, so that
# nothing has to be sent back.
_KEEP = """\
mkdir -p -m 700 -- "$1/engines" || exit 1
part="$1/engines/.$2.$$"
rm -rf -- "$part" && mkdir -- "$part" || exit 1
for name in engine.plan layers.json note.json; do
  if [ -e "$3/$name" ]; then ln -- "$3/$name" "$part/$name" 2>/dev/null || cp -- "$3/$name" "$part/$name"; fi
done
rm -rf -- "$1/engines/$2"
mv -- "$part" "$1/engines/$2" || exit 1
if [ -n "$4" ]; then
  mkdir -p -- "$4/$5" && { ln -- "$1/engines/$2/engine.plan" "$4/$5/$6" 2>/dev/null || true; }
fi
cd -- "$1/engines" || exit 0
used=$(du -sk . | { read -r size rest; echo "$size"; })
ls -1tr | while read -r entry; do
  [ "$used" -gt "$7" ] || break
  if [ "$entry" = "$2" ]; then continue; fi
  size=$(du -sk "$entry" | { read -r size rest; echo "$size"; })
  rm -rf -- "$entry" && used=$((used - size))
done
exit 0
"""
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


class Key(NamedTuple):
    """What decides an engine: the model's content as the user gave it, the options, TensorRT's version and the GPU."""

    model: str
    options: Mapping[str, object]
    version: str
    gpu: Mapping[str, str]

    @property
    def is_known(self) -> bool:
        """Whether the machine says what GPU it has; without it an engine cannot be taken again safely."""
        return bool(self.gpu.get("name") or self.gpu.get("board"))

    def hexdigest(self) -> str:
        """Return the key's hash."""
        return _digest({**self._asdict(), "options": dict(self.options), "gpu": dict(self.gpu)})


class KeptEngine(NamedTuple):
    """An engine that was built before: its content, and what is known about it."""

    sha256: str
    size_bytes: int
    engine: dict[str, object]


def find_engine(machine: Machine[ProviderConfig], key: Key) -> KeptEngine | None:
    """Return the engine that is kept there, if there is one."""
    try:
        note = parse_answer(_script(machine, _FIND, str(machine.cache(FOLDER)), key.hexdigest()))
        if not isinstance(note, dict) or not re.fullmatch("[0-9a-f]{64}", str(note["sha256"])):
            return None
        return KeptEngine(str(note["sha256"]), int(note["size_bytes"]), dict(note["engine"]))
    except CommandError as error:
        if error.exit_code == _ABSENT:
            return None
        raise
    except (ValueError, KeyError, TypeError, OverflowError):
        return None


def keep_engine(machine: Machine[ProviderConfig], key: Key, artifact: LoggedArtifact, facts: dict[str, object]) -> None:
    """Keep an engine that is in the run's folder there, with a note of what is known about it."""
    note = machine.scratch / _NOTE
    kept = KeptEngine(artifact.sha256, artifact.size_bytes, facts)
    note.write_text(json.dumps(kept._asdict(), indent=1), encoding="utf-8")
    machine.put(note, _NOTE)
    contents = "" if machine.is_local else str(machine.cache("store"))
    names = (contents, artifact.sha256, artifact.file_name, str(machine.cache_cap_bytes >> 10))
    _script(machine, _KEEP, str(machine.cache(FOLDER)), key.hexdigest(), str(machine.folder), *names)


def engine_folder(machine: Machine[ProviderConfig], key: Key) -> RemotePath:
    """Return where an engine is kept there."""
    return machine.cache(FOLDER) / "engines" / key.hexdigest()


def timing_cache(machine: Machine[ProviderConfig], program: Trtexec) -> RemotePath:
    """Return the file there in which TensorRT remembers what it timed, one for each version and GPU."""
    folder = machine.cache(FOLDER) / "timing"
    _script(machine, 'mkdir -p -m 700 -- "$1"', str(folder))
    capabilities = program.capabilities
    return folder / f"{_digest({'version': capabilities.version_text, 'gpu': dict(program.gpu)})}.cache"


def _digest(value: Mapping[str, object]) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def _script(machine: Machine[ProviderConfig], text: str, *arguments: str) -> str:
    return machine.runner.run(["sh", "-c", text, _LABEL, *arguments], hide=True, timeout_s=_QUICK_S).stdout


class Prepared(NamedTuple):
    """A model ready to be built: for sending, its file or folder here, and the model itself."""

    artifact: LoggedArtifact
    path: Path
    model: onnx.ModelProto


def prepare(ctx: HubContext, scratch: Path, source: LoggedArtifact, input_shape: Sequence[int] | None) -> Prepared:
    """Fix a model's shape and name its nodes, so that layers can be led back to them."""
    model = prepared_model(source.local(), input_shape)
    for tensor in (*inputs_of(model), *outputs_of(model)):
        quoted(tensor.name)
    path = write_model(model, scratch / "prepared.onnx")
    artifact = ctx.client.log_artifact(path, name="prepared") if path.is_dir() else unlogged(path, "prepared")
    return Prepared(artifact, path, model)


def compile_model(
    ctx: HubContext, machine: Machine[TrtexecConfig], onnx_path: Path, *, input_shape: Sequence[int] | None
) -> TensorRTCompiledModel:
    """Build an engine at a machine, or take the one that is kept there."""
    with refusals_as(CompileError):
        source = log_source(ctx, onnx_path, machine.scratch, "tensorrt")
        program = find_trtexec(machine)
        options = {name: getattr(machine.config, name) for name in _DECIDING}
        options |= {"input_shape": input_shape, "preparation": _PREPARATION}
        version = f"{program.capabilities.version_text} b{program.capabilities.build}"
        key = Key(source.sha256, options, version, program.gpu)
        file_name = f"{onnx_path.stem}.engine"
        taken = _take_kept(ctx, machine, key, file_name)
        artifact, facts = taken or _build(
            ctx, machine, program, key, file_name, prepare(ctx, machine.scratch, source, input_shape)
        )
    log_engine(ctx, facts, artifact, facts["tensorrt_version"])
    ctx.client.log_param("gpu", gpu_words(program.gpu))
    return TensorRTCompiledModel.from_current_run(ctx, engine=facts)


def log_engine(ctx: HubContext, facts: dict[str, object], artifact: LoggedArtifact, version: object) -> None:
    """Record what is known about an engine."""
    ctx.client.log_param("engine", facts)
    ctx.client.log_param("runtime_version", version)
    log_precision(ctx, facts)
    ctx.client.log_metric("model_size_mb", artifact.size_bytes / 1e6)


def tensor_facts(tensors: Sequence[Tensor]) -> list[dict[str, object]]:
    """Return tensors for recording."""
    return [{"name": tensor.name, "dtype": tensor.dtype, "shape": list(tensor.shape)} for tensor in tensors]


def _take_kept(
    ctx: HubContext, machine: Machine[TrtexecConfig], key: Key, file_name: str
) -> tuple[LoggedArtifact, dict[str, object]] | None:
    """Take an engine that was built before, or record why there is none to take."""
    if not machine.config.use_cache:
        reason = "use_cache is off"
    elif not key.is_known:
        reason = "the machine does not say which GPU it has"
    else:
        kept = find_engine(machine, key)
        artifact = _bring(ctx, machine, key, kept, file_name) if kept is not None else None
        if kept is not None and artifact is not None:
            ctx.client.log_param("from_cache", value=True)
            _LOG.info("%s was built before for this GPU and version; taken from %s.", file_name, machine.title)
            return artifact, kept.engine
        reason = "it was not built before for this model, options, version and GPU"
    ctx.client.log_param("from_cache", value=False)
    ctx.client.log_param("cached_reason", reason)
    return None


def _bring(
    ctx: HubContext, machine: Machine[TrtexecConfig], key: Key, kept: KeptEngine, file_name: str
) -> LoggedArtifact | None:
    """Bring a kept engine here, from our own store if it is there; a damaged one is as good as none."""
    folder = engine_folder(machine, key)
    try:
        path = ctx.bring_here(LoggedArtifact("path", file_name, kept.size_bytes, kept.sha256))
    except TrackingError:
        path = machine.scratch / file_name
        if not _got(machine, folder / _ENGINE, path) or hash_file(path) != kept.sha256:
            return None
    layers = machine.scratch / f"kept-{_LAYERS}"
    if _got(machine, folder / _LAYERS, layers):
        ctx.client.log_artifact(layers, name="layer_info", file_name=_LAYERS)
    return ctx.client.log_artifact(path, name="path", file_name=file_name)


def _build(
    ctx: HubContext, machine: Machine[TrtexecConfig], program: Trtexec, key: Key, file_name: str, prepared: Prepared
) -> tuple[LoggedArtifact, dict[str, object]]:
    """Build the engine there, bring it here and keep it there; return it with what is known about it."""
    profile = shape_profile(inputs_of(prepared.model), machine.config)
    options, meaning = build_options(program.capabilities, machine.config, model_types(prepared.model), profile)
    there = send_model(machine, prepared.artifact, prepared.path)
    words = [f"--onnx={there}", f"--saveEngine={_ENGINE}", f"--exportLayerInfo={_LAYERS}", *options]
    if program.capabilities.takes("--timingCacheFile"):
        words.append(f"--timingCacheFile={timing_cache(machine, program)}")
    answer = call(ctx, machine, program, "build", words)
    _log_layers(ctx, machine)
    seconds = parse_seconds(answer, "Engine built")
    if seconds is not None:
        ctx.client.log_metric("build_time_s", seconds)
    facts: dict[str, object] = {
        "tensorrt_version": program.capabilities.version_text,
        "gpu": dict(program.gpu),
        "precision": meaning,
        "number_format": _FORMATS.get(str(machine.config.precision)) or precision_of(prepared.model),
        "options": options,
        "shapes": profile.as_value(),
        "inputs": tensor_facts(inputs_of(prepared.model)),
        "outputs": tensor_facts(outputs_of(prepared.model)),
        "key": key.hexdigest(),
        "device": parse_facts(answer),
        "warnings": warnings(answer)[:50],
    }
    path = machine.scratch / file_name
    if not _got(machine, machine.folder / _ENGINE, path) or path.stat().st_size == 0:
        raise RefusedError(
            f"trtexec on {machine.title} ended well but wrote no engine; is the disk there full? What it printed is "
            "kept as 'trtexec-build.log'."
        )
    artifact = ctx.client.log_artifact(path, name="path")
    if machine.config.use_cache and key.is_known:
        keep_engine(machine, key, artifact, facts)
    return artifact, facts


def _log_layers(ctx: HubContext, machine: Machine[TrtexecConfig]) -> None:
    """Keep what the engine says of its layers, if it says anything; not every kind of engine does."""
    path = machine.scratch / _LAYERS
    if _got(machine, machine.folder / _LAYERS, path):
        ctx.client.log_artifact(path, name="layer_info")
        if any(layer.kind for layer in parse_layer_info(read_file(path, machine.title))):
            return
    _LOG.warning("TensorRT says nothing about the engine's layers but their names; a profile will show less.")


def _got(machine: Machine[TrtexecConfig], there: RemotePath, here: Path) -> bool:
    """Bring a file here; tell whether there was one."""
    try:
        machine.get(there, here)
    except TransferError:
        return False
    return True
