"""Scales in single precision, without NumPy: which ones a Clip can be absorbed with, which ones add up exactly."""

import math
import struct
from collections.abc import Collection, Iterable, Iterator, Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any

from embedl_deploy.dialect._placement import Edge, GraphView

_BITS = 10
# Exponents of two ratios may differ by so much before the sum needs more than the 24 bits of a float32.
_SPREAD = 4


def float32(value: float) -> float:
    """Round to single precision."""
    return float(struct.unpack("<f", struct.pack("<f", value))[0])


def _neighbor(value: float, step: int) -> float:
    """Return the next positive number of single precision, above (1) or below (-1)."""
    bits = struct.unpack("<i", struct.pack("<f", value))[0]
    return float(struct.unpack("<f", struct.pack("<i", bits + step))[0])


def below(top: float, steps: int) -> float:
    """Return the largest scale of which so many steps do not go beyond a bound."""
    scale = float32(top / steps)
    while scale * steps > top:
        scale = _neighbor(scale, -1)
    return scale


@dataclass(frozen=True)
class Addition:
    """A sum of two quantized values."""

    name: str
    inputs: tuple[str, str]  # boundaries that it reads
    output: str  # the boundary that it makes


def exact_additions(
    additions: Iterable[Addition], scales: MutableMapping[str, float], groups: Mapping[str, Collection[str]]
) -> Iterator[tuple[str, str]]:
    """Change scales so that every quantized addition is exact in float32; yield what cannot be changed.

    QLinearAdd computes ``a * (sa/sc) + b * (sb/sc) + rest`` in float32, on processors with fused multiply-add in fewer
    roundings than on others. With ratios of a few bits every step is exact, fused or not. The scale of an input shrinks
    for that by less than a thousandth; the output's stays.

    Args:
        additions: The last one first: the scale of a sum is settled before those of what it adds.
        scales: By boundary; changed in place.
        groups: For every boundary those that must have its scale.

    Yields:
        A boundary whose scale two additions bind, and the name of the addition that may differ by a step.
    """
    held: set[str] = set()
    for addition in additions:
        held.update(groups[addition.output])
        for boundary in dict.fromkeys(addition.inputs):
            if not _shorten(boundary, addition.output, scales, groups, held):
                yield boundary, addition.name
            held.update(groups[boundary])


def additions_of(view: GraphView[Any], edges: Mapping[Edge, str], made: Mapping[str, str]) -> list[Addition]:
    """Return the sums that are quantized on all sides, the last one first.

    Args:
        view: The graph.
        edges: Which boundary each input reads.
        made: The boundary on each tensor that has one.
    """
    found = []
    for node in reversed(view.order):
        inputs = [edges[node.name, index] for index in view.data_inputs(node) if (node.name, index) in edges]
        output = made.get(view.tail(node)) if node.op_type == "Add" else None
        if len(inputs) == 2 == len(view.data_inputs(node)) and output is not None:
            found.append(Addition(node.name, (inputs[0], inputs[1]), output))
    return found


def _shorten(
    boundary: str,
    output: str,
    scales: MutableMapping[str, float],
    groups: Mapping[str, Collection[str]],
    held: Collection[str],
) -> bool:
    """Give an input a scale whose ratio to the output's has few bits; tell whether it has one now."""
    scale, end = scales[boundary], scales[output]
    ratio = float32(scale / end)
    wanted = _short(ratio)
    if wanted == ratio:
        return True
    if not set(held).isdisjoint(groups[boundary]):
        return False
    found = float32(wanted * end)
    for candidate in (found, _neighbor(found, -1), _neighbor(found, 1)):
        if float32(candidate / end) == wanted and candidate <= scale:
            scales.update(dict.fromkeys(groups[boundary], candidate))
            return True
    return False


def _short(ratio: float) -> float:
    """Return the largest number of few bits that is not above a ratio."""
    mantissa, exponent = math.frexp(ratio)
    bits = max(3, _BITS - max(0, abs(exponent) - _SPREAD))
    return float32(math.ldexp(math.floor(math.ldexp(mantissa, bits)), exponent - bits))
