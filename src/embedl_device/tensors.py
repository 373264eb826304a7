"""Inputs and outputs as a runtime declares them, and data that fits them."""

from __future__ import annotations

from typing import Dict, NamedTuple, Sequence, Tuple, Union

import numpy as np

from embedl_device.arrays import Arrays
from embedl_device.errors import BoardError

Dimension = Union[int, str, None]


class Tensor(NamedTuple):
    """An input or output of a model, as its runtime declares it."""

    name: str
    dtype: str
    shape: Tuple[Dimension, ...]

    def text(self) -> str:
        """Return it as a user would write it."""
        return "{} {}[{}]".format(self.name, self.dtype, ", ".join(str(size) for size in self.shape))


def check_feed(inputs: Sequence[Tensor], feed: Arrays) -> None:
    """Refuse names, types and shapes that do not fit, all at once and before anything runs."""
    known = {tensor.name: tensor for tensor in inputs}
    faults = ["{!r} is not an input".format(name) for name in feed if name not in known]
    faults += ["{!r} is missing".format(name) for name in known if name not in feed]
    for name, array in feed.items():
        if name not in known:
            continue
        tensor = known[name]
        is_text = tensor.dtype == "string" and array.dtype.kind in "UO"
        if tensor.dtype != array.dtype.name and not is_text:
            faults.append("{!r} is {}, the model takes {}".format(name, array.dtype.name, tensor.dtype))
        fits = len(array.shape) == len(tensor.shape) and all(
            not isinstance(size, int) or size == given for size, given in zip(tensor.shape, array.shape)
        )
        if not fits:
            faults.append("{!r} has shape {}, the model takes {}".format(name, list(array.shape), list(tensor.shape)))
    if faults:
        raise BoardError(
            "The data does not fit the model: {}. Its inputs: {}.".format(
                "; ".join(faults), "; ".join(tensor.text() for tensor in inputs)
            )
        )


def made_up_feed(inputs: Sequence[Tensor], shapes: Dict[str, Tuple[int, ...]]) -> Arrays:
    """Return data of the right types and shapes: normal numbers for floats, ones for the rest."""
    unknown = set(shapes) - {tensor.name for tensor in inputs}
    if unknown:
        raise BoardError(
            "A shape is given for {}, but the inputs are: {}.".format(
                ", ".join(sorted(unknown)), "; ".join(tensor.text() for tensor in inputs)
            )
        )
    generator = np.random.RandomState(0)
    feed = {}
    for tensor in inputs:
        shape = shapes.get(tensor.name, tensor.shape)
        if not all(isinstance(size, int) and size >= 0 for size in shape):
            raise BoardError(
                "Input {} has no fixed shape. Give one: --shape '{}={}'.".format(
                    tensor.text(), tensor.name, ",".join(str(size) if isinstance(size, int) else "1" for size in shape)
                )
            )
        sizes = tuple(int(size) for size in shape if size is not None)
        if tensor.dtype.startswith("float"):
            feed[tensor.name] = generator.standard_normal(sizes).astype(tensor.dtype)
        elif tensor.dtype == "string":
            feed[tensor.name] = np.full(sizes, "", dtype=object)
        else:
            feed[tensor.name] = np.ones(sizes, dtype=tensor.dtype)
    return feed
