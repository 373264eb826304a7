"""A table of kernel costs: times measured on a device, a fit for each kernel, and how far the fit can be trusted.

A kernel's time is a sum of what it does: a call, products, bytes read and written, bytes of weights, rows, each with a
price that is not negative. What a fit misses is taken from the measured kernels of nearly the same size. How far off a
kernel is that was not measured is found by leaving each measured one out. `predict_gain` adds such times up.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass
from typing import Any, Dict, List, Mapping, Sequence, Tuple

import numpy as np

from embedl_kernels._work import TERMS, Work, read_typed, work_of

# What is believed of a kernel's error before it was measured, as a share, and how many measurements that is worth.
_PRIOR_SPREAD = 0.25
_PRIOR_WEIGHT = 2.0
_UNKNOWN_SPREAD = 0.7
# A neighbor's error counts by its distance, against this much trust in the fit; how far is found by leaving out.
_REACHES = (0.3, 0.6, 1.2)
_TRUST = 0.5
# Added to both sides of an error, so that a tenth of a microsecond is none.
_SOFT_US = 1.0
_LEAST_US = 0.3
_SHORT_US = 4.0
_ENOUGH = 3
_ROUNDS = 100
_MOST = 400


@dataclass(frozen=True)
class Cost:
    """What one kernel is expected to take."""

    us: float  # microseconds
    spread: float  # one standard error, as a share
    is_known: bool  # whether such a kernel was measured


class _Fit:
    """The prices of one kernel."""

    def __init__(self, terms: np.ndarray, times: np.ndarray) -> None:
        self._prices = _prices(terms, times)
        self._errors = np.log((times + _SOFT_US) / (terms @ self._prices + _SOFT_US))
        self._places = _places(terms)
        # The runtime counts whole microseconds: what is shorter than a few says little about the kernel.
        trust = times / (times + _SHORT_US)
        whole = float(trust.sum())
        away = np.sum(np.square(self._places[:, None] - self._places[None]), axis=2)
        tried = []
        for reach in _REACHES:
            nearness = np.exp(-away / (2 * reach**2))
            np.fill_diagonal(nearness, 0.0)
            left_out = self._errors - nearness @ self._errors / (nearness.sum(axis=1) + _TRUST)
            tried.append((float(trust @ np.square(np.clip(left_out, -2.0, 2.0))), reach))
        squares, self._reach = min(tried)
        self.spread = float(np.sqrt((squares + _PRIOR_WEIGHT * _PRIOR_SPREAD**2) / (whole + _PRIOR_WEIGHT)))

    def us(self, terms: np.ndarray) -> float:
        """Return the time of a kernel: what the prices say, set right by the errors near it."""
        nearness = np.exp(-self._away(terms) / (2 * self._reach**2))
        error = float(nearness @ self._errors / (nearness.sum() + _TRUST))
        return max((float(terms @ self._prices) + _SOFT_US) * float(np.exp(error)) - _SOFT_US, _LEAST_US)

    def outside(self, terms: np.ndarray) -> float:
        """Return how far from everything measured a kernel is."""
        return float(np.sqrt(np.min(self._away(terms))))

    def _away(self, terms: np.ndarray) -> np.ndarray:
        return np.asarray(np.sum(np.square(self._places - _places(terms[None])[0]), axis=1))


def _places(terms: np.ndarray) -> np.ndarray:
    """Return where kernels are: logarithms of products, of all bytes and of bytes of weights."""
    moved = terms[:, 2] + terms[:, 3]
    return np.asarray(np.log(np.stack([terms[:, 1] + 1.0, moved + 1.0, terms[:, 4] + 1.0], axis=1)) / 2.0)


def _prices(terms: np.ndarray, times: np.ndarray) -> np.ndarray:
    """Return prices that are not negative and miss the times by the least share: coordinate by coordinate."""
    shares = times + _SOFT_US
    relative = terms / shares[:, None]
    lengths = np.sqrt(np.sum(np.square(relative), axis=0))
    scaled = relative / np.where(lengths > 0, lengths, 1.0)
    # A little pull to nothing keeps prices of terms that always go together from running apart.
    products = scaled.T @ scaled + 1e-3 * np.eye(TERMS)
    wanted = scaled.T @ (times / shares)
    found = np.zeros(TERMS)
    for _ in range(_ROUNDS):
        for index in range(TERMS):
            if lengths[index] > 0:
                rest = wanted[index] - products[index] @ found + products[index, index] * found[index]
                found[index] = max(rest / products[index, index], 0.0)
    return np.where(lengths > 0, found / np.where(lengths > 0, lengths, 1.0), 0.0)


class CostTable:
    """What kernels cost on one device."""

    def __init__(self, samples: Sequence[Tuple[Work, float]], overhead_us: float = 0.0, run_us: float = 0.0) -> None:
        """Fit the samples.

        Args:
            samples: Kernels and the microseconds each took under the runtime's profile.
            overhead_us: What a node takes beyond that; negative where the profile itself costs more.
            run_us: What a run takes beyond its nodes.
        """
        self.overhead_us = overhead_us
        self.run_us = run_us
        groups: Dict[str, List[Tuple[np.ndarray, float]]] = {}
        for work, us in samples:
            for name in _names(work):
                groups.setdefault(name, []).append((np.array(work.terms), max(us + overhead_us, _LEAST_US)))
        # Groups of everything hold thousands, and answer only for what nobody measured.
        kept = {name: group[:: max(len(group) // _MOST, 1)] for name, group in groups.items()}
        self._fits = {
            name: _Fit(np.array([terms for terms, _ in group]), np.array([us for _, us in group]))
            for name, group in kept.items()
        }
        self.kernels = sorted({work.kernel for work, _ in samples})

    def cost(self, work: Work) -> Cost:
        """Return what a kernel takes; one that was not measured costs what its like do, with a wide spread."""
        terms = np.array(work.terms)
        for name in _names(work):
            fit = self._fits.get(name)
            if fit is None:
                continue
            is_known = not name.startswith("*")
            spread = fit.spread + 0.08 * max(fit.outside(terms) - 1.0, 0.0)
            return Cost(fit.us(terms), spread if is_known else max(spread, _UNKNOWN_SPREAD), is_known)
        return Cost(_LEAST_US, _UNKNOWN_SPREAD, is_known=False)


def _names(work: Work) -> List[str]:
    parts = work.kernel.split("|")
    wider = ["|".join(parts[:2]) + "|"] if len(parts) > 2 else []
    like = "*product|" + parts[1] if work.terms[1] and len(parts) > 1 else "*|" + "".join(parts[1:2])
    return [work.kernel, *wider, like, "*"]


def read_costs(answer: Mapping[str, Any]) -> CostTable:
    """Return the table of what ``kernel-costs`` of the device program answered.

    Raises:
        ValueError: It is no such answer; the message says what is missing.
    """
    try:
        models = dict(answer["models"])
        samples = [
            (work_of(str(node["op"]), read_typed(node["inputs"]), read_typed(node["outputs"])), float(node["us"]))
            for model in models.values()
            for node in model["nodes"]
        ]
        gaps = [
            (float(model["us"]) - sum(float(node["us"]) for node in model["nodes"]), len(model["nodes"]), model["us"])
            for model in models.values()
        ]
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise ValueError("the table of kernel costs cannot be read: {!r}".format(error)) from error
    if len(samples) < _ENOUGH or not all(np.isfinite(us) for _, us in samples):
        raise ValueError("the table of kernel costs holds {} times".format(len(samples)))
    return CostTable(samples, *_overhead(gaps))


def _overhead(gaps: Sequence[Tuple[float, int, float]]) -> Tuple[float, float]:
    """Return what a node takes beyond its profiled time, and a run beyond its nodes.

    By the models whose nodes are short: there both are a part of the time that can be seen.
    """
    rows = sorted((us / count, gap, count) for gap, count, us in gaps if count and us > 0)[: max(len(gaps) // 2, 2)]
    if not rows:
        return 0.0, 0.0
    times, gap, count = (np.array(column, float) for column in zip(*rows))
    best = (float("inf"), 0.0, 0.0)
    for run_us in np.arange(0.0, 8.5, 0.5):
        node_us = float(np.median((gap - run_us) / count))
        missed = float(np.sum(np.abs(gap - run_us - node_us * count) / (times * count)))
        best = min(best, (missed, node_us, float(run_us)))
    return best[1], best[2]


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
    """A predicted speed-up."""

    speedup: float  # float time over INT8 time: above 1, INT8 is faster
    low: float  # the lower end of an interval that holds the measured one in nine of ten cases
    high: float  # its upper end
    float_ms: float
    int8_ms: float
    reasons: Tuple[str, ...] = ()  # what makes the gain smaller, the worst first, in words
    known: float = 1.0  # share of the predicted time in kernels that were measured

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
        digits = {"speedup": 4, "low": 4, "high": 4, "float_ms": 5, "int8_ms": 5, "known": 4}
        return {
            **{name: round(getattr(self, name), count) for name, count in digits.items()},
            "reasons": list(self.reasons),
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
    every = [cost for side in costs for cost in side]
    known = math.fsum(cost.us for cost in every if cost.is_known) / math.fsum(cost.us for cost in every)
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
    return tuple(_reason(group, share, before / (share * whole)) for _, group, share, before in found[:_REASONS])


def _by_group(works: Sequence[Work], costs: Sequence[Cost]) -> Dict[str, float]:
    spent: Dict[str, float] = defaultdict(float)
    for work, cost in zip(works, costs):
        spent[_group(work)] += cost.us
    return spent


def _group(work: Work) -> str:
    if work.op in _CONVERSIONS:
        return "conversions between float, integers and layouts"
    name = work.op
    for dress in ("QLinear", "Fused", "Nhwc"):
        name = name.replace(dress, "")
    name = "Gemm" if name in ("QGemm", "MatMul") else name
    kind = work.kernel.split("|")[-1]
    return "{} {}".format(kind, name) if kind in ("depthwise", "grouped", "pointwise", "spatial") else name


def _reason(group: str, share: float, faster: float) -> str:
    versus = " and are {:.1f}x as fast as in float".format(faster) if faster > 0 else ""
    return "{} take {:.0%} of the INT8 time{}".format(group, share, versus)
