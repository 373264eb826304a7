"""Engines by TensorRT-RTX on this machine, without a GPU, for the generations they were asked for.

They are built in a process of its own, so that its memory, its messages and its crashes stay there: ``python -m
embedl_hub.toolchains.tensorrt.rtx REQUEST.json`` prints one JSON object.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from embedl_hub.core.compile import CompileError
from embedl_hub.core.invoke import InvokeError
from embedl_hub.core.profile import ProfileError
from embedl_hub.errors import NoProviderError
from embedl_hub.machine.machine import LocalMachine, Machine, scratch_folder
from embedl_hub.machine.program import log_source
from embedl_hub.machine.worker import call_worker, serve
from embedl_hub.models.onnx_file import inputs_of, model_file, outputs_of, precision_of
from embedl_hub.refusal import RefusedError, refusals_as
from embedl_hub.toolchains.tensorrt import compile as compiling
from embedl_hub.toolchains.tensorrt.components import (
    TensorRTCompiledModel,
    TensorRTCompiler,
    TensorRTInvocationResult,
    TensorRTProfilingResult,
)
from embedl_hub.toolchains.tensorrt.config import TensorRTRTXConfig, rtx_version
from embedl_hub.toolchains.tensorrt.options import shape_profile
from embedl_hub.tracking import hash_file

if TYPE_CHECKING:
    from embedl_hub.core.context import HubContext
    from embedl_hub.errors import CommandError
    from embedl_hub.tracking import LoggedArtifact

_KILLED = 137
_MODULE = "embedl_hub.toolchains.tensorrt.rtx"


@dataclass(frozen=True)
class Request:
    """What to build and for what; paths are text, for the way there as JSON."""

    model: str
    output: str
    compute_capabilities: list[str]
    shapes: Mapping[str, Mapping[str, list[int]]]
    workspace_mib: int | None


def build(request: Request, scratch: Path, timeout_s: float | None) -> dict[str, Any]:
    """Build in a process of its own and return what it tells about the engine."""
    return call_worker(_MODULE, request, scratch, _failure_message, timeout_s)


def _failure_message(error: CommandError) -> str:
    if error.timeout_s is not None:
        return (
            f"TensorRT-RTX was stopped after {error.timeout_s:g} s; give TensorRTRTXConfig(timeout_s=...) more. "
            "Nothing was kept but the model."
        )
    if error.exit_code == _KILLED:
        return "The memory of this machine ran out while TensorRT-RTX was building; close what else runs here."
    return f"TensorRT-RTX failed: {error}"


def _build_here(request: Request, _: Path) -> dict[str, object]:
    import tensorrt_rtx as trt  # noqa: PLC0415 - only this process needs it

    messages = _Messages(trt)
    logger = messages.logger
    builder = trt.Builder(logger)
    network = builder.create_network(1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED))
    parser = trt.OnnxParser(network, logger)
    if not parser.parse_from_file(request.model):
        raise RefusedError(f"TensorRT-RTX cannot read the model: {_parse_errors(parser) or messages.last()}")
    config = builder.create_builder_config()
    config.profiling_verbosity = trt.ProfilingVerbosity.DETAILED
    config.num_compute_capabilities = len(request.compute_capabilities)
    for index, name in enumerate(request.compute_capabilities):
        config.set_compute_capability(getattr(trt.ComputeCapability, name), index)
    if request.workspace_mib is not None:
        config.set_memory_pool_limit(trt.MemoryPoolType.WORKSPACE, request.workspace_mib << 20)
    if request.shapes.get("opt"):
        profile = builder.create_optimization_profile()
        for name in request.shapes["opt"]:
            profile.set_shape(name, *(tuple(request.shapes[key][name]) for key in ("min", "opt", "max")))
        config.add_optimization_profile(profile)
    engine = builder.build_serialized_network(network, config)
    if engine is None:
        wanted = ", ".join(request.compute_capabilities)
        raise RefusedError(f"TensorRT-RTX builds no engine of this model for {wanted}: {messages.last()}")
    size = Path(request.output).write_bytes(engine)
    return {
        "version": trt.__version__,
        "size_bytes": size,
        "layers": network.num_layers,
        "warnings": messages.warnings[:50],
    }


class _Messages:
    """Collects what the library says."""

    def __init__(self, trt: Any) -> None:  # noqa: ANN401 - the vendor's module has no types
        self.errors: list[str] = []
        self.warnings: list[str] = []
        messages = self

        class Logger(trt.ILogger):  # type: ignore[misc]
            def __init__(self) -> None:
                trt.ILogger.__init__(self)

            def log(self, severity: Any, text: str) -> None:  # noqa: ANN401 - the vendor's
                if severity <= trt.ILogger.ERROR:
                    messages.errors.append(text)
                elif severity == trt.ILogger.WARNING and text not in messages.warnings:
                    messages.warnings.append(text)

        self.logger = Logger()

    def last(self) -> str:
        """Return the errors in one line, the last ones if there are many."""
        return "; ".join(" ".join(text.split()) for text in self.errors[-3:])[:800] or "it does not say why"


def _parse_errors(parser: Any) -> str:  # noqa: ANN401 - the vendor's
    words = []
    for index in range(min(parser.num_errors, 3)):
        error = parser.get_error(index)
        words.append(f"node {error.node_name() or error.node()!r} ({error.node_operator()}): {error.desc()}")
    return " ".join("; ".join(words).split())[:800]


def compile_model(
    ctx: HubContext, onnx_path: Path, *, device: str | None, input_shape: Sequence[int] | None
) -> TensorRTCompiledModel:
    """Build an engine for the generations of GPUs that the device's settings name."""
    if rtx_version() is None:
        raise NoProviderError(
            "TensorRT-RTX is not installed for this Python. Install it with: pip install 'edgeproof-hub[tensorrt-rtx]'"
        )
    config = ctx.find_device(device or "").get_provider_config(TensorRTRTXConfig, TensorRTCompiler)
    with refusals_as(CompileError), scratch_folder() as scratch:
        machine = LocalMachine(ctx, config or TensorRTRTXConfig(), scratch, {})
        source = log_source(ctx, onnx_path, scratch, "tensorrt_rtx")
        key = _key(machine.config, source.sha256, input_shape)
        file_name = f"{onnx_path.stem}.engine"
        kept, path = compiling.find_engine(machine, key), Path(compiling.engine_folder(machine, key) / "engine.plan")
        # A damaged one is as good as none.
        is_kept = kept is not None and hash_file(path) == kept.sha256
        ctx.client.log_param("from_cache", value=is_kept)
        if kept is not None and is_kept:
            artifact, facts = ctx.client.log_artifact(path, name="path", file_name=file_name), kept.engine
        else:
            prepared = compiling.prepare(ctx, scratch, source, input_shape)
            artifact, facts = _build_engine(ctx, machine, key, file_name, prepared)
    compiling.log_engine(ctx, facts, artifact, facts["tensorrt_rtx_version"])
    return TensorRTCompiledModel.from_current_run(ctx, engine=facts)


def _key(config: TensorRTRTXConfig, model: str, input_shape: Sequence[int] | None) -> compiling.Key:
    names = ("min_shapes", "opt_shapes", "max_shapes", "workspace_mib")
    options = {**{name: getattr(config, name) for name in names}, "input_shape": input_shape}
    return compiling.Key(model, options, f"rtx {rtx_version()}", {"name": ",".join(config.compute_capabilities)})


def _build_engine(
    ctx: HubContext, machine: Machine[TensorRTRTXConfig], key: compiling.Key, name: str, prepared: compiling.Prepared
) -> tuple[LoggedArtifact, dict[str, object]]:
    """Build the engine and keep it; return it with what is known about it."""
    config = machine.config
    profile = shape_profile(inputs_of(prepared.model), config)
    engine, targets = machine.folder / "engine.plan", list(config.compute_capabilities)
    model = str(model_file(prepared.path))
    request = Request(model, str(engine), targets, profile.as_value(), config.workspace_mib)
    answer = build(request, machine.scratch, config.timeout_s)
    artifact = ctx.client.log_artifact(Path(engine), name="path", file_name=name)
    facts: dict[str, object] = {
        "tensorrt_rtx_version": answer["version"],
        "compute_capabilities": targets,
        "precision": "the model's own types; TensorRT-RTX has nothing else",
        "number_format": precision_of(prepared.model),
        "shapes": profile.as_value(),
        "inputs": compiling.tensor_facts(inputs_of(prepared.model)),
        "outputs": compiling.tensor_facts(outputs_of(prepared.model)),
        "network_layers": answer["layers"],
        "warnings": answer["warnings"],
        "key": key.hexdigest(),
    }
    compiling.keep_engine(machine, key, artifact, facts)
    return artifact, facts


def refuse_profile(
    ctx: HubContext,  # noqa: ARG001 - what the step takes
    model: TensorRTCompiledModel,
    *,
    device: str | None,
) -> TensorRTProfilingResult:
    """Refuse to measure: it needs a GPU of that generation."""
    raise ProfileError(_needs_gpu(model, device))


def refuse_invoke(
    ctx: HubContext,  # noqa: ARG001 - what the step takes
    model: TensorRTCompiledModel,
    input_data: object,  # noqa: ARG001
    *,
    device: str | None,
    use_compiled_names: bool,  # noqa: ARG001
) -> TensorRTInvocationResult:
    """Refuse to run: it needs a GPU of that generation."""
    raise InvokeError(_needs_gpu(model, device))


def _needs_gpu(model: TensorRTCompiledModel, device: str | None) -> str:
    targets = ", ".join(model.engine.get("compute_capabilities", ())) or "its generation"
    return (
        f"Device {device!r} stands for a generation of GPUs, and TensorRT-RTX is only a builder here: measuring and "
        f"running need a GPU of {targets} and TensorRT-RTX there. With a full TensorRT on that machine, use a device "
        "of type 'trtexec' and compile on it. The engine is kept with the run that compiled it."
    )


if __name__ == "__main__":
    sys.exit(serve("TensorRT-RTX", _build_here, Request))
