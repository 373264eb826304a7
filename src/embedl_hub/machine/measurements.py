"""The kinds of measurement that are the same for every runtime: by its device program there, kept here."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from embedl_device.statistics import Ratio, paired_ratio
from embedl_hub.core.document import ProfileDocument
from embedl_hub.core.profile import (
    START_PARTS,
    ColdStartProfiler,
    ColdStartResult,
    ConcurrentProfiler,
    ConcurrentResult,
    concurrent_model,
    log_document,
)
from embedl_hub.machine import program
from embedl_hub.machine.driver import driven
from embedl_hub.refusal import RefusedError

if TYPE_CHECKING:
    import numpy as np

    from embedl_hub.core.answer import Form
    from embedl_hub.core.component import CompiledModel
    from embedl_hub.core.context import HubContext
    from embedl_hub.machine.machine import Machine

    Arrays = Mapping[str, np.ndarray]

_SUMMARY: Form = {"median": float}
_STARTS: Form = {"total_ms": _SUMMARY, "parts_ms": dict.fromkeys(START_PARTS, _SUMMARY)}
_COLD_START: Form = {"starts": int, "cached": _STARTS, "cold?": _STARTS, "cold_problem?": str}
_ALONE: Form = {
    "latency_ms": {"mean": float},
    "window_means_us": [float],
    "per_second": float,
    "waiting_share?": float,
}
_CONCURRENT: Form = {"rounds": int, "models": [{"file_name": str, "alone": _ALONE, "concurrent": _ALONE}]}
_SECONDS_A_WINDOW = 0.5


def cold_starts(
    ctx: HubContext, model: CompiledModel, *, device: str | None, starts: int, input_data: Arrays | None
) -> ColdStartResult:
    """Start a model anew and anew on a machine, and keep what was found."""
    with driven(ctx, device, ColdStartProfiler, [model]) as (driver, machine):
        if starts < 1:
            raise RefusedError(f"starts must be at least 1, not {starts}.")
        args = program.place_models(ctx, machine, driver.runtime, [model], driver.read_inputs, input_data)
        args += [*driver.settings(machine), "--starts", str(starts)]
        document = program.measure_there(machine, driver.runtime, "cold-start", args, _COLD_START)
        _keep(ctx, machine, document, "cold_start.json")
    if (cold := document.get("cold")) is None:
        ctx.client.log_param("cold_problem", document.get("cold_problem") or "the device program does not say why")
    for end, starts_of in (("", document["cached"]), ("_cold", cold)):
        if starts_of is not None:
            ctx.client.log_metric(f"start_time{end}", starts_of["total_ms"]["median"])
            for part, name in START_PARTS.items():
                ctx.client.log_metric(f"{name}{end}", starts_of["parts_ms"][part]["median"])
    return ColdStartResult.from_current_run(ctx)


def run_concurrently(
    ctx: HubContext,
    models: Sequence[CompiledModel],
    *,
    device: str | None,
    rounds: int,
    idle_processes: int,
    input_data: Arrays | None,
) -> ConcurrentResult:
    """Measure models alone and at once on a machine, and keep what was found."""
    if not isinstance(models, list | tuple) or not models:
        raise RefusedError(f"Give a list of compiled models, not {models!r:.100}.")
    with driven(ctx, device, ConcurrentProfiler, models) as (driver, machine):
        if rounds < 1 or idle_processes < 0 or len(models) + idle_processes < 2:
            raise RefusedError(
                f"rounds must be at least 1, and there must be two models, or one and an idle process; not {rounds} "
                f"rounds of {len(models)} models and {idle_processes} idle processes."
            )
        args = program.place_models(ctx, machine, driver.runtime, models, driver.read_inputs, input_data)
        longest_s = machine.config.max_seconds * (len(models) + 1)
        args += [*driver.settings(machine), "--rounds", str(rounds), "--idle", str(idle_processes)]
        args += ["--window-seconds", str(_SECONDS_A_WINDOW), "--max-seconds", str(longest_s)]
        document = program.measure_there(machine, driver.runtime, "concurrent", args, _CONCURRENT)
        if len(document["models"]) != len(models):
            raise RefusedError(f"The device program on {machine.title} measured other models than it was given.")
        found = []
        for number, row in enumerate(document["models"], 1):
            row |= {"artifact": program.artifact_name(number), "interference": asdict(_interference(row, machine))}
            each = concurrent_model(row)
            found.append(each)
            values = {
                "latency_alone": each.latency_alone,
                "latency_concurrent": each.latency_concurrent,
                "interference": each.interference.value,
                "interference_low": each.interference.low,
                "interference_high": each.interference.high,
                "fps_alone": each.fps_alone,
                "fps_concurrent": each.fps_concurrent,
            }
            for name, value in values.items():
                if value is not None:
                    ctx.client.log_metric(f"{name}_{number}", value)
        _keep(ctx, machine, document, "concurrent.json")
    return ConcurrentResult.from_current_run(ctx, models=tuple(found))


def _interference(row: Mapping[str, Any], machine: Machine[Any]) -> Ratio:
    try:
        return paired_ratio(row["concurrent"]["window_means_us"], row["alone"]["window_means_us"])
    except (ValueError, ArithmeticError) as error:
        raise RefusedError(f"The device program on {machine.title} gave times that are none: {error}") from error


def _keep(ctx: HubContext, machine: Machine[Any], document: dict[str, Any], file_name: str) -> None:
    document["place"] = machine.title
    path = ctx.artifact_dir / file_name
    path.write_text(json.dumps(document, indent=1), encoding="utf-8")
    log_document(ctx, ProfileDocument.from_json(document), written=path)
    program.log_kernels(ctx, document)
