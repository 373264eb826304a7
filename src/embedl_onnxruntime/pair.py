"""Two or more models measured in turns in one process, so that what the board does meanwhile happens to all."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, Dict, NamedTuple, Optional, Sequence, Tuple

from embedl_device.document import Loaded, feed_for, measured_in_turns
from embedl_device.rounds import Turns
from embedl_onnxruntime.profile import PROGRAM, check_available, check_placement
from embedl_onnxruntime.session import Model, Settings, kernels, runtime


class Request(NamedTuple):
    """What to measure in turns and how.

    Attributes:
        models: The model files; the first is what the others are held against.
        settings: How the runtime is to run each of them.
        turns: How turns are taken.
        shapes: Shapes for inputs that have none of their own.
        input_dir: Data to run on; made up when not given.
        require_provider: Fail if a node of a model runs elsewhere.
    """

    models: Sequence[Path]
    settings: Settings
    turns: Turns = Turns()
    shapes: Sequence[Tuple[str, Tuple[int, ...]]] = ()
    input_dir: Optional[Path] = None
    require_provider: Optional[str] = None


def pair(request: Request) -> Dict[str, Any]:
    """Measure the models and return the document."""
    check_available(request.require_provider)
    ort = runtime()
    document = measured_in_turns(PROGRAM, request.models, lambda path: _load(path, request), request.turns)
    said = ["{}: {}".format(row["file_name"], text) for row in document["models"] for text in row.pop("warnings")]
    return dict(
        document,
        runtime={"name": "onnxruntime", "version": ort.__version__, "available": ort.get_available_providers()},
        settings=dict(request.settings._asdict(), providers=list(request.settings.providers)),
        kernels=kernels(),
        warnings=list(dict.fromkeys(said)),
    )


def _load(path: Path, request: Request) -> Loaded:
    start = time.perf_counter_ns()
    model = Model(path, request.settings, is_alone=False)
    load_us = (time.perf_counter_ns() - start) / 1e3
    feed, data = feed_for(model.inputs, request.input_dir, request.shapes)
    placement = model.placement()
    check_placement(placement, request.settings, request.require_provider)
    nodes = None if placement is None else {name: len(found) for name, found in placement.items()}
    facts = {"data": data, "nodes_by_execution_provider": nodes, "warnings": model.warnings}
    return Loaded(model.runner(feed), load_us, facts)
