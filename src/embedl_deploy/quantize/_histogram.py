"""What is kept of a tensor: a histogram that grows, merges exactly, and never needs the data again.

A bin is 2^exponent wide and begins at a multiple of its width. When a larger value comes, the exponent goes up by one
and two bins become one. As counts are integers and the borders of wide bins are borders of narrow ones, the result is
the same to the last bit whatever the order of batches, and however the data was split and merged.

Least and largest value are exact. Counts are of a sample: up to 1,024 values of each picture of a batch, evenly spread,
chosen by position alone. That is what makes six methods cost little more than one.
"""

import itertools
import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import lru_cache, reduce
from pathlib import Path
from typing import NamedTuple, TypedDict

import torch

from embedl_deploy.errors import CalibrationError, quoted_list
from embedl_deploy.nn import QuantStub
from embedl_deploy.nn.rounding import Implementation, Unfinished, implementation_for, is_dense

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


_NONE = torch.zeros(2 * HALF, dtype=torch.int64)


@dataclass
class Histogram:
    """The statistics of one tensor."""

    low: float = math.inf  # Least value seen.
    high: float = -math.inf  # Largest value seen.
    exponent: int = _LEAST_EXPONENT  # The bins are 2 ** exponent wide.
    # Sampled values per bin; bin HALF begins at zero.
    counts: torch.Tensor = field(default_factory=lambda: _NONE)  # Never changed in place: all begin with one.
    batches: int = 0
    low_sum: Fraction = Fraction()  # Sum of the least values of the batches, exact.
    high_sum: Fraction = Fraction()  # Sum of the largest values of the batches, exact.

    def add(self, value: torch.Tensor, low: float, high: float) -> None:
        """Take in one batch whose least and largest value are known."""
        self.refuse_infinite("", low, high, self.batches + 1)
        self.stretch([(low, high)])
        self.counts = self.counts + count([sample(value)], [0], [self.exponent])[0]

    @staticmethod
    def refuse_infinite(label: str, low: float, high: float, number: int) -> None:
        """Raise where a batch holds what is no number."""
        if not (math.isfinite(low) and math.isfinite(high)):
            raise CalibrationError(
                f"the value at '{label}' is not finite in batch {number} "
                f"(least {low}, largest {high}); look for NaN or infinity in it, or for a layer that overflows.",
                place=label,
                batch=number,
            )

    def stretch(self, bounds: Sequence[tuple[float, float]]) -> None:
        """Take in the extremes of batches: the bins reach as far from then on."""
        lows, highs = zip(*bounds, strict=True)
        low, high = min(lows), max(highs)
        self._widen(exponent_for(low, high))
        self.low, self.high = min(self.low, low), max(self.high, high)
        self.batches += len(bounds)
        low_sum, high_sum = _exact_sum(lows), _exact_sum(highs)
        self.low_sum = self.low_sum + low_sum if self.low_sum else low_sum
        self.high_sum = self.high_sum + high_sum if self.high_sum else high_sum

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


_PAGE = 1 << 22
_PAGE_ON_DEVICE = 1 << 24
_SLOTS = 512
_REMEMBERED = 4


_Place = tuple[torch.device, torch.dtype, str]


class _Page:
    """Room for what several values leave, on their device: one allocation and one look for all of them."""

    def __init__(self, place: _Place, value: torch.Tensor, by: Implementation) -> None:
        self.place = place
        self.by = by
        self.room = _PAGE if value.device.type == "cpu" else _PAGE_ON_DEVICE
        self.bounds = torch.empty(_SLOTS, 2, by.parts, device=value.device)
        self.samples = torch.empty(self.room, dtype=value.dtype, device=value.device)
        self.slots = 0
        self.size = 0


class _Note(NamedTuple):
    """A value that was seen, and where the page has what it left."""

    stub: QuantStub
    histogram: Histogram
    page: int
    slot: int
    start: int
    length: int


class _Remembered(NamedTuple):
    """A value that was seen just now; as long as it is held, its memory is nobody else's."""

    address: int
    value: torch.Tensor
    version: int
    where: tuple[int, int, int, int]


class Inbox:
    """Batches that were seen but not counted yet.

    What a batch leaves here stays on its device, and many are counted at once: on a GPU every look at a value waits for
    all kernels before it, so two looks a tensor would cost more than the network itself. A value in another order, as a
    transposed or reshaped one, is not looked at again.
    """

    def __init__(self) -> None:
        self._notes: list[_Note] = []
        self._pages: list[_Page] = []
        self._open: dict[_Place, int] = {}
        self._recent: deque[_Remembered] = deque(maxlen=_REMEMBERED)
        self._size = 0

    def put(self, stub: QuantStub, histogram: Histogram, value: torch.Tensor) -> None:
        """Keep the extremes and the sample of a value, and count when much is waiting."""
        where = self._known(value)
        if where is None:
            # The sample goes by position, whatever the order in memory.
            whole = value if value.is_contiguous() else value.contiguous()
            where = self._see(whole, None, implementation_for(value))
            self._remember(value, where)
        self._note(stub, histogram, where, value)

    def put_finished(self, stub: QuantStub, histogram: Histogram, left: Unfinished) -> torch.Tensor | None:
        """Do what is left to do with a value and keep what `put` keeps; `None` where that is no single step."""
        value, other, bias = left.value, left.other, left.bias
        if not value.is_cuda or not value.numel() or not value.is_contiguous():
            return None
        by = implementation_for(value)
        if by.see_finished is None:
            return None
        if other is not None and not (
            other.shape == value.shape and other.dtype == value.dtype and other.is_contiguous()
        ):
            return None
        if bias is not None and (bias.dtype != value.dtype or value.ndim < 2 or bias.numel() != value.shape[1]):
            return None
        result = torch.empty_like(value)
        where = self._see(result, left, by)
        self._remember(result, where)
        self._note(stub, histogram, where, result)
        return result

    def _remember(self, value: torch.Tensor, where: tuple[int, int, int, int]) -> None:
        self._recent.append(_Remembered(value.data_ptr(), value, value._version, where))
        self._size += where[3]

    def _note(
        self, stub: QuantStub, histogram: Histogram, where: tuple[int, int, int, int], value: torch.Tensor
    ) -> None:
        self._notes.append(_Note(stub, histogram, *where))
        if self._size > MOST_WAITING and (value.device.type == "cpu" or self._size > MOST_WAITING_ON_DEVICE):
            self.flush()

    def _known(self, value: torch.Tensor) -> tuple[int, int, int, int] | None:
        address = value.data_ptr()
        for seen in self._recent:
            known = seen.value
            if (
                seen.address == address and known.numel() == value.numel() and known.dtype == value.dtype
                and value._version == seen.version and known.device == value.device and _steps(value) == _steps(known)
            ):  # fmt: skip
                return seen.where
        return None

    def _see(self, value: torch.Tensor, left: Unfinished | None, by: Implementation) -> tuple[int, int, int, int]:
        """Look at a value, which is still to be written where something is left to do."""
        first, step = _positions(value)
        length = -(-(value.numel() - first) // step)
        place = value.device, value.dtype, by.name
        number = self._open.get(place)
        page = None if number is None else self._pages[number]
        if number is None or page is None or page.slots == _SLOTS or page.size + length > page.room:
            number, page = len(self._pages), _Page(place, value, by)
            self._pages.append(page)
            self._open[place] = number
        where = number, page.slots, page.size, length
        if left is None:
            by.see(value, first, step, page.bounds, page.slots, page.samples, page.size)
        else:
            assert by.see_finished is not None
            by.see_finished(left, value, first, step, page.bounds, page.slots, page.samples, page.size)
        page.slots += 1
        page.size += length
        return where

    def flush(self) -> None:
        """Count what is waiting; a stub that met minus infinity is masked from then on."""
        notes, pages, self._notes, self._pages, self._size = self._notes, self._pages, [], [], 0
        self._open.clear()
        self._recent.clear()
        if not notes:
            return
        asked = _ends(pages)
        begins = list(itertools.accumulate((page.slots for page in pages), initial=0))
        # What needs no answer is done before the device is waited for.
        waiting = _rows_of(notes, pages, begins)
        bounds: list[tuple[float, float]] = asked.tolist()
        if not all(math.isfinite(end) for both in bounds for end in both):
            notes = _refuse_infinite(notes, bounds, begins)
            waiting = _rows_of(notes, pages, begins)
        answers = []
        for rows in waiting:
            found = [[bounds[index] for index in seen] for seen in rows.seen]
            exponents = [
                max(histogram.exponent, exponent_for(min(found_of)[0], max([high for _, high in found_of])))
                for histogram, found_of in zip(rows.histograms, found, strict=True)
            ]
            answers.append((rows, found, _count_rows(pages, rows, exponents)))
        # A device counts while the bounds are added up here.
        for rows, found, counts in answers:
            for histogram, found_of in zip(rows.histograms, found, strict=True):
                histogram.stretch(found_of)
            for histogram, row in zip(rows.histograms, _at_hand(counts), strict=True):
                histogram.counts = row if histogram.counts is _NONE else histogram.counts + row


@dataclass(frozen=True)
class _Rows:
    """What waits on one device in one type: a row for each histogram, and where the samples of each value are."""

    pages: list[int]
    histograms: list[Histogram]
    seen: list[list[int]]  # of every histogram, where its bounds are among those of all pages
    starts: list[int]  # of every value, among the samples of its pages
    lengths: list[int]
    owners: list[int]  # the row of every value


def _rows_of(notes: Sequence[_Note], pages: list[_Page], begins: list[int]) -> list[_Rows]:
    """Sort what was seen by where it is, then by histogram."""
    found: dict[_Place, tuple[_Rows, dict[int, int]]] = {}
    first_samples: list[int] = []
    for number, page in enumerate(pages):
        rows = found.setdefault(page.place, (_Rows([], [], [], [], [], []), {}))[0]
        first_samples.append(sum([pages[other].size for other in rows.pages]))
        rows.pages.append(number)
    for _, histogram, number, slot, start, length in notes:
        rows, places = found[pages[number].place]
        owner = places.get(id(histogram))
        if owner is None:
            owner = places[id(histogram)] = len(rows.histograms)
            rows.histograms.append(histogram)
            rows.seen.append([])
        rows.seen[owner].append(begins[number] + slot)
        rows.starts.append(first_samples[number] + start)
        rows.lengths.append(length)
        rows.owners.append(owner)
    return [rows for rows, _ in found.values() if rows.histograms]


def _refuse_infinite(notes: Sequence[_Note], bounds: list[tuple[float, float]], begins: list[int]) -> list[_Note]:
    """Return what can be counted; scores behind a mask cannot: no integer stands for them, so no target rounds them."""
    kept: list[_Note] = []
    batches: dict[int, int] = {}
    for note in notes:
        stub, histogram = note.stub, note.histogram
        low, high = bounds[begins[note.page] + note.slot]
        if low == -math.inf and not stub.required:
            stub.masked = True
        if stub.masked:
            continue
        seen = batches[id(histogram)] = batches.get(id(histogram), histogram.batches) + 1
        histogram.refuse_infinite(stub.label, low, high, seen)
        kept.append(note)
    return kept


def _at_hand(counts: torch.Tensor) -> torch.Tensor:
    """Return counts of a device as the processor's."""
    if not counts.is_cuda:
        return counts.cpu()
    # Not waited for, a copy goes to memory that the device reaches by itself.
    found = counts.to("cpu", non_blocking=True)
    torch.cuda.synchronize(counts.device)
    return found.long()


def _ends(pages: list[_Page]) -> torch.Tensor:
    """Return the least and the largest of every value of every page, a row each; the device is not waited for."""
    ends = [
        torch.stack([page.bounds[: page.slots, 0].amin(1), page.bounds[: page.slots, 1].amax(1)], 1) for page in pages
    ]
    return ends[0] if len(ends) == 1 else torch.cat([one.to(ends[0].device) for one in ends])


def _count_rows(pages: list[_Page], rows: _Rows, exponents: list[int]) -> torch.Tensor:
    """Count the samples of all pages of one device and type, into a row for each histogram."""
    first, *others = (pages[number] for number in rows.pages)
    joined = torch.cat([page.samples[: page.size] for page in (first, *others)]) if others else first.samples
    return first.by.counted(joined, rows.starts, rows.lengths, rows.owners, exponents, HALF)


def count(samples: list[torch.Tensor], rows: list[int], exponents: list[int]) -> torch.Tensor:
    """Count the bins of several samples at once, into a row for each exponent."""
    joined = torch.cat(samples)
    lengths = [part.numel() for part in samples]
    starts = [0, *itertools.accumulate(lengths)][:-1]
    return implementation_for(joined).counted(joined, starts, lengths, rows, exponents, HALF).cpu()


_FINEST = 2.0**149  # what is float32 is a whole number of its inverse


def _exact_sum(values: Sequence[float]) -> Fraction:
    """Add without rounding: the denominators are powers of two, so the largest is a multiple of all."""
    if all((value * _FINEST).is_integer() for value in values):
        return Fraction(sum([int(value * _FINEST) for value in values]), 1 << 149)
    ratios = [value.as_integer_ratio() for value in values]
    largest = max(bottom for _, bottom in ratios)
    return Fraction(sum(top * (largest // bottom) for top, bottom in ratios), largest)


def exponent_for(low: float, high: float) -> int:
    top = max(-low, high)
    if top < 2.0**_LEAST_EXPONENT:
        return _LEAST_EXPONENT
    # frexp: top = m · 2^e with m in [0.5, 1), so top < 2^e, which is HALF bins of 2^e / HALF.
    return max(math.frexp(top)[1] - HALF.bit_length() + 1, _LEAST_EXPONENT)


def _steps(value: torch.Tensor) -> list[tuple[int, int]] | None:
    """Return what two views of one address have in common where they hold the same elements, in whatever order."""
    if is_dense(value):
        return None
    return sorted((step, size) for step, size in zip(value.stride(), value.shape, strict=True) if size != 1)


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
