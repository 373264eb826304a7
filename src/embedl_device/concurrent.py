"""Models at once on one device: what each takes alone, and beside the others.

Every model runs in a process of its own, as apps do. A round has one window in which all run, and one for each model in
which it runs alone; the windows come in random order and then in reverse, so that what the board does meanwhile happens
to both. Of a window in which all run, only inferences count during which all did.
"""

from __future__ import annotations

import contextlib
import sys
import time
from argparse import Namespace
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple

from embedl_device import board
from embedl_device.document import common_facts, warnings_of
from embedl_device.errors import BoardError
from embedl_device.loader import Loader
from embedl_device.processes import Child
from embedl_device.program import say
from embedl_device.rounds import is_warm, orders, queue_clock
from embedl_device.statistics import Judgement, judge_ratios, mean_of, percentile, summarize

_LEAD_S = 0.05  # between the order and the window, so that all processes have read it
_FEWEST_IN_A_WINDOW = 8
_MAX_WARMUP_S = 5.0
_MOST_WINDOW_S = 60.0
_SPEAK_EVERY_S = 10.0


class _Window(NamedTuple):
    """What one process did in a window: when each inference began and how long it took, in us."""

    begun_us: List[float]
    times_us: List[float]
    waited_us: Optional[List[float]]

    @property
    def end_us(self) -> float:
        return self.begun_us[-1] + self.times_us[-1] if self.begun_us else 0.0


def run_concurrently(arguments: Namespace, loader: Loader) -> Dict[str, Any]:
    """Measure models alone and at once, and return the document."""
    paths: List[Path] = arguments.model
    if len(paths) + arguments.idle < 2:
        raise BoardError("Give two models or more, each with its own --model, or one and --idle 1.")
    if arguments.child is not None:
        is_idle = arguments.child >= len(paths)
        return _obey(arguments, None if is_idle else paths[arguments.child], loader)
    before = board.state()
    say(loader.program, "loading {} models, each in a process of its own".format(len(paths)))
    with contextlib.ExitStack() as stack:
        children = []
        for number in range(len(paths) + arguments.idle):
            child = Child(arguments, ["--child", str(number)])
            stack.callback(child.close)
            children.append(child)
        told = [child.answer() for child in children]
        slowest_s = max(each["latency_us"] for each in told) / 1e6
        window_s = min(max(arguments.window_seconds, _FEWEST_IN_A_WINDOW * slowest_s), _MOST_WINDOW_S)
        say(loader.program, "measuring, at most {:g} s".format(arguments.max_seconds))
        alone, concurrent = _rounds(arguments, loader.program, children, window_s)
    after = board.state()
    throttling, unreadable = board.throttling_between(before, after), board.unreadable_in(after)
    judgement = _judgement(alone, concurrent, throttling, unreadable)
    rows = []
    for number, path in enumerate(paths):
        row = {"file_name": path.name, "size_bytes": path.stat().st_size}
        row.update(told[number]["facts"], load_time_ms=told[number]["load_us"] / 1e3)
        row.update(alone=_described(alone[number]), concurrent=_described(concurrent[number]))
        rows.append(row)
    document = common_facts(loader.program, judgement, before, after)
    document.update(peak_memory_mb=sum(each["peak_memory_mb"] or 0.0 for each in told) or None)
    document["memory_method"] += "; the sum over the processes of all models"
    return {
        **document,
        **told[0]["runtime"],
        "kind": "concurrent",
        "models": rows,
        "idle_processes": arguments.idle,
        "rounds": len(alone[0]),
        "window_s": window_s,
        "method": {
            "order": "each model alone and all at once, in random order, the next round in reverse",
            "window": "{:.3g} s of inferences one after another; of all at once those during which all ran".format(
                window_s
            ),
            "value": "the mean of a window, which is what throughput follows; one for each round",
            "waiting": "what the calling thread stood in the queue for a processor, by its schedstat",
        },
        "warnings": warnings_of(rows),
    }


def _rounds(
    arguments: Namespace, program: str, children: Sequence[Child], window_s: float
) -> Tuple[List[List[_Window]], List[List[_Window]]]:
    """Return the windows of each model, alone and beside the others: one for each round."""
    count = len(arguments.model)
    alone: List[List[_Window]] = [[] for _ in range(count)]
    concurrent: List[List[_Window]] = [[] for _ in range(count)]
    start = spoken = time.monotonic()
    everybody = range(len(children))
    for number, order in enumerate(orders(count + 1), 1):
        for part in order:
            if part < count:
                alone[part].append(_run(children, [part], window_s)[0])
            else:
                for model, window in enumerate(_common(_run(children, everybody, window_s)[:count])):
                    concurrent[model].append(window)
        now = time.monotonic()
        if now - spoken > _SPEAK_EVERY_S:
            spoken = now
            say(program, "{} of {} rounds".format(number, arguments.rounds))
        # Each order comes with its mirror image.
        if number % 2 == 0 and (number >= arguments.rounds or now - start > arguments.max_seconds):
            return alone, concurrent
    raise AssertionError  # orders() has no end


def _run(children: Sequence[Child], numbers: Sequence[int], window_s: float) -> List[_Window]:
    """Let some of the processes run for a window."""
    begin = time.monotonic() + _LEAD_S
    for number in numbers:
        children[number].tell("{:.6f} {:.6f}".format(begin, begin + window_s))
    return [_Window(**children[number].answer()) for number in numbers]


def _common(windows: Sequence[_Window]) -> Iterator[_Window]:
    """Yield of each model the inferences that lie within what all ran."""
    begin = max((window.begun_us[0] for window in windows if window.begun_us), default=0.0)
    end = min((window.end_us for window in windows), default=0.0)
    for window in windows:
        within = [
            number
            for number, (at, time_us) in enumerate(zip(window.begun_us, window.times_us))
            if at >= begin and at + time_us <= end
        ] or list(range(len(window.times_us)))
        yield _Window(
            [window.begun_us[number] for number in within],
            [window.times_us[number] for number in within],
            None if window.waited_us is None else [window.waited_us[number] for number in within],
        )


def _described(windows: Sequence[_Window]) -> Dict[str, Any]:
    """Return what a model took: over all its inferences, and the mean of each window."""
    times = [time_us for window in windows for time_us in window.times_us]
    waits = [sum(window.waited_us) for window in windows if window.waited_us is not None]
    spans = [window.end_us - window.begun_us[0] for window in windows]
    return {
        "latency_ms": summarize(times, 1e3)._asdict(),
        "window_means_us": _means(windows),
        "inferences": len(times),
        "per_second": len(times) / sum(spans) * 1e6,
        "waiting_share": sum(waits) / sum(times) if len(waits) == len(windows) else None,
    }


def _means(windows: Sequence[_Window]) -> List[float]:
    # Not medians: most inferences of a small model are over before anybody takes the processor from it, and the few
    # that are not have all of the waiting.
    return [mean_of(window.times_us) for window in windows]


def _judgement(
    alone: Sequence[Sequence[_Window]],
    concurrent: Sequence[Sequence[_Window]],
    throttling: Sequence[str],
    unreadable: Sequence[str],
) -> Judgement:
    """Return the first judgement of a ratio that is not stable, else that of the first model."""
    found = [
        judge_ratios([_means(one), _means(other)], throttling, unreadable) for one, other in zip(alone, concurrent)
    ]
    return next((each for each in found if not each.verdict.is_stable), found[0])


def _obey(arguments: Namespace, path: Optional[Path], loader: Loader) -> Dict[str, Any]:
    """Be the process of one model, or of none: run it in every window that is told, until nothing more is."""
    run: Optional[Callable[[], object]] = None
    told: Dict[str, Any] = {"latency_us": 0.0, "peak_memory_mb": None}
    if path is not None:
        loaded = loader.load(path, True)
        run = loaded.run
        told = {"latency_us": percentile(_warm_up(run), 50), "load_us": loaded.load_us, "facts": loaded.facts}
        told.update(peak_memory_mb=board.peak_memory()[0], runtime=loader.facts())
    arguments.answer(told)
    with queue_clock() as queue_ns:
        for line in sys.stdin:
            begin, end = map(float, line.split())
            time.sleep(max(0.0, begin - time.monotonic()))
            window = _Window([], [], None if queue_ns is None else [])
            while run is not None and (time.monotonic() < end or not window.times_us):
                queued = 0 if queue_ns is None else queue_ns()
                start = time.monotonic_ns()
                run()
                window.times_us.append((time.monotonic_ns() - start) / 1e3)
                window.begun_us.append(start / 1e3)
                if window.waited_us is not None and queue_ns is not None:
                    window.waited_us.append((queue_ns() - queued) / 1e3)
            time.sleep(max(0.0, end - time.monotonic()))
            arguments.answer(window._asdict())
    return {}


def _warm_up(run: Callable[[], object]) -> List[float]:
    times_us: List[float] = []
    deadline = time.monotonic() + _MAX_WARMUP_S
    while not times_us or (not is_warm(times_us) and time.monotonic() < deadline):
        start = time.monotonic_ns()
        run()
        times_us.append((time.monotonic_ns() - start) / 1e3)
    return times_us
