"""What is kept of a tensor: a histogram that grows, merges exactly, and never needs the data again.

A bin is 2^exponent wide and begins at a multiple of its width. When a larger value comes, the exponent goes up by one
and two bins become one. As counts are integers and the borders of wide bins are borders of narrow ones, the result is
the same to the last bit whatever the order of batches, and however the data was split and merged.

Least and largest value are exact. Counts are of a sample: up to 1,024 values of each picture of a batch, evenly spread,
chosen by position alone. That is what makes six methods cost little more than one.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import lru_cache, reduce
from pathlib import Path
from typing import TypedDict

import torch

from embedl_deploy.errors import CalibrationError, quoted_list

HALF = 2048
SAMPLES_PER_ITEM = 1024
MOST_SAMPLES = 65536
MOST_WAITING = 1 << 22
_LEAST_EXPONENT = -120


class HistogramState(TypedDict):
    """A histogram as plain data for a file; sums are exact, as numerator and denominator."""

    low: float
    high: float
    exponent: int
    bins: torch.Tensor
    counts: torch.Tensor
    batches: int
    low_sum: list[str]
    high_sum: list[str]


@dataclass
class Histogram:
    """The statistics of one tensor."""

    low: float = math.inf  # Least value seen.
    high: float = -math.inf  # Largest value seen.
    exponent: int = _LEAST_EXPONENT  # The bins are 2 ** exponent wide.
    # Sampled values per bin; bin HALF begins at zero.
    counts: torch.Tensor = field(default_factory=lambda: torch.zeros(2 * HALF, dtype=torch.int64))
    batches: int = 0
    low_sum: Fraction = Fraction()  # Sum of the least values of the batches, exact.
    high_sum: Fraction = Fraction()  # Sum of the largest values of the batches, exact.

    def add(self, value: torch.Tensor, low: float, high: float) -> None:
        """Take in one batch whose least and largest value are known."""
        self.stretch("", low, high)
        self.counts += count([sample(value)], [0], [self.exponent])[0]

    def stretch(self, label: str, low: float, high: float) -> None:
        """Take in the extremes of one batch: the bins reach as far from then on."""
        if not (math.isfinite(low) and math.isfinite(high)):
            raise CalibrationError(
                f"the value at '{label}' is not finite in batch {self.batches + 1} "
                f"(least {low}, largest {high}); look for NaN or infinity in it, or for a layer that overflows.",
                place=label,
            )
        self._widen(exponent_for(low, high))
        self.low, self.high = min(self.low, low), max(self.high, high)
        self.batches += 1
        self.low_sum += Fraction(low)
        self.high_sum += Fraction(high)

    def merge(self, other: "Histogram") -> "Histogram":
        exponent = max(self.exponent, other.exponent)
        mine, theirs = replace(self, counts=self.counts.clone()), replace(other, counts=other.counts.clone())
        mine._widen(exponent)
        theirs._widen(exponent)
        return Histogram(
            min(self.low, other.low), max(self.high, other.high), exponent, mine.counts + theirs.counts,
            self.batches + other.batches, self.low_sum + other.low_sum, self.high_sum + other.high_sum,
        )  # fmt: skip

    def _widen(self, exponent: int) -> None:
        """Make bins at least this wide, joining those that become one."""
        steps = exponent - self.exponent
        if steps > 0 and self.batches:
            # A shift to the right rounds down for negative numbers too, as flooring the wider division does.
            bins = (torch.arange(-HALF, HALF) >> min(steps, 40)) + HALF
            self.counts = torch.zeros_like(self.counts).index_add_(0, bins, self.counts)
        self.exponent = max(self.exponent, exponent)

    def centers(self) -> torch.Tensor:
        """Return the middle of every bin."""
        return (torch.arange(-HALF, HALF, dtype=torch.float64) + 0.5) * 2.0**self.exponent

    def to_state(self) -> HistogramState:
        filled = self.counts.nonzero().flatten()
        return {
            "low": self.low,
            "high": self.high,
            "exponent": self.exponent,
            "bins": filled.to(torch.int32),
            "counts": self.counts[filled],
            "batches": self.batches,
            "low_sum": [str(self.low_sum.numerator), str(self.low_sum.denominator)],
            "high_sum": [str(self.high_sum.numerator), str(self.high_sum.denominator)],
        }

    @classmethod
    def from_state(cls, state: HistogramState) -> "Histogram":
        counts = torch.zeros(2 * HALF, dtype=torch.int64)
        counts[state["bins"].long()] = state["counts"]
        low, high = (Fraction(int(top), int(bottom)) for top, bottom in (state["low_sum"], state["high_sum"]))
        return cls(state["low"], state["high"], state["exponent"], counts, state["batches"], low, high)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Histogram):
            return NotImplemented
        mine, theirs = ({**vars(histogram), "counts": None} for histogram in (self, other))
        return mine == theirs and torch.equal(self.counts, other.counts)

    __hash__ = None  # type: ignore[assignment]


@dataclass
class Inbox:
    """Batches that were seen but not counted yet.

    What a batch leaves here stays on its device, and many are counted at once: on a GPU every look at a value waits for
    all kernels before it, so two looks a tensor would cost more than the network itself.
    """

    waiting: list[tuple[str, Histogram, torch.Tensor, torch.Tensor, torch.Tensor]] = field(default_factory=list)
    size: int = 0

    def put(self, label: str, histogram: Histogram, value: torch.Tensor) -> None:
        """Keep the extremes and the sample of a value, and count when much is waiting."""
        low, high = torch.aminmax(value.detach())
        # A copy: the sample alone must not keep the whole value alive.
        kept = sample(value).clone()
        self.waiting.append((label, histogram, low, high, kept))
        self.size += kept.numel()
        if self.size > MOST_WAITING:
            self.flush()

    def flush(self) -> None:
        waiting, self.waiting, self.size = self.waiting, [], 0
        if not waiting:
            return
        bounds = torch.cat([bound.reshape(1) for _, _, low, high, _ in waiting for bound in (low, high)])
        for (label, histogram, *_), (low, high) in zip(waiting, bounds.reshape(-1, 2).tolist(), strict=True):
            histogram.stretch(label, low, high)
        rows = list({id(histogram): histogram for _, histogram, *_ in waiting}.values())
        place = {id(histogram): row for row, histogram in enumerate(rows)}
        owners = [place[id(histogram)] for _, histogram, *_ in waiting]
        counted = count([kept for *_, kept in waiting], owners, [histogram.exponent for histogram in rows])
        for histogram, row in zip(rows, counted, strict=True):
            histogram.counts += row


def count(samples: list[torch.Tensor], rows: list[int], exponents: list[int]) -> torch.Tensor:
    """Count the bins of several samples at once, into a row for each exponent."""
    device, total = samples[0].device, sum(part.numel() for part in samples)
    joined = torch.cat([part.to(device) for part in samples])
    # A product with a power of two is exact, unless a tiny value becomes zero in it and so leaves its bin.
    exact = torch.float32 if max(exponents) <= 0 and joined.dtype != torch.float64 else torch.float64
    owners, lengths = torch.tensor(rows, device=device), torch.tensor([part.numel() for part in samples], device=device)
    factors = torch.tensor([2.0**-exponent for exponent in exponents], dtype=exact, device=device)[owners]
    index = joined.to(exact).mul(factors.repeat_interleave(lengths, output_size=total)).floor_().to(torch.int32)
    index += (owners * (2 * HALF) + HALF).int().repeat_interleave(lengths, output_size=total)
    return torch.bincount(index, minlength=2 * HALF * len(exponents)).cpu().reshape(len(exponents), -1)


def exponent_for(low: float, high: float) -> int:
    top = max(-low, high)
    if top < 2.0**_LEAST_EXPONENT:
        return _LEAST_EXPONENT
    # frexp: top = m · 2^e with m in [0.5, 1), so top < 2^e, which is HALF bins of 2^e / HALF.
    return max(math.frexp(top)[1] - HALF.bit_length() + 1, _LEAST_EXPONENT)


def sample(value: torch.Tensor) -> torch.Tensor:
    """Return an even sample of the values, by position: the same tensor gives the same sample."""
    flat = value.detach().reshape(-1)
    wanted = min(SAMPLES_PER_ITEM * (value.shape[0] if value.ndim else 1), MOST_SAMPLES)
    step = _stride(flat.numel(), wanted)
    return flat[step // 2 :: step] if step > 1 else flat


@lru_cache(maxsize=4096)
def _stride(count: int, wanted: int) -> int:
    """Return a stride that is prime and no divisor of the count, so as not to run in step with rows or channels."""
    step = -(-count // wanted)
    if step <= 1:
        return 1
    while count % step == 0 or any(step % by == 0 for by in range(2, math.isqrt(step) + 1)):
        step += 1
    return step


_FORMAT = 1


@dataclass(frozen=True)
class Calibration:
    """What one pass over the calibration data left."""

    statistics: Mapping[str, Histogram] = field(default_factory=dict)  # by stub name

    def __repr__(self) -> str:
        return f"<Calibration: {len(self.statistics)} tensors, {self.batches} batches>"

    @property
    def batches(self) -> int:
        """How many batches were seen."""
        return max((histogram.batches for histogram in self.statistics.values()), default=0)

    def merge(self, *others: "Calibration") -> "Calibration":
        """Return the statistics of all: equal to the last bit to one pass over all the data, in any order.

        Raises:
            CalibrationError: They are of different models.
        """
        for other in others:
            if odd := set(self.statistics) ^ set(other.statistics):
                raise CalibrationError(
                    f"these calibrations are of different models: only one of them knows "
                    f"{quoted_list(sorted(odd)[:5])}; merge calibrations of one model with one placement."
                )
        merged = {
            name: reduce(Histogram.merge, (other.statistics[name] for other in others), histogram)
            for name, histogram in self.statistics.items()
        }
        return Calibration(merged)

    def save(self, path: str | Path) -> Path:
        """Write to a file and return its path."""
        target = Path(path)
        state = {name: histogram.to_state() for name, histogram in self.statistics.items()}
        torch.save({"format": _FORMAT, "statistics": state}, target)
        return target

    @classmethod
    def load(cls, path: str | Path) -> "Calibration":
        """Read from a file.

        Raises:
            CalibrationError: The file is no calibration.
        """
        try:
            found = torch.load(Path(path), weights_only=True)
            statistics = {name: Histogram.from_state(state) for name, state in found["statistics"].items()}
        except FileNotFoundError as exc:
            raise CalibrationError(f"there is no calibration file '{path}'; Calibration.save writes one.") from exc
        except Exception as exc:
            raise CalibrationError(
                f"'{path}' is no calibration file, or a damaged one; Calibration.save writes one."
            ) from exc
        return cls(statistics)
