"""From statistics to a range: six methods, all on histograms alone, and on those of many tensors at once.

What a range loses is read off running sums over the bins, one look per candidate instead of a pass over the values:

    squared error   values inside a step of width d err by d²/12 on average, those outside by their way to the end
    divergence      Σ p·log p needs the sum of n·log n inside, Σ p·log q the number of values and of bins of each step;
                    k bins drawn from one level differ by (k - 1)/2 counts by chance alone, which is taken off again
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from embedl_deploy.nn.number import NumberFormat, Precision
from embedl_deploy.quantize._config import CalibrationMethod, TensorQuantConfig
from embedl_deploy.quantize._histogram import HALF, Histogram

Bounds = tuple[float, float]
_SHRINKS = tuple(1.0 - step / 50 for step in range(45))
_TINY = 2.0**-100
# Steps narrower than a bin cannot be told apart, so a finer format is solved as if it had as many steps as bins.
_MOST_STEPS = 4096
_STRIDE = 4


def solve_all(statistics: Sequence[Histogram], config: TensorQuantConfig, form: NumberFormat) -> list[Bounds]:
    """Return the ranges a method finds for several tensors of one format."""
    seen = [(min(histogram.low, 0.0), max(histogram.high, 0.0)) for histogram in statistics]
    used = [index for index, (low, high) in enumerate(seen) if low < high]
    if used:
        found = _METHODS[config.range_method]([statistics[index] for index in used], config, form)
        for index, (low, high) in zip(used, found, strict=True):
            seen[index] = (max(min(low, 0.0), seen[index][0]), min(max(high, 0.0), seen[index][1]))
    return seen


def _minmax(statistics: Sequence[Histogram], _config: TensorQuantConfig, _form: NumberFormat) -> list[Bounds]:
    return [(histogram.low, histogram.high) for histogram in statistics]


def _moving_average(statistics: Sequence[Histogram], _config: TensorQuantConfig, _form: NumberFormat) -> list[Bounds]:
    return [
        (float(histogram.low_sum / histogram.batches), float(histogram.high_sum / histogram.batches))
        for histogram in statistics
    ]


def _percentile(statistics: Sequence[Histogram], config: TensorQuantConfig, form: NumberFormat) -> list[Bounds]:
    """Leave out a part of the values: at both ends, or of the magnitudes when the range is symmetric."""
    counts = torch.stack([histogram.counts for histogram in statistics])
    widths = torch.tensor([2.0**histogram.exponent for histogram in statistics], dtype=torch.float64)
    part = config.percentile / 100
    if form.signed:
        tops = (_first(counts[:, HALF:] + counts[:, :HALF].flip(1), part) + 1) * widths
        return [
            (max(-top, histogram.low), min(top, histogram.high))
            for top, histogram in zip(tops.tolist(), statistics, strict=True)
        ]
    highs = (_first(counts, part) + 1 - HALF) * widths
    lows = -(_first(counts.flip(1), part) + 1 - HALF) * widths
    return list(zip(lows.tolist(), highs.tolist(), strict=True))


def _first(counts: torch.Tensor, part: float) -> torch.Tensor:
    """Return the first bin of every row at which this part of all values lies behind."""
    running = counts.cumsum(1).double()
    return torch.searchsorted(running, running[:, -1:] * part)[:, 0].clamp(max=counts.shape[1] - 1)


@dataclass(frozen=True)
class _Table:
    """Histograms of several tensors, a row each, ready to be asked about ranges."""

    bounds: torch.Tensor  # Least and largest value.
    widths: torch.Tensor  # Of the bins.
    form: NumberFormat  # What the values become.
    counts: torch.Tensor  # Values per bin.

    @classmethod
    def of(cls, statistics: Sequence[Histogram], form: NumberFormat) -> "_Table":
        bounds = torch.tensor([(histogram.low, histogram.high) for histogram in statistics], dtype=torch.float64)
        widths = torch.tensor([[2.0**histogram.exponent] for histogram in statistics], dtype=torch.float64)
        return cls(bounds, widths, form, torch.stack([histogram.counts for histogram in statistics]).double())

    def cuts(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return ranges cut off at smaller and smaller magnitudes: the shorter end stays until it is reached."""
        reach = self.bounds.abs().amax(1, keepdim=True) * torch.tensor(_SHRINKS, dtype=torch.float64)
        return torch.maximum(self.bounds[:, :1], -reach), torch.minimum(self.bounds[:, 1:], reach)

    def steps(self, low: torch.Tensor, high: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return, for every range, its scale and the ends of what its codes can tell."""
        low, high, form = low.clamp(max=0), high.clamp(min=0), self.form
        if form.signed or form.precision is Precision.FP8:
            scale = (torch.maximum(-low, high) / form.high).clamp(min=_TINY)
            return scale, form.low * scale, form.high * scale
        scale = ((high - low) / (form.high - form.low)).clamp(min=_TINY)
        point = torch.round(form.low - low / scale).clamp(form.low, form.high)
        return scale, (form.low - point) * scale, (form.high - point) * scale

    def bins(self, value: torch.Tensor) -> torch.Tensor:
        inner = self.widths.reshape(-1, *[1] * (value.ndim - 1))
        return (torch.ceil(value / inner - 0.5) + HALF).clamp(0, 2 * HALF).long()

    def running(self, values: torch.Tensor) -> torch.Tensor:
        """Return running sums of a value per bin, with a zero in front."""
        return torch.nn.functional.pad(values.cumsum(1), (1, 0))

    def edges(self, scale: torch.Tensor, bottom: torch.Tensor) -> torch.Tensor:
        if self.form.precision is Precision.FP8:
            codes = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).double()
            known = torch.unique(codes[codes.isfinite()])
            middles: torch.Tensor = (known[1:] + known[:-1]) / 2
            return middles * scale[..., None]
        count = int(min(self.form.high - self.form.low, _MOST_STEPS))
        wide = (self.form.high - self.form.low) / count
        return bottom[..., None] + (torch.arange(count) * wide + 0.5) * scale[..., None]


def _read_at(sums: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    return sums.gather(1, index.flatten(1)).reshape(index.shape)


def _errors(table: _Table) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    """Return a function that tells the squared errors of ranges."""
    counts = table.counts
    centers = (torch.arange(-HALF, HALF) + 0.5) * table.widths
    number, first, second = (table.running(counts * centers**power) for power in range(3))

    def outside(end: torch.Tensor, index: torch.Tensor, sign: int) -> torch.Tensor:
        parts = [_read_at(sums, index) for sums in (number, first, second)]
        if sign > 0:
            parts = [sums[:, -1:] - part for sums, part in zip((number, first, second), parts, strict=True)]
        return parts[2] - 2 * end * parts[1] + end**2 * parts[0]

    def errors(low: torch.Tensor, high: torch.Tensor) -> torch.Tensor:
        scale, bottom, top = table.steps(low, high)
        below, above = table.bins(bottom), table.bins(top)
        lost = outside(bottom, below, -1) + outside(top, above, 1)
        if table.form.precision is not Precision.FP8:
            return lost + (_read_at(number, above) - _read_at(number, below)) * scale**2 / 12
        edges = torch.cat([bottom[..., None], table.edges(scale, bottom), top[..., None]], -1)
        return lost + (_read_at(number, table.bins(edges)).diff(dim=-1) * edges.diff(dim=-1) ** 2).sum(-1) / 12

    return errors


def _best(low: torch.Tensor, high: torch.Tensor, losses: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the range of every tensor that loses least; of equals the widest, which comes first."""
    chosen = losses.argmin(1, keepdim=True)
    return low.expand_as(losses).gather(1, chosen), high.expand_as(losses).gather(1, chosen)


def _pairs(low: torch.Tensor, high: torch.Tensor) -> list[Bounds]:
    return list(zip(low.flatten().tolist(), high.flatten().tolist(), strict=True))


def _mse(statistics: Sequence[Histogram], _config: TensorQuantConfig, form: NumberFormat) -> list[Bounds]:
    """Cut large magnitudes off until the squared error is least."""
    table = _Table.of(statistics, form)
    cuts = table.cuts()
    return _pairs(*_best(*cuts, _errors(table)(*cuts)))


def _histogram(statistics: Sequence[Histogram], _config: TensorQuantConfig, form: NumberFormat) -> list[Bounds]:
    """Shrink one end, then the other, until the squared error is least."""
    table = _Table.of(statistics, form)
    errors, parts = _errors(table), torch.tensor(_SHRINKS, dtype=torch.float64)
    low, high = table.bounds[:, :1], table.bounds[:, 1:] * parts
    low, high = _best(low, high, errors(low.expand_as(high), high))
    low = table.bounds[:, :1] * parts
    return _pairs(*_best(low, high, errors(low, high.expand_as(low))))


def _entropy(statistics: Sequence[Histogram], _config: TensorQuantConfig, form: NumberFormat) -> list[Bounds]:
    """Keep the range whose quantized distribution differs least from the clipped one."""
    table = _Table.of(statistics, form)
    # The bin at zero is leveled: every range has zero itself, and what a ReLU piles up there would outweigh the rest.
    table.counts[:, HALF] = torch.minimum(table.counts[:, HALF], table.counts[:, HALF + 1])
    low, high = table.cuts()
    # Every fourth first, then those around the best: the divergence changes slowly from one to the next.
    coarse = _divergences(table, low[:, ::_STRIDE].contiguous(), high[:, ::_STRIDE].contiguous())
    near = coarse.argmin(1, keepdim=True) * _STRIDE + torch.arange(1 - _STRIDE, _STRIDE)
    near = near.clamp(0, low.shape[1] - 1).sort(1).values
    low, high = low.gather(1, near), high.gather(1, near)
    return _pairs(*_best(low, high, _divergences(table, low, high)))


def _divergences(table: _Table, low: torch.Tensor, high: torch.Tensor) -> torch.Tensor:
    """Return how far the quantized distribution of every range is from the clipped one.

    Values outside go to the outermost filled bins; inside a step the quantized side spreads its values evenly over the
    bins that are filled.
    """
    counts, filled = table.counts, table.counts > 0
    number, bins, logs = map(table.running, (counts, filled.double(), torch.xlogy(counts, counts)))
    begin, end = table.bins(low), table.bins(high)
    scale, bottom, _ = table.steps(low, high)
    inner = table.bins(table.edges(scale, bottom)).clamp(begin[..., None], end[..., None])
    borders = torch.cat([begin[..., None], inner, end[..., None]], -1)
    mass, held = _read_at(number, borders).diff(dim=-1), _read_at(bins, borders).diff(dim=-1)
    level = torch.log((mass / held.clamp(min=1)).clamp(min=1e-300))
    total, kept = number[:, -1:], _read_at(number, end) - _read_at(number, begin)
    left, right = _read_at(number, begin), total - _read_at(number, end)
    value = _read_at(logs, end) - _read_at(logs, begin)
    value = value - torch.where(mass > 0, mass * level, torch.zeros_like(mass)).sum(-1)
    value = value - (held - 1).clamp(min=0).sum(-1) / 2
    for outer, index in ((left, 0), (right, -1)):
        edge = _edge_counts(table, begin, end, index)
        value = value + torch.xlogy(edge + outer, edge + outer) - torch.xlogy(edge, edge)
        value = value - outer * _outermost(mass, level, index)
    found = value / total - total.log() + kept.clamp(min=1).log()
    return torch.where(kept > 0, found, torch.full_like(found, torch.inf))


def _outermost(mass: torch.Tensor, level: torch.Tensor, index: int) -> torch.Tensor:
    """Return the value of the first (0) or last (-1) step that is not empty."""
    used = (mass > 0).int()
    place = used.argmax(-1) if index == 0 else used.shape[-1] - 1 - used.flip(-1).argmax(-1)
    return level.gather(-1, place[..., None])[..., 0]


def _edge_counts(table: _Table, begin: torch.Tensor, end: torch.Tensor, side: int) -> torch.Tensor:
    """Return the count of the first (0) or last (-1) filled bin of every range."""
    filled = table.counts > 0
    place = torch.arange(2 * HALF).expand_as(table.counts)
    if side == 0:
        nearest = torch.where(filled, place, 2 * HALF - 1).flip(1).cummin(1).values.flip(1)
        index = _read_at(nearest, begin.clamp(max=2 * HALF - 1))
    else:
        nearest = torch.where(filled, place, 0).cummax(1).values
        index = _read_at(nearest, (end - 1).clamp(min=0))
    return _read_at(table.counts, index)


_METHODS: dict[CalibrationMethod, Callable[[Sequence[Histogram], TensorQuantConfig, NumberFormat], list[Bounds]]] = {
    CalibrationMethod.MINMAX: _minmax,
    CalibrationMethod.MOVING_AVERAGE_MINMAX: _moving_average,
    CalibrationMethod.PERCENTILE: _percentile,
    CalibrationMethod.MSE: _mse,
    CalibrationMethod.HISTOGRAM: _histogram,
    CalibrationMethod.ENTROPY: _entropy,
}
