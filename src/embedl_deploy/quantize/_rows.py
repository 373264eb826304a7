"""Rows of batches: how many there are, some of them spread evenly over all, and batches cut into parts."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

Sample = tuple[tuple[Any, ...], Mapping[str, Any]]  # one call of a model: positional and keyword inputs
Takes = Callable[[Sample], bool]
_LEAST_PARTS = 8
_MOST_BYTES = 64 * 2**20


def rows_of(call: Sample) -> int:
    """Return how many samples a call seems to have: the rows that all its tensors have, else one."""
    counts = {leaf.shape[0] if leaf.ndim else 0 for leaf in tensors_of(call)}
    return max(counts.pop(), 1) if len(counts) == 1 else 1


def tensors_of(call: Sample) -> list[torch.Tensor]:
    return [leaf for leaf in pytree.tree_leaves(call) if isinstance(leaf, torch.Tensor)]


def chosen_rows(call: Sample, rows: torch.Tensor | slice) -> Sample:
    """Return a call with some of its rows."""
    cut: Sample = pytree.tree_map(lambda leaf: leaf[rows] if isinstance(leaf, torch.Tensor) else leaf, call)
    return cut


def spread_rows(calls: Sequence[Sample], most: int, takes: Takes) -> list[Sample]:
    """Return about so many rows, evenly from first to last; whole calls where the model takes no smaller ones."""
    counts = [rows_of(call) for call in calls]
    if sum(counts) <= most:
        return list(calls)
    step = -(-sum(counts) // most)
    found, start = [], 0
    for call, count in zip(calls, counts, strict=True):
        rows = torch.tensor(range(-start % step, count, step))
        start += count
        if len(rows):
            found.append(chosen_rows(call, rows))
    if all(count == 1 for count in counts) or takes(found[0]):
        return found
    every = max(1, -(-len(calls) * counts[0] // most))
    return list(calls[::every])


def split_rows(calls: Iterable[Sample], takes: Takes) -> list[Sample]:
    """Cut calls into eight and more, where there are fewer and the model takes fewer rows."""
    given = list(calls)
    if len(given) >= _LEAST_PARTS or not given:
        return given
    parts = -(-_LEAST_PARTS // len(given))
    cut = [list(_parts(call, parts)) for call in given]
    return [part for each in cut for part in each] if all(takes(each[0]) for each in cut) else given


def _parts(call: Sample, count: int) -> Iterator[Sample]:
    rows = rows_of(call)
    size = max(1, -(-rows // count))
    if rows == 1:
        yield call
        return
    for start in range(0, rows, size):
        yield chosen_rows(call, slice(start, start + size))


class SpreadRows:
    """Keeps rows of the calls that go by, spread over all of them: at most so many, and never many megabytes."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._step = 1
        self._next = 0
        self._kept: list[tuple[int, Sample]] = []

    def add(self, call: Sample) -> None:
        """Take in one call."""
        for row in range(rows_of(call)):
            place = self._next
            self._next += 1
            if place % self._step:
                continue
            self._kept.append((place, self._copy(chosen_rows(call, slice(row, row + 1)))))
            if len(self._kept) > self._most or self._size() > _MOST_BYTES:
                self._step *= 2
                self._kept = [(at, kept) for at, kept in self._kept if at % self._step == 0]

    @staticmethod
    def _copy(call: Sample) -> Sample:
        copied: Sample = pytree.tree_map(
            lambda leaf: leaf.detach().cpu().clone() if isinstance(leaf, torch.Tensor) else leaf, call
        )
        return copied

    def _size(self) -> int:
        first = self._kept[0][1]
        leaves = [leaf for leaf in pytree.tree_leaves(first) if isinstance(leaf, torch.Tensor)]
        return len(self._kept) * sum(leaf.numel() * leaf.element_size() for leaf in leaves)

    def calls(self, size: int = 16) -> list[Sample]:
        """Return what was kept, in calls of several rows where all rows are of one shape."""
        rows = [kept for _, kept in self._kept]
        return [call for start in range(0, len(rows), size) for call in _joined(rows[start : start + size])]


def _joined(rows: Sequence[Sample]) -> list[Sample]:
    leaves = [pytree.tree_flatten(row) for row in rows]
    flat = [[leaf for leaf in each if isinstance(leaf, torch.Tensor)] for each, _ in leaves]
    shapes = {tuple(leaf.shape[1:] for leaf in each) for each in flat}
    if len(shapes) > 1 or any(len(each) != len(pair[0]) for each, pair in zip(flat, leaves, strict=True)):
        return list(rows)
    joined: Sample = pytree.tree_unflatten([torch.cat(parts) for parts in zip(*flat, strict=True)], leaves[0][1])
    return [joined]
