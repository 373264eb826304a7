"""What other calibration data of the same kind would have given: scales and results, resampled from what was kept.

Statistics merge exactly, so those of a group of batches are enough to know what any choice of groups would have given,
without running the network again. Scales are solved anew for every draw; what they do to results is measured on
samples that no range is taken from.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce

import torch
from torch import fx

from embedl_deploy.nn.number import NumberFormat
from embedl_deploy.quantize._calibrate import collect
from embedl_deploy.quantize._config import TensorQuantConfig
from embedl_deploy.quantize._histogram import Calibration, Histogram
from embedl_deploy.quantize._range import solve_all
from embedl_deploy.quantize._rows import Sample

GROUPS = 32
CHANGE = 0.05  # of a scale: half a decibel of noise
_LEAST_GROUPS = 4
_DRAWS = 60


@dataclass(frozen=True)
class ScaleChange:
    """What more data would do to one scale."""

    name: str
    growth: float  # by which part it grew when the data was doubled last; it may grow as much again
    spread: float  # deviation of its logarithm between choices of the data

    @property
    def is_settled(self) -> bool:
        """Whether more data would change it by less than a twentieth."""
        return abs(self.growth) <= CHANGE and self.spread <= CHANGE


@dataclass(frozen=True)
class ScaleStability:
    """Whether more calibration data would change the scales."""

    changes: tuple[ScaleChange, ...]  # one per scale, the least settled first
    groups: int  # of batches that were drawn from
    reason: str = ""  # why nothing was resampled, where nothing was

    @property
    def unsettled(self) -> tuple[ScaleChange, ...]:
        """The scales that more data would change."""
        return tuple(change for change in self.changes if not change.is_settled)

    def __str__(self) -> str:
        if self.reason:
            return f"Scales: not resampled, {self.reason}"
        count, total = len(self.unsettled), len(self.changes)
        if not count:
            return f"Scales: more data would change none of {total} by more than {CHANGE:.0%}."
        worst = self.changes[0]
        much = max(abs(worst.growth), worst.spread)
        return (
            f"Scales: more data would change {count} of {total} by more than {CHANGE:.0%}, "
            f"'{worst.name}' by {much:.0%}; give more."
        )


def collect_groups(model: fx.GraphModule, calls: Iterable[Sample]) -> list[Calibration]:
    """Run calls and keep statistics of up to 32 groups of them, of the same number of calls each but for the last."""
    groups: list[Calibration] = []
    waiting: list[Calibration] = []
    size = 1
    for args, kwargs in calls:
        waiting.append(collect(model, [kwargs or args]))
        if len(waiting) == size:
            groups.append(waiting[0].merge(*waiting[1:]))
            waiting = []
        if len(groups) == 2 * GROUPS:
            groups = [one.merge(other) for one, other in zip(groups[::2], groups[1::2], strict=True)]
            size *= 2
    return [*groups, *([waiting[0].merge(*waiting[1:])] if waiting else [])]


def merged(groups: Sequence[Calibration]) -> Calibration:
    """Return the statistics of all groups together."""
    return groups[0].merge(*groups[1:])


def draws(count: int, times: int, seed: int = 0) -> Iterator[list[int]]:
    """Yield choices of as many groups, with replacement."""
    generator = torch.Generator().manual_seed(seed)
    for _ in range(times):
        yield torch.randint(count, (count,), generator=generator).tolist()


def stability(
    groups: Sequence[Calibration], config: TensorQuantConfig, form: NumberFormat, labels: Mapping[str, str]
) -> ScaleStability:
    """Say for every scale how much it depends on the choice of the data, and whether it still grows with more.

    Labels tell which value of the network a scale stands on, by the name that it is kept under.
    """
    if len(groups) < _LEAST_GROUPS:
        return ScaleStability((), len(groups), f"{len(groups)} batches are too few; give {_LEAST_GROUPS} and more.")
    generator = torch.Generator().manual_seed(0)
    count = len(groups)
    whole = torch.ones(1, count, dtype=torch.int64)
    again = torch.stack([torch.bincount(torch.tensor(drawn), minlength=count) for drawn in draws(count, _DRAWS)])
    halves = torch.stack([
        torch.zeros(count, dtype=torch.int64).scatter_(0, torch.randperm(count, generator=generator)[: count // 2], 1)
        for _ in range(_DRAWS)
    ])  # fmt: skip
    weights = torch.cat([whole, again, halves])
    changes = []
    for name in groups[0].statistics:
        histograms = [group.statistics[name] for group in groups]
        if not all(histogram.batches for histogram in histograms):
            continue
        widths = _widths(histograms, weights, config, form)
        if widths[0] <= 0:
            continue
        logs = (widths.clamp(min=1e-30) / widths[0]).log()
        growth, spread = torch.expm1(-logs[1 + _DRAWS :].mean()), logs[1 : 1 + _DRAWS].std()
        changes.append(ScaleChange(labels.get(name, name), float(growth), float(spread)))
    changes.sort(key=lambda change: max(abs(change.growth), change.spread), reverse=True)
    return ScaleStability(tuple(changes), count)


def _widths(
    histograms: Sequence[Histogram], weights: torch.Tensor, config: TensorQuantConfig, form: NumberFormat
) -> torch.Tensor:
    """Return what a tensor's scale is proportional to, for every row of weights of its groups."""
    bounds = solve_all(list(_drawn(histograms, weights)), config, form)
    return torch.tensor([max(-low, high) if form.signed else high - low for low, high in bounds], dtype=torch.float64)


def _drawn(histograms: Sequence[Histogram], weights: torch.Tensor) -> Iterator[Histogram]:
    empty = Histogram(exponent=max(histogram.exponent for histogram in histograms))
    aligned = [empty.merge(histogram) for histogram in histograms]
    counts = weights @ torch.stack([histogram.counts for histogram in aligned])
    for row, counted in zip(weights.tolist(), counts, strict=True):
        used = [(weight, each) for weight, each in zip(row, aligned, strict=True) if weight]
        yield Histogram(
            min(each.low for _, each in used), max(each.high for _, each in used), empty.exponent, counted,
            sum(weight * each.batches for weight, each in used),
            sum((weight * each.low_sum for weight, each in used), start=empty.low_sum),
            sum((weight * each.high_sum for weight, each in used), start=empty.high_sum),
        )  # fmt: skip


def redrawn(groups: Sequence[Calibration], times: int) -> Iterator[Calibration]:
    """Yield the statistics that other choices of the same groups give."""
    for drawn in draws(len(groups), times, seed=1):
        statistics: Mapping[str, Histogram] = {
            name: reduce(Histogram.merge, (groups[index].statistics[name] for index in drawn))
            for name in groups[0].statistics
        }
        yield Calibration(statistics)


@dataclass(frozen=True)
class Drop:
    """What quantizing costs on samples that no range is taken from, and within what that lies but for chance."""

    metric: str  # "accuracy", in points of a hundred, or "SQNR", in dB
    value: float
    low: float
    high: float
    confidence: float
    samples: int
    calibrations: int  # choices of the calibration data it was measured with

    def __str__(self) -> str:
        about = f"{self.confidence:.0%}, {self.samples} unseen samples, {self.calibrations} calibrations"
        if self.metric == "accuracy":
            return f"Drop: <= {self.high:.2g} points ({about}; measured {self.value:.2g}, >= {self.low:.2g})."
        return f"{self.metric}: >= {self.low:.1f} dB ({about}; measured {self.value:.1f})."


def paired_interval(lost: int, gained: int, count: int, confidence: float) -> tuple[float, float]:
    """Return the interval of a drop, in parts of one, from how many samples were lost and gained.

    Exact (Clopper-Pearson) limits of the two rates, put together by the squares of their distances (Newcombe): limits
    of a rate that was never seen stay as wide as they are, where a normal approximation would say zero.
    """
    tail = (1 - confidence) / 2
    (lost_low, lost_high), (gained_low, gained_high) = (_exact(seen, count, tail) for seen in (lost, gained))
    here, there = lost / count, gained / count
    low = here - there - math.hypot(here - lost_low, gained_high - there)
    high = here - there + math.hypot(lost_high - here, there - gained_low)
    return low, high


def _exact(seen: int, count: int, tail: float) -> tuple[float, float]:
    """Return Clopper and Pearson's limits of a rate."""
    low = 0.0 if not seen else _root(lambda rate: 1 - _at_most(seen - 1, count, rate), tail)
    high = 1.0 if seen == count else 1 - _root(lambda rate: _at_most(seen, count, 1 - rate), tail)
    return low, high


def _root(rising: Callable[[float], float], wanted: float) -> float:
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        if rising(middle) < wanted:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def _at_most(seen: int, count: int, rate: float) -> float:
    """Return how probable so few or fewer events are."""
    if rate <= 0:
        return 1.0
    if rate >= 1:
        return 0.0 if seen < count else 1.0
    terms = torch.arange(seen + 1, dtype=torch.float64)
    ways = math.lgamma(count + 1) - torch.lgamma(terms + 1) - torch.lgamma(count - terms + 1)
    return float((ways + terms * math.log(rate) + (count - terms) * math.log1p(-rate)).exp().sum().clamp(max=1.0))


def mean_interval(values: torch.Tensor, confidence: float) -> tuple[float, float]:
    """Return the interval of a mean by Student's t."""
    count = len(values)
    mean = float(values.mean())
    if count < 3:
        return -math.inf, math.inf
    reach = student(confidence, count - 1) * float(values.std()) / math.sqrt(count)
    return mean - reach, mean + reach


def student(confidence: float, freedom: int) -> float:
    """Return the two-sided quantile of Student's t, by Cornish and Fisher's expansion."""
    z = float(torch.special.ndtri(torch.tensor((1 + confidence) / 2, dtype=torch.float64)))
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return z + math.fsum(term / freedom**power for power, term in enumerate(terms, start=1))
