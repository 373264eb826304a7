"""ONNX Runtime's arena on a CPU: what it takes from the system for a sequence of requests.

A best-fit arena with coalescing. Requests are rounded up to 256 bytes; a free chunk that is less than twice as large is
given whole; when none fits, a region is taken whose size doubles from 1 MB on. Weights that kernels packed for
themselves are reserved beside the regions, at their exact size.
"""

from __future__ import annotations

from bisect import insort
from dataclasses import dataclass

_SMALLEST = 256
_FIRST_REGION = 1 << 20
_LARGEST_STEP = 1 << 30
_MOST_DEAD = 128 << 20


@dataclass(eq=False)
class _Chunk:
    """A part of a region; neighbors that are free are joined."""

    region: int
    start: int
    size: int
    requested: int | None = None  # None while it is free
    before: _Chunk | None = None
    after: _Chunk | None = None

    @property
    def order(self) -> tuple[int, int, int]:
        return (self.size, self.region, self.start)


class Arena:
    """Gives and takes memory as the runtime's arena does, and counts as it counts."""

    def __init__(self) -> None:
        self.requested = 0  # bytes that were asked for and not given back
        self.in_use = 0  # the same with rounding and what is given with it because no chunk is split for less
        self.peak = 0  # the most that was in use
        self.held = 0  # bytes taken from the system
        self._step = _FIRST_REGION
        self._regions = 0
        self._free: list[tuple[tuple[int, int, int], _Chunk]] = []

    def reserve(self, size: int) -> None:
        """Keep memory for good, beside the regions."""
        self.requested += size
        self.in_use += size
        self.held += size
        self.peak = max(self.peak, self.in_use)

    def take(self, size: int) -> _Chunk | None:
        """Return memory for a request; None for one of no bytes."""
        if size == 0:
            return None
        rounded = -(-size // _SMALLEST) * _SMALLEST
        chunk = self._find(rounded) or self._extend(rounded)
        if chunk.size >= 2 * rounded or chunk.size - rounded >= _MOST_DEAD:
            rest = _Chunk(chunk.region, chunk.start + rounded, chunk.size - rounded, None, chunk, chunk.after)
            if chunk.after is not None:
                chunk.after.before = rest
            chunk.after, chunk.size = rest, rounded
            insort(self._free, (rest.order, rest), key=lambda item: item[0])
        chunk.requested = size
        self.requested += size
        self.in_use += chunk.size
        self.peak = max(self.peak, self.in_use)
        return chunk

    def give(self, chunk: _Chunk | None) -> None:
        """Give memory back."""
        if chunk is None:
            return
        self.requested -= chunk.requested or 0
        self.in_use -= chunk.size
        chunk.requested = None
        for neighbor in (chunk.after, chunk.before):
            if neighbor is not None and neighbor.requested is None:
                self._free = [item for item in self._free if item[1] is not neighbor]
                first, second = (chunk, neighbor) if neighbor is chunk.after else (neighbor, chunk)
                first.size += second.size
                first.after = second.after
                if second.after is not None:
                    second.after.before = first
                chunk = first
        insort(self._free, (chunk.order, chunk), key=lambda item: item[0])

    def _find(self, rounded: int) -> _Chunk | None:
        # Bins are by powers of two and sorted within: the smallest that fits, wherever it is.
        for index, (_, chunk) in enumerate(self._free):
            if chunk.size >= rounded:
                del self._free[index]
                return chunk
        return None

    def _extend(self, rounded: int) -> _Chunk:
        """Take a region from the system, which is one free chunk."""
        grew = False
        while rounded > self._step:
            self._step *= 2
            grew = True
        size = self._step
        if not grew:
            self._step = min(_LARGEST_STEP, self._step * 2)
        self.held += size
        self._regions += 1
        return _Chunk(self._regions, 0, size)
