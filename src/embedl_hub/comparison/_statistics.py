"""How far a ratio of two measurements can be trusted.

Samples taken one after another resemble their neighbours, so that drawing them one by one would promise too much.
Whole stretches are drawn instead (a block bootstrap); how long a stretch must be is read from the samples themselves.
"""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

# What can be told anew from samples, and how: None is the mean, a number the percentile by nearest rank.
PERCENTILES: dict[str, float | None] = {
    "latency": None,
    "fps": None,
    "latency_median": 50.0,
    "latency_p90": 90.0,
    "latency_p99": 99.0,
}
RATES = frozenset({"fps"})

_FEWEST_SAMPLES = 10
_FEWEST_BLOCKS = 5
_DRAWS = 400
_AT_ONCE = 2_000_000
_MANY = 2000
_BLOCKS_OF_MANY = 30
_SEED = 20_261

# Student's t, 99 % two-sided, for 1, 2, 3 ... degrees of freedom; beyond the table the last one is on the safe side.
_T_99 = (
    63.66, 9.92, 5.84, 4.60, 4.03, 3.71, 3.50, 3.36, 3.25, 3.17, 3.11, 3.05, 3.01, 2.98, 2.95, 2.92, 2.90, 2.88, 2.86,
    2.85, 2.83, 2.82, 2.81, 2.80, 2.79, 2.78, 2.77, 2.76, 2.76, 2.75,
)  # fmt: skip
_TRIMMED = 0.2


@dataclass(frozen=True)
class Ratio:
    """One number over another, with its 95 % interval where the samples tell one.

    Attributes:
        value: The ratio.
        low: Lower end of the interval; None where only single numbers are known.
        high: Upper end.
    """

    value: float
    low: float | None = None
    high: float | None = None

    @property
    def shows_difference(self) -> bool | None:
        """Whether 1 lies outside the interval; None when there is no interval."""
        if self.low is None or self.high is None:
            return None
        return self.low > 1 or self.high < 1


@dataclass(frozen=True)
class Error:
    """How far a metric of one run is known from its own samples.

    Attributes:
        log: Standard error of its logarithm.
        blocks: The number of independent stretches it rests on.
    """

    log: float
    blocks: int


@dataclass(frozen=True)
class Samples:
    """The samples of one run, and how long a stretch of them must be to stand for itself."""

    values: Floats
    length: int


def take(samples: Sequence[float]) -> Samples | None:
    """Return samples ready to be asked; None when they are too few, or no times."""
    if len(samples) < _FEWEST_SAMPLES or min(samples) <= 0:
        return None
    import numpy as np  # noqa: PLC0415 - importing the face must not cost numpy

    length = max(1, min(math.ceil(2 * correlation_length(samples)), len(samples) // _FEWEST_BLOCKS))
    return Samples(np.asarray(samples, float), length)


def error_of(name: str, samples: Samples | None) -> Error | None:
    """Return how far a metric is known from its samples; None where they do not tell."""
    if samples is None or name not in PERCENTILES:
        return None
    import numpy as np  # noqa: PLC0415 - importing the face must not cost numpy

    values, length, percent = samples.values, samples.length, PERCENTILES[name]
    if len(values) <= _MANY:
        drawn = _drawn(values, length, percent)
        return Error(float(np.log(drawn).std()), math.ceil(len(values) / length))
    # With many samples each block has the statistic itself; drawing would take seconds to say the same.
    blocks = min(_BLOCKS_OF_MANY, len(values) // length)
    each = values[: len(values) // blocks * blocks].reshape(blocks, -1)
    return Error(float(np.log(_statistic(each, percent)).std()) / math.sqrt(blocks), blocks)


def ratio_of(value: float, baseline: float, error: Error | None, other: Error | None) -> Ratio:
    """Return ``value / baseline``, with an interval if both are known to have one."""
    ratio = value / baseline
    if error is None or other is None or ratio <= 0:
        return Ratio(ratio)
    blocks = min(error.blocks, other.blocks)
    # A handful of blocks shows less spread than there is; Student's t and n/(n-1) make up for it.
    reach = t_95(blocks - 1) * math.hypot(error.log, other.log) * math.sqrt(blocks / (blocks - 1))
    return Ratio(ratio, ratio * math.exp(-min(reach, 700.0)), ratio * math.exp(min(reach, 700.0)))


def correlation_length(samples: Sequence[float]) -> float:
    """Return over how many samples a disturbance is felt; 1 for samples that know nothing of each other."""
    import numpy as np  # noqa: PLC0415 - importing the face must not cost numpy

    values = np.asarray(samples, float)
    # Ranks, so that one huge outlier does not hide how the rest hangs together.
    ranks = values.argsort(kind="stable").argsort(kind="stable").astype(float)
    ranks -= ranks.mean()
    variance = float(ranks @ ranks)
    if len(values) < 3 or variance == 0:
        return 1.0
    total = 1.0
    for lag in range(1, len(values) // 2):
        correlation = float(ranks[:-lag] @ ranks[lag:]) / variance
        if correlation <= 0:
            break
        total += 2 * correlation
    return total


def t_95(degrees: int) -> float:
    """Return Student's t, 95 % two-sided, by its expansion; good to 2 % from four degrees on."""
    z = 1.96
    return z + (z**3 + z) / (4 * degrees) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * degrees**2)


def _drawn(samples: Floats, length: int, percent: float | None) -> Floats:
    """Return the statistic of many samples drawn in blocks."""
    import numpy as np  # noqa: PLC0415 - importing the face must not cost numpy

    count = len(samples)
    blocks = math.ceil(count / length)
    random = np.random.default_rng(_SEED)
    found: list[Floats] = []
    steps = np.arange(length)
    at_once = max(1, _AT_ONCE // count)
    for start in range(0, _DRAWS, at_once):
        draws = min(at_once, _DRAWS - start)
        # Blocks go round the end, so that every sample is drawn as often as any other.
        begins = random.integers(0, count, (draws, blocks, 1))
        drawn = samples[((begins + steps) % count).reshape(draws, -1)[:, :count]]
        found.append(_statistic(drawn, percent))
    return np.concatenate(found)


def _statistic(drawn: Floats, percent: float | None) -> Floats:
    import numpy as np  # noqa: PLC0415 - importing the face must not cost numpy

    if percent is None:
        means: Floats = drawn.mean(axis=1)
        return means
    rank = max(0, math.ceil(percent / 100 * drawn.shape[1]) - 1)
    ranked: Floats = np.partition(drawn, rank, axis=1)[:, rank]
    return ranked


def centre(values: Sequence[float], errors: Sequence[float]) -> tuple[float, float]:
    """Return the middle of repeated measurements and the half width of its 99 % interval.

    From five values on, a fifth at each end is left out: one disturbed repeat must not decide. A few values may agree
    by chance; ``errors``, what is known of each from its own samples, keeps the interval from being narrower than that.
    """
    ordered = sorted(values)
    count = len(ordered)
    cut = int(_TRIMMED * count)
    kept = ordered[cut : count - cut]
    if len(kept) < 2:
        return statistics.fmean(kept), math.inf
    # Winsorised, as the trimmed mean wants it: what was left out counts as the last that was not.
    wide = [ordered[cut]] * cut + kept + [ordered[count - cut - 1]] * cut
    between = statistics.stdev(wide) / (1 - 2 * cut / count)
    within = math.sqrt(statistics.fmean(error * error for error in errors))
    spread = max(between, within) / math.sqrt(count)
    degrees = len(kept) - 1
    return statistics.fmean(kept), _T_99[min(degrees, len(_T_99)) - 1] * spread
