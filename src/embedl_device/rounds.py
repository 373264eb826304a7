"""Latency, measured so that it can be defended: warm-up until stable, then raw samples; of one function or of several.

Knows nothing of any runtime: it times functions. Several are timed in turns, so that what the machine does meanwhile
happens to all of them: a round runs each once, and samples with the same number were taken under the same conditions.
Times are kept in microseconds.
"""

from __future__ import annotations

import contextlib
import math
import os
import random
import time
from typing import Callable, Dict, Iterable, Iterator, List, NamedTuple, Optional, Sequence, Tuple

from embedl_device.errors import BoardError
from embedl_device.statistics import (
    BOUND_RULE,
    PERCENTILE_RULE,
    Judgement,
    Tail,
    fewest_samples,
    judge_ratios,
    percentile,
    tails,
    without_waiting,
)

_WINDOW_RUNS = 5
_WINDOWS_THAT_MUST_AGREE = 3
_WINDOWS_AGREE_WITHIN = 0.03
SEED = 20_263
_FEWEST_LOADS = 5
_ROUNDS_AFTER_LOADING = 3

# What a profile may measure until, and the percentile whose bound it then has.
UNTIL = {"p90": 90, "p95": 95, "p99": 99, "mlperf": 90}
MAX_SECONDS = 30.0
# Unless told otherwise; a bound may take longer than a median is worth.
MAX_SECONDS_UNTIL = 600.0
# MLPerf's rules for single stream.
_MLPERF = "mlperf"
_MLPERF_QUERIES = 1024
_MLPERF_SECONDS = 60.0
MLPERF_RULES = (
    "MLPerf single stream: at least {:,} queries and {:g} s, one after another; the result is the 90th percentile with "
    "its 99 % bound".format(_MLPERF_QUERIES, _MLPERF_SECONDS)
)
_NEXT_LOOK = 1.25
_SECONDS_BETWEEN_WORDS = 10.0

Load = Callable[[Sequence[int]], Sequence[Callable[[], object]]]


class Plan(NamedTuple):
    """How much to measure: at least so many samples and so long, at most ``max_seconds``.

    The warm-up ends after ``max_warmup_seconds`` even if the times still change. ``until`` is a word of `UNTIL`: then
    samples are taken until they support the bound of its percentile.
    """

    iterations: int = 100
    min_seconds: float = 1.0
    max_seconds: float = MAX_SECONDS
    max_warmup_seconds: float = 5.0
    until: Optional[str] = None

    def measuring_until(self, until: str) -> Plan:
        """Return the plan with a goal; MLPerf's rules bring their own least numbers."""
        if until not in UNTIL:
            raise BoardError("A profile measures until {}, not {!r:.50}.".format(", ".join(UNTIL), until))
        if until != _MLPERF:
            return self._replace(until=until)
        least_s = max(self.min_seconds, _MLPERF_SECONDS)
        if self.max_seconds < least_s:
            raise BoardError(
                "MLPerf's rules ask for {:g} s at least, and the measurement may take {:g} s at most. "
                "Allow more with max_seconds (--max-seconds).".format(least_s, self.max_seconds)
            )
        return self._replace(until=until, iterations=max(self.iterations, _MLPERF_QUERIES), min_seconds=least_s)

    @property
    def percent(self) -> Optional[int]:
        """The percentile whose bound is the goal."""
        return None if self.until is None else UNTIL[self.until]

    def method(self) -> Dict[str, str]:
        """Return the rules in words and numbers, for the report."""
        goal = "" if self.percent is None else " and a bound of p{} that the samples support".format(self.percent)
        rules = {"rules": MLPERF_RULES} if self.until == _MLPERF else {}
        return {
            **rules,
            "clock": "perf_counter_ns around each run, profiling off",
            "warmup_rule": (
                "until the medians of {} windows of {} runs agree within {:.0%}, at most {:g} s".format(
                    _WINDOWS_THAT_MUST_AGREE, _WINDOW_RUNS, _WINDOWS_AGREE_WITHIN, self.max_warmup_seconds
                )
            ),
            "stop_rule": "at least {} samples and {:g} s{}, at most {:g} s".format(
                self.iterations, self.min_seconds, goal, self.max_seconds
            ),
            "percentile_rule": PERCENTILE_RULE,
            "bound_rule": BOUND_RULE,
        }


class Samples(NamedTuple):
    """What was measured: the first run, the warm-up and the samples that count, in microseconds."""

    first_us: float
    warmup_us: List[float]
    is_warm: bool
    times_us: List[float]

    @property
    def unsettled_after(self) -> Optional[int]:
        """The runs of the warm-up, if the times had not settled when it ended."""
        return None if self.is_warm else len(self.warmup_us)


class _Goal:
    """Whether the samples support the bound of a percentile; looked at rarely, as that takes time and caches."""

    def __init__(self, percent: int) -> None:
        self._percent = percent
        self.next_look = fewest_samples(percent)
        self.tail: Optional[Tail] = None

    def is_reached(self, times: Sequence[float]) -> bool:
        """Look, and set when to look next: after a quarter more samples, or as many as seem to be needed."""
        self.tail = tails(times, [self._percent])[0]
        likely = min(self.tail.needed, 2 * len(times))
        self.next_look = max(likely, math.ceil(_NEXT_LOOK * len(times)))
        return self.tail.high is not None

    def words(self, count: int) -> str:
        """Say how far it is."""
        if self.tail is None:
            return "{} samples of {}".format(count, self.next_look)
        return "{} samples, about {} needed".format(count, max(count + 1, self.tail.needed))


def take_samples(
    run: Callable[[], object],
    plan: Plan,
    clock_ns: Callable[[], int] = time.perf_counter_ns,
    tell: Callable[[str], None] = lambda _: None,
    warmed: Callable[[], object] = lambda: None,
) -> Samples:
    """Time a function: once cold, then until it is warm, then for the record.

    ``tell`` hears how far a plan with a goal is, now and then; ``warmed`` is called after the warm-up.
    """

    def timed() -> float:
        start = clock_ns()
        run()
        return (clock_ns() - start) / 1e3

    first = timed()
    warmup: List[float] = []
    deadline = clock_ns() + plan.max_warmup_seconds * 1e9
    while not is_warm(warmup) and clock_ns() < deadline:
        warmup.append(timed())
    warmed()
    times: List[float] = []
    goal = None if plan.percent is None else _Goal(plan.percent)
    start = clock_ns()
    told_s = 0.0
    while True:
        times.append(timed())
        spent_s = (clock_ns() - start) / 1e9
        is_enough = len(times) >= plan.iterations and spent_s >= plan.min_seconds
        if spent_s >= plan.max_seconds or (is_enough and goal is None):
            break
        if goal is None:
            continue
        is_told = spent_s >= told_s + _SECONDS_BETWEEN_WORDS
        if is_told:
            told_s = spent_s
            tell("{}, {:.0f} s of at most {:g} s".format(goal.words(len(times)), spent_s, plan.max_seconds))
        is_look = is_enough and len(times) >= goal.next_look
        if is_look and goal.is_reached(times):
            break
        if is_told or is_look:
            # What was done meanwhile has left the caches full of other things.
            run()
    return Samples(first, warmup, is_warm(warmup), times)


def is_warm(times_us: Sequence[float]) -> bool:
    """Tell whether times have settled; asked after whole windows only."""
    needed = _WINDOW_RUNS * _WINDOWS_THAT_MUST_AGREE
    if len(times_us) < needed or len(times_us) % _WINDOW_RUNS:
        return False
    tail = times_us[-needed:]
    medians = [percentile(tail[start : start + _WINDOW_RUNS], 50) for start in range(0, needed, _WINDOW_RUNS)]
    return max(medians) <= min(medians) * (1 + _WINDOWS_AGREE_WITHIN)


class Rounds(NamedTuple):
    """What was measured, per function: the cold run, the warm-up and one time for each round.

    ``order`` is the order of each round, ``loaded_at`` the rounds before which everything was loaded anew.
    ``waited_us`` is how much of each time the run was ready and waited for a processor; None where the system does not
    tell.
    """

    first_us: List[float]
    warmup_us: List[List[float]]
    is_warm: List[bool]
    times_us: List[List[float]]
    order: List[List[int]]
    loaded_at: List[int]
    waited_us: Optional[List[List[float]]] = None


class Turns(NamedTuple):
    """How turns are taken; the plan's iterations are rounds.

    ``lead_in`` runs of a function right before its timed one do not count: whoever went before has left the caches
    full. Everything is loaded anew ``loads`` times: where a model happens to lie in memory moves its time for as long
    as it lies there. Fewer where loading takes too long; rather once than a few times.
    """

    plan: Plan = Plan()
    lead_in: int = 1
    loads: int = 10

    def method(self) -> Dict[str, str]:
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
    """Yield the order of each round: any, then its mirror image, so that no place in the round favors anybody."""
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

    ``load`` makes the functions in the order of the numbers it is given, and returns them by number. ``queue_ns`` tells
    how long this thread has waited for a processor; None if nobody knows.
    """
    watch = _Watch(count, turns.lead_in, clock_ns, queue_ns)
    load_orders, round_orders = orders(count, SEED + 1), orders(count)
    start = clock_ns()
    watch.runs = load(next(load_orders))
    loads = _affordable(turns, (clock_ns() - start) / 1e9)
    first = watch.round(range(count), lead_in=0)[0]
    warmup, settled = watch.warm_up(turns.plan.max_warmup_seconds)
    plan = turns.plan
    part = Plan(math.ceil(plan.iterations / loads), plan.min_seconds / loads, plan.max_seconds / loads)
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
        for round_order, measured in watch.sitting(part, round_orders):
            order.append(round_order)
            taken.append(measured)
    times_us = _by_function([times for times, _ in taken], count)
    waited_us = None if queue_ns is None else _by_function([waits for _, waits in taken], count)
    return Rounds(first, _by_function(warmup, count), settled, times_us, order, loaded_at, waited_us)


def _affordable(turns: Turns, load_s: float) -> int:
    """Return how often to load; a few times would say nothing of what loading changes."""
    loads = min(turns.loads, int(turns.plan.max_seconds / load_s)) if load_s > 0 else turns.loads
    return loads if loads >= _FEWEST_LOADS else 1


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
    """Yield what tells how many ns the calling thread has waited for a processor; None if nobody counts.

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
    waits: Sequence[Optional[List[float]]] = rounds.waited_us or [None] * len(rounds.times_us)
    return [without_waiting(times, waited) for times, waited in zip(rounds.times_us, waits)]


def judge_rounds(rounds: Rounds, throttling: Sequence[str], unreadable: Sequence[str]) -> Judgement:
    """Judge the ratios to the first function; see `judge_ratios`."""
    notes = []
    if len(rounds.loaded_at) == 1:
        notes.append("loaded once, so what loading anew would change is not known")
    cold = [str(number) for number, settled in enumerate(rounds.is_warm, 1) if not settled]
    if cold:
        notes.append("the times of model {} had not settled when the warm-up ended".format(", ".join(cold)))
    return judge_ratios(own_times(rounds), throttling, unreadable, notes)
