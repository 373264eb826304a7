"""One model: latency without counters on, then a few counted runs for the layers. Or several models in turns."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from typing import Any, Dict, List, Optional

from embedl_device import board
from embedl_device.arrays import Arrays
from embedl_device.document import load_timed, measured
from embedl_device.errors import BoardError
from embedl_device.heap import allocated_bytes, grown
from embedl_device.loader import Loaded
from embedl_device.program import plan_of, run_on_samples, say
from embedl_device.statistics import percentile
from embedl_openvino.session import (
    PROGRAM,
    Model,
    NoLayersError,
    Settings,
    check_device,
    devices,
    runtime,
    runtime_version,
    size_of,
)

Placement = Dict[str, List[Dict[str, str]]]
_NO_MEMORY: Dict[str, Any] = {
    "method": "the C library's count of what loading and running the model allocated",
    "arena_bytes": None,
    "peak_layer": None,
    "rows": [],
    "missing_because": "not told by OpenVINO: its release builds keep no figures of their memory",
}


def profile(arguments: Namespace, settings: Settings) -> Dict[str, Any]:
    """Measure a model and return the document."""
    check_available(arguments.require_provider)
    say(PROGRAM, "loading {} on {}".format(arguments.model, settings.device))
    before = allocated_bytes()
    model, load_us, feed, data = load_timed(lambda: Model(arguments.model, settings), arguments)
    placement = _placement(model)
    check_placement(placement, settings, arguments.require_provider)
    ran = _ran(model)
    document = measured(PROGRAM, model.runner(feed), plan_of(arguments), load_us, arguments.model)
    document["model"]["size_bytes"] = size_of(arguments.model)
    memory = dict(_NO_MEMORY, allocated_bytes=grown(before, allocated_bytes()))
    del model
    layers = _layers(arguments, settings, feed)
    facts = {"data": data, "layers": layers, "memory": memory, "placement": placement, "ran": ran}
    return dict(document, **facts, **runtime_facts(settings))


def load(path: Path, settings: Settings, arguments: Namespace, *, is_alone: bool) -> Loaded:  # noqa: ARG001 - as all
    """Load a model for any kind of measurement."""
    check_available(arguments.require_provider)
    model, load_us, feed, data = load_timed(lambda: Model(path, settings), arguments)
    check_placement(_placement(model), settings, arguments.require_provider)
    return Loaded(model.runner(feed), load_us, {"data": data, "size_bytes": size_of(path), "ran": _ran(model)})


def compile_model(arguments: Namespace, settings: Settings) -> Dict[str, Any]:
    """Convert a model to the runtime's own format, load it on the device, and return what it is."""
    output = arguments.output
    if output.suffix != ".xml":
        raise BoardError("--output must end in .xml, not {!r}; the weights go beside it as .bin.".format(output.name))
    model = Model(arguments.model, settings, shapes=dict(arguments.shape))
    output.parent.mkdir(parents=True, exist_ok=True)
    model.save(output)
    return {
        "output": str(output),
        "size_bytes": size_of(output),
        "inputs": [tensor._asdict() for tensor in model.inputs],
        "outputs": [tensor._asdict() for tensor in model.outputs],
        "placement": _placement(model),
        "layers": {"rows": _graph(model)},
        "ran": _ran(model),
        "runtime_version": runtime_version(),
        "board": board.describe(),
    }


def run_inference(arguments: Namespace, settings: Settings) -> Dict[str, Any]:
    """Run a model on data and return what was written."""
    model, answer = run_on_samples(arguments, lambda: Model(arguments.model, settings))
    return dict(answer, runtime_version=runtime_version(), ran=_ran(model))


def _ran(model: Model) -> Dict[str, Any]:
    """Return where a model runs and what in, as the runtime itself says."""
    return {
        "execution_devices": model.execution_devices,
        "inference_precision": model.precisions,
        "from_cache": model.from_cache,
    }


def runtime_facts(settings: Settings) -> Dict[str, Any]:
    """Return which runtime it is and how it is set."""
    available = [device["name"] for device in devices()]
    return {
        "runtime": {"name": "openvino", "version": runtime_version(), "available": available},
        "settings": settings.facts(),
    }


def _layers(arguments: Namespace, settings: Settings, feed: Arrays) -> Dict[str, Any]:
    if arguments.layer_runs < 1:
        return {"rows": [], "runs": 0}
    say(PROGRAM, "profiling layers over {} runs".format(arguments.layer_runs))
    try:
        # Without the cache: what comes out of it has lost the names of the model's own layers.
        model = Model(arguments.model, settings, counts=True, uses_cache=False)
        nodes, run = model.nodes(), model.runner(feed)
        run()
        runs = []
        for _ in range(arguments.layer_runs):
            run()
            runs.append(model.times_us())
    except NoLayersError as error:
        say(PROGRAM, "no layers: {}".format(error))
        return {"rows": [], "runs": 0, "missing_because": str(error)}
    times = {name: percentile([each.get(name, 0.0) for each in runs], 50) for name in set().union(*runs)}
    total = sum(times.get(node.name, 0.0) for node in nodes) or 1.0
    rows = [
        dict(node.row(), time_ms=times[node.name] / 1e3, share=times[node.name] / total)
        for node in nodes
        if node.name in times
    ]
    mean_run_ms = sum(sum(each.values()) for each in runs) / len(runs) / 1e3
    return {"runs": len(runs), "mean_run_ms": mean_run_ms, "rows": rows}


def _graph(model: Model) -> List[Dict[str, Any]]:
    """Return the layers of a model that did not run yet; none where the runtime does not tell."""
    try:
        return [node.row() for node in model.nodes()]
    except NoLayersError:
        return []


def _placement(model: Model) -> Optional[Placement]:
    """Return the nodes that run by their device; None where the runtime does not tell."""
    found: Placement = {}
    try:
        nodes = model.nodes()
    except NoLayersError:
        return None
    for node in nodes:
        found.setdefault(node.device, []).append({"name": node.name, "op_type": node.op_type})
    return found


def check_available(required: Optional[str]) -> None:
    """Refuse a device that is not here before anything is measured: no layer can have fallen off it."""
    if required is not None:
        check_device(required, runtime().Core().available_devices)


def check_placement(placement: Optional[Placement], settings: Settings, required: Optional[str]) -> None:
    """Refuse a model with layers elsewhere than on the required device."""
    if required is None:
        return
    if placement is None:
        raise BoardError("{} was required, but {} does not tell where layers run.".format(required, settings.device))
    elsewhere = {name: nodes for name, nodes in placement.items() if name.split(".")[0] != required.split(".")[0]}
    if elsewhere:
        words = []
        for name, nodes in sorted(elsewhere.items()):
            some = ", ".join("{} ({})".format(node["name"], node["op_type"]) for node in nodes[:5])
            more = " and {} more".format(len(nodes) - 5) if len(nodes) > 5 else ""
            words.append("{} on {}: {}{}".format(len(nodes), name, some, more))
        total = sum(map(len, placement.values()))
        raise BoardError(
            "{} was required, but of {} layers {}. The model was loaded on {}.".format(
                required, total, "; ".join(words), settings.device
            )
        )
