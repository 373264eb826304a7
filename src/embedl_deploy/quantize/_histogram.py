"""What is kept of a tensor: a histogram that grows, merges exactly, and never needs the data again.

A bin is 2^exponent wide and begins at a multiple of its width. When a larger value comes, the exponent goes up by one
and two bins become one. As counts are integers and the borders of wide bins are borders of narrow ones, the result is
the same to the last bit whatever the order of batches, and however the data was split and merged.

Least and largest value are exact. Counts are of a sample: up to 1,024 values of each picture of a batch, evenly spread,
chosen by position alone. That is what makes six methods cost little more than one.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import lru_cache, reduce
from pathlib import Path
from typing import TypedDict

import torch

from embedl_deploy.errors import CalibrationError, quoted_list
from embedl_deploy.nn import QuantStub
from embedl_deploy.nn.rounding import Seen, implementation_for

HALF = 2048
SAMPLES_PER_ITEM = 1024
MOST_SAMPLES = 65536
MOST_WAITING = 1 << 22
MOST_WAITING_ON_DEVICE = 1 << 26  # a quarter of a gigabyte: a device is asked to wait for its answer seldom
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
        self.refuse_infinite("", low, high, self.batches + 1)
        self.stretch([(low, high)])
        self.counts += count([sample(value)], [0], [self.exponent])[0]

    @staticmethod
    def refuse_infinite(label: str, low: float, high: float, number: int) -> None:
        """Raise where a batch holds what is no number."""
        if not (math.isfinite(low) and math.isfinite(high)):
            raise CalibrationError(
                f"the value at '{label}' is not finite in batch {number} "
                f"(least {low}, largest {high}); look for NaN or infinity in it, or for a layer that overflows.",
                place=label,
            )

    def stretch(self, bounds: Sequence[tuple[float, float]]) -> None:
        """Take in the extremes of batches: the bins reach as far from then on."""
        lows, highs = zip(*bounds, strict=True)
        low, high = min(lows), max(highs)
        self._widen(exponent_for(low, high))
        self.low, self.high = min(self.low, low), max(self.high, high)
        self.batches += len(bounds)
        self.low_sum += _exact_sum(lows)
        self.high_sum += _exact_sum(highs)

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

    waiting: list[tuple[QuantStub, Histogram, Seen]] = field(default_factory=list)
    size: int = 0

    def put(self, stub: QuantStub, histogram: Histogram, value: torch.Tensor) -> None:
        """Keep the extremes and the sample of a value, and count when much is waiting."""
        seen = see(value.detach())
        self.waiting.append((stub, histogram, seen))
        self.size += seen[2].numel()
        if self.size > (MOST_WAITING if value.device.type == "cpu" else MOST_WAITING_ON_DEVICE):
            self.flush()

    def flush(self) -> None:
        """Count what is waiting; a stub that met minus infinity is masked from then on."""
        waiting, self.waiting, self.size = self.waiting, [], 0
        if not waiting:
            return
        samples, owners, rows = [], [], dict[int, tuple[Histogram, list[tuple[float, float]]]]()
        for (stub, histogram, (_, _, kept)), (low, high) in zip(waiting, _bounds(waiting), strict=True):
            if low == -math.inf and not stub.required:
                # Scores behind a mask: no integer stands for them, so no target rounds them.
                stub.masked = True
            if stub.masked:
                continue
            bounds = rows.setdefault(id(histogram), (histogram, []))[1]
            histogram.refuse_infinite(stub.label, low, high, histogram.batches + len(bounds) + 1)
            bounds.append((low, high))
            owners.append(id(histogram))
            samples.append(kept)
        if not samples:
            return
        for histogram, bounds in rows.values():
            histogram.stretch(bounds)
        place = {key: row for row, key in enumerate(rows)}
        exponents = [histogram.exponent for histogram, _ in rows.values()]
        counted = count(samples, [place[key] for key in owners], exponents)
        for (histogram, _), row in zip(rows.values(), counted, strict=True):
            histogram.counts += row


def _bounds(waiting: list[tuple[QuantStub, Histogram, Seen]]) -> list[list[float]]:
    """Return the least and the largest of every value, asking the device once."""
    parts = {seen[0].numel() for _, _, seen in waiting}
    if len(parts) == 1:
        lows, highs = (torch.stack([seen[side].float() for _, _, seen in waiting]) for side in (0, 1))
        return torch.stack([lows.amin(1), highs.amax(1)], 1).tolist()
    return torch.stack([torch.stack([seen[0].amin(), seen[1].amax()]).float() for _, _, seen in waiting]).tolist()


def count(samples: list[torch.Tensor], rows: list[int], exponents: list[int]) -> torch.Tensor:
    """Count the bins of several samples at once, into a row for each exponent."""
    joined = torch.cat([part.to(samples[0].device) for part in samples])
    lengths = [part.numel() for part in samples]
    return implementation_for(joined).counted(joined, lengths, rows, exponents, HALF).cpu()


def _exact_sum(values: Sequence[float]) -> Fraction:
    """Add without rounding: the denominators are powers of two, so the largest is a multiple of all."""
    ratios = [value.as_integer_ratio() for value in values]
    largest = max(bottom for _, bottom in ratios)
    return Fraction(sum(top * (largest // bottom) for top, bottom in ratios), largest)


def exponent_for(low: float, high: float) -> int:
    top = max(-low, high)
    if top < 2.0**_LEAST_EXPONENT:
        return _LEAST_EXPONENT
    # frexp: top = m · 2^e with m in [0.5, 1), so top < 2^e, which is HALF bins of 2^e / HALF.
    return max(math.frexp(top)[1] - HALF.bit_length() + 1, _LEAST_EXPONENT)


def see(value: torch.Tensor) -> Seen:
    """Return the extremes of a value's parts and its sample, as copies on its device, without waiting for either."""
    # The sample goes by position, whatever the order in memory.
    value = value.contiguous()
    return implementation_for(value).seen(value, *_positions(value))


def sample(value: torch.Tensor) -> torch.Tensor:
    """Return an even sample of the values, by position: the same tensor gives the same sample."""
    first, step = _positions(value)
    return value.detach().reshape(-1)[first::step]


def _positions(value: torch.Tensor) -> tuple[int, int]:
    wanted = min(SAMPLES_PER_ITEM * (value.shape[0] if value.ndim else 1), MOST_SAMPLES)
    step = _stride(value.numel(), wanted)
    return (step // 2 if step > 1 else 0), step


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
