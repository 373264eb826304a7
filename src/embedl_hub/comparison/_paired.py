"""Ratios of models that were measured in turns: round by round, so that what the machine did cancels.

Each round gives the logarithm of one ratio. Their middle is a trimmed mean: a fifth at each end is left out, so that
rounds in which something else ran decide nothing. Its interval is that of the trimmed mean (Tukey and McLaughlin), with
what a round takes from its neighbours and from its loading counted in: a model that lies badly in memory is slow until
it is loaded anew.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from embedl_hub.comparison._statistics import Ratio, correlation_length, t_95
from embedl_hub.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from embedl_hub.comparison._statistics import Floats

_TRIMMED = 0.2
_FEWEST_ROUNDS = 10
_FEWEST_DEGREES = 4


@dataclass(frozen=True)
class Ranked:
    """A model's place in a ranking, the fastest first.

    Attributes:
        number: Which of the models, counted from 0 in the order they were given.
        to_next: The next slower one's time over this one's, from the rounds of these two; None for the last.
    """

    number: int
    to_next: Ratio | None = None

    @property
    def is_told_apart(self) -> bool | None:
        """Whether it is shown to be faster than the next one; None for the last."""
        return None if self.to_next is None else bool(self.to_next.low is not None and self.to_next.low > 1)


def paired_ratio(samples: Sequence[float], baseline: Sequence[float], loaded_at: Sequence[int] = ()) -> Ratio:
    """Return how much longer ``samples`` took than ``baseline``, with its 95 % interval.

    Args:
        samples: Times, one for each round.
        baseline: The times of what it is held against, in the same rounds.
        loaded_at: The rounds, counted from 0, before which the models were loaded anew.
    """
    import numpy as np  # noqa: PLC0415 - importing the face must not cost numpy

    if len(samples) != len(baseline) or not samples:
        raise ConfigError(
            f"A paired ratio needs times of the same rounds, not {len(samples)} against {len(baseline)} of them."
        )
    if min(samples) <= 0 or min(baseline) <= 0:
        raise ConfigError("A paired ratio needs times above 0.")
    logs = np.log(np.asarray(samples, float) / np.asarray(baseline, float))
    count = len(logs)
    cut = int(_TRIMMED * count)
    ordered = np.sort(logs)
    middle = float(ordered[cut : count - cut].mean())
    if count < _FEWEST_ROUNDS:
        return Ratio(math.exp(middle))
    # Winsorised, as the trimmed mean wants it: what was left out counts as the last that was not.
    pulled_in = np.clip(logs, ordered[cut], ordered[count - cut - 1])
    kept = 1 - 2 * cut / count
    reach = min(max(_by_neighbours(pulled_in, kept), _by_loading(pulled_in, kept, loaded_at)), 700.0)
    return Ratio(math.exp(middle), math.exp(middle - reach), math.exp(middle + reach))


def _by_neighbours(values: Floats, kept: float) -> float:
    """Return half the interval's width if rounds resemble their neighbours only."""
    length = correlation_length(values.tolist())
    error = float(values.std(ddof=1)) / kept * math.sqrt(length / len(values))
    return t_95(max(_FEWEST_DEGREES, round(kept * len(values) / length) - 1)) * error


def _by_loading(values: Floats, kept: float, loaded_at: Sequence[int]) -> float:
    """Return half the interval's width if all rounds of one loading resemble each other."""
    import numpy as np  # noqa: PLC0415 - importing the face must not cost numpy

    if len(loaded_at) <= _FEWEST_DEGREES:
        return 0.0
    sums = np.add.reduceat(values - values.mean(), np.asarray(loaded_at, int))
    loads = len(sums)
    error = math.sqrt(float(sums @ sums) * loads / (loads - 1)) / len(values) / kept
    return t_95(loads - 1) * error


def rank(samples: Sequence[Sequence[float]], loaded_at: Sequence[int] = ()) -> tuple[Ranked, ...]:
    """Return models from the fastest to the slowest, each held against the next.

    Args:
        samples: The times of each model, one for each round.
        loaded_at: The rounds before which the models were loaded anew.
    """
    ratios = [paired_ratio(times, samples[0], loaded_at).value for times in samples]
    order = sorted(range(len(samples)), key=ratios.__getitem__)
    steps = [paired_ratio(samples[slow], samples[fast], loaded_at) for fast, slow in itertools.pairwise(order)]
    return tuple(Ranked(number, step) for number, step in zip(order, [*steps, None], strict=True))
