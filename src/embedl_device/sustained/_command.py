"""The command ``sustain``: in the foreground, or detached, so that it goes on when whoever started it is gone."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import time
import traceback
import warnings
from argparse import Namespace
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, Optional

from embedl_device import __version__, board
from embedl_device.errors import BoardError
from embedl_device.loader import Loader
from embedl_device.power import choose, find_sources
from embedl_device.program import say
from embedl_device.rounds import Plan, take_samples
from embedl_device.sustained._document import document_of
from embedl_device.sustained._journal import Journal
from embedl_device.sustained._lease import BoardLease
from embedl_device.sustained._load import LoadPlan, Recorder, put_under_load
from embedl_device.sustained._watch import Watch

JOURNAL, PROGRESS, LOG = "journal.jsonl", "progress.json", "log.txt"
# Readings of a run of many hours are further apart, so that its journal stays small.
_MOST_READINGS = 7200
_TELL_EVERY_S = 1.0


def plan_of(arguments: Namespace) -> LoadPlan:
    """Return how long and how hard; a BoardError for what cannot be."""
    for name, least, most in (
        ("seconds", 1.0, 1e6), ("duty", 0.001, 1.0), ("duty_period", 0.1, 1e5), ("rate", 1e-4, 1e6),
        ("idle_seconds", 0.0, 3600.0), ("period", 0.05, 60.0), ("max_warmup_seconds", 0.0, 3600.0),
        ("max_temperature", 1.0, 200.0),
    ):  # fmt: skip
        value = getattr(arguments, name)
        if value is not None and not least <= value <= most:
            flag = "--" + name.replace("_", "-")
            raise BoardError("{} is {:g}; it must be from {:g} to {:g}.".format(flag, value, least, most))
    period_s = max(arguments.period, arguments.seconds / _MOST_READINGS)
    return LoadPlan(
        arguments.seconds, arguments.duty, arguments.duty_period, arguments.rate, arguments.idle_seconds, period_s,
        arguments.until_steady, arguments.max_temperature,
    )  # fmt: skip


def sustained(arguments: Namespace, loader: Loader) -> Dict[str, Any]:
    """Put a model under load and return the document; detached, return which process does it."""
    plan = plan_of(arguments)
    if arguments.folder is not None:
        arguments.folder.mkdir(parents=True, exist_ok=True)
    if not arguments.detach:
        return _measure(arguments, loader, plan, _Progress(arguments.folder))
    if arguments.folder is None:
        raise BoardError("--detach needs --folder, where the result is to be.")
    progress = _Progress(arguments.folder)
    progress.write({"state": "starting"})
    return {"pid": detached(lambda: _measure_alone(arguments, loader, plan, progress), arguments.folder / LOG)}


def detached(work: Callable[[], object], log: Path) -> int:
    """Do work in a process that belongs to no session of ours, and return its number at once.

    Whoever ends the group or the session that started it does not end it; its output goes to a file.
    """
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        # Threads of a library that was imported matter only to a child that uses them.
        warnings.simplefilter("ignore")
        child = os.fork()
        if child == 0:
            os.setsid()
            grandchild = os.fork()
            if grandchild:
                os.write(writing, str(grandchild).encode())
                os._exit(0)
    if child:
        os.close(writing)
        os.waitpid(child, 0)
        with os.fdopen(reading, "rb") as pipe:
            return int(pipe.read() or b"0")
    _let_go_of_terminal(log)
    code = 1
    try:
        work()
        code = 0
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
    os._exit(code)


def _let_go_of_terminal(log: Path) -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
    nothing, output = os.open(os.devnull, os.O_RDONLY), os.open(str(log), flags, 0o600)
    for number, target in ((nothing, 0), (output, 1), (output, 2)):
        os.dup2(number, target)
    # The copy of stdout that the result would go to keeps a connection open, as does any other file.
    os.closerange(3, 1024)
    sys.stdout = sys.stderr = os.fdopen(os.dup(2), "w", buffering=1)


class _Progress:
    """A small file that always holds a whole object: how far the run is, and what went wrong."""

    def __init__(self, folder: Optional[Path]) -> None:
        self._path = None if folder is None else folder / PROGRESS
        self._next_s = 0.0
        self.lease: Optional[BoardLease] = None

    def write(self, facts: Dict[str, Any]) -> None:
        """Replace what it says."""
        if self._path is None:
            return
        part = self._path.with_name(PROGRESS + ".part")
        part.write_text(json.dumps(dict(facts, pid=os.getpid())))
        part.replace(self._path)

    def tell(self, recorder: Recorder) -> None:
        """Say how far the load is, now and then."""
        at_s = recorder.now_s()
        if self.lease is not None:
            self.lease.look(at_s)
        if time.monotonic() < self._next_s:
            return
        self._next_s = time.monotonic() + _TELL_EVERY_S
        latest = recorder.latest
        state = "idle before" if at_s < 0 else "under load" if recorder.stop_reason is None else "idle after"
        self.write({
            "state": state, "at_s": round(at_s, 2), "seconds": recorder.plan.seconds, "inferences": recorder.count,
            "latency_ms": None if latest is None else round(latest.mean_us / 1e3, 4),
            "temperature_c": recorder.temperature_c,
        })  # fmt: skip


def _measure_alone(arguments: Namespace, loader: Loader, plan: LoadPlan, progress: _Progress) -> None:
    try:
        _measure(arguments, loader, plan, progress)
    except BoardError as error:
        progress.write({"state": "failed", "error": str(error)})
        raise
    except BaseException as error:
        progress.write({"state": "failed", "error": "{}: {}".format(type(error).__name__, error)})
        raise
    progress.write({"state": "done"})


def _measure(arguments: Namespace, loader: Loader, plan: LoadPlan, progress: _Progress) -> Dict[str, Any]:
    say(loader.program, "loading {}".format(arguments.model))
    progress.write({"state": "loading"})
    loaded = loader.load(arguments.model, True)
    progress.write({"state": "warming up"})
    warm_up = take_samples(loaded.run, Plan(1, 0.0, 0.0, arguments.max_warmup_seconds))
    before = board.state()
    found = find_sources()
    # A name that is none is said before the load, not after it.
    choose([(each.name, each.domain, each.family) for each in found.sources], arguments.power_source)
    with _opened(arguments) as (file, watch_lease), contextlib.ExitStack() as stack:
        progress.lease = watch_lease
        watch = Watch(found.sources)
        stack.callback(watch.close)
        start_s = time.perf_counter() + plan.idle_seconds
        start = {
            "program": loader.program,
            "version": __version__,
            "clock_s": time.time() + plan.idle_seconds,  # noqa: TID251 - a meter's record is laid beside it
            "plan": plan._asdict(),
            "model": {"file_name": arguments.model.name, "size_bytes": arguments.model.stat().st_size},
            "load_time_ms": loaded.load_us / 1e3,
            "first_latency_ms": warm_up.first_us / 1e3,
            "warmup": len(warm_up.warmup_us),
            "power_problems": list(found.problems),
            "power_sources": list(arguments.power_source),
            "board": board.describe(),
            "before": before,
            **loaded.facts,
            **loader.facts(),
        }
        recorder = Recorder(Journal(file, start, watch.channels), watch, plan, start_s, progress.tell)
        stack.enter_context(_stopping(recorder))
        say(loader.program, "under load for {:g} s, {:g} s of rest before and after".format(plan[0], plan.idle_seconds))
        recorder.start()
        try:
            ending = put_under_load(loaded.run, recorder)
        finally:
            recorder.finish()
        memory_mb, memory_method = board.peak_memory()
        end = dict(
            ending, after=board.state(), peak_memory_mb=memory_mb, memory_method=memory_method,
            last=recorder.last(), lease=None if watch_lease is None else watch_lease.facts(),
        )  # fmt: skip
        recording = recorder.journal.finish(end)
    try:
        return document_of(recording)
    except ValueError as error:
        raise BoardError("The load ended before one inference did: {}.".format(error)) from error


@contextlib.contextmanager
def _opened(arguments: Namespace) -> Iterator[Any]:
    """Yield the journal's file and the lease, where they are wanted."""
    with contextlib.ExitStack() as stack:
        file = lease = None
        if arguments.folder is not None:
            file = stack.enter_context((arguments.folder / JOURNAL).open("w", encoding="utf-8"))
        if arguments.lease_dir:
            title = "a sustained run, process {}".format(os.getpid())
            lease = BoardLease(arguments.lease_dir, title)
            stack.callback(lease.close)
        yield file, lease


@contextlib.contextmanager
def _stopping(recorder: Recorder) -> Iterator[None]:
    """End the load, and not the process, when it is asked to terminate: what was measured is worth its last line."""
    asked: List[int] = []

    def stop(number: int, _: object) -> None:
        if asked:
            raise KeyboardInterrupt
        asked.append(number)
        recorder.stop_reason = "asked to by signal {}".format(number)

    old = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)
