"""Variants of an inference in turns: other models, settings or Pythons, each in a process of its own.

Two versions of a runtime cannot be loaded into one process, so each variant has one, and this program drives the turns:
a round runs each variant once, in random order and then in reverse. Where a model happens to lie in memory moves its
times for as long as it lies there; therefore every sitting loads all models anew, every few in processes that were
started anew, and what is compared between variants is one value for each sitting. A scheduler keeps a process on the
processor it is on, which may be the busier one: variants with one thread each run on the same, each start on the next.
"""

from __future__ import annotations

import contextlib
import os
import random
import sys
import time
from argparse import Namespace
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional, Sequence

from embedl_device import board
from embedl_device.document import common_facts, warnings_of
from embedl_device.errors import BoardError
from embedl_device.loader import Loaded, Loader
from embedl_device.processes import Child
from embedl_device.program import say
from embedl_device.readers import UnreadableError, parse_json
from embedl_device.rounds import SEED, is_warm, orders, queue_clock
from embedl_device.statistics import judge_ratios

_MAX_WARMUP_S = 0.1
_FEWEST_ROUNDS = 10
_MOST_ROUNDS = 400
_SPEAK_EVERY_S = 10.0


class Variant(NamedTuple):
    """How one of them is run: the words for this program, and the Python that runs them, if it is another one."""

    name: str
    words: Sequence[str]
    python: Optional[str] = None


class Sitting(NamedTuple):
    """One loading of all models: by variant the times of each round, and what a fresh process tells of itself."""

    times_us: List[List[float]]
    waited_us: Optional[List[List[float]]]
    load_us: List[float]
    first_us: List[float]
    peak_memory_mb: List[Optional[float]]


def run_variants(arguments: Namespace, loader: Loader) -> Dict[str, Any]:
    """Measure variants in turns and return the document."""
    if arguments.child:
        return _obey(arguments, loader)
    variants = _read(arguments)
    before = board.state()
    say(loader.program, "measuring {} variants in turns, {} sittings".format(len(variants), arguments.sittings))
    told: List[Dict[str, Any]] = [{} for _ in variants]
    sittings: List[Sitting] = []
    shuffled = random.Random(SEED + arguments.first_sitting)  # noqa: S311 - no secret
    turns = orders(len(variants), SEED + 1 + arguments.first_sitting)
    spoken = time.monotonic()
    processors = board.fastest_processors() if arguments.one_processor else []
    every = arguments.restart_every if processors or not arguments.one_processor else 1
    while len(sittings) < arguments.sittings:
        starts = list(range(len(variants)))
        shuffled.shuffle(starts)
        count = min(every, arguments.sittings - len(sittings))
        with contextlib.ExitStack() as stack:
            if processors:
                start = (arguments.first_sitting + len(sittings)) // every
                stack.enter_context(_on_one(processors[start % len(processors)]))
            children = _start(arguments, variants, starts, stack)
            sittings += [_sit(arguments, variants, children, turns, told) for _ in range(count)]
        if time.monotonic() - spoken > _SPEAK_EVERY_S:
            spoken = time.monotonic()
            say(loader.program, "{} of {} sittings".format(len(sittings), arguments.sittings))
    after = board.state()
    series = [[time_us for sitting in sittings for time_us in sitting.times_us[n]] for n in range(len(variants))]
    judgement = judge_ratios(series, board.throttling_between(before, after), board.unreadable_in(after))
    rows = [dict(told[number]["facts"], name=each.name, **told[number]["runtime"]) for number, each in
            enumerate(variants)]  # fmt: skip
    for row in rows:
        row["file_name"] = row["name"]
    return {
        **common_facts(loader.program, judgement, before, after),
        "kind": "variants",
        "variants": rows,
        "sittings": [sitting._asdict() for sitting in sittings],
        "memory_method": board.peak_memory()[1] + "; each process for itself, after the warm-up",
        "method": {
            "order": "each variant once a round, in random order, the next round in reverse",
            "sitting": "all models loaded anew and warmed up, after every {} in fresh processes".format(every),
            "processor": "all on the same one, each start on the next" if processors else "as the system chooses",
            "stop_rule": "at least {} rounds and {:g} s in a sitting".format(_FEWEST_ROUNDS, arguments.sitting_seconds),
            "lead_in": "1 run of the same variant, not timed, right before each timed one",
            "waiting": "what the calling thread stood in the queue for a processor, by its schedstat",
        },
        "warnings": warnings_of(rows),
    }


def _read(arguments: Namespace) -> List[Variant]:
    if arguments.variants is None:
        raise BoardError("Give the variants to measure: --variants FILE.")
    try:
        rows = parse_json(arguments.variants.read_bytes())
        found = [Variant(str(row["name"]), [str(word) for word in row["words"]], row.get("python")) for row in rows]
    except (OSError, UnreadableError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise BoardError("The variants in {} cannot be read: {}.".format(arguments.variants, error)) from error
    if len(found) < 2:
        raise BoardError("Give two variants or more; one alone has nothing to compare with.")
    if arguments.program_file is None and any(each.python is not None for each in found):
        raise BoardError("A variant with a Python of its own needs this program in one file: --program-file FILE.")
    return found


@contextlib.contextmanager
def _on_one(processor: int) -> Iterator[None]:
    """Stay on one processor, as does what is started meanwhile."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {processor})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def _start(
    arguments: Namespace, variants: Sequence[Variant], starts: Sequence[int], stack: contextlib.ExitStack
) -> Dict[int, Child]:
    """Start a process for each variant, in an order; they end with the stack."""
    children: Dict[int, Child] = {}
    for number in starts:
        variant = variants[number]
        words = ["variants", "--child", *variant.words]
        children[number] = Child.of(arguments.program, words, variant.python, arguments.program_file)
        stack.callback(children[number].close)
    return children


def _sit(
    arguments: Namespace,
    variants: Sequence[Variant],
    children: Dict[int, Child],
    turns: Iterator[List[int]],
    told: List[Dict[str, Any]],
) -> Sitting:
    """Let all processes load their models anew and take turns."""
    facts: Dict[int, Dict[str, Any]] = {}
    for child in children.values():
        child.tell("load")
    for number, child in children.items():
        try:
            facts[number] = child.answer()
        except BoardError as error:
            raise BoardError("Variant {!r}: {}".format(variants[number].name, error)) from error
        told[number] = told[number] or facts[number]
    times: List[List[float]] = [[] for _ in variants]
    waits: List[List[float]] = [[] for _ in variants]
    begun = time.monotonic()
    while True:
        for number in next(turns):
            children[number].tell("run")
            answer = children[number].answer()
            times[number].append(answer["time_us"])
            waits[number].append(answer["waited_us"])
        done = len(times[0])
        is_enough = done >= _FEWEST_ROUNDS and time.monotonic() - begun >= arguments.sitting_seconds
        # Each order comes with its mirror image.
        if done % 2 == 0 and (is_enough or done >= _MOST_ROUNDS):
            break
    count = len(variants)
    is_known = all(each["knows_waiting"] for each in facts.values())
    return Sitting(
        times,
        waits if is_known else None,
        [facts[number]["load_us"] for number in range(count)],
        [facts[number]["first_us"] for number in range(count)],
        [facts[number]["peak_memory_mb"] for number in range(count)],
    )


def _obey(arguments: Namespace, loader: Loader) -> Dict[str, Any]:
    """Be the process of one variant: load it, or run it once, whenever told to, until nothing more is."""
    if arguments.model is None:
        raise BoardError("A variant needs a model: --model FILE.")
    run: Callable[[], object] = object
    with queue_clock() as queue_ns:
        ask = queue_ns or (lambda: 0)
        for line in sys.stdin:
            if line.strip() == "load":
                # Let go of the old one first: a board may have no room for both.
                run = object
                # Not alone: threads that wait for the next inference would take the processor from the others.
                loaded = loader.load(arguments.model, False)
                run = loaded.run
                told = _warmed(run, loaded)
                arguments.answer(dict(told, runtime=loader.facts(), knows_waiting=queue_ns is not None))
                del loaded
                continue
            run()
            queued, start = ask(), time.perf_counter_ns()
            run()
            end = time.perf_counter_ns()
            arguments.answer({"time_us": (end - start) / 1e3, "waited_us": (ask() - queued) / 1e3})
    return {}


def _warmed(run: Callable[[], object], loaded: Loaded) -> Dict[str, Any]:
    times_us: List[float] = []
    deadline = time.monotonic() + _MAX_WARMUP_S
    while not times_us or (not is_warm(times_us) and time.monotonic() < deadline):
        start = time.perf_counter_ns()
        run()
        times_us.append((time.perf_counter_ns() - start) / 1e3)
    return {
        "load_us": loaded.load_us,
        "first_us": times_us[0],
        "peak_memory_mb": board.peak_memory()[0],
        "facts": loaded.facts,
    }
