"""Compile: fix the shape and, with calibration data, quantize on this machine; optimize where the model will run."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from embedl_hub.core.compile import CompileError
from embedl_hub.machine.machine import Machine, unlogged
from embedl_hub.machine.memory import check_weights, note_memory
from embedl_hub.machine.program import call_program, log_source, send_model
from embedl_hub.models import onnx_file
from embedl_hub.quantization.steps import Wanted, prepare, quantize_there
from embedl_hub.refusal import RefusedError, refusals_as
from embedl_hub.toolchains.onnxruntime.components import ONNXRuntimeCompiledModel
from embedl_hub.toolchains.onnxruntime.memory.file import predicted_memory
from embedl_hub.toolchains.onnxruntime.memory.predict import OWN_BYTES
from embedl_hub.toolchains.onnxruntime.memory.shapes import TensorType
from embedl_hub.toolchains.onnxruntime.predict import is_wanted, predict
from embedl_hub.toolchains.onnxruntime.runtime import RUNTIME, settings, warn_of_kernels

if TYPE_CHECKING:
    from embedl_hub.core.compile import CalibrationData
    from embedl_hub.core.context import HubContext
    from embedl_hub.core.device import AnyPath
    from embedl_hub.models.onnx_file import Tensor
    from embedl_hub.toolchains.onnxruntime.config import ONNXRuntimeConfig


_LOG = logging.getLogger("embedl_hub")


@dataclass(frozen=True)
class CompileOptions:
    """What the user asked of a compilation."""

    input_shape: Sequence[int] | None = None
    calibration_data: CalibrationData | None = None
    calibration_method: str | None = None
    per_channel: bool = False
    quantize_io: bool = False


def compile_model(
    ctx: HubContext,
    machine: Machine[ONNXRuntimeConfig],
    onnx_path: Path,
    **given: Any,  # noqa: ANN401 - the step's options
) -> ONNXRuntimeCompiledModel:
    """Compile a model for a machine."""
    options = CompileOptions(**given)
    with refusals_as(CompileError):
        source = log_source(ctx, onnx_path, machine.scratch, RUNTIME.name)
        model = onnx_file.prepared_model(source.local(), options.input_shape)
        inputs = onnx_file.inputs_of(model)
        names = [tensor.name for tensor in (*inputs, *onnx_file.outputs_of(model))]
        prepared = onnx_file.write_model(model, machine.scratch / f"{onnx_path.stem}.prepared.onnx")
        del model
        quantization: Mapping[str, object] = {}
        if options.calibration_data is not None:
            prepared, quantization = _quantize(ctx, machine, prepared, inputs, options)
        elif options.calibration_method is not None or options.quantize_io or options.per_channel:
            raise RefusedError(
                "calibration_method, per_channel and quantize_io (--calibration-method, --per-channel, --quantize-io) "
                "are for INT8, which needs calibration_data (--calibration-data); give it, or leave them out."
            )
        _check_weights(machine, prepared)
        answer, compiled = _optimize(ctx, machine, prepared, f"{onnx_path.stem}.compiled.onnx")
        # An optimizer that renamed a tensor would make every later step lie about names.
        now = [tensor["name"] for tensor in (*answer.get("inputs", ()), *answer.get("outputs", ()))]
        if sorted(now) != sorted(names):
            raise RefusedError(f"The optimized model has the tensors {now}, the original {names}; they must agree.")
        warn_of_kernels(ctx, machine, answer, prepared)
    ctx.client.log_artifact(compiled, name="path")
    params = {name: answer.get(name) for name in ("inputs", "outputs", "runtime_version")}
    graph = onnx_file.read_graph(compiled)
    params |= {"precision": onnx_file.precision_of(graph), "$board": answer.get("board")}
    ctx.client.run.log_batch(params)
    # It is made: whoever measures it there is refused, and this says why before.
    note_memory(ctx, machine, lambda: predicted_memory(machine, graph, {}))
    ctx.client.log_metric("model_size_mb", float(answer.get("size_bytes", 0)) / 1e6)
    return ONNXRuntimeCompiledModel.from_current_run(ctx, quantization=quantization)


def _quantize(
    ctx: HubContext,
    machine: Machine[ONNXRuntimeConfig],
    prepared: Path,
    inputs: Sequence[Tensor],
    options: CompileOptions,
) -> tuple[Path, dict[str, object]]:
    """Return the INT8 model and how its integers stand for numbers."""
    wanted = Wanted(
        options.calibration_data, options.calibration_method, options.per_channel, quantize_io=options.quantize_io
    )
    calibration = prepare(ctx, machine, RUNTIME, prepared, inputs, wanted)
    _predict_gain(ctx, machine, prepared, options, calibration.doctor)
    return quantize_there(ctx, machine, prepared, calibration)


def _predict_gain(
    ctx: HubContext,
    machine: Machine[ONNXRuntimeConfig],
    prepared: Path,
    options: CompileOptions,
    doctor: Mapping[str, Any],
) -> None:
    """Say and record what INT8 will gain; what cannot be foretold stops nobody."""
    if not is_wanted(ctx, machine.config):
        return
    started = time.monotonic()
    try:
        prediction = predict(
            ctx, machine, prepared, per_channel=options.per_channel, quantize_io=options.quantize_io, doctor=doctor
        )
    except Exception as error:  # noqa: BLE001 - a prediction is a service, and a compilation does without
        _LOG.debug("INT8's gain is not predicted: %s", error)
        return
    _LOG.log(logging.INFO if prediction.gain.pays else logging.WARNING, "%s", prediction)
    ctx.client.log_param("prediction", {**prediction.to_dict(), "seconds": round(time.monotonic() - started, 2)})
    ctx.client.log_metric("predicted_speedup", prediction.gain.speedup)
    ctx.client.log_metric("predicted_speedup_low", prediction.gain.low)
    ctx.client.log_metric("predicted_speedup_high", prediction.gain.high)
    ctx.client.log_artifact(prediction.costs, name="kernel_costs")


def _check_weights(machine: Machine[ONNXRuntimeConfig], prepared: Path) -> None:
    """Refuse a model whose weights alone have no room: what else it takes is known when it is optimized."""
    graph = onnx_file.read_graph(onnx_file.model_file(prepared) if prepared.is_dir() else prepared).graph
    size = sum(TensorType(value.data_type, tuple(value.dims)).size_bytes for value in graph.initializer)
    check_weights(machine, size, OWN_BYTES)


def _optimize(
    ctx: HubContext, machine: Machine[ONNXRuntimeConfig], prepared: Path, name: str
) -> tuple[Mapping[str, Any], Path]:
    # A folder (weights beside a large model) is known by its listing, which logging makes; a file is not worth keeping.
    is_folder = prepared.is_dir()
    artifact = ctx.client.log_artifact(prepared, name="prepared") if is_folder else unlogged(prepared, "prepared")
    entry, output = send_model(machine, artifact, prepared), machine.folder / name
    args: list[AnyPath] = ["--model", entry, "--output", output, *settings(machine.config)]
    answer = call_program(machine, RUNTIME, "compile", args)
    compiled = ctx.artifact_dir / name
    machine.get(output, compiled)
    return answer, compiled
