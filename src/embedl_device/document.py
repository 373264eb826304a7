"""The profile document's part that no runtime changes: what was measured, on what, and how far to trust it."""

from __future__ import annotations

import math
import time
from argparse import Namespace
from pathlib import Path
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

import numpy as np

from embedl_device import DOCUMENT_FORMAT, __version__, board
from embedl_device.arrays import Arrays, check_feed, load_samples, made_up_feed
from embedl_device.loader import Loaded, Loader
from embedl_device.program import AnyModel, models_of, say, turns_of
from embedl_device.rounds import Plan, judge_rounds, queue_clock, take_rounds, take_samples
from embedl_device.statistics import Judgement, judge, summarize, tail_facts, tails

# A fast model is run a million times in a minute; the numbers are of all, and nobody needs every one of them kept.
MOST_SAMPLES_KEPT = 200_000


def measured(program: str, run: Callable[[], object], plan: Plan, load_us: float, model: Path) -> Dict[str, Any]:
    """Time a function by the plan and return the document's common part."""
    before = board.state()
    goal_words = "" if plan.until is None else " until {}".format(plan.until)
    say(program, "measuring{}, at most {:g} s".format(goal_words, plan.max_seconds + plan.max_warmup_seconds))
    memory: List[Tuple[Optional[float], str]] = []
    # After the warm-up: the runtime has all that it takes, and the samples take nothing yet.
    samples = take_samples(
        run, plan, tell=lambda words: say(program, words), warmed=lambda: memory.append(board.peak_memory())
    )
    after = board.state()
    judgement = judge(
        samples.times_us, board.throttling_between(before, after), board.unreadable_in(after), samples.unsettled_after
    )
    goal = goal_of(plan, samples.times_us)
    if goal is not None and not goal["reached"]:
        judgement = judgement._replace(reason="{}; {}".format(judgement.reason, goal["text"]))
    every = math.ceil(len(samples.times_us) / MOST_SAMPLES_KEPT)
    return {
        **common_facts(program, judgement, before, after),
        "peak_memory_mb": memory[0][0],
        "memory_method": memory[0][1] + ", after the warm-up",
        **({} if goal is None else {"goal": goal}),
        **({} if every == 1 else {"samples_kept": "every {}th of {}".format(every, len(samples.times_us))}),
        "model": {"file_name": model.name, "size_bytes": model.stat().st_size},
        "latency_ms": summarize(samples.times_us, 1e3)._asdict(),
        "tails": tail_facts(samples.times_us),
        "load_time_ms": load_us / 1e3,
        "first_latency_ms": samples.first_us / 1e3,
        "warmup": len(samples.warmup_us),
        "iterations": len(samples.times_us),
        "samples_us": samples.times_us[::every],
        "warmup_us": samples.warmup_us,
        "method": plan.method(),
    }


def goal_of(plan: Plan, times_us: Sequence[float]) -> Optional[Dict[str, Any]]:
    """Return what became of the goal of a plan, in words; None for a plan without one."""
    if plan.percent is None:
        return None
    tail = tails(times_us, [plan.percent])[0]
    is_reached = tail.high is not None and len(times_us) >= plan.iterations
    if is_reached and tail.value is not None and tail.high is not None:
        counted = "" if tail.effective == tail.samples else ", counted as {:,}".format(tail.effective)
        text = "p{} is {:.4g} ms, at most {:.4g} ms with 99 % confidence ({:,} samples{})".format(
            plan.percent, tail.value / 1e3, tail.high / 1e3, tail.samples, counted
        )
    else:
        missing = max(tail.needed, plan.iterations) - len(times_us)
        text = "the {:g} s were over before the bound of p{} was supported: about {:,} more samples are needed".format(
            plan.max_seconds, plan.percent, max(1, missing)
        )
    title = "MLPerf single stream: " if plan.until == "mlperf" else ""
    metric = "latency_p{}".format(plan.percent)
    return {"until": plan.until, "metric": metric, "reached": is_reached, "text": title + text}


def common_facts(program: str, judgement: Judgement, before: Dict[str, Any], after: Dict[str, Any]) -> Dict[str, Any]:
    """Return what the documents of all kinds of measurement begin with."""
    memory_mb, memory_method = board.peak_memory()
    return {
        "format": DOCUMENT_FORMAT,
        "tool": {"name": program, "version": __version__},
        "verdict": judgement.verdict.value,
        "verdict_reason": judgement.reason,
        "peak_memory_mb": memory_mb,
        "memory_method": memory_method,
        "environment": {"board": board.describe(), "before": before, "after": after},
    }


def measured_in_turns(arguments: Namespace, loader: Loader) -> Dict[str, Any]:
    """Time models in turns and return the paired document; the others are compared to the first."""
    paths, turns = models_of(arguments), turns_of(arguments)
    before = board.state()
    found: Dict[int, Loaded] = {}

    def load_all(order: Sequence[int]) -> List[Callable[[], object]]:
        runs = {}
        for number in order:
            loaded = loader.load(paths[number], False)
            runs[number] = loaded.run
            # Only what is said of it: the model itself goes when it is loaded anew.
            found.setdefault(number, loaded._replace(run=object))
        return [runs[number] for number in range(len(paths))]

    say(loader.program, "measuring {} models in turns, at most {:g} s".format(len(paths), turns.plan.max_seconds))
    with queue_clock() as queue_ns:
        rounds = take_rounds(load_all, len(paths), turns, queue_ns=queue_ns)
    after = board.state()
    judgement = judge_rounds(rounds, board.throttling_between(before, after), board.unreadable_in(after))
    common = common_facts(loader.program, judgement, before, after)
    rows: List[Dict[str, Any]] = []
    for number, path in enumerate(paths):
        row = {
            "file_name": path.name,
            "size_bytes": path.stat().st_size,
            "latency_ms": summarize(rounds.times_us[number], 1e3)._asdict(),
            "load_time_ms": found[number].load_us / 1e3,
            "first_latency_ms": rounds.first_us[number] / 1e3,
            "warmup": len(rounds.warmup_us[number]),
            "samples_us": rounds.times_us[number],
            "waited_us": None if rounds.waited_us is None else rounds.waited_us[number],
            "warmup_us": rounds.warmup_us[number],
        }
        rows.append(dict(row, **found[number].facts))
    return {
        **common,
        **loader.facts(),
        "kind": "paired",
        "models": rows,
        "rounds": len(rounds.order),
        "order": rounds.order,
        "loaded_at": rounds.loaded_at,
        "memory_method": common["memory_method"] + "; all models together",
        "method": turns.method(),
        "warnings": warnings_of(rows),
    }


def warnings_of(rows: Sequence[Dict[str, Any]]) -> List[str]:
    """Take the warnings out of the models' rows and return each once, with the file that it is about."""
    warnings = ["{}: {}".format(row["file_name"], text) for row in rows for text in row.pop("warnings", ())]
    return list(dict.fromkeys(warnings))


def load_timed(load: Callable[[], AnyModel], arguments: Namespace) -> Tuple[AnyModel, float, Arrays, Dict[str, Any]]:
    """Return a model, how long it took to load in us, the data to measure on, and what the document says of that."""
    start = time.perf_counter_ns()
    model = load()
    load_us = (time.perf_counter_ns() - start) / 1e3
    if arguments.input_dir is not None:
        name, feed = load_samples(arguments.input_dir)[0]
        check_feed(model.inputs, feed)
        source = "given: {}".format(name)
    else:
        feed = made_up_feed(model.inputs, dict(arguments.shape))
        source = "made up: normal numbers for floats, ones for the rest"
    facts = {name: {"dtype": np.asarray(array).dtype.name, "shape": list(array.shape)} for name, array in feed.items()}
    return model, load_us, feed, {"source": source, "inputs": facts}
