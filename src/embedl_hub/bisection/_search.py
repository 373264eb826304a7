"""The search: delta debugging over switches, with answers that may be open. Knows no run, no model and no device.

GOOD and BAD differ in switches. A trial sets some of them to BAD and asks an oracle whether it behaves as GOOD or as
BAD does. What is left at the end is a set of switches that behaves as BAD does and from which none can be left out.
Of a set of several, each switch is asked about once more: the set without it, beside the set. Without it as bad: it is
left out. Without it as good: it is needed. Where neither is shown it is undecided, and told apart from the causes.
Where that set does not explain all of the difference, the search goes on in the rest; where a switch in it has parts,
such as the layers of a model, it goes on in these.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

Names = frozenset[str]


class Answer(StrEnum):
    """What a trial behaves like."""

    GOOD = "good"
    BAD = "bad"
    OPEN = "open"  # neither is shown
    INVALID = "invalid"  # it cannot be made or does not run; the decision says why


@dataclass(frozen=True)
class Switch:
    """One recorded difference."""

    name: str  # what the search calls it: ``threads``, ``model``, ``model: conv1.weight``
    good: str  # what it is in GOOD, for people
    bad: str  # what it is in BAD
    kind: str = "setting"  # ``setting``, ``runtime``, ``model``, ``part``, ``data`` or ``fact``
    refusal: str | None = None  # why it cannot be switched, in a sentence; None where it can
    suspicion: float = 0.0  # how much of the difference it may cause, by what was recorded; it orders, never decides


@dataclass(frozen=True)
class Decision:
    """One question and its answer."""

    # ``differ``: do the ends differ; ``trial``: what does the trial behave like; ``needed``: what does a found set do
    # without one of its switches; ``rest``: does more differ; of a runtime ``operators`` and ``alone``.
    question: str
    base: Names  # what is set to BAD at the good end
    trial: Names  # what is set to BAD in the trial; for ``differ`` and ``rest`` at the bad end
    whole: Names  # what is set to BAD at the bad end
    answer: Answer
    reason: str  # in words
    value: float | None = None  # the trial over the good end, as a ratio; or its number, where the metric is exact
    low: float | None = None  # the interval, at the level of the last look
    high: float | None = None
    share: float | None = None  # how much of the difference between the ends the trial shows
    effect: float | None = None  # the bad end over the good end, measured beside it
    level: float | None = None  # the error that this decision may spend; None where nothing is left to chance
    sittings: int = 0
    left: float | None = None  # so much of the difference may be left beside the trial, as a ratio
    run_id: str | None = None  # the run that has the samples

    @property
    def is_bad(self) -> bool:
        """Whether the trial behaves as BAD does."""
        return self.answer is Answer.BAD


class Oracle(Protocol):
    """Answers questions about trials; two implementations: measurements, and simulations in tests."""

    def differ(self, base: Names, whole: Names, *, is_rest: bool) -> Decision:
        """Tell whether two configurations differ by more than the least difference that matters: BAD if so."""
        ...

    def first_bad(self, base: Names, whole: Names, trials: Sequence[Names]) -> Names | None:
        """Return the first of the trials that behaves as ``whole`` does; None where none is shown to."""
        ...

    def without(self, base: Names, whole: Names, trial: Names) -> Decision:
        """Tell what a found set behaves like without one of its switches; both answers count."""
        ...

    def parts_of(self, switch: Switch) -> tuple[Sequence[Switch], str | None]:
        """Return the parts of a switch that was found to be a cause, or none and why."""
        ...


@dataclass(frozen=True)
class Cause:
    """What explains the difference: switches that act together, and what a part of it was led back to."""

    switches: tuple[Switch, ...]  # each of them is shown to be needed; none where all are undecided
    notes: tuple[str, ...] = ()  # why the search stopped at this grain, where it did
    undecided: tuple[Switch, ...] = ()  # neither shown to be needed nor shown to be harmless

    @property
    def names(self) -> Names:
        """The names of what is shown to be needed."""
        return frozenset(each.name for each in self.switches)


@dataclass(frozen=True)
class Found:
    """What a search found: causes in the order they were found, the largest share first."""

    causes: tuple[Cause, ...] = ()
    is_complete: bool = True  # whether the rest was shown to matter no more, or could be asked at all
    note: str = ""  # why not, in words
    refined: tuple[Switch, ...] = field(default=())  # all switches that were looked at below the recorded ones


def search(switches: Sequence[Switch], oracle: Oracle, *, most_causes: int = 8) -> Found:
    """Find what explains the difference between GOOD, nothing set, and BAD, all of the switches set."""
    usable = [each for each in switches if each.refusal is None]
    whole = frozenset(each.name for each in usable)
    if not oracle.differ(frozenset(), whole, is_rest=False).is_bad:
        return Found()
    causes: list[Cause] = []
    refined: list[Switch] = []
    base: Names = frozenset()
    rest = list(usable)
    while rest and len(causes) < most_causes:
        names = minimal(rest, base, whole, oracle)
        held = _held([each for each in rest if each.name in names], base, oracle)
        causes.append(_refined(held, base, oracle, refined))
        base |= {each.name for each in held.all}
        rest = [each for each in rest if each.name not in base]
        if rest and not (last := oracle.differ(base, whole, is_rest=True)).is_bad:
            is_sure = last.answer is not Answer.OPEN
            note = "" if is_sure else "whether more differs beside it stayed open"
            return Found(tuple(causes), is_sure, note, tuple(refined))
    note = "" if not rest else f"the search ended after {most_causes} causes; more may differ"
    return Found(tuple(causes), not rest, note, tuple(refined))


@dataclass(frozen=True)
class _Held:
    """A found set, each of its switches asked about."""

    needed: tuple[Switch, ...]
    undecided: tuple[Switch, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def all(self) -> tuple[Switch, ...]:
        return (*self.needed, *self.undecided)


def _held(found: Sequence[Switch], base: Names, oracle: Oracle) -> _Held:
    """Ask of every switch of a found set whether the set does without it; the least suspicious come first."""
    held = list(found)
    needed: list[Switch] = []
    undecided: list[Switch] = []
    notes: list[str] = []
    for switch in sorted(found, key=lambda each: each.suspicion):
        if len(held) == 1:
            break
        whole = base | {each.name for each in held}
        decision = oracle.without(base, whole, whole - {switch.name})
        if decision.is_bad:
            held.remove(switch)
        elif decision.answer is Answer.OPEN:
            undecided.append(switch)
        else:
            needed.append(switch)
            if decision.answer is Answer.INVALID:
                notes.append(f"{switch.name}: it cannot be told from the others: {decision.reason}")
    if len(held) == 1:
        # It behaves as the set did, and that as BAD does.
        return _Held(tuple(held), (), tuple(notes))
    return _Held(
        tuple(each for each in held if each in needed), tuple(each for each in held if each in undecided), tuple(notes)
    )


def _refined(held: _Held, base: Names, oracle: Oracle, refined: list[Switch]) -> Cause:
    """Lead a cause back to the parts of its switches, one switch after the other."""
    needed, undecided, notes = list(held.needed), list(held.undecided), list(held.notes)
    for switch in held.needed:
        parts, why = oracle.parts_of(switch)
        usable = [each for each in parts if each.refusal is None]
        if why is not None:
            notes.append(f"{switch.name}: {why}")
        notes += [f"{each.name}: {each.refusal}" for each in parts if each.refusal is not None]
        if not usable:
            continue
        refined += parts
        others = base | {each.name for each in (*needed, *undecided) if each is not switch}
        whole = others | {each.name for each in usable}
        # All parts together must still show it: what no part holds, such as the file's version, may be the cause.
        if oracle.first_bad(others, others | {switch.name}, [whole]) is None:
            notes.append(f"{switch.name}: all its parts together do not show the difference, so it stays whole")
            continue
        names = minimal(usable, others, whole, oracle)
        inner = _held([each for each in usable if each.name in names], others, oracle)
        notes += inner.notes
        if not inner.needed:
            # Each for itself is undecided; that it lies in the switch is shown.
            told = ", ".join(each.name for each in inner.undecided)
            notes.append(f"{switch.name}: which of its parts it is stayed undecided ({told}), so it stays whole")
            continue
        place = needed.index(switch)
        needed[place : place + 1] = inner.needed
        undecided += inner.undecided
    return Cause(tuple(needed), tuple(notes), tuple(undecided))


def minimal(switches: Sequence[Switch], base: Names, whole: Names, oracle: Oracle) -> Names:
    """Return a set that behaves as ``whole`` does, and from which no switch can be left out: Zeller's ddmin.

    The most suspicious come first, and the first guess is those that hold most of all suspicion.
    """
    current = [each.name for each in sorted(switches, key=lambda each: -each.suspicion)]
    guess = _suspects(switches)
    if guess and len(guess) < len(current) and oracle.first_bad(base, whole, [base | set(guess)]) is not None:
        current = guess
    pieces = 2
    while len(current) > 1:
        chunks = _split(current, pieces)
        found = oracle.first_bad(base, whole, [base | set(chunk) for chunk in chunks])
        if found is not None:
            current, pieces = [name for name in current if name in found], 2
            continue
        if pieces > 2:
            without = [base | {name for name in current if name not in chunk} for chunk in chunks]
            found = oracle.first_bad(base, whole, without)
            if found is not None:
                current, pieces = [name for name in current if name in found], max(pieces - 1, 2)
                continue
        if pieces >= len(current):
            break
        pieces = min(len(current), 2 * pieces)
    return frozenset(current)


_MOST_OF_IT = 0.8


def _suspects(switches: Sequence[Switch]) -> list[str]:
    """Return the fewest switches that hold most of the suspicion; none where nobody is suspected."""
    ordered = sorted(switches, key=lambda each: -each.suspicion)
    total = sum(max(0.0, each.suspicion) for each in ordered)
    names: list[str] = []
    held = 0.0
    for each in ordered:
        if held >= _MOST_OF_IT * total:
            break
        held += max(0.0, each.suspicion)
        names.append(each.name)
    return names


def _split(names: Sequence[str], pieces: int) -> list[list[str]]:
    bounds = [round(place * len(names) / pieces) for place in range(pieces + 1)]
    return [list(names[low:high]) for low, high in itertools.pairwise(bounds) if high > low]


def first_in_order(
    trials: Sequence[Names],
    decide: Callable[[Names], Decision],
    at_once: Callable[[Sequence[Names]], None] | None = None,
) -> Names | None:
    """Return the first trial whose decision is BAD; ``at_once`` may decide several beforehand, on several boards."""
    if at_once is not None:
        at_once(trials)
    for trial in trials:
        if decide(trial).is_bad:
            return trial
    return None
