"""Compile: fix the shape and, with calibration data, quantise on this machine; optimise where the model will run."""

from __future__ import annotations

import logging
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from embedl_hub.core.compile import CompileError, ONNXRuntimeCompiledModel
from embedl_hub.core.invoke import is_ruined
from embedl_hub.onnxruntime.kernels import tell_kernels
from embedl_hub.onnxruntime.place import settings
from embedl_hub.onnxruntime.predicting import is_wanted, predict
from embedl_hub.onnxruntime.quantizing import METHODS, NumberFormat, Request, number_format, quantize, refuse_quantized
from embedl_hub.paths import RemotePath
from embedl_hub.toolchain.calibration import on_disk, open_calibration
from embedl_hub.toolchain.model import (
    fix_input_shape,
    gather,
    inputs_of,
    model_file,
    name_nodes,
    outputs_of,
    precision_of,
    read_graph,
    read_model,
    write_model,
)
from embedl_hub.toolchain.program import call
from embedl_hub.toolchain.refusal import RefusedError, refusals_as
from embedl_hub.tracking import LoggedArtifact, hash_file

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from embedl_hub.core.compile import CalibrationData
    from embedl_hub.core.context import HubContext
    from embedl_hub.core.device import ONNXRuntimeConfig
    from embedl_hub.toolchain.model import Tensor
    from embedl_hub.toolchain.place import Place


_LOG = logging.getLogger("embedl_hub")


@dataclass(frozen=True)
class Wishes:
    """What the user asked of a compilation."""

    input_shape: Sequence[int] | None = None
    calibration_data: CalibrationData | None = None
    calibration_method: str | None = None
    per_channel: bool = False
    quantize_io: bool = False


def compile_model(
    ctx: HubContext, place: Place[ONNXRuntimeConfig], onnx_path: Path, wishes: Wishes
) -> ONNXRuntimeCompiledModel:
    """Compile a model for a place."""
    with refusals_as(CompileError):
        source = ctx.client.log_artifact(gather(onnx_path, place.scratch), name="input")
        ctx.client.log_param("$runtime", "onnx")
        model = read_model(source.local())
        if wishes.input_shape is not None:
            fix_input_shape(model, wishes.input_shape)
        name_nodes(model)
        names = [tensor.name for tensor in (*inputs_of(model), *outputs_of(model))]
        prepared = write_model(model, place.scratch / f"{onnx_path.stem}.prepared.onnx")
        inputs = inputs_of(model)
        del model
        quantization: dict[str, Any] = {}
        if wishes.calibration_data is not None:
            prepared, quantization = _quantise(ctx, place, prepared, inputs, wishes)
        elif wishes.calibration_method is not None or wishes.quantize_io or wishes.per_channel:
            raise RefusedError(
                "calibration_method, per_channel and quantize_io (--calibration-method, --per-channel, --quantize-io) "
                "are for INT8, which needs calibration_data (--calibration-data); give it, or leave them out."
            )
        answer, compiled = _optimise(ctx, place, prepared, f"{onnx_path.stem}.compiled.onnx")
        _check_names(names, answer)
        tell_kernels(ctx, place, answer, prepared)
    ctx.client.log_artifact(compiled, name="path")
    ctx.client.log_param("precision", precision_of(read_graph(compiled)))
    _log_answer(ctx, answer)
    return ONNXRuntimeCompiledModel.from_current_run(ctx, quantization=quantization)


def _quantise(
    ctx: HubContext, place: Place[ONNXRuntimeConfig], prepared: Path, inputs: Sequence[Tensor], wishes: Wishes
) -> tuple[Path, dict[str, Any]]:
    """Return the INT8 model and how its integers stand for numbers."""
    refuse_quantized(prepared)
    method = wishes.calibration_method or METHODS[0]
    if method not in METHODS:
        raise RefusedError(f"calibration_method is one of {', '.join(METHODS)}, not {method!r}.")
    data = on_disk(wishes.calibration_data, place.scratch)
    samples = open_calibration(data, inputs)
    ctx.client.log_param("calibration_samples", samples.count)
    # Asked before the long part: a board without a runtime says so now.
    doctor = call(place, "doctor", [])
    if doctor.get("problem"):
        raise RefusedError(f"{doctor['problem']} (doctor on {place.title})")
    _foretell(ctx, place, prepared, wishes, doctor)
    form = _number_format(place, doctor)
    ctx.client.log_param("number_format", asdict(form))
    ctx.client.log_param("int8_kernels", form.kernels)
    answer = quantize(
        Request(
            str(prepared), str(prepared.with_name(prepared.name.replace(".prepared", ".int8"))), str(data), method,
            wishes.per_channel, wishes.quantize_io, form.activations, form.weights, form.portable,
        ),
        place.scratch,
    )  # fmt: skip
    ctx.client.log_param("quantized_ops", answer["ops"])
    ctx.client.log_param("remedies", answer["remedies"])
    ctx.client.log_param("calibration_samples_left_out", answer["samples_left_out"])
    _log_drift(ctx, answer["drift"])
    quantization = {"method": method, "format": asdict(form), **answer["io"]}
    ctx.client.log_param("quantization", quantization)
    return Path(answer["output"]), quantization


def _number_format(place: Place[ONNXRuntimeConfig], doctor: Mapping[str, Any]) -> NumberFormat:
    """Return the format for a place; what the board answered counts unless the spec names another processor."""
    board = doctor.get("board") or {}
    same = str(board.get("architecture", "")).lower() == place.architecture.lower()
    kernels = (doctor.get("kernels") or {}) if same else {}
    return number_format(place.architecture, tuple(board.get("cpu_features", ())), kernels.get("u8s8"))


def _foretell(
    ctx: HubContext, place: Place[ONNXRuntimeConfig], prepared: Path, wishes: Wishes, doctor: dict[str, Any]
) -> None:
    """Say and record what INT8 will gain; what cannot be foretold stops nobody."""
    if not is_wanted(ctx, place.config):
        return
    started = time.monotonic()
    try:
        told = predict(
            ctx, place, prepared, per_channel=wishes.per_channel, quantize_io=wishes.quantize_io, doctor=doctor
        )
    except Exception as error:  # noqa: BLE001 - a prediction is a service, and a compilation does without
        _LOG.debug("INT8's gain is not predicted: %s", error)
        return
    _LOG.log(logging.INFO if told.gain.pays else logging.WARNING, "%s", told)
    ctx.client.log_param("prediction", {**told.to_dict(), "seconds": round(time.monotonic() - started, 2)})
    ctx.client.log_metric("predicted_speedup", told.gain.speedup)
    ctx.client.log_metric("predicted_speedup_low", told.gain.low)
    ctx.client.log_metric("predicted_speedup_high", told.gain.high)
    ctx.client.log_artifact(told.costs, name="kernel_costs")


def _log_drift(ctx: HubContext, drift: Sequence[Mapping[str, Any]]) -> None:
    """Record how far INT8 is from float on calibration data, and say aloud what no user would want."""
    ctx.client.log_param("calibration_drift", drift)
    for output in drift:
        if is_ruined(output["cosine"], output["finite_share"]):
            _LOG.warning(
                "INT8 changes output %r beyond use even on calibration data: cosine %.3f to float, %.0f%% are numbers. "
                "Another calibration_method or per_channel may help; some models cannot be INT8 as a whole.",
                output["name"], output["cosine"], 100 * output["finite_share"],
            )  # fmt: skip
    if drift:
        ctx.client.log_metric("calibration_cosine", min(output["cosine"] for output in drift))


def _optimise(
    ctx: HubContext, place: Place[ONNXRuntimeConfig], prepared: Path, name: str
) -> tuple[dict[str, Any], Path]:
    # A folder (weights beside a large model) is known by its listing, which logging makes; a file is not worth keeping.
    artifact = ctx.client.log_artifact(prepared, name="prepared") if prepared.is_dir() else _unlogged(prepared)
    there = place.send(artifact)
    entry = RemotePath(there) / model_file(prepared).name if prepared.is_dir() else RemotePath(there)
    output = RemotePath(place.folder) / name
    answer = call(place, "compile", ["--model", entry, "--output", output, *settings(place.config)])
    compiled = ctx.artifact_dir / name
    place.get(output, compiled)
    return answer, compiled


def _unlogged(path: Path) -> LoggedArtifact:
    """Return a file for sending only: it can be made again from the input."""
    return LoggedArtifact("prepared", path.name, path.stat().st_size, hash_file(path), local_path=path)


def _check_names(names: Sequence[str], answer: dict[str, Any]) -> None:
    """An optimiser that renamed a tensor would make every later step lie about names."""
    now = [tensor["name"] for tensor in (*answer.get("inputs", ()), *answer.get("outputs", ()))]
    if sorted(now) != sorted(names):
        raise RefusedError(f"The optimised model has the tensors {now}, the original {list(names)}; they must agree.")


def _log_answer(ctx: HubContext, answer: dict[str, Any]) -> None:
    client = ctx.client
    client.log_param("inputs", answer.get("inputs"))
    client.log_param("outputs", answer.get("outputs"))
    client.log_param("runtime_version", answer.get("runtime_version"))
    client.log_param("$board", answer.get("board"))
    client.log_metric("model_size_mb", float(answer.get("size_bytes", 0)) / 1e6)
