"""Which remedy costs a layer least."""

from __future__ import annotations

import importlib
import pkgutil
from dataclasses import dataclass
from functools import lru_cache
from typing import Dict, Optional, Sequence, Tuple

import numpy as np

from embedl_kernels import remedies as folder
from embedl_kernels._layer import Fitted, Layer, Remedy, decibels
from embedl_kernels._pairs import can_saturate

# A layer that takes twice as long must be this many decibels better to be chosen.
_DOUBLE_TIME_DB = 10.0
_BEST_DB = -3.0
_INAUDIBLE = 1e-4


@dataclass(frozen=True)
class Choice:
    """The remedy of one layer."""

    remedy: str  # its name; ``none`` for a layer that no input can saturate as it is
    fitted: Fitted
    cost_db: float  # by how much the layer's noise grew over 8-bit weights on exact kernels; negative where it fell
    sqnr_db: float  # the layer's output against its noise
    measured: bool  # whether it was judged on data
    tried: Dict[str, float]  # the cost of every remedy that applied, its slowdown included, by name


@lru_cache(maxsize=None)
def remedies() -> Tuple[Remedy, ...]:
    """Return every remedy: one file each in the folder ``remedies``."""
    names = sorted(info.name for info in pkgutil.iter_modules(folder.__path__))
    return tuple(importlib.import_module("{}.{}".format(folder.__name__, name)).REMEDY for name in names)


def choose(layer: Layer, among: Optional[Sequence[Remedy]] = None) -> Choice:
    """Return the weights of a layer that no input can saturate, by the remedy that costs least.

    A cost is in decibels of the layer's output noise; a slower kernel adds what its time is worth.
    """
    before, signal = layer.noise_now, layer.signal
    # Noise far below the signal is worth no slower kernel, however much of it there is.
    reference = max(before, signal * _INAUDIBLE)
    if not can_saturate(layer.codes).any():
        return Choice(
            "none", Fitted(layer.codes, layer.scale), 0.0, decibels(signal, before), layer.inputs is not None, {}
        )
    tried: Dict[str, Tuple[float, float, Fitted]] = {}
    # The fast ones first: a slow one that could not be better is not tried.
    for remedy in sorted(remedies() if among is None else among, key=lambda entry: entry.slowdown):
        penalty = _DOUBLE_TIME_DB * float(np.log2(remedy.slowdown))
        if penalty and tried and min(cost for cost, _, _ in tried.values()) <= _BEST_DB + penalty:
            continue
        fitted = remedy.fit(layer)
        if fitted is None:
            continue
        _check(remedy, fitted)
        noise = layer.noise(layer.weight if fitted.codes is None else fitted.real, fitted.levels)
        # Less noise than 8 bits have is worth little: the layers around it have theirs.
        cost = max(decibels(noise, reference), _BEST_DB) + penalty
        tried[remedy.name] = (cost, noise, fitted)
    # Of those that are equally cheap, the one with the least noise.
    name = min(tried, key=lambda key: tried[key][:2])
    _, noise, fitted = tried[name]
    return Choice(
        name, fitted, decibels(noise, before), decibels(signal, noise), layer.inputs is not None,
        {key: cost for key, (cost, _, _) in tried.items()},
    )  # fmt: skip


def _check(remedy: Remedy, fitted: Fitted) -> None:
    """A remedy that leaves a pair to saturate is a bug of ours: never a quiet one."""
    if fitted.kind == "int8" and fitted.codes is not None and can_saturate(fitted.codes, fitted.levels).any():
        raise AssertionError("remedy {!r} left pairs that can saturate".format(remedy.name))
