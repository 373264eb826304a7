"""What a measurement needs of a runtime: how it loads a model, and what the document says of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Callable, Dict, NamedTuple


class Loaded(NamedTuple):
    """A model that is ready to be timed: what runs it once, how long it took to load, and more for the document."""

    run: Callable[[], object]
    load_us: float
    facts: Dict[str, Any]


class Loader(NamedTuple):
    """How a device program's runtime loads models; the same for every kind of measurement.

    ``load`` takes the model's file, and whether it has the process to itself: threads that wait for the next inference
    would take the processor from another model. ``start`` imports the runtime, ``facts`` tells which it is.
    """

    program: str
    load: Callable[[Path, bool], Loaded]
    start: Callable[[], object]
    facts: Callable[[], Dict[str, Any]]
