"""A table of kernel costs: times measured on a device, a fit for each kernel, and how far the fit can be trusted.

A kernel's time is a sum of what it does: a call, products, bytes read and written, bytes of weights, rows, each with a
price that is not negative. What a fit misses is taken from the measured kernels of nearly the same size. How far off a
kernel is that was not measured is found by leaving each measured one out.
"""

from __future__ import annotations

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
    """What one kernel is expected to take.

    Attributes:
        us: Microseconds.
        spread: One standard error, as a share.
        is_known: Whether such a kernel was measured.
    """

    us: float
    spread: float
    is_known: bool


class _Fit:
    """The prices of one kernel."""

    def __init__(self, terms: np.ndarray, times: np.ndarray) -> None:
        self._prices = _prices(terms, times)
        self._errors = np.log((times + _SOFT_US) / (terms @ self._prices + _SOFT_US))
        self._places = _places(terms)
        # The runtime counts whole microseconds: what is shorter than a few says little about the kernel.
        says = times / (times + _SHORT_US)
        whole = float(says.sum())
        away = np.sum(np.square(self._places[:, None] - self._places[None]), axis=2)
        tried = []
        for reach in _REACHES:
            nearness = np.exp(-away / (2 * reach**2))
            np.fill_diagonal(nearness, 0.0)
            left_out = self._errors - nearness @ self._errors / (nearness.sum(axis=1) + _TRUST)
            tried.append((float(says @ np.square(np.clip(left_out, -2.0, 2.0))), reach))
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
    """Return the groups of a kernel, the narrowest first."""
    parts = work.kernel.split("|")
    names = [work.kernel]
    if len(parts) > 2:
        names.append("|".join(parts[:2]) + "|")
    names.append("*product|" + parts[1] if work.terms[1] and len(parts) > 1 else "*|" + "".join(parts[1:2]))
    names.append("*")
    return names


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
    except (KeyError, TypeError, ValueError, AttributeError) as error:
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
