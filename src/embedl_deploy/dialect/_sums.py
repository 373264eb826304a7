"""Scales at which additions are exact in float32: then every x86 processor gives the same bits.

QLinearAdd computes ``a * (sa/sc) + b * (sb/sc) + rest`` in float32, on processors with fused multiply-add in fewer
roundings than on others. With ratios of a few bits every step is exact, fused or not. The scale of an input shrinks for
that by less than a thousandth; the output's stays.
"""

import numpy as np

from embedl_deploy.dialect._dialects import MOVES
from embedl_deploy.dialect._model import Parts
from embedl_deploy.dialect._numbers import per_tensor
from embedl_deploy.dialect._place import View

_BITS = 10
# Exponents of two ratios may differ by so much before the sum needs more than the 24 bits of a float32.
_SPREAD = 4


def exact_sums(parts: Parts) -> None:
    """Shorten the ratios of every quantised addition; what cannot be shortened is told in a note."""
    view = View(parts)
    groups = _moved_together(parts, view)
    held: set[str] = set()
    for node in reversed(parts.graph.node):
        data = view.data_inputs(node)
        inputs = [parts.edges.get((node.name, index)) for index in data]
        output = next((name for name, tensor in parts.tensor_of.items() if tensor == view.tail(node)), None)
        if node.op_type != "Add" or len(data) != 2 or None in inputs or output is None:
            continue
        held |= groups[output]
        for boundary in dict.fromkeys(inputs):
            assert boundary is not None
            if not _shorten(parts, boundary, output, groups, held):
                parts.notes.append(
                    f"{parts.tensor_of[boundary]}: its scale is bound by two additions, so {node.name!r} may differ by "
                    "one step on processors without fused multiply-add."
                )
            held |= groups[boundary]


def _moved_together(parts: Parts, view: View) -> dict[str, set[str]]:
    """Return for every boundary those that must have its format: what moves values keeps their scale."""
    groups = {name: {name} for name in parts.tensor_of}
    for node in parts.graph.node:
        before = parts.edges.get((node.name, 0))
        if node.op_type not in MOVES or before is None:
            continue
        after = {parts.edges.get((reader.name, index)) for reader, index in view.readers.get(node.output[0], [])}
        for name in after - {None}:
            assert name is not None
            if parts.params[name].same(parts.params[before]):
                merged = groups[before] | groups[name]
                for member in merged:
                    groups[member] = merged
    return groups


def _shorten(parts: Parts, boundary: str, output: str, groups: dict[str, set[str]], held: set[str]) -> bool:
    """Give an input a scale whose ratio to the output's has few bits; tell whether it has one now."""
    scale, end = np.float32(parts.params[boundary].scale), np.float32(parts.params[output].scale)
    ratio = np.float32(scale / end)
    if _short(ratio) == ratio:
        return True
    if groups[boundary] & held:
        return False
    wanted = _short(ratio)
    found = np.float32(wanted * end)
    for candidate in (found, np.nextafter(found, np.float32(0)), np.nextafter(found, np.float32(np.inf))):
        if np.float32(candidate / end) == wanted and candidate <= scale:
            for name in groups[boundary]:
                params = parts.params[name]
                parts.params[name] = per_tensor(float(candidate), int(params.zero_point), params.type)
            return True
    return False


def _short(ratio: np.float32) -> np.float32:
    """Return the largest number of few bits that is not above a ratio."""
    mantissa, exponent = np.frexp(np.float64(ratio))
    bits = max(3, _BITS - max(0, abs(int(exponent)) - _SPREAD))
    return np.float32(np.ldexp(np.floor(np.ldexp(mantissa, bits)), int(exponent) - bits))
