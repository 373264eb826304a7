"""How much faster INT8 is than float, foretold from kernel costs, with an interval and what eats the gain."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Dict, List, Sequence, Tuple

from embedl_kernels._costs import Cost, CostTable
from embedl_kernels._work import Work

# Nine in ten of a normal error lie within so many standard errors.
_NINE_IN_TEN = 1.645
# What two measurements of the same pair differ by, and what no kernel alone shows: caches, memory, threads.
_FLOOR = 0.10
# Errors of kernels of a kind go together so far.
_TOGETHER = 0.1
_REASONS = 3
_LEAST_SHARE = 0.05
# Kernels that only carry numbers from one form to another.
_CONVERSIONS = frozenset({"QuantizeLinear", "DequantizeLinear", "Transpose", "ReorderInput", "ReorderOutput"})


@dataclass(frozen=True)
class Gain:
    """A predicted speed-up.

    Attributes:
        speedup: Float time over INT8 time: above 1, INT8 is faster.
        low: The lower end of an interval that holds the measured one in nine of ten cases.
        high: Its upper end.
        float_ms: Predicted time of the float model.
        int8_ms: Predicted time of the INT8 model.
        reasons: What eats the gain, the worst first, in words.
        known: Share of the predicted time in kernels that were measured.
    """

    speedup: float
    low: float
    high: float
    float_ms: float
    int8_ms: float
    reasons: Tuple[str, ...] = ()
    known: float = 1.0

    @property
    def pays(self) -> bool:
        """Whether INT8 is expected to be faster."""
        return self.speedup > 1.0

    @property
    def is_certain(self) -> bool:
        """Whether the whole interval is on one side of 1."""
        return self.low > 1.0 or self.high < 1.0

    def to_dict(self) -> Dict[str, Any]:
        """Return everything as JSON-able data."""
        return {
            "speedup": round(self.speedup, 4),
            "low": round(self.low, 4),
            "high": round(self.high, 4),
            "float_ms": round(self.float_ms, 5),
            "int8_ms": round(self.int8_ms, 5),
            "reasons": list(self.reasons),
            "known": round(self.known, 4),
        }

    def __str__(self) -> str:
        return "{:.2f}x ({:.2f} to {:.2f})".format(self.speedup, self.low, self.high)


def predict_gain(plain: Sequence[Work], integer: Sequence[Work], table: CostTable) -> Gain:
    """Predict the speed-up.

    Args:
        plain: The kernels that the float model runs.
        integer: Those that the INT8 model runs.
        table: What kernels cost on the device.

    Raises:
        ValueError: One of them runs nothing.
    """
    if not plain or not integer:
        raise ValueError("there are no kernels to predict from")
    costs = [[table.cost(work) for work in works] for works in (plain, integer)]
    totals = [sum(cost.us for cost in side) + table.run_us for side in costs]
    error = math.sqrt(sum(_error(works, side) ** 2 for works, side in zip((plain, integer), costs)) + _FLOOR**2)
    factor = math.exp(_NINE_IN_TEN * error)
    speedup = totals[0] / totals[1]
    known = sum(cost.us for side in costs for cost in side if cost.is_known) / sum(totals)
    reasons = _reasons(plain, integer, costs)
    return Gain(speedup, speedup / factor, speedup * factor, totals[0] / 1e3, totals[1] / 1e3, reasons, known)


def _error(works: Sequence[Work], costs: Sequence[Cost]) -> float:
    """Return the standard error of a sum, as a share of it: kernels of a kind err together, kinds apart."""
    whole = sum(cost.us for cost in costs)
    kinds: Dict[str, List[float]] = {}
    for work, cost in zip(works, costs):
        kinds.setdefault(work.kernel, []).append(cost.us * cost.spread / whole)
    squares = 0.0
    for each in kinds.values():
        alone = sum(part**2 for part in each)
        squares += _TOGETHER * sum(each) ** 2 + (1 - _TOGETHER) * alone
    return math.sqrt(squares)


def _reasons(plain: Sequence[Work], integer: Sequence[Work], costs: Sequence[Sequence[Cost]]) -> Tuple[str, ...]:
    """Return what INT8 spends on work that is not in integers, or that float does faster."""
    whole = sum(cost.us for cost in costs[1])
    spent = [_by_group(works, side) for works, side in zip((plain, integer), costs)]
    found = []
    for group, us in spent[1].items():
        before = spent[0].get(group, 0.0)
        # Work that integers made faster eats nothing.
        lost = us - before / 2
        if lost > 0 and us / whole >= _LEAST_SHARE:
            found.append((lost, group, us / whole, before))
    found.sort(reverse=True)
    return tuple(_words(group, share, before / (share * whole)) for _, group, share, before in found[:_REASONS])


def _by_group(works: Sequence[Work], costs: Sequence[Cost]) -> Dict[str, float]:
    found: Dict[str, float] = {}
    for work, cost in zip(works, costs):
        group = _group(work)
        found[group] = found.get(group, 0.0) + cost.us
    return found


def _group(work: Work) -> str:
    if work.op in _CONVERSIONS:
        return "conversions between float, integers and layouts"
    name = work.op
    for dress in ("QLinear", "Fused", "Nhwc"):
        name = name.replace(dress, "")
    name = "Gemm" if name in ("QGemm", "MatMul") else name
    kind = work.kernel.split("|")[-1]
    return "{} {}".format(kind, name) if kind in ("depthwise", "grouped", "pointwise", "spatial") else name


def _words(group: str, share: float, faster: float) -> str:
    words = "{} take {:.0%} of the INT8 time".format(group, share)
    if faster > 0:
        words += " and are {:.1f}x as fast as in float".format(faster)
    return words
