"""One profile: latency without profiling on, then a few profiled runs for the layers, and all that explains them."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, Dict, NamedTuple, Optional, Sequence, Tuple

from embedl_device.arrays import Arrays
from embedl_device.document import feed_for, measured
from embedl_device.measure import Plan
from embedl_device.program import say
from embedl_litert.profiler import NoLayersError, as_rows, profile_layers
from embedl_litert.session import PROGRAM, Model, Settings, runtime_version


class Request(NamedTuple):
    """What to profile and how.

    Attributes:
        model: The model file.
        settings: How the runtime is to run it.
        plan: How much to measure.
        shapes: Shapes for inputs that have none of their own.
        input_dir: Data to run on; made up when not given.
        layer_runs: Profiled runs for the layers; 0 leaves them out.
    """

    model: Path
    settings: Settings
    plan: Plan = Plan()
    shapes: Sequence[Tuple[str, Tuple[int, ...]]] = ()
    input_dir: Optional[Path] = None
    layer_runs: int = 10


def profile(request: Request) -> Dict[str, Any]:
    """Measure a model and return the document."""
    say(PROGRAM, "loading {}".format(request.model))
    start = time.perf_counter_ns()
    model = Model(request.model, request.settings)
    load_us = (time.perf_counter_ns() - start) / 1e3
    feed, data = feed_for(model.inputs, request.input_dir, request.shapes)
    document = measured(PROGRAM, model.runner(feed), request.plan, load_us, request.model)
    del model
    return dict(
        document,
        runtime={"name": "litert", "version": runtime_version(), "available": []},
        settings=request.settings._asdict(),
        data=data,
        layers=_layers(request, feed),
        placement=None,
    )


def _layers(request: Request, feed: Arrays) -> Dict[str, Any]:
    if request.layer_runs < 1:
        return {"rows": [], "runs": 0}
    say(PROGRAM, "profiling layers over {} runs".format(request.layer_runs))
    try:
        return as_rows(profile_layers(request.model, request.settings, feed, request.layer_runs))
    except NoLayersError as error:
        say(PROGRAM, "no layers: {}".format(error))
        return {"rows": [], "runs": 0, "missing_because": str(error)}
