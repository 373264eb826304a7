"""Several models measured in turns: what the machine does meanwhile happens to all of them.

Knows nothing of any runtime: it times functions. A round runs each of them once, so that samples with the same number
were taken under the same conditions. Times are kept in microseconds.
"""

from __future__ import annotations

import contextlib
import math
import os
import random
import time
from typing import Any, Callable, Dict, Iterable, Iterator, List, NamedTuple, Optional, Sequence, Tuple

from embedl_device.measure import Plan, is_warm, percentile, relative_change

SEED = 20_263
_SPREAD = 0.10
_FEWEST_LOADS = 5
_ROUNDS_AFTER_LOADING = 3
# The two clocks are read one after the other; what is left of a time is never quite nothing.
_LEAST_SHARE = 0.001

Load = Callable[[Sequence[int]], Sequence[Callable[[], object]]]


class Rounds(NamedTuple):
    """What was measured, per function: the cold run, the warm-up and one time for each round.

    Attributes:
        first_us: The very first run of each.
        warmup_us: The runs of each that do not count, before the first round that does.
        is_warm: Whether each had settled when the warm-up ended.
        times_us: One list for each function; equal places are the same round.
        order: In which order each round went.
        loaded_at: The rounds before which everything was loaded anew.
        waited_us: How much of each time the run was ready and stood in the queue for a processor; None where the
            system does not tell.
    """

    first_us: List[float]
    warmup_us: List[List[float]]
    is_warm: List[bool]
    times_us: List[List[float]]
    order: List[List[int]]
    loaded_at: List[int]
    waited_us: Optional[List[List[float]]] = None


class Turns(NamedTuple):
    """How turns are taken.

    Attributes:
        plan: How much to measure; its iterations are rounds.
        lead_in: Runs of a function right before its timed one that do not count: whoever went before has left the
            caches full of its own.
        loads: How often everything is loaded anew: where a model happens to lie in memory moves its time for as long
            as it lies there. Fewer where loading takes too long; rather once than a few times.
    """

    plan: Plan = Plan()
    lead_in: int = 1
    loads: int = 10

    def method(self) -> Dict[str, Any]:
        """Return the rules in words, for the report."""
        plan = self.plan
        return dict(
            plan.method(),
            order="each model once a round, in random order (seed {}), the next round in reverse".format(SEED),
            lead_in="{} run(s) of the same model, not timed, right before each timed one".format(self.lead_in),
            loads="all models loaded {} times, unless that takes longer than measuring".format(self.loads),
            waiting="what the calling thread stood in the queue for a processor, by its schedstat",
            stop_rule="at least {} rounds and {:g} s, at most {:g} s".format(
                plan.iterations, plan.min_seconds, plan.max_seconds
            ),
        )


def orders(count: int, seed: int = SEED) -> Iterator[List[int]]:
    """Yield the order of each round: any, then its mirror image, so that no place in the round favours anybody."""
    generator = random.Random(seed)  # noqa: S311 - no secret
    while True:
        order = list(range(count))
        generator.shuffle(order)
        yield order
        yield order[::-1]


def take_rounds(
    load: Load,
    count: int,
    turns: Turns,
    clock_ns: Callable[[], int] = time.perf_counter_ns,
    queue_ns: Optional[Callable[[], int]] = None,
) -> Rounds:
    """Time functions: each once cold, then all until each is warm, then round by round for the record.

    Args:
        load: Makes the functions in the order of the numbers it is given, and returns them by number.
        count: How many there are.
        turns: How turns are taken.
        clock_ns: The time.
        queue_ns: How long this thread has stood in the queue for a processor; None if nobody knows.
    """
    watch = _Watch(count, turns.lead_in, clock_ns, queue_ns)
    load_orders, round_orders = orders(count, SEED + 1), orders(count)
    start = clock_ns()
    watch.runs = load(next(load_orders))
    loads = _affordable(turns, (clock_ns() - start) / 1e9)
    first = watch.round(range(count), lead_in=0)[0]
    warmup, settled = watch.warm_up(turns.plan.max_warmup_seconds)
    part = _share(turns.plan, loads)
    loaded_at: List[int] = []
    order: List[List[int]] = []
    taken: List[Tuple[List[float], List[float]]] = []
    for number in range(loads):
        if number > 0:
            # Let go of the old ones first: a board may have no room for both.
            watch.runs = ()
            watch.runs = load(next(load_orders))
            for _ in range(_ROUNDS_AFTER_LOADING):
                watch.round(range(count))
        loaded_at.append(len(order))
        for one_order, measured in watch.sitting(part, round_orders):
            order.append(one_order)
            taken.append(measured)
    times_us = _by_function([times for times, _ in taken], count)
    waited_us = None if queue_ns is None else _by_function([waits for _, waits in taken], count)
    return Rounds(first, _by_function(warmup, count), settled, times_us, order, loaded_at, waited_us)


def _affordable(turns: Turns, load_s: float) -> int:
    """Return how often to load; a few times would say nothing of what loading changes."""
    loads = min(turns.loads, int(turns.plan.max_seconds / load_s)) if load_s > 0 else turns.loads
    return loads if loads >= _FEWEST_LOADS else 1


def _share(plan: Plan, parts: int) -> Plan:
    return Plan(math.ceil(plan.iterations / parts), plan.min_seconds / parts, plan.max_seconds / parts)


class _Watch:
    """Times rounds of whatever ``runs`` holds."""

    def __init__(
        self, count: int, lead_in: int, clock_ns: Callable[[], int], queue_ns: Optional[Callable[[], int]]
    ) -> None:
        self.runs: Sequence[Callable[[], object]] = ()
        self._count = count
        self._lead_in = lead_in
        self._clock_ns = clock_ns
        self._queue_ns = queue_ns or (lambda: 0)

    def round(self, order: Iterable[int], lead_in: Optional[int] = None) -> Tuple[List[float], List[float]]:
        """Run each once in an order; return its time and what it waited, by its number."""
        times, waits = [0.0] * self._count, [0.0] * self._count
        for number in order:
            run = self.runs[number]
            for _ in range(self._lead_in if lead_in is None else lead_in):
                run()
            queued, start = self._queue_ns(), self._clock_ns()
            run()
            end = self._clock_ns()
            times[number], waits[number] = (end - start) / 1e3, (self._queue_ns() - queued) / 1e3
        return times, waits

    def warm_up(self, max_seconds: float) -> Tuple[List[List[float]], List[bool]]:
        """Run rounds until the times of each have settled; return them, and which had."""
        rounds: List[List[float]] = []
        own: List[List[float]] = [[] for _ in range(self._count)]
        settled = [False] * self._count
        turns = orders(self._count)
        deadline = self._clock_ns() + max_seconds * 1e9
        while not all(settled) and self._clock_ns() < deadline:
            times, waits = self.round(next(turns))
            rounds.append(times)
            for number in range(self._count):
                own[number].append(times[number] - waits[number])
                settled[number] = settled[number] or is_warm(own[number])
        return rounds, settled

    def sitting(
        self, plan: Plan, turns: Iterator[List[int]]
    ) -> Iterator[Tuple[List[int], Tuple[List[float], List[float]]]]:
        """Yield rounds with their orders until the plan is met; each order comes with its mirror image."""
        start, done = self._clock_ns(), 0
        while True:
            order = next(turns)
            yield order, self.round(order)
            done += 1
            spent_s = (self._clock_ns() - start) / 1e9
            is_enough = done >= plan.iterations and spent_s >= plan.min_seconds
            if done % 2 == 0 and (is_enough or spent_s >= plan.max_seconds):
                return


def _by_function(rounds: Sequence[Sequence[float]], count: int) -> List[List[float]]:
    return [[times[number] for times in rounds] for number in range(count)]


@contextlib.contextmanager
def queue_clock(path: str = "/proc/thread-self/schedstat") -> Iterator[Optional[Callable[[], int]]]:
    """Yield what tells how many ns the calling thread has stood in the queue for a processor; None if nobody counts.

    On Linux the second number of the thread's schedstat: ready to run, while something else ran.
    """
    try:
        file = os.open(path, os.O_RDONLY)
    except OSError:
        yield None
        return

    def read() -> int:
        return int(os.pread(file, 100, 0).split()[1])

    try:
        yield read if len(os.pread(file, 100, 0).split()) > 1 else None
    finally:
        os.close(file)


def own_times(rounds: Rounds) -> List[List[float]]:
    """Return the times without what the runs waited for a processor."""
    if rounds.waited_us is None:
        return rounds.times_us
    return [
        [max(time_us - waited_us, _LEAST_SHARE * time_us) for time_us, waited_us in zip(times, waits)]
        for times, waits in zip(rounds.times_us, rounds.waited_us)
    ]


def judge_rounds(rounds: Rounds, throttling: Sequence[str], unreadable: Sequence[str]) -> Tuple[str, str]:
    """Return a verdict on the ratios to the first function, and its reason.

    What moves all of them alike, a drift or a change of clocks, is in no ratio and troubles nobody.

    Args:
        rounds: What was measured.
        throttling: What the board's own counters say happened to its clocks meanwhile, in words.
        unreadable: The sensors that could not be read; they can never certify a clean run.
    """
    if throttling:
        return "throttled", "; ".join(throttling)
    worst = 0.0
    first, *others = own_times(rounds)
    for number, times in enumerate(others, 2):
        ratios = [one / other for one, other in zip(times, first)]
        change = relative_change(ratios)
        if change is not None:
            return "drifting", "the ratio of model {} to the first is {:+.1%} in the last third".format(number, change)
        worst = max(worst, (percentile(ratios, 75) - percentile(ratios, 25)) / percentile(ratios, 50))
    if worst > _SPREAD:
        return "noisy", "half of the rounds' ratios spread over {:.0%}; is something else running?".format(worst)
    return "stable", "; ".join(_notes(rounds, worst, unreadable))


def _notes(rounds: Rounds, spread: float, unreadable: Sequence[str]) -> List[str]:
    notes = ["{} rounds, half of their ratios within {:.1%}".format(len(rounds.order), spread)]
    if len(rounds.loaded_at) == 1:
        notes.append("loaded once, so what loading anew would change is not known")
    cold = [str(number) for number, settled in enumerate(rounds.is_warm, 1) if not settled]
    if cold:
        notes.append("the times of model {} had not settled when the warm-up ended".format(", ".join(cold)))
    if unreadable:
        notes.append("could not be read: {}".format(", ".join(unreadable)))
    return notes
