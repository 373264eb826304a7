"""Compile: ONNX to TFLite in the converter's own environment, INT8 with calibration data, checked and cached."""

from __future__ import annotations

import json
import logging
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from embedl_hub.core.compile import CompileError, TFLiteCompiledModel
from embedl_hub.core.device import LocalCommandRunner
from embedl_hub.errors import CommandError, ConfigError
from embedl_hub.tflite import cache, converter
from embedl_hub.tflite.environment import need_environment
from embedl_hub.toolchain.arrays import write_npz
from embedl_hub.toolchain.calibration import on_disk, open_calibration
from embedl_hub.toolchain.model import (
    fix_input_shape,
    gather,
    inputs_of,
    name_nodes,
    read_model,
    shape_wish,
    write_model,
)
from embedl_hub.toolchain.place import scratch_folder
from embedl_hub.toolchain.refusal import RefusedError, refusals_as

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from embedl_hub.core.compile import CalibrationData
    from embedl_hub.core.context import HubContext

_LOG = logging.getLogger("embedl_hub")
_CONVERT_S = 3600.0
# Float against float: rounding alone stays far below this share of an output's range.
_GOOD_SHARE = 1e-3
# Classifiers keep their accuracy well below 30 dB; what falls below this rarely does.
_POOR_DB = 15.0


@dataclass(frozen=True)
class Wishes:
    """What the user asked of a compilation."""

    input_shape: Sequence[int] | None = None
    calibration_data: CalibrationData | None = None
    quantize_io: bool = False


def compile_model(ctx: HubContext, onnx_path: Path, wishes: Wishes) -> TFLiteCompiledModel:
    """Compile a model on this machine; the result runs on any."""
    with refusals_as(CompileError), scratch_folder() as scratch:
        if wishes.quantize_io and wishes.calibration_data is None:
            raise RefusedError(
                "quantize_io is for INT8, which needs calibration_data (--calibration-data); give it, or leave it out."
            )
        source = ctx.client.log_artifact(gather(onnx_path, scratch), name="input")
        ctx.client.log_param("$runtime", "tflite")
        data = None if wishes.calibration_data is None else on_disk(wishes.calibration_data, scratch)
        options = {"input_shape": wishes.input_shape and list(wishes.input_shape), "quantize_io": wishes.quantize_io}
        name = _cache_key(source.sha256, options, data)
        kept = cache.look_up(name)
        target = ctx.artifact_dir / f"{onnx_path.stem}.tflite"
        if kept is None:
            answer = _convert(source.local(), wishes, data, scratch)
            cache.keep(name, Path(answer["output"]), answer)
            target.write_bytes(Path(answer["output"]).read_bytes())
        else:
            answer = kept[1]
            target.write_bytes(kept[0].read_bytes())
            _LOG.info("The conversion comes from the cache: same model, same options.")
    ctx.client.log_artifact(target, name="path")
    _log_answer(ctx, answer, from_cache=kept is not None)
    return TFLiteCompiledModel.from_current_run(ctx)


def _cache_key(source_sha256: str, options: Mapping[str, Any], data: Path | None) -> str:
    try:
        return cache.key_of(source_sha256, options, data)
    except OSError as error:
        raise RefusedError(f"There is no calibration data {data}: {error}.") from error


def _convert(source: Path, wishes: Wishes, data: Path | None, scratch: Path) -> dict[str, Any]:
    """Run the converter and return its answer; the model is where ``output`` says."""
    model = read_model(source)
    if wishes.input_shape is not None:
        fix_input_shape(model, wishes.input_shape)
    name_nodes(model)
    inputs = inputs_of(model)
    for tensor in inputs:
        if not tensor.is_fixed:
            raise RefusedError(f"Input {tensor} has no fixed shape, which TFLite needs; give {shape_wish(tensor)}.")
    prepared = write_model(model, scratch / "prepared.onnx")
    if prepared.is_dir():
        raise RefusedError("The model is larger than 2 GB, which the TFLite format cannot hold.")
    del model
    batches, count = None, None
    if data is not None:
        samples = open_calibration(data, inputs)
        count = samples.count
        batches = scratch / "batches"
        batches.mkdir()
        for number, batch in enumerate(samples.batches()):
            write_npz(batches / f"{number:06d}.npz", batch)
    work = scratch / "work"
    work.mkdir()
    answer = call_converter(
        {
            "model": str(prepared),
            "work": str(work),
            "output": str(scratch / "converted.tflite"),
            "calibration": None if batches is None else str(batches),
            "quantize_io": wishes.quantize_io,
        },
        scratch,
    )
    return {**answer, "calibration_samples": count}


def call_converter(request: Mapping[str, Any], scratch: Path) -> dict[str, Any]:
    """Carry out one request in the converter's environment."""
    try:
        environment = need_environment()
    except ConfigError as error:
        raise RefusedError(str(error)) from error
    path = scratch / "request.json"
    path.write_text(json.dumps(request), encoding="utf-8")
    # -I leaves out the user's own packages; the thread limits keep the converter's helpers from fighting.
    argv = ["env", f"PATH={environment.python.parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"]
    argv += [str(environment.python), "-I", str(Path(converter.__file__)), str(path)]
    try:
        stdout = LocalCommandRunner().run(argv, cwd=scratch, hide=True, timeout_s=_CONVERT_S).stdout
    except CommandError as error:
        raise RefusedError(_ending(error)) from error
    answer = json.loads(stdout.splitlines()[-1])
    return {**answer, "output": str(request["output"])}


def _ending(error: CommandError) -> str:
    words = [line.removeprefix(converter.MARK) for line in error.stderr.splitlines() if line.startswith(converter.MARK)]
    if words:
        return words[-1]
    if error.exit_code is not None and error.exit_code > 128:
        return f"The converter crashed or was killed, for lack of memory perhaps: {error}"
    return f"The converter failed: {error}"


def _log_answer(ctx: HubContext, answer: Mapping[str, Any], *, from_cache: bool) -> None:
    client = ctx.client
    client.log_param("from_cache", from_cache)
    if answer["calibration_samples"] is not None:
        client.log_param("calibration_samples", answer["calibration_samples"])
    for kind in ("inputs", "outputs"):
        client.log_param(kind, answer[kind])
        mapping = {tensor["name"]: tensor["compiled_name"] for tensor in answer[kind]}
        is_changed = any(old != new for old, new in mapping.items())
        client.log_param(f"{kind[:-1]}_name_mapping", mapping if is_changed else {})
    client.log_param("tensors", {"inputs": answer["inputs"], "outputs": answer["outputs"]})
    client.log_param("conversion_check", answer["check"])
    client.log_param("source_of_tensors", answer["source_of_tensors"])
    client.log_param("converter", answer["versions"])
    client.log_param("converter_seconds", answer["seconds"])
    client.log_param("operators", answer["operators"])
    client.log_param("quantization", answer["quantization"])
    client.log_param("precision", "float32" if answer["calibration_samples"] is None else "int8")
    client.log_metric("model_size_mb", answer["size_bytes"] / 1e6)
    _log_differences(ctx, answer)


def _log_differences(ctx: HubContext, answer: Mapping[str, Any]) -> None:
    """Record how far the model is from its source, and say aloud what no user would want."""
    worst = max(answer["check"], key=lambda one: one["share_of_range"], default=None)
    if worst is not None:
        ctx.client.log_metric("conversion_error", worst["share_of_range"])
        if worst["share_of_range"] > _GOOD_SHARE:
            _LOG.warning(
                "The converted model differs from ONNX Runtime by %.2g of the range of output %r; that is more than "
                "rounding.", worst["share_of_range"], worst["name"],
            )  # fmt: skip
    known = [one for one in answer["quantization"].get("difference", ()) if one["sqnr_db"] is not None]
    if known:
        poorest = min(known, key=lambda one: float(one["sqnr_db"]))
        ctx.client.log_metric("quantization_sqnr_db", poorest["sqnr_db"])
        if poorest["sqnr_db"] < _POOR_DB:
            _LOG.warning(
                "INT8 changes output %r much even on calibration data: %.1f dB signal to noise against float. Check "
                "accuracy on labelled data; some models cannot be INT8 as a whole.",
                poorest["name"], poorest["sqnr_db"],
            )  # fmt: skip
