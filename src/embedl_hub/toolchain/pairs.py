"""Models in turns as every toolchain keeps them: one document, the same metrics, the same verdicts."""

from __future__ import annotations

import json
import logging
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from embedl_hub.core.profile import PairedResult
from embedl_hub.ratios import Ratio, paired_ratio, rank
from embedl_hub.toolchain.profiles import check_format
from embedl_hub.toolchain.program import call, log_kernels
from embedl_hub.toolchain.refusal import RefusedError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from embedl_hub.core.component import CompiledModel
    from embedl_hub.core.context import HubContext
    from embedl_hub.core.device import AnyPath, MeasuringConfig
    from embedl_hub.toolchain.place import Place

_LOG = logging.getLogger("embedl_hub")
# The two clocks are read one after the other; what is left of a time is never quite nothing.
_LEAST_SHARE = 0.001


def log_models(ctx: HubContext, models: Sequence[CompiledModel], runtime: str) -> None:
    """Record which models are measured."""
    if not isinstance(models, list | tuple) or len(models) < 2:
        raise RefusedError(
            f"Measuring in turns takes a list of two models or more, not {models!r:.100}; the first is what the others "
            "are held against."
        )
    for number, model in enumerate(models, 1):
        ctx.client.log_artifact(model.path, name=artifact_name(number), ctx=ctx)
    ctx.client.log_param("$runtime", runtime)


def artifact_name(number: int) -> str:
    """Return what a run calls its models, counted from 1; the first is its input like any profile's."""
    return "input" if number == 1 else f"input_{number}"


def measure_in_turns(
    ctx: HubContext, place: Place[MeasuringConfig], files: Sequence[AnyPath], words: Sequence[AnyPath], samples: int
) -> PairedResult:
    """Let the device program measure files in turns, and keep what it found."""
    if samples < 1:
        raise RefusedError(f"samples must be at least 1, not {samples}.")
    arguments = [word for file in files for word in ("--model", file)]
    document = call(place, "pair", [*arguments, *words, *_plan(place.config, samples, len(files))])
    check_format(document, place)
    _tell_shapes(ctx, document["models"])
    times = [_own_times(row) for row in document["models"]]
    loaded_at = document["loaded_at"]
    ratios = [Ratio(1.0), *(paired_ratio(each, times[0], loaded_at) for each in times[1:])]
    document |= {"place": place.title, "waiting_share": _waiting_share(document["models"])}
    for number, (row, ratio) in enumerate(zip(document["models"], ratios, strict=True), 1):
        row |= {"artifact": artifact_name(number), "ratio": asdict(ratio)}
    document["ranking"] = [
        {"model": each.number, "to_next": None if each.to_next is None else asdict(each.to_next)}
        for each in rank(times, loaded_at)
    ]
    _log(ctx, document, ratios)
    return PairedResult.from_current_run(ctx)


def _tell_shapes(ctx: HubContext, rows: Sequence[Mapping[str, Any]]) -> None:
    """Record what each model read, and say so where it is not as much: a batch of eight takes longer than one."""
    shapes = [[tensor["shape"] for tensor in row["data"]["inputs"].values()] for row in rows]
    ctx.client.log_param("input_shapes", shapes)
    if any(each != shapes[0] for each in shapes):
        words = "; ".join(f"model {number} {json.dumps(each)}" for number, each in enumerate(shapes, 1))
        _LOG.warning("The models read inputs of different shapes, and a ratio of them is of that too: %s.", words)


def _plan(config: MeasuringConfig, samples: int, models: int) -> list[str]:
    """Return how much to measure; the config's longest time is for each model."""
    return [
        "--iterations", str(samples), "--min-seconds", str(config.min_seconds),
        "--max-seconds", str(config.max_seconds * models), "--max-warmup-seconds", str(config.max_warmup_seconds),
    ]  # fmt: skip


def _own_times(row: Mapping[str, Any]) -> list[float]:
    """Return a model's times without what it stood in the queue for a processor, where that is known."""
    times: list[float] = row["samples_us"]
    waits = row["waited_us"] or [0.0] * len(times)
    return [max(time - wait, _LEAST_SHARE * time) for time, wait in zip(times, waits, strict=True)]


def _waiting_share(rows: Sequence[Mapping[str, Any]]) -> float | None:
    """Return how much of all times was waiting: how busy the processors were with other things."""
    if any(row["waited_us"] is None for row in rows):
        return None
    return sum(sum(row["waited_us"]) for row in rows) / sum(sum(row["samples_us"]) for row in rows)


def _log(ctx: HubContext, document: dict[str, Any], ratios: Sequence[Ratio]) -> None:
    path = ctx.artifact_dir / "paired.json"
    path.write_text(json.dumps(document, indent=1), encoding="utf-8")
    client = ctx.client
    client.log_artifact(path, name="output_file")
    for number, (row, ratio) in enumerate(zip(document["models"], ratios, strict=True), 1):
        client.log_metric(f"latency_median_{number}", row["latency_ms"]["median"])
        if number > 1:
            values = {"": ratio.value, "_low": ratio.low, "_high": ratio.high}
            for end, value in values.items():
                if value is not None:
                    client.log_metric(f"ratio_{number}{end}", value)
    client.log_metric("rounds", document["rounds"])
    if document["waiting_share"] is not None:
        client.log_metric("waiting_share", document["waiting_share"])
    if document["peak_memory_mb"] is not None:
        client.log_metric("peak_memory_mb", document["peak_memory_mb"])
    client.log_param("verdict", document["verdict"])
    client.log_param("verdict_reason", document["verdict_reason"])
    client.log_param("memory_method", document["memory_method"])
    client.log_param("runtime_version", document["runtime"]["version"])
    log_kernels(ctx, document)
