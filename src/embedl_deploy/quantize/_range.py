"""From statistics to a range: six methods, all on the histogram alone."""

from collections.abc import Callable

import torch

from embedl_deploy.nn.number import NumberFormat, Precision
from embedl_deploy.nn.quantized import scale_of
from embedl_deploy.quantize._config import CalibrationMethod, TensorQuantConfig
from embedl_deploy.quantize._histogram import Histogram

Bounds = tuple[float, float]
_SHRINKS = tuple(1.0 - step / 50 for step in range(45))


def solve(statistics: Histogram, config: TensorQuantConfig, form: NumberFormat) -> Bounds:
    """Return the range a method finds, always inside what was seen and always with zero in it."""
    low, high = min(statistics.low, 0.0), max(statistics.high, 0.0)
    if low == high:
        return low, high
    found = _METHODS[config.calibration_method](statistics, config, form)
    return max(min(found[0], 0.0), low), min(max(found[1], 0.0), high)


def _minmax(statistics: Histogram, _config: TensorQuantConfig, _form: NumberFormat) -> Bounds:
    """Keep everything."""
    return statistics.low, statistics.high


def _moving_average(statistics: Histogram, _config: TensorQuantConfig, _form: NumberFormat) -> Bounds:
    """Keep the mean of the batches' ends."""
    return float(statistics.low_sum / statistics.batches), float(statistics.high_sum / statistics.batches)


def _percentile(statistics: Histogram, config: TensorQuantConfig, form: NumberFormat) -> Bounds:
    """Leave out a part of the values: at both ends, or of the magnitudes when the range is symmetric."""
    width = 2.0**statistics.exponent
    half = statistics.counts.numel() // 2
    if form.signed:
        magnitudes = statistics.counts[half:] + statistics.counts[:half].flip(0)
        top = (_first(magnitudes, config.percentile / 100) + 1) * width
        return max(-top, statistics.low), min(top, statistics.high)
    high = (_first(statistics.counts, config.percentile / 100) + 1 - half) * width
    low = -(_first(statistics.counts.flip(0), config.percentile / 100) + 1 - half) * width
    return low, high


def _first(counts: torch.Tensor, part: float) -> int:
    """Return the first bin at which this part of all values lies behind."""
    running = counts.cumsum(0).double()
    return int(torch.searchsorted(running, float(running[-1]) * part).clamp(max=counts.numel() - 1))


def _mse(statistics: Histogram, _config: TensorQuantConfig, form: NumberFormat) -> Bounds:
    """Cut large magnitudes off until the squared error is least."""
    return min(_cuts(statistics), key=_error_of(statistics, form))


def _cuts(statistics: Histogram) -> list[Bounds]:
    """Return ranges cut off at smaller and smaller magnitudes: the shorter end stays until it is reached."""
    top = max(-statistics.low, statistics.high)
    return [(max(statistics.low, -top * part), min(statistics.high, top * part)) for part in _SHRINKS]


def _histogram(statistics: Histogram, _config: TensorQuantConfig, form: NumberFormat) -> Bounds:
    """Shrink one end, then the other, until the squared error is least."""
    error = _error_of(statistics, form)
    low, high = statistics.low, statistics.high
    high = min((high * part for part in _SHRINKS), key=lambda end: error((low, end)))
    low = min((low * part for part in _SHRINKS), key=lambda end: error((end, high)))
    return low, high


def _error_of(statistics: Histogram, form: NumberFormat) -> Callable[[Bounds], float]:
    """Return a function that tells the squared error of a range."""
    filled = statistics.counts.nonzero().flatten()
    centres, counts = statistics.centres()[filled], statistics.counts[filled].double()

    def error(bounds: Bounds) -> float:
        back = _levels(centres, bounds, form)
        # Inside a bin the rounding error is spread evenly; without this a step narrower than a bin would look free.
        scale, _ = scale_of(*bounds, form)
        floor = scale**2 / 12 if form.precision is not Precision.FP8 else 0.0
        return float((counts * torch.maximum((centres - back) ** 2, torch.tensor(floor).double())).sum())

    return error


def _levels(values: torch.Tensor, bounds: Bounds, form: NumberFormat) -> torch.Tensor:
    """Quantise and dequantise in double precision."""
    scale, zero_point = scale_of(*bounds, form)
    if form.precision is Precision.FP8:
        return (values / scale).clamp(form.low, form.high).float().to(torch.float8_e4m3fn).double() * scale
    return (torch.round(values / scale) + zero_point).clamp(form.low, form.high).sub(zero_point) * scale


def _entropy(statistics: Histogram, _config: TensorQuantConfig, form: NumberFormat) -> Bounds:
    """Keep the range for which the quantised distribution tells least apart from the clipped one."""
    filled = statistics.counts.nonzero().flatten()
    centres, counts = statistics.centres()[filled], statistics.counts[filled].double()

    def divergence(bounds: Bounds) -> float:
        inside = (centres >= bounds[0]) & (centres <= bounds[1])
        kept = counts * inside
        clipped = kept.clone()
        held = inside.nonzero().flatten()
        if not held.numel():
            return float("inf")
        clipped[held[-1]] += counts[centres > bounds[1]].sum()
        clipped[held[0]] += counts[centres < bounds[0]].sum()
        level = torch.unique(_levels(centres, bounds, form), return_inverse=True)[1]
        mass = torch.zeros(int(level.max()) + 1).double().index_add_(0, level, kept)
        bins = torch.zeros_like(mass).index_add_(0, level, inside.double())
        spread = torch.where(inside, (mass / bins.clamp(min=1))[level], torch.zeros(()).double())
        one, other = clipped / clipped.sum(), spread / spread.sum().clamp(min=1)
        seen = (one > 0) & (other > 0)
        # Mass that the quantised side cannot hold at all counts as if it had one value's worth there.
        lost = (one > 0) & (other == 0)
        total = (one[seen] * torch.log(one[seen] / other[seen])).sum()
        return float(total + (one[lost] * torch.log(one[lost] * clipped.sum())).sum())

    return min(_cuts(statistics), key=divergence)


_METHODS: dict[CalibrationMethod, Callable[[Histogram, TensorQuantConfig, NumberFormat], Bounds]] = {
    CalibrationMethod.MINMAX: _minmax,
    CalibrationMethod.MOVING_AVERAGE_MINMAX: _moving_average,
    CalibrationMethod.PERCENTILE: _percentile,
    CalibrationMethod.MSE: _mse,
    CalibrationMethod.HISTOGRAM: _histogram,
    CalibrationMethod.ENTROPY: _entropy,
}
