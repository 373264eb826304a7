"""One profile: latency without profiling on, then a few profiled runs for the layers, and all that explains them."""

from __future__ import annotations

import shutil
import tempfile
import time
from pathlib import Path
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

from embedl_device.arrays import Arrays
from embedl_device.document import feed_for, measured
from embedl_device.errors import BoardError
from embedl_device.measure import Plan, percentile
from embedl_device.program import say
from embedl_onnxruntime.session import CPU, Model, Settings, kernels, runtime
from embedl_onnxruntime.trace import Layer, Trace, read_trace

PROGRAM = "embedl-onnxruntime"
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
    check_available(request.require_provider)
    say(PROGRAM, "loading {}".format(request.model))
    start = time.perf_counter_ns()
    model = Model(request.model, request.settings)
    load_us = (time.perf_counter_ns() - start) / 1e3
    feed, data = feed_for(model.inputs, request.input_dir, request.shapes)
    placement = model.placement()
    check_placement(placement, request.settings, request.require_provider)
    warnings = model.warnings
    document = measured(PROGRAM, model.runner(feed), request.plan, load_us, request.model)
    del model
    layers = _layers(request, feed)
    if placement is None and layers["rows"]:
        placement = _placement_from(layers["rows"])
        check_placement(placement, request.settings, request.require_provider)
    ort = runtime()
    return dict(
        document,
        runtime={"name": "onnxruntime", "version": ort.__version__, "available": ort.get_available_providers()},
        settings=dict(request.settings._asdict(), providers=list(request.settings.providers)),
        data=data,
        layers=layers,
        placement=placement,
        kernels=kernels(),
        warnings=warnings,
    )


def _layers(request: Request, feed: Arrays) -> Dict[str, Any]:
    if request.layer_runs < 1:
        return {"rows": [], "runs": 0}
    # Beside what is kept, so that whoever removes that folder removes everything, also after a crash.
    beside = None if request.keep_trace is None else str(request.keep_trace.parent)
    folder = Path(tempfile.mkdtemp(prefix="embedl-onnxruntime-", dir=beside))
    try:
        say(PROGRAM, "profiling layers over {} runs".format(request.layer_runs))
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
    """Return the table: medians without the first run, which is cold; one slow run must not outweigh the others."""
    warm = trace.runs - 1
    times = [percentile(layer.runs_us[1:] or layer.runs_us, 50) for layer in trace.layers]
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


def check_available(required: Optional[str]) -> None:
    """Refuse a provider that this runtime does not have before anything is measured: no node can have fallen off it."""
    available = runtime().get_available_providers()
    if required is not None and required not in available:
        raise BoardError(
            "{} was required, but it is not available here; available: {}.".format(required, ", ".join(available))
        )


def check_placement(
    placement: Optional[Dict[str, List[Dict[str, str]]]], settings: Settings, required: Optional[str]
) -> None:
    """Refuse a model with nodes elsewhere than on the required provider."""
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
        asked = settings.providers
        if required not in asked:
            hint = "Only {} was asked for; ask for {} too.".format(", ".join(asked), required)
        else:
            hint = "They fell back to the CPU." if CPU in elsewhere else ""
        raise BoardError(
            "{} was required, but of {} nodes {}. {}".format(required, total, "; ".join(words), hint).strip()
        )
