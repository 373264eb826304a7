"""Compile: ONNX to TFLite in the converter's own environment, INT8 with calibration data; checked, and kept."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from embedl_device.interpreter import python_argv
from embedl_device.readers import read_json
from embedl_hub.core.compile import CompileError
from embedl_hub.core.device import LocalCommandRunner
from embedl_hub.errors import CommandError, ConfigError
from embedl_hub.machine.environment import cache_dir
from embedl_hub.machine.machine import scratch_folder
from embedl_hub.machine.program import log_source
from embedl_hub.models.calibration import on_disk, open_calibration, write_npz
from embedl_hub.models.onnx_file import inputs_of, prepared_model, shape_hint, write_model
from embedl_hub.refusal import RefusedError, refusals_as
from embedl_hub.toolchains.tflite import converter
from embedl_hub.toolchains.tflite.components import TFLiteCompiledModel
from embedl_hub.toolchains.tflite.environment import ENVIRONMENT
from embedl_hub.tracking import hash_file

if TYPE_CHECKING:
    import onnx

    from embedl_hub.core.compile import CalibrationData
    from embedl_hub.core.context import HubContext

_CAP_BYTES = 4 << 30
_PAIR = frozenset({"QuantizeLinear", "DequantizeLinear"})
_MODEL, _ANSWER = "model.tflite", "answer.json"
_LOG = logging.getLogger("embedl_hub")
_CONVERT_S = 3600.0
# Float against float: rounding alone stays far below this share of an output's range.
_GOOD_SHARE = 1e-3
# Classifiers keep their accuracy well below 30 dB; what falls below this rarely does.
_POOR_DB = 15.0
_MOST_NAMED = 3


def key_of(source_sha256: str, options: Mapping[str, Any], calibration: Path | None) -> str:
    """Return what a conversion is known by: everything that can change its result."""
    facts = {
        "source": source_sha256,
        "options": dict(options),
        "calibration": None if calibration is None else _digest(calibration),
        "environment": ENVIRONMENT.key,
        "code": [hash_file(path) for path in _code()],
    }
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def _code() -> list[Path]:
    """Return the files of ours that a conversion runs."""
    script = Path(converter.__file__)
    return [script, *sorted((script.parent / "conversion").glob("*.py"))]


def look_up(name: str) -> tuple[Path, dict[str, Any]] | None:
    """Return a kept model and its facts; None when there is none, or it is damaged."""
    folder = _kept_folder() / name
    try:
        answer = read_json(folder / _ANSWER)
        if hash_file(folder / _MODEL) != answer["sha256"]:
            return None
        os.utime(folder)
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return folder / _MODEL, answer


def keep(name: str, model: Path, answer: Mapping[str, Any]) -> None:
    """Keep a conversion; whoever comes first stays."""
    folder = _kept_folder() / name
    part = folder.with_name(f".{name}.{os.getpid()}.part")
    part.mkdir(parents=True, exist_ok=True)
    try:
        shutil.copyfile(model, part / _MODEL)
        facts = {**answer, "sha256": hash_file(part / _MODEL)}
        (part / _ANSWER).write_text(json.dumps(facts), encoding="utf-8")
        if folder.exists():
            shutil.rmtree(folder, ignore_errors=True)
        part.rename(folder)
    except OSError:
        # A cache that cannot be written costs time, not the result.
        shutil.rmtree(part, ignore_errors=True)
    _trim()


def _kept_folder() -> Path:
    return cache_dir() / "compiled" / "tflite"


def _trim() -> None:
    """Drop the least recently used until the rest fits."""
    entries = sorted(
        ((folder.stat().st_mtime, sum(file.stat().st_size for file in folder.iterdir()), folder)
         for folder in _kept_folder().iterdir() if folder.is_dir()),
        key=lambda entry: entry[0],
    )  # fmt: skip
    total = sum(size for _, size, _ in entries)
    for _, size, folder in entries:
        if total <= _CAP_BYTES:
            return
        shutil.rmtree(folder, ignore_errors=True)
        total -= size


def _digest(path: Path) -> str:
    if path.is_file():
        return hash_file(path)
    files = sorted(file for file in path.iterdir() if file.suffix in {".npy", ".npz"})
    return hashlib.sha256("\n".join(f"{file.name} {hash_file(file)}" for file in files).encode()).hexdigest()


def compile_model(
    ctx: HubContext,
    onnx_path: Path,
    *,
    device: str | None,  # noqa: ARG001 - the result is the same for every device
    input_shape: Sequence[int] | None,
    calibration_data: CalibrationData | None,
    quantize_io: bool,
) -> TFLiteCompiledModel:
    """Compile a model on this machine; the result runs on any."""
    with refusals_as(CompileError), scratch_folder() as scratch:
        source = log_source(ctx, onnx_path, scratch, "tflite")
        data = None if calibration_data is None else on_disk(calibration_data, scratch)
        options = {"input_shape": input_shape and list(input_shape), "quantize_io": quantize_io}
        try:
            name = key_of(source.sha256, options, data)
        except OSError as error:
            raise RefusedError(f"There is no calibration data {data}: {error}.") from error
        kept = look_up(name)
        if kept is None:
            made, answer = _convert_and_keep(name, source.local(), input_shape, data, scratch, quantize_io=quantize_io)
        else:
            made, answer = kept
            _LOG.info("The conversion comes from the cache: same model, same options.")
        target = ctx.artifact_dir / f"{onnx_path.stem}.tflite"
        target.write_bytes(made.read_bytes())
    ctx.client.log_artifact(target, name="path")
    _log_answer(ctx, answer, from_cache=kept is not None)
    return TFLiteCompiledModel.from_current_run(ctx)


def convert_file(path: Path, scratch: Path) -> tuple[Path, dict[str, Any]]:
    """Return what becomes of a model without options, and the converter's answer; from the cache where it is there."""
    name = key_of(hash_file(path), {"input_shape": None, "quantize_io": False}, None)
    return look_up(name) or _convert_and_keep(name, path, None, None, scratch, quantize_io=False)


def _convert_and_keep(
    name: str, source: Path, shape: Sequence[int] | None, data: Path | None, scratch: Path, *, quantize_io: bool
) -> tuple[Path, dict[str, Any]]:
    answer = _convert(source, shape, data, scratch, quantize_io=quantize_io)
    made = Path(answer["output"])
    keep(name, made, answer)
    return made, answer


def _convert(
    source: Path, input_shape: Sequence[int] | None, data: Path | None, scratch: Path, *, quantize_io: bool
) -> dict[str, Any]:
    """Run the converter and return its answer; the model is where ``output`` says."""
    model = prepared_model(source, input_shape)
    _check_numbers(model, data, quantize_io=quantize_io)
    inputs = inputs_of(model)
    for tensor in inputs:
        if not tensor.is_fixed:
            raise RefusedError(f"Input {tensor} has no fixed shape, which TFLite needs; give {shape_hint(tensor)}.")
    prepared = write_model(model, scratch / "prepared.onnx")
    if prepared.is_dir():
        raise RefusedError("The model is larger than 2 GB, which the TFLite format cannot hold.")
    del model
    samples = None if data is None else open_calibration(data, inputs)
    work, batches = scratch / "work", scratch / "batches"
    work.mkdir()
    batches.mkdir()
    for number, batch in enumerate(() if samples is None else samples.batches()):
        write_npz(batches / f"{number:06d}.npz", batch)
    request = {
        "model": str(prepared),
        "work": str(work),
        "output": str(scratch / "converted.tflite"),
        "calibration": None if samples is None else str(batches),
        "quantize_io": quantize_io,
    }
    return {**call_converter(request, scratch), "calibration_samples": None if samples is None else samples.count}


def _check_numbers(model: onnx.ModelProto, data: Path | None, *, quantize_io: bool) -> None:
    """Refuse options that do not fit what the model is: float, or INT8 by its own Q/DQ."""
    is_quantized = any(node.op_type in _PAIR for node in model.graph.node)
    if is_quantized and data is not None:
        raise RefusedError(
            "The model has Q/DQ of its own, so it takes no calibration_data (--calibration-data); leave it out, or "
            "give the float model."
        )
    if quantize_io and not is_quantized and data is None:
        raise RefusedError(
            "quantize_io is for INT8, which needs calibration_data (--calibration-data) or a model with Q/DQ; give "
            "either, or leave quantize_io out."
        )


def call_converter(request: Mapping[str, Any], scratch: Path) -> dict[str, object]:
    """Carry out one request in the converter's environment."""
    try:
        environment = ENVIRONMENT.need()
    except ConfigError as error:
        raise RefusedError(str(error)) from error
    path = scratch / "request.json"
    path.write_text(json.dumps(request), encoding="utf-8")
    # -I leaves out the user's own packages; the thread limits keep the converter's helpers from fighting.
    argv = ["env", f"PATH={environment.python.parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"]
    argv += [*python_argv(str(environment.python), file=converter.__file__, isolated=True), str(path)]
    try:
        stdout = LocalCommandRunner().run(argv, cwd=scratch, hide=True, timeout_s=_CONVERT_S).stdout
    except CommandError as error:
        raise RefusedError(_failure_message(error)) from error
    answer = json.loads(stdout.splitlines()[-1])
    return {**answer, "output": str(request["output"])}


def _failure_message(error: CommandError) -> str:
    words = [line.removeprefix(converter.MARK) for line in error.stderr.splitlines() if line.startswith(converter.MARK)]
    if words:
        return words[-1]
    if error.exit_code is not None and error.exit_code > 128:
        return f"The converter crashed or was killed, for lack of memory perhaps: {error}"
    return f"The converter failed: {error}"


def _log_answer(ctx: HubContext, answer: Mapping[str, Any], *, from_cache: bool) -> None:
    samples = answer["calibration_samples"]
    params: dict[str, object] = {"from_cache": from_cache, "precision": "int8" if answer["quantization"] else "float32"}
    if samples is not None:
        params["calibration_samples"] = samples
    for kind in ("inputs", "outputs"):
        mapping = {tensor["name"]: tensor["compiled_name"] for tensor in answer[kind]}
        is_changed = any(old != new for old, new in mapping.items())
        params |= {kind: answer[kind], f"{kind[:-1]}_name_mapping": mapping if is_changed else {}}
    params |= {name: answer[name] for name in ("source_of_tensors", "operators", "quantization")}
    params |= {"tensors": {kind: answer[kind] for kind in ("inputs", "outputs")}, "conversion_check": answer["check"]}
    params |= {"converter": answer["versions"], "converter_seconds": answer["seconds"]}
    ctx.client.run.log_batch(params)
    ctx.client.log_metric("model_size_mb", answer["size_bytes"] / 1e6)
    _warn_of_floats(answer["quantization"])
    _log_differences(ctx, answer)


def _warn_of_floats(quantization: Mapping[str, Any]) -> None:
    """Name the operators that a Q/DQ file wanted in integers, whose gain is lost."""
    left = [item for item in quantization.get("left_float", ()) if isinstance(item, dict)]
    heavy = [item for item in left if item["op_type"] in converter.HEAVY]
    if heavy:
        names = ", ".join(f"{item['node']} ({item['reason']})" for item in heavy[:_MOST_NAMED])
        more = f" and {len(heavy) - _MOST_NAMED} more" if len(heavy) > _MOST_NAMED else ""
        _LOG.warning("%d of the file's INT8 operators run in float in LiteRT: %s%s.", len(heavy), names, more)


def _log_differences(ctx: HubContext, answer: Mapping[str, Any]) -> None:
    """Record how far the model is from its source, and say aloud what no user would want."""
    worst = max(answer["check"], key=lambda output: output["share_of_range"], default=None)
    if worst is not None:
        ctx.client.log_metric("conversion_error", worst["share_of_range"])
        if worst["share_of_range"] > _GOOD_SHARE:
            _LOG.warning(
                "The converted model differs from ONNX Runtime by %.2g of the range of output %r; that is more than "
                "rounding.", worst["share_of_range"], worst["name"],
            )  # fmt: skip
    known = [output for output in answer["quantization"].get("difference", ()) if output["sqnr_db"] is not None]
    if known:
        poorest = min(known, key=lambda output: float(output["sqnr_db"]))
        ctx.client.log_metric("quantization_sqnr_db", poorest["sqnr_db"])
        if poorest["sqnr_db"] < _POOR_DB:
            _LOG.warning(
                "INT8 changes output %r much even on calibration data: %.1f dB signal to noise against float. Check "
                "accuracy on labeled data; some models cannot be INT8 as a whole.",
                poorest["name"], poorest["sqnr_db"],
            )  # fmt: skip
