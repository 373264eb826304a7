"""One model: latency without profiling on, then a few traced runs for the layers. Or several models in turns."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from typing import Any, Dict

from embedl_device.arrays import Arrays
from embedl_device.document import load_timed, measured
from embedl_device.loader import Loaded
from embedl_device.program import plan_of, run_on_samples, say
from embedl_executorch.etdump import NoLayersError, as_rows, read_runs
from embedl_executorch.session import PROGRAM, Model, Settings, backends, runtime_version, torch_version


def profile(arguments: Namespace, settings: Settings) -> Dict[str, Any]:
    """Measure a model and return the document."""
    say(PROGRAM, "loading {}".format(arguments.model))
    model, load_us, feed, data = load_timed(lambda: Model(arguments.model, settings), arguments)
    document = measured(PROGRAM, model.runner(feed), plan_of(arguments), load_us, arguments.model)
    memory = model.memory()
    del model
    layers = _layers(arguments, settings, feed)
    return dict(document, data=data, layers=layers, memory=memory, placement=None, **runtime_facts(settings))


def load(path: Path, settings: Settings, arguments: Namespace, *, is_alone: bool) -> Loaded:  # noqa: ARG001 - as all
    """Load a model for any kind of measurement."""
    model, load_us, feed, data = load_timed(lambda: Model(path, settings), arguments)
    return Loaded(model.runner(feed), load_us, {"data": data})


def run_inference(arguments: Namespace, settings: Settings) -> Dict[str, Any]:
    """Run a model on data and return what was written."""
    _, answer = run_on_samples(arguments, lambda: Model(arguments.model, settings))
    return dict(answer, runtime_version=runtime_version())


def runtime_facts(settings: Settings) -> Dict[str, Any]:
    """Return which runtime it is and how it is set."""
    runtime: Dict[str, Any] = {"name": "executorch", "version": runtime_version(), "available": backends()}
    return {"runtime": runtime, "settings": dict(settings._asdict(), torch=torch_version())}


def _layers(arguments: Namespace, settings: Settings, feed: Arrays) -> Dict[str, Any]:
    if arguments.layer_runs < 1:
        return {"rows": [], "runs": 0}
    say(PROGRAM, "profiling layers over {} runs".format(arguments.layer_runs))
    model = Model(arguments.model, settings, trace=True)
    run = model.runner(feed)
    for _ in range(arguments.layer_runs + 1):
        run()
    try:
        # The first is cold.
        return as_rows(read_runs(model.trace())[1:])
    except NoLayersError as error:
        say(PROGRAM, "no layers: {}".format(error))
        return {"rows": [], "runs": 0, "missing_because": str(error)}
