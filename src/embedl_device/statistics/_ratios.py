"""How far a ratio can be trusted: of two measurements, and of models that were measured in turns.

Samples taken one after another resemble their neighbors, so that drawing them one by one would promise too much: of two
measurements whole stretches are drawn (a block bootstrap), as long as the samples themselves show to be needed. In
turns, each round gives the logarithm of one ratio. Their middle is a trimmed mean: a fifth at each end is left out, so
that rounds in which something else ran decide nothing. Its interval (Tukey and McLaughlin) counts in what a round takes
from its neighbors and from its loading: a model that lies badly in memory is slow until it is loaded anew.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, List, Optional, Sequence, Tuple

from embedl_device.statistics._samples import Interval, deviation, mean_of

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

TRIMMED = 0.2

_FEWEST_SAMPLES = 10
_FEWEST_BLOCKS = 5
_DRAWS = 400
_AT_ONCE = 2_000_000
_MANY = 2000
_BLOCKS_OF_MANY = 30
_SEED = 20_261

_Z_95 = 1.96
# Student's t, 99 % two-sided, for 1, 2, 3 ... degrees of freedom; beyond the table the last one is on the safe side.
_T_99 = (
    63.66, 9.92, 5.84, 4.60, 4.03, 3.71, 3.50, 3.36, 3.25, 3.17, 3.11, 3.05, 3.01, 2.98, 2.95, 2.92, 2.90, 2.88, 2.86,
    2.85, 2.83, 2.82, 2.81, 2.80, 2.79, 2.78, 2.77, 2.76, 2.76, 2.75,
)  # fmt: skip
# A ranking asks often, and a later sitting differs from this one by a little more than this one can tell.
_Z_99 = 2.576
_FEWEST_ROUNDS = 10
_FEWEST_DEGREES = 4
# The two clocks are read one after the other; what is left of a time is never quite nothing.
_LEAST_SHARE = 0.001


@dataclass(frozen=True)
class Ratio(Interval):
    """One number over another, with its interval where the samples tell one: 95 %, of models measured in turns 99 %."""

    @property
    def shows_difference(self) -> Optional[bool]:
        """Whether 1 lies outside the interval; None when there is no interval."""
        if self.low is None or self.high is None:
            return None
        return self.low > 1 or self.high < 1


@dataclass(frozen=True)
class LogError:
    """How far a metric of one run is known: standard error of its logarithm, and how many stretches it rests on."""

    log: float
    blocks: int


@dataclass(frozen=True)
class Series:
    """The samples of one run, and how long a stretch of them must be to stand for itself."""

    values: Floats
    length: int


def series_of(samples: Sequence[float]) -> Optional[Series]:
    """Return samples ready to be asked; None when they are too few, or no times."""
    if len(samples) < _FEWEST_SAMPLES or min(samples) <= 0:
        return None
    import numpy as np

    length = max(1, min(math.ceil(2 * correlation_length(samples)), len(samples) // _FEWEST_BLOCKS))
    return Series(np.asarray(samples, float), length)


def log_error(series: Optional[Series], percent: Optional[float]) -> Optional[LogError]:
    """Return how far the mean, or a percentile, is known from samples; None without samples."""
    if series is None:
        return None
    import numpy as np

    values, length = series.values, series.length
    if len(values) <= _MANY:
        drawn = _drawn(values, length, percent)
        return LogError(float(np.log(drawn).std()), math.ceil(len(values) / length))
    # With many samples each block has the statistic itself; drawing would take seconds to say the same.
    blocks = min(_BLOCKS_OF_MANY, len(values) // length)
    each = values[: len(values) // blocks * blocks].reshape(blocks, -1)
    return LogError(float(np.log(_statistic(each, percent)).std()) / math.sqrt(blocks), blocks)


def ratio_of(value: float, baseline: float, error: Optional[LogError], other: Optional[LogError]) -> Ratio:
    """Return ``value / baseline``, with an interval if both are known to have one."""
    ratio = value / baseline
    if error is None or other is None or ratio <= 0:
        return Ratio(ratio)
    blocks = min(error.blocks, other.blocks)
    # A handful of blocks shows less spread than there is; Student's t and n/(n-1) make up for it.
    reach = student_t(blocks - 1, _Z_95) * math.hypot(error.log, other.log) * math.sqrt(blocks / (blocks - 1))
    return Ratio(ratio, ratio * math.exp(-min(reach, 700.0)), ratio * math.exp(min(reach, 700.0)))


def correlation_length(samples: Sequence[float]) -> float:
    """Return over how many samples a disturbance is felt; 1 for samples that know nothing of each other."""
    import numpy as np

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


def student_t(degrees: int, z: float) -> float:
    """Return Student's t for the normal quantile ``z``, by its expansion; good to 5 % from four degrees on."""
    return z + (z**3 + z) / (4 * degrees) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * degrees**2)


def _drawn(samples: Floats, length: int, percent: Optional[float]) -> Floats:
    """Return the statistic of many samples drawn in blocks."""
    import numpy as np

    count = len(samples)
    blocks = math.ceil(count / length)
    random = np.random.default_rng(_SEED)
    parts: List[Floats] = []
    steps = np.arange(length)
    at_once = max(1, _AT_ONCE // count)
    for start in range(0, _DRAWS, at_once):
        draws = min(at_once, _DRAWS - start)
        # Blocks go round the end, so that every sample is drawn as often as any other.
        begins = random.integers(0, count, (draws, blocks, 1))
        drawn = samples[((begins + steps) % count).reshape(draws, -1)[:, :count]]
        parts.append(_statistic(drawn, percent))
    return np.concatenate(parts)


def _statistic(drawn: Floats, percent: Optional[float]) -> Floats:
    import numpy as np

    if percent is None:
        means: Floats = drawn.mean(axis=1)
        return means
    rank = max(0, math.ceil(percent / 100 * drawn.shape[1]) - 1)
    ranked: Floats = np.partition(drawn, rank, axis=1)[:, rank]
    return ranked


def trimmed_mean(values: Sequence[float], errors: Sequence[float]) -> Tuple[float, float]:
    """Return the middle of repeated measurements and the half width of its 99 % interval.

    From five values on, a fifth at each end is left out: one disturbed repeat must not decide. A few values may agree
    by chance; ``errors``, what is known of each from its own samples, keeps the interval from being narrower than that.
    """
    ordered = sorted(values)
    count = len(ordered)
    cut = int(TRIMMED * count)
    kept = ordered[cut : count - cut]
    if len(kept) < 2:
        return mean_of(kept), math.inf
    # Winsorized, as the trimmed mean wants it: what was left out counts as the last that was not.
    wide = [ordered[cut]] * cut + kept + [ordered[count - cut - 1]] * cut
    between = deviation(wide) / (1 - 2 * cut / count)
    within = math.sqrt(mean_of([error * error for error in errors]))
    spread = max(between, within) / math.sqrt(count)
    degrees = len(kept) - 1
    return mean_of(kept), _T_99[min(degrees, len(_T_99)) - 1] * spread


@dataclass(frozen=True)
class Ranked:
    """A model's place in a ranking, the fastest first: its number, from 0, and the next slower one's time over its."""

    number: int
    to_next: Optional[Ratio] = None

    @property
    def is_significant(self) -> Optional[bool]:
        """Whether it is shown to be faster than the next one; None for the last."""
        return None if self.to_next is None else bool(self.to_next.low is not None and self.to_next.low > 1)


def paired_ratio(samples: Sequence[float], baseline: Sequence[float], loaded_at: Sequence[int] = ()) -> Ratio:
    """Return how much longer ``samples`` took than ``baseline``, with its 99 % interval.

    Both have one time for each round; ``loaded_at`` are the rounds, from 0, before which the models were loaded anew.
    """
    import numpy as np

    if len(samples) != len(baseline) or not samples:
        raise ValueError(
            f"A paired ratio needs times of the same rounds, not {len(samples)} against {len(baseline)} of them."
        )
    if min(samples) <= 0 or min(baseline) <= 0:
        raise ValueError("A paired ratio needs times above 0.")
    logs = np.log(np.asarray(samples, float) / np.asarray(baseline, float))
    count = len(logs)
    cut = int(TRIMMED * count)
    ordered = np.sort(logs)
    middle = float(ordered[cut : count - cut].mean())
    if count < _FEWEST_ROUNDS:
        return Ratio(math.exp(middle))
    # Winsorized, as the trimmed mean wants it: what was left out counts as the last that was not.
    pulled_in = np.clip(logs, ordered[cut], ordered[count - cut - 1])
    kept = 1 - 2 * cut / count
    reach = min(max(_by_neighbors(pulled_in, kept), _by_loading(pulled_in, kept, loaded_at)), 700.0)
    return Ratio(math.exp(middle), math.exp(middle - reach), math.exp(middle + reach))


def _by_neighbors(values: Floats, kept: float) -> float:
    """Return half the interval's width if rounds resemble their neighbors only."""
    length = correlation_length(values.tolist())
    error = float(values.std(ddof=1)) / kept * math.sqrt(length / len(values))
    return student_t(max(_FEWEST_DEGREES, round(kept * len(values) / length) - 1), _Z_99) * error


def _by_loading(values: Floats, kept: float, loaded_at: Sequence[int]) -> float:
    """Return half the interval's width if all rounds of one loading resemble each other."""
    import numpy as np

    if len(loaded_at) <= _FEWEST_DEGREES:
        return 0.0
    sums = np.add.reduceat(values - values.mean(), np.asarray(loaded_at, int))
    loads = len(sums)
    error = math.sqrt(float(sums @ sums) * loads / (loads - 1)) / len(values) / kept
    return student_t(loads - 1, _Z_99) * error


def rank(samples: Sequence[Sequence[float]], loaded_at: Sequence[int] = ()) -> Tuple[Ranked, ...]:
    """Return models, each with one time for each round, from the fastest to the slowest, each compared to the next."""
    ratios = [paired_ratio(times, samples[0], loaded_at).value for times in samples]
    order = sorted(range(len(samples)), key=ratios.__getitem__)
    steps = [paired_ratio(samples[slow], samples[fast], loaded_at) for fast, slow in zip(order, order[1:])]
    return tuple(Ranked(number, step) for number, step in zip(order, [*steps, None]))


def without_waiting(times: Sequence[float], waits: Optional[Sequence[float]]) -> List[float]:
    """Return times without what the runs stood in the queue for a processor, where that is known."""
    if waits is None:
        return list(times)
    return [max(time - wait, _LEAST_SHARE * time) for time, wait in zip(times, waits)]
