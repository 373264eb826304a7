"""Jobs of both toolchains: a model compiled, quantized first where there is data, or run; profiles as our documents."""

from __future__ import annotations

import json
import shutil
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from embedl_device.readers import UnreadableError, open_zip
from embedl_device.statistics import (
    BOUND_RULE,
    PERCENTILE_RULE,
    Judgement,
    Summary,
    Verdict,
    summarize,
    tail_facts,
)
from embedl_hub.clouds.qai_hub.service import Service
from embedl_hub.core.compile import CompileError
from embedl_hub.core.document import LayerRow, LayerTable, ProfileDocument, Runtime
from embedl_hub.core.invoke import InvokeError
from embedl_hub.machine.program import log_source
from embedl_hub.models import onnx_file
from embedl_hub.models.calibration import on_disk, open_calibration
from embedl_hub.models.onnx_file import check_data
from embedl_hub.refusal import RefusedError
from embedl_hub.toolchains.onnxruntime.profile import compute_unit

if TYPE_CHECKING:
    from embedl_hub.core.compile import CalibrationData
    from embedl_hub.core.context import HubContext
    from embedl_hub.models.onnx_file import Tensor

Entries = dict[str, list[np.ndarray]]
# Microseconds of thirty years, or a petabyte: more is damage.
_LARGEST = 1e15
Sources: TypeAlias = "Callable[[Sequence[LayerRow]], Sequence[Sequence[str]]]"


def calibration_entries(data: CalibrationData, inputs: Sequence[Tensor], scratch: Path) -> Entries:
    """Return calibration data as lists of batches; the vendor's client wants them all at once."""
    path = on_disk(data, scratch)
    entries: Entries = {tensor.name: [] for tensor in inputs}
    for batch in open_calibration(path, inputs).batches():
        for name, array in batch.items():
            entries[name].append(array)
    return entries


def data_entries(data: Mapping[str, np.ndarray], inputs: Sequence[Tensor]) -> Entries:
    """Return checked data as lists of what the model takes at once, in the order of its inputs."""
    check_data(inputs, data, "input_data")
    entries: Entries = {}
    for tensor in inputs:
        array = np.asarray(data[tensor.name])
        first = tensor.shape[0] if tensor.shape else None
        pieces = array.shape[0] // first if isinstance(first, int) else 1
        entries[tensor.name] = list(np.split(array, pieces)) if pieces > 1 else [array]
    return entries


def joined(answer: Mapping[str, object]) -> dict[str, np.ndarray]:
    """Return outputs as one array each, batches one after the other."""
    output = {}
    for name, parts in answer.items():
        arrays = [np.asarray(part) for part in parts] if isinstance(parts, list) else [np.asarray(parts)]
        output[name] = np.concatenate(arrays) if len(arrays) > 1 else arrays[0]
    return output


def unpacked(fetched: Path, target: Path) -> Path:
    """Return a downloaded model at its place: a file, or a folder when it came as an archive."""
    if not zipfile.is_zipfile(fetched):
        shutil.move(fetched, target)
        return target
    folder = target.with_suffix("")
    try:
        with open_zip(fetched) as archive:
            for entry in archive.infolist():
                name = PurePosixPath(entry.filename)
                if name.is_absolute() or ".." in name.parts:
                    raise RefusedError(f"The compiled model's archive holds {entry.filename!r}, which leads out of it.")
                if entry.is_dir():
                    continue
                # Archives hold the model in one folder, which is no part of it.
                place = folder / (PurePosixPath(*name.parts[1:]) if len(name.parts) > 1 else name)
                place.parent.mkdir(parents=True, exist_ok=True)
                with archive.open(entry) as source, place.open("wb") as copy:
                    shutil.copyfileobj(source, copy)
    except (OSError, UnreadableError) as error:
        raise RefusedError(f"The compiled model's archive cannot be unpacked: {error}.") from error
    return folder


def input_specs(inputs: Sequence[Tensor]) -> dict[str, tuple[tuple[Any, ...], str]]:
    """Return shapes and types as the vendor wants them, or refuse an open one."""
    for tensor in inputs:
        if not tensor.is_fixed:
            raise RefusedError(f"Input {tensor} has no fixed shape, which Qualcomm AI Hub needs; give input_shape.")
    return {tensor.name: (tensor.shape, tensor.dtype) for tensor in inputs}


def renamed(before: Sequence[Tensor], after: Sequence[Tensor]) -> dict[str, str]:
    """Return the compiled names by the original ones, where a name changed; the order of tensors stays."""
    if len(before) != len(after):
        raise RefusedError(
            f"The compiled model has the tensors {[tensor.name for tensor in after]}, the original "
            f"{[tensor.name for tensor in before]}; they cannot be matched."
        )
    pairs = {old.name: new.name for old, new in zip(before, after, strict=True)}
    return pairs if any(old != new for old, new in pairs.items()) else {}


@dataclass(frozen=True)
class CompileOptions:
    """How a model is to be compiled, ``runtime`` in the vendor's words; calibration data makes it INT8."""

    runtime: str
    input_shape: tuple[int, ...] | None
    calibration_data: CalibrationData | None
    quantize_io: bool
    quantize_options: str = ""


@dataclass(frozen=True)
class Fetched:
    """What came back, and the tensors of the model that was sent."""

    path: Path
    inputs: Sequence[Tensor]
    outputs: Sequence[Tensor]


def compile_model(
    ctx: HubContext, component: type[object], device: str | None, onnx_path: Path, scratch: Path, wanted: CompileOptions
) -> Fetched:
    """Send a model, have it compiled and fetch it; what can be refused is refused before the cloud is asked."""
    source = log_source(ctx, onnx_path, scratch, wanted.runtime)
    model = onnx_file.read_model(source.local())
    if wanted.input_shape is not None:
        onnx_file.fix_input_shape(model, wanted.input_shape)
    inputs, outputs = onnx_file.inputs_of(model), onnx_file.outputs_of(model)
    specs = input_specs(inputs)
    calibration = wanted.calibration_data
    data = None if calibration is None else calibration_entries(calibration, inputs, scratch)
    packed = onnx_file.write_model(model, scratch / f"{onnx_path.stem}.onnx")
    service = Service(ctx, device, component, CompileError)
    uploaded = service.upload_model(packed)
    if data is not None:
        options = f"{wanted.quantize_options} {service.config.quantize_options}".strip()
        uploaded = service.quantize(uploaded, service.upload_data(data), options)
    words = [f"--target_runtime {wanted.runtime}", "--quantize_io" if wanted.quantize_io else ""]
    options = " ".join(filter(None, [*words, service.config.compile_options]))
    fetched = service.compile(uploaded, specs, options, scratch / f"target.{wanted.runtime}")
    return Fetched(fetched, inputs, outputs)


def run_model(
    ctx: HubContext, component: type[object], device: str | None, model: Path, entries: Entries
) -> dict[str, np.ndarray]:
    """Run a model in the cloud, one entry per batch, and return its outputs, one array each."""
    service = Service(ctx, device, component, InvokeError)
    return joined(service.infer(service.upload_model(model), service.upload_data(entries)))


def document_of(raw: Mapping[str, Any], job: Any, device: Any, runtime: str, sources: Sources) -> ProfileDocument:  # noqa: ANN401 - the vendor's objects
    """Return our document for the vendor's profile; ``sources`` gives the source's nodes of each layer."""
    summary, detail = raw.get("execution_summary"), raw.get("execution_detail") or ()
    is_table = isinstance(detail, list | tuple) and all(isinstance(row, Mapping) for row in detail)
    if not isinstance(summary, Mapping) or not is_table:
        raise RefusedError(f"Qualcomm AI Hub: the profile of job {job.job_id} has an unknown form. See {job.url}")
    times = summary.get("all_inference_times") or ()
    numbers = [_number(time) for time in times] if isinstance(times, list | tuple) else [None]
    samples = [time for time in numbers if time is not None]
    estimate = _number(summary.get("estimated_inference_time"))
    if len(samples) != len(numbers) or (not samples and estimate is None):
        raise RefusedError(
            f"Qualcomm AI Hub: the profile of job {job.job_id} holds no inference time, or one that is no time. "
            f"See {job.url}"
        )
    memory = _number(summary.get("estimated_inference_peak_memory"))
    return ProfileDocument(
        summarize(samples, 1e3) if samples else Summary(_scaled(estimate, 1e-3)),
        {
            "estimated_inference_time_ms": _scaled(estimate, 1e-3),
            "load_time_ms": _scaled(_number(summary.get("warm_load_time")), 1e-3),
            "first_load_time_ms": _scaled(_number(summary.get("first_load_time")), 1e-3),
            "first_latency_ms": samples[0] / 1e3 if samples else None,
            "iterations": len(samples) or None,
            "warmup": None,
            "peak_memory_mb": _scaled(memory, 1e-6),
        },
        tuple(samples),
        judgement=Judgement(
            Verdict.INDICATIVE, "measured in the vendor's cloud, which tells nothing of clocks, temperature or load"
        ),
        memory_method="estimated_inference_peak_memory of the vendor's profile",
        runtime=Runtime(runtime),
        place=device.name,
        layers=LayerTable(_rows(detail, sources), {"runs": None}),
        facts={
            "tool": {"name": "qai_hub", "job_id": job.job_id, "url": job.url},
            "placement": None,
            "environment": {"board": {"model": device.name, "system": device.os}},
            "tails": tail_facts(samples) if samples else None,
            "method": {"clock": "the vendor's", "percentile_rule": PERCENTILE_RULE, "bound_rule": BOUND_RULE},
        },
    )


def _rows(detail: Sequence[Mapping[str, Any]], sources: Sources) -> tuple[LayerRow, ...]:
    times = [_number(row.get("execution_time")) for row in detail]
    total = sum(time for time in times if time is not None)
    rows = [
        LayerRow(
            str(row.get("name", "")),
            str(row.get("type", "")),
            str(row.get("compute_unit", "UNSPECIFIED")),
            _scaled(time, 1e-3),
            time / total if time is not None and total else None,
            extra={"cycles": row.get("execution_cycles")},
        )
        for row, time in zip(detail, times, strict=True)
    ]
    return tuple(
        replace(row, source_nodes=tuple(names), added_by_runtime=not names)
        for row, names in zip(rows, sources(rows), strict=True)
    )


def check_units(document: ProfileDocument, required: str | None) -> None:
    """Refuse layers that ran elsewhere than on the unit of the execution provider that was required."""
    if required is None:
        return
    unit = compute_unit(required)
    elsewhere = [row for row in document.rows if row.compute_unit != unit]
    if elsewhere or not document.rows:
        some = ", ".join(f"{row.name} ({row.compute_unit})" for row in elsewhere[:5]) or "no layer is known"
        raise RefusedError(
            f"{required} was required, which runs on the {unit}, but {len(elsewhere)} of "
            f"{len(document.rows)} layers ran elsewhere: {some}."
        )


def keep_raw(ctx: HubContext, raw: Mapping[str, Any]) -> None:
    """Keep the vendor's own profile."""
    path = ctx.artifact_dir / "qai_hub_profile.json"
    path.write_text(json.dumps(raw, indent=1), encoding="utf-8")
    ctx.client.log_artifact(path, name="raw")


def _number(value: object) -> float | None:
    """Return a time or a size as a number; None for what is none."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= _LARGEST:
        return None
    return float(value)


def _scaled(value: float | None, factor: float) -> float | None:
    return None if value is None else value * factor
