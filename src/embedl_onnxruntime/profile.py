"""One model: latency without profiling on, then a few profiled runs for the layers. Or several models in turns.

The runtime's profile file is read as a stream, a million events in little memory. It is a JSON array of Chrome-trace
events (https://onnxruntime.ai/docs/performance/tune-performance/), one per line, times in microseconds. Only a few
fields of each line matter, so they are picked out without parsing the rest. Old versions do not escape node names: a
name with a quote breaks the JSON but not the picking.
"""

from __future__ import annotations

import json
import re
import shutil
import tempfile
from argparse import Namespace
from array import array
from pathlib import Path
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

from embedl_device import board
from embedl_device.arrays import Arrays
from embedl_device.document import load_timed, measured
from embedl_device.errors import BoardError
from embedl_device.loader import Loaded
from embedl_device.program import plan_of, run_on_samples, say
from embedl_device.readers import parse_json
from embedl_device.statistics import percentile
from embedl_onnxruntime.memory import ArenaState, LayerArena, arena_state, memory_of, missing
from embedl_onnxruntime.session import CPU, PROGRAM, Model, Settings, kernels, runtime

_KERNEL = b"_kernel_time"
# Written by every version from 1.16 on in this order; the name may hold anything and ends before its args.
_EVENT = re.compile(
    rb'^\{"cat" ?: ?"Node",.*?"dur" ?: ?(\d+),"ts" ?: ?\d+,"ph" ?: ?"X","name" ?: ?"(.*?)_kernel_time","args" ?: ?\{'
)
_FIELD = {
    name: re.compile(rb'"' + name.encode() + rb'" ?: ?"([^"]*)"') for name in ("op_name", "provider", "node_index")
}
_HELD = re.compile(rb'"mem_arena_held" ?: ?"(\d{1,18})"')
_RUN = re.compile(rb'"dur" ?: ?(\d+),.*"name" ?: ?"model_run"')
# The runtime keeps at most a million events and drops the rest in silence.
_MOST_EVENTS = 500_000


class Layer(NamedTuple):
    """One node as the runtime ran it; ``runs_us`` has what it took in each profiled run, the cold one first."""

    name: str
    op_type: str
    provider: str
    total_us: float
    calls: int
    runs_us: Sequence[float]


class Trace(NamedTuple):
    """What a profile file holds: layers in the order they first ran, and the profiled runs."""

    layers: List[Layer]
    runs: int
    run_us: float
    first_run_us: float
    unreadable_lines: int
    arena: Sequence[LayerArena] = ()  # the arena after each node of the first run, where the runtime tells
    held_bytes: int = 0  # what it held at the end


class _Sum:
    __slots__ = ("_last_run", "arena", "calls", "op_type", "provider", "runs_us")

    def __init__(self, op_type: str, provider: str, arena: Optional[ArenaState] = None) -> None:
        self.op_type = op_type
        self.provider = provider
        self.arena = arena
        self.runs_us = array("d")
        self.calls = 0
        self._last_run = -1

    def add(self, time_us: float, run: int) -> None:
        """Add a call; a node in a loop has several in one run."""
        if run == self._last_run:
            self.runs_us[-1] += time_us
        else:
            self.runs_us.append(time_us)
            self._last_run = run
        self.calls += 1


def read_trace(path: Path) -> Trace:
    """Sum up a profile file per node."""
    sums: Dict[Tuple[bytes, bytes], _Sum] = {}
    runs, run_us, first_run_us, unreadable, held = 0, 0.0, 0.0, 0, 0
    with path.open("rb") as file:
        for line in file:
            event = _EVENT.match(line)
            if event is not None:
                args = line[event.end() :]
                key = (event[2], _field(args, "node_index"))
                found = sums.get(key)
                if found is None:
                    state = arena_state(args)
                    found = _Sum(_text(_field(args, "op_name")), _text(_field(args, "provider")), state)
                    sums[key] = found
                held_now = _HELD.search(args)
                held = held if held_now is None else max(held, int(held_now[1]))
                found.add(int(event[1]), runs)
            elif b'"model_run"' in line:
                run = _RUN.search(line)
                if run is not None:
                    first_run_us = int(run[1]) if runs == 0 else first_run_us
                    runs += 1
                    run_us += int(run[1])
            elif _KERNEL in line:
                unreadable += not _add_by_json(line, sums, runs)
    layers = [
        Layer(_unescaped(name), found.op_type, found.provider, sum(found.runs_us), found.calls, found.runs_us)
        for (name, _), found in sums.items()
    ]
    arena = [
        LayerArena(_unescaped(name), found.op_type, found.provider, found.arena)
        for (name, _), found in sums.items()
        if found.arena is not None
    ]
    return Trace(layers, runs, run_us, first_run_us, unreadable, arena, held)


def _field(args: bytes, name: str) -> bytes:
    found = _FIELD[name].search(args)
    return found[1] if found is not None else b""


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")


def _unescaped(name: bytes) -> str:
    """Return a node's name; newer versions escape it as JSON does, older ones write it raw."""
    text = _text(name)
    try:
        value = json.loads('"{}"'.format(text))
    except ValueError:
        return text
    return value if isinstance(value, str) else text


def _add_by_json(line: bytes, sums: Dict[Tuple[bytes, bytes], _Sum], run: int) -> bool:
    """Take a line written in another order of fields, as a later version might."""
    try:
        event = parse_json(line.strip().rstrip(b",").decode("utf-8", "replace"))
        name = event["name"][: -len(_KERNEL)].encode()
        args = event.get("args") or {}
        key = (name, str(args.get("node_index", "")).encode())
        time_us = float(event["dur"])
    except (ValueError, KeyError, TypeError, AttributeError):
        return False
    if key not in sums:
        sums[key] = _Sum(str(args.get("op_name", "")), str(args.get("provider", "")))
    sums[key].add(time_us, run)
    return True


def profile(arguments: Namespace, settings: Settings) -> Dict[str, Any]:
    """Measure a model and return the document."""
    required = arguments.require_provider
    check_available(required)
    say(PROGRAM, "loading {}".format(arguments.model))
    model, load_us, feed, data = load_timed(lambda: Model(arguments.model, settings), arguments)
    placement = model.placement()
    check_placement(placement, settings, required)
    warnings = model.warnings
    document = measured(PROGRAM, model.runner(feed), plan_of(arguments), load_us, arguments.model)
    del model
    layers, memory = _layers(arguments, settings, feed)
    if placement is None and layers["rows"]:
        placement = _placement_from(layers["rows"])
        check_placement(placement, settings, required)
    facts = {"data": data, "layers": layers, "memory": memory, "placement": placement, "warnings": warnings}
    return dict(document, **facts, **runtime_facts(settings))


def load(path: Path, settings: Settings, arguments: Namespace, *, is_alone: bool) -> Loaded:
    """Load a model for any kind of measurement."""
    check_available(arguments.require_provider)
    model, load_us, feed, data = load_timed(lambda: Model(path, settings, is_alone=is_alone), arguments)
    placement = model.placement()
    check_placement(placement, settings, arguments.require_provider)
    nodes = None if placement is None else {name: len(found) for name, found in placement.items()}
    facts = {"data": data, "nodes_by_execution_provider": nodes, "warnings": model.warnings}
    return Loaded(model.runner(feed), load_us, facts)


def compile_model(arguments: Namespace, settings: Settings) -> Dict[str, Any]:
    """Let the runtime optimize a model, keep it, and return what it is."""
    output = arguments.output
    output.parent.mkdir(parents=True, exist_ok=True)
    part = output.with_name(output.name + ".part")
    try:
        model = Model(arguments.model, settings, optimized_path=part)
        inputs, outputs = model.inputs, model.outputs
        part.replace(output)
    finally:
        if part.exists():
            part.unlink()
    return {
        "output": str(output),
        "size_bytes": output.stat().st_size,
        "inputs": [tensor._asdict() for tensor in inputs],
        "outputs": [tensor._asdict() for tensor in outputs],
        "placement": model.placement(),
        "runtime_version": runtime().__version__,
        "board": board.describe(),
        "kernels": kernels(),
        "warnings": model.warnings,
    }


def run_inference(arguments: Namespace, settings: Settings) -> Dict[str, Any]:
    """Run a model on data and return what was written."""
    model, answer = run_on_samples(arguments, lambda: Model(arguments.model, settings))
    facts = {"providers": model.providers, "warnings": model.warnings, "kernels": kernels()}
    return dict(answer, runtime_version=runtime().__version__, **facts)


def runtime_facts(settings: Settings) -> Dict[str, Any]:
    """Return which runtime it is and how it is set."""
    ort = runtime()
    return {
        "runtime": {"name": "onnxruntime", "version": ort.__version__, "available": ort.get_available_providers()},
        "settings": dict(settings._asdict(), providers=list(settings.providers)),
        "kernels": kernels(),
    }


def _layers(arguments: Namespace, settings: Settings, feed: Arrays) -> Tuple[Dict[str, Any], Dict[str, Any]]:
    """Return what the time went into, and what the memory did."""
    if arguments.layer_runs < 1:
        return {"rows": [], "runs": 0}, missing("no layers were profiled (--layer-runs 0)")
    # Beside what is kept, so that whoever removes that folder removes everything, also after a crash.
    beside = None if arguments.keep_trace is None else str(arguments.keep_trace.parent)
    folder = Path(tempfile.mkdtemp(prefix="embedl-onnxruntime-", dir=beside))
    try:
        say(PROGRAM, "profiling layers over {} runs".format(arguments.layer_runs))
        model = Model(arguments.model, settings, profile_prefix=str(folder / "trace"))
        run = model.runner(feed)
        for _ in range(arguments.layer_runs + 1):
            run()
        path = model.end_profiling()
        trace = read_trace(path)
        if arguments.keep_trace is not None:
            path.replace(arguments.keep_trace)
        providers = [layer.provider for layer in trace.layers]
        return _as_rows(trace), memory_of(trace.arena, trace.held_bytes, runtime().__version__, providers)
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
        "rows": [
            {
                "name": layer.name,
                "op_type": layer.op_type,
                "provider": layer.provider,
                "time_ms": time_us / 1e3,
                "share": time_us / total,
            }
            for layer, time_us in zip(trace.layers, times)
        ],
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
