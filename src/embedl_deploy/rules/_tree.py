"""Rules from observations: a decision tree over facts, grown until every leaf is of one outcome.

A runtime decides without noise, so a leaf that holds two outcomes lacks a fact, and is told.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random

import numpy as np

from embedl_deploy.dialect._tables import Condition


@dataclass(frozen=True)
class Sample:
    """One node as it was observed."""

    facts: Mapping[str, str]
    outcome: str
    example: str  # the graph it stood in
    size: int  # how many nodes that graph has


@dataclass(frozen=True)
class Leaf:
    """A rule: all samples that meet the conditions had the outcome, or nearly."""

    conditions: tuple[Condition, ...]
    outcome: str
    samples: tuple[Sample, ...]
    mixed: bool  # whether some of the samples had another outcome


class _Table:
    """Samples as numbers: one column per fact."""

    def __init__(self, samples: Sequence[Sample]) -> None:
        self.samples = samples
        self.names = sorted({name for sample in samples for name in sample.facts})
        self.values: list[list[str]] = []
        columns = []
        for name in self.names:
            words = [sample.facts.get(name, "-") for sample in samples]
            known = sorted(set(words))
            places = {word: place for place, word in enumerate(known)}
            self.values.append(known)
            columns.append([places[word] for word in words])
        self.matrix = np.asarray(columns, np.int16).reshape(len(self.names), len(samples))
        self.outcomes = sorted({sample.outcome for sample in samples})
        self.labels = np.asarray([self.outcomes.index(sample.outcome) for sample in samples])


def _impurity(counts: np.ndarray) -> np.ndarray:
    """Return the entropy of rows of counts, times their sums."""
    total = counts.sum(-1, keepdims=True)
    share = counts / np.maximum(total, 1)
    logs = np.log2(share, out=np.zeros_like(share), where=share > 0)
    return np.asarray(-(share * logs).sum(-1) * total[..., 0])


def grow(samples: Sequence[Sample], random: Random | None = None) -> list[Leaf]:
    """Return the leaves of a tree; with a random source, one of a committee: on a draw of samples and facts."""
    if not samples:
        return []
    table = _Table(samples)
    rows = np.arange(len(samples))
    if random is not None:
        rows = np.asarray(sorted(random.choices(range(len(samples)), k=len(samples))))
    return _grow(table, rows, (), random)


def _grow(
    table: _Table, rows: np.ndarray, conditions: tuple[Condition, ...], random: Random | None
) -> list[Leaf]:  # fmt: skip
    labels = table.labels[rows]
    best = _best_split(table, rows, labels, random) if len(set(labels.tolist())) > 1 else None
    if best is None:
        counts = Counter(labels.tolist())
        outcome = table.outcomes[counts.most_common(1)[0][0]]
        return [Leaf(conditions, outcome, tuple(table.samples[row] for row in rows), len(counts) > 1)]
    column, code = best
    meets = table.matrix[column, rows] == code
    name, value = table.names[column], table.values[column][code]
    return [
        *_grow(table, rows[meets], (*conditions, Condition(name, value, True)), random),
        *_grow(table, rows[~meets], (*conditions, Condition(name, value, False)), random),
    ]


def _best_split(
    table: _Table, rows: np.ndarray, labels: np.ndarray, random: Random | None
) -> tuple[int, int] | None:  # fmt: skip
    kinds = len(table.outcomes)
    whole = _impurity(np.bincount(labels, minlength=kinds)[None].astype(float))[0]
    # Two facts may decide only together, and neither gains anything alone: any split that parts the rows will do.
    best, found = -0.5, None
    columns: Sequence[int] = range(len(table.names))
    if random is not None:
        columns = random.sample(columns, max(1, len(table.names) * 2 // 3))
    for column in columns:
        codes = table.matrix[column, rows]
        count = len(table.values[column])
        pairs = np.bincount(codes * kinds + labels, minlength=count * kinds).reshape(count, kinds).astype(float)
        if (pairs.sum(1) > 0).sum() < 2:
            continue
        gains = whole - _impurity(pairs) - _impurity(pairs.sum(0) - pairs)
        gains[pairs.sum(1) == 0] = -1
        place = int(np.argmax(gains))
        if gains[place] > best:
            best, found = float(gains[place]), (column, place)
    return found


def outcome_by(leaves: Sequence[Leaf], facts: Mapping[str, str]) -> str | None:
    """Return what the leaves say of a node; None where there are none."""
    return next((leaf.outcome for leaf in leaves if all(each.holds(facts) for each in leaf.conditions)), None)
