"""One profile: latency without profiling on, then a few profiled runs for the layers, and all that explains them."""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from embedl_onnxruntime import __version__, board
from embedl_onnxruntime.arrays import Arrays, load_samples
from embedl_onnxruntime.errors import BoardError
from embedl_onnxruntime.measure import Plan, judge, statistics_ms, take_samples
from embedl_onnxruntime.session import CPU, Model, Settings, check_feed, made_up_feed, runtime
from embedl_onnxruntime.trace import Layer, Trace, read_trace

FORMAT = 1
# The runtime keeps at most a million events and drops the rest in silence.
_MOST_EVENTS = 500_000


class Request(NamedTuple):
    """What to profile and how.

    Attributes:
        model: The model file.
        settings: How the runtime is to run it.
        plan: How much to measure.
        shapes: Shapes for inputs that have none of their own.
        input_dir: Data to run on; made up when not given.
        layer_runs: Profiled runs for the layers; 0 leaves them out.
        require_provider: Fail if a node of the model runs elsewhere.
        keep_trace: Where the runtime's own profile file is to be kept.
    """

    model: Path
    settings: Settings
    plan: Plan = Plan()
    shapes: Sequence[Tuple[str, Tuple[int, ...]]] = ()
    input_dir: Optional[Path] = None
    layer_runs: int = 10
    require_provider: Optional[str] = None
    keep_trace: Optional[Path] = None


def profile(request: Request) -> Dict[str, Any]:
    """Measure a model and return the document."""
    _say("loading {}".format(request.model))
    start = time.perf_counter_ns()
    model = Model(request.model, request.settings)
    load_us = (time.perf_counter_ns() - start) / 1e3
    feed, data = _feed(model, request)
    placement = model.placement()
    _check_placement(placement, request.require_provider)
    before = board.state()
    _say("measuring, at most {:g} s".format(request.plan.max_seconds + request.plan.max_warmup_seconds))
    samples = take_samples(model.runner(feed), request.plan)
    after = board.state()
    memory_mb, memory_method = board.peak_memory()
    throttling = board.throttling_between(before, after)
    verdict, reason = judge(samples, throttling, board.unreadable_in(after))
    del model
    layers = _layers(request, feed)
    if placement is None and layers["rows"]:
        placement = _placement_from(layers["rows"])
        _check_placement(placement, request.require_provider)
    ort = runtime()
    return {
        "format": FORMAT,
        "tool": {"name": "embedl-onnxruntime", "version": __version__},
        "runtime": {"name": "onnxruntime", "version": ort.__version__, "available": ort.get_available_providers()},
        "model": {"file_name": request.model.name, "size_bytes": request.model.stat().st_size},
        "settings": dict(request.settings._asdict(), providers=list(request.settings.providers)),
        "data": data,
        "latency_ms": statistics_ms(samples.times_us),
        "load_time_ms": load_us / 1e3,
        "first_latency_ms": samples.first_us / 1e3,
        "warmup": len(samples.warmup_us),
        "iterations": len(samples.times_us),
        "samples_us": samples.times_us,
        "warmup_us": samples.warmup_us,
        "verdict": verdict,
        "verdict_reason": reason,
        "peak_memory_mb": memory_mb,
        "memory_method": memory_method,
        "layers": layers,
        "placement": placement,
        "environment": {"board": board.describe(), "before": before, "after": after},
        "method": request.plan.method(),
    }


def _say(message: str) -> None:
    sys.stderr.write("embedl-onnxruntime: {}\n".format(message))
    sys.stderr.flush()


def _feed(model: Model, request: Request) -> Tuple[Arrays, Dict[str, Any]]:
    if request.input_dir is not None:
        name, feed = load_samples(request.input_dir)[0]
        check_feed(model.inputs, feed)
        source = "given: {}".format(name)
    else:
        feed = made_up_feed(model.inputs, dict(request.shapes))
        source = "made up: normal numbers for floats, ones for the rest"
    shapes = {name: {"dtype": np.asarray(array).dtype.name, "shape": list(array.shape)} for name, array in feed.items()}
    return feed, {"source": source, "inputs": shapes}


def _layers(request: Request, feed: Arrays) -> Dict[str, Any]:
    if request.layer_runs < 1:
        return {"rows": [], "runs": 0}
    # Beside what is kept, so that whoever removes that folder removes everything, also after a crash.
    beside = None if request.keep_trace is None else str(request.keep_trace.parent)
    folder = Path(tempfile.mkdtemp(prefix="embedl-onnxruntime-", dir=beside))
    try:
        _say("profiling layers over {} runs".format(request.layer_runs))
        model = Model(request.model, request.settings, profile_prefix=str(folder / "trace"))
        run = model.runner(feed)
        for _ in range(request.layer_runs + 1):
            run()
        path = model.end_profiling()
        trace = read_trace(path)
        if request.keep_trace is not None:
            path.replace(request.keep_trace)
        return _as_rows(trace)
    finally:
        shutil.rmtree(str(folder), ignore_errors=True)


def _as_rows(trace: Trace) -> Dict[str, Any]:
    """Return the table without the first run, which is cold: one slow start would outweigh many warm runs."""
    warm = trace.runs - 1
    times = [
        (layer.total_us - layer.first_us) / warm
        if warm > 0 and layer.calls > 1
        else layer.total_us / max(1, trace.runs)
        for layer in trace.layers
    ]
    total = sum(times) or 1.0
    run_us = (trace.run_us - trace.first_run_us) / warm if warm > 0 else trace.run_us
    return {
        "runs": max(warm, min(1, trace.runs)),
        "mean_run_ms": run_us / 1e3,
        "first_run_ms": trace.first_run_us / 1e3,
        "unreadable_lines": trace.unreadable_lines,
        "is_complete": sum(layer.calls for layer in trace.layers) < _MOST_EVENTS,
        "rows": [_row(layer, time_us, total) for layer, time_us in zip(trace.layers, times)],
    }


def _row(layer: Layer, time_us: float, total_us: float) -> Dict[str, Any]:
    return {
        "name": layer.name,
        "op_type": layer.op_type,
        "provider": layer.provider,
        "time_ms": time_us / 1e3,
        "share": time_us / total_us,
    }


def _placement_from(rows: Sequence[Dict[str, Any]]) -> Dict[str, List[Dict[str, str]]]:
    """Return which layers ran where, for a runtime too old to tell about the model's own nodes."""
    found: Dict[str, List[Dict[str, str]]] = {}
    for row in rows:
        found.setdefault(row["provider"], []).append({"name": row["name"], "op_type": row["op_type"]})
    return found


def _check_placement(placement: Optional[Dict[str, List[Dict[str, str]]]], required: Optional[str]) -> None:
    if required is None or placement is None:
        return
    elsewhere = {name: nodes for name, nodes in placement.items() if name != required and nodes}
    if elsewhere:
        total = sum(map(len, placement.values()))
        words = []
        for name, nodes in sorted(elsewhere.items()):
            some = ", ".join("{} ({})".format(node["name"] or "unnamed", node["op_type"]) for node in nodes[:5])
            more = " and {} more".format(len(nodes) - 5) if len(nodes) > 5 else ""
            words.append("{} on {}: {}{}".format(len(nodes), name, some, more))
        hint = "They fell back to the CPU." if CPU in elsewhere else ""
        raise BoardError(
            "{} was required, but of {} nodes {}. {}".format(required, total, "; ".join(words), hint).strip()
        )
