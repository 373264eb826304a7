"""Running a model on data of any batch size."""

from __future__ import annotations

from typing import List, Optional, Protocol

import numpy as np

from embedl_device.arrays import Arrays
from embedl_device.errors import BoardError
from embedl_device.tensors import Tensor, check_feed


class Model(Protocol):
    """A loaded model, whatever runs it."""

    @property
    def inputs(self) -> List[Tensor]:
        """Its inputs."""
        ...

    def run(self, feed: Arrays) -> Arrays:
        """Run it once."""
        ...


def infer(model: Model, feed: Arrays) -> Arrays:
    """Run a model; a batch larger than its fixed one goes through in pieces and comes back whole."""
    pieces = _pieces(model, feed)
    if pieces is None:
        check_feed(model.inputs, feed)
        return model.run(feed)
    parts = []
    for at in range(pieces):
        part = {}
        for tensor in model.inputs:
            array = feed[tensor.name]
            size = array.shape[0] // pieces
            part[tensor.name] = array[at * size : (at + 1) * size]
        check_feed(model.inputs, part)
        parts.append(model.run(part))
    return {name: _joined(name, [part[name] for part in parts]) for name in parts[0]}


def _pieces(model: Model, feed: Arrays) -> Optional[int]:
    """Return into how many pieces the data must go, or None when it fits or cannot be made to."""
    counts = set()
    for tensor in model.inputs:
        array = feed.get(tensor.name)
        if array is None or array.ndim != len(tensor.shape) or not array.ndim or not isinstance(tensor.shape[0], int):
            return None
        if tensor.shape[0] < 1 or array.shape[0] % tensor.shape[0]:
            return None
        counts.add(array.shape[0] // tensor.shape[0])
    return counts.pop() if len(counts) == 1 and max(counts) > 1 else None


def _joined(name: str, parts: "list[np.ndarray]") -> np.ndarray:
    if any(part.ndim == 0 for part in parts):
        raise BoardError("Output {!r} has no batch axis; give the model one batch at a time.".format(name))
    return np.concatenate(parts, axis=0)
