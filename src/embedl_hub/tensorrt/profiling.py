"""Profile: timed by trtexec where the engine runs, with every version's defaults pinned to one meaning."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING, Any

from embedl_hub.core.profile import ProfileError, TensorRTProfilingResult
from embedl_hub.errors import CommandError, TransferError
from embedl_hub.tensorrt.formats import parse_layer_info, parse_profile, parse_times
from embedl_hub.tensorrt.layers import join_layers, uncovered
from embedl_hub.tensorrt.log import parse_memory_mib, parse_seconds, parse_statistics, parse_warmups, warnings
from embedl_hub.tensorrt.options import measure_options, place_options, shape_words
from embedl_hub.tensorrt.program import call, check_maker, find_trtexec
from embedl_hub.tensorrt.shapes import ShapeProfile
from embedl_hub.tensorrt.types import log_precision
from embedl_hub.tensorrt.verdict import PERCENTILE_RULE, judge, statistics
from embedl_hub.toolchain.modules import source_of, with_modules
from embedl_hub.toolchain.profiles import log_document
from embedl_hub.toolchain.refusal import RefusedError, refusals_as

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import onnx

    from embedl_hub.core.compile import TensorRTCompiledModel
    from embedl_hub.core.context import HubContext
    from embedl_hub.tensorrt.formats import Query
    from embedl_hub.tensorrt.place import Place
    from embedl_hub.tensorrt.program import Answer, Trtexec

_TIMES, _LAYER_TIMES, _LAYERS = "times.json", "layer_times.json", "layers.json"
_QUICK_S = 60.0
_MIB_IN_MB = 1.048576
# The same numbers, printed with other digits.
_SUMMARY_AGREES_WITHIN = 0.02
# Layers run one by one are slower than together, streams in parallel faster; a wrong unit is a thousand times off.
_LAYERS_AGREE_WITHIN = 50.0

# $1 the GPU's number. Prints what its sensors say; every line is optional.
_SENSE = """\
command -v nvidia-smi >/dev/null 2>&1 || exit 0
for field in temperature.gpu clocks.sm clocks.mem power.draw pstate utilization.gpu; do
  echo "$field=$(nvidia-smi --id="$1" --query-gpu="$field" --format=csv,noheader,nounits 2>/dev/null | head -n 1)"
done
reasons=$(nvidia-smi --id="$1" --query-gpu=clocks_event_reasons.active --format=csv,noheader 2>/dev/null)
[ -n "$reasons" ] || reasons=$(nvidia-smi --id="$1" --query-gpu=clocks_throttle_reasons.active --format=csv,noheader)
echo "clocks_event_reasons=$reasons"
exit 0
"""
# NVML's bits for what holds the clocks down against the user's wish (nvml.h: nvmlClocksEventReason…).
_REASONS = {
    0x4: "power cap", 0x8: "hardware slowdown", 0x20: "thermal slowdown by the driver", 0x40: "thermal slowdown",
    0x80: "power brake",
}  # fmt: skip


def profile_model(ctx: HubContext, place: Place, model: TensorRTCompiledModel) -> TensorRTProfilingResult:
    """Measure an engine at a place."""
    with refusals_as(ProfileError):
        ctx.client.log_artifact(model.path, name="input", ctx=ctx)
        ctx.client.log_param("$runtime", "tensorrt")
        log_precision(ctx, model.engine)
        check_maker(model)
        program = find_trtexec(place)
        engine = place.send(model.path)
        before = _sense(place)
        answer = call(ctx, place, program, "profile", [f"--loadEngine={engine}", *_words(place, program, model)])
        after = _sense(place)
        document = _document(ctx, place, program, answer)
        document |= _judged(document, before, after)
        source = source_of(ctx, model)
        document["layers"] = _layers(ctx, place, document, source)
        document["source"] = _source_facts(document["layers"]["rows"], source)
    log_document(ctx, with_modules(document, source))
    return TensorRTProfilingResult.from_current_run(ctx)


def _words(place: Place, program: Trtexec, model: TensorRTCompiledModel) -> list[str]:
    words = [f"--exportTimes={_TIMES}", *measure_options(program.capabilities, place.config)]
    if place.config.layers:
        words += [f"--exportProfile={_LAYER_TIMES}", f"--exportLayerInfo={_LAYERS}"]
    shapes = ShapeProfile.from_value(model.engine.get("shapes", {})).best
    if shapes:
        words.append(f"--shapes={shape_words(shapes)}")
    return [*words, *place_options(place.config), *place.config.cli_args]


def _fetched(ctx: HubContext, place: Place, name: str) -> str:
    """Bring a file of trtexec's here and keep it as it is, before anybody reads it."""
    path = ctx.artifact_dir / name
    try:
        place.get(place.folder / name, path)
    except TransferError as error:
        raise RefusedError(
            f"trtexec on {place.title} ended well but wrote no {name}; what it printed is kept as "
            "'trtexec-profile.log'."
        ) from error
    ctx.client.log_artifact(path, name=name)
    return path.read_text(encoding="utf-8", errors="replace")


def _document(ctx: HubContext, place: Place, program: Trtexec, answer: Answer) -> dict[str, Any]:
    queries = parse_times(_fetched(ctx, place, _TIMES))
    check_summary(queries, answer.text)
    times = [query.latency_ms for query in queries]
    load_s, memory_mib = parse_seconds(answer.text, "Engine deserialized"), parse_memory_mib(answer.text)
    config = place.config
    return {
        "format": 1,
        "tool": {"name": "trtexec", "path": program.path, "version": program.capabilities.version_text},
        "runtime": {"name": "tensorrt", "version": program.capabilities.version_text, "available": []},
        "place": place.title,
        "settings": {
            "cuda_graph": config.cuda_graph, "spin_wait": config.spin_wait, "data_transfers": config.data_transfers,
            "cli_args": list(config.cli_args),
        },
        "latency_ms": statistics(times),
        "compute_ms": statistics([query.compute_ms for query in queries]),
        "load_time_ms": None if load_s is None else load_s * 1e3,
        "first_latency_ms": None,
        "samples_us": [time * 1e3 for time in times],
        "warmup_us": [],
        "iterations": len(times),
        "warmup": parse_warmups(answer.text),
        "peak_memory_mb": None if memory_mib is None else memory_mib * _MIB_IN_MB,
        "memory_method": "GPU memory that TensorRT says it manages, from trtexec's log",
        "placement": None,
        "warnings": warnings(answer.text)[:50],
        "method": {
            "clock": "CUDA events around each query, by trtexec; "
            + ("copies included" if config.data_transfers else "copies to and from the GPU not included"),
            "warmup_rule": f"{config.warmup_seconds:g} s",
            "stop_rule": f"at least {config.iterations} samples and {config.min_seconds:g} s",
            "percentile_rule": PERCENTILE_RULE,
            "layers": "a run of their own, with the profiler attached",
        },
        "environment": {"device": answer.facts, "gpu": dict(program.gpu)},
    }  # fmt: skip


def check_summary(queries: Sequence[Query], text: str) -> None:
    """Hold the times of the file against those that were printed: a unit that changed would show."""
    # Not the mean: trtexec adds up in 32 bits, which goes wrong over many samples.
    printed = parse_statistics(text, "Latency")
    if "median" not in printed:
        return
    value, unit = printed["median"]
    own = median(query.latency_ms for query in queries)
    if unit != "ms" or abs(value - own) > _SUMMARY_AGREES_WITHIN * own + 1e-3:
        raise RefusedError(
            f"trtexec printed a median latency of {value:g} {unit} but wrote times with a median of {own:g} ms; one of "
            "the two is in a form this hub does not know. Both are kept with the run."
        )


def _judged(document: Mapping[str, Any], before: Mapping[str, str], after: Mapping[str, str]) -> dict[str, Any]:
    verdict, reason = judge(document["samples_us"], throttling(after), [] if after else ["the GPU's clocks"])
    environment = {**document["environment"], "before": dict(before), "after": dict(after)}
    return {"verdict": verdict, "verdict_reason": reason, "environment": environment}


def throttling(sensors: Mapping[str, str]) -> list[str]:
    """Return what the GPU says holds its clocks down."""
    try:
        bits = int(sensors.get("clocks_event_reasons", "0"), 16)
    except ValueError:
        return []
    return [f"the GPU reports {words}" for bit, words in _REASONS.items() if bits & bit]


def _sense(place: Place) -> dict[str, str]:
    try:
        argv = ["sh", "-c", _SENSE, "edgeproof-tensorrt", str(place.config.gpu)]
        lines = place.runner.run(argv, hide=True, timeout_s=_QUICK_S).stdout.splitlines()
    except CommandError:
        return {}
    pairs = (line.partition("=") for line in lines)
    return {key: value.strip() for key, _, value in pairs if value.strip() and "[" not in value}


def _layers(
    ctx: HubContext, place: Place, document: Mapping[str, Any], source: onnx.ModelProto | None
) -> dict[str, Any]:
    if not place.config.layers:
        return {"rows": [], "runs": 0, "mean_run_ms": None}
    profile = parse_profile(_fetched(ctx, place, _LAYER_TIMES))
    infos = parse_layer_info(_fetched(ctx, place, _LAYERS))
    whole = sum(layer.average_ms or 0 for layer in profile.layers)
    compute = document["compute_ms"]["mean"]
    if whole and compute and not 1 / _LAYERS_AGREE_WITHIN < whole / compute < _LAYERS_AGREE_WITHIN:
        raise RefusedError(
            f"trtexec's layers take {whole:g} ms together but the whole engine {compute:g} ms; one of the two files "
            "is in a form this hub does not know. Both are kept with the run."
        )
    return {"rows": join_layers(profile, infos, source), "runs": profile.count, "mean_run_ms": whole or None}


def _source_facts(rows: Sequence[Mapping[str, Any]], source: onnx.ModelProto | None) -> dict[str, Any]:
    if source is None:
        return {"nodes": [], "is_compiled_model": True, "nodes_without_layer": []}
    return {
        "nodes": [{"name": node.name, "op_type": node.op_type} for node in source.graph.node],
        "is_compiled_model": False,
        "nodes_without_layer": uncovered(rows, source) if rows else [],
    }
