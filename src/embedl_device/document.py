"""The profile document's part that no runtime changes: what was measured, on what, and how far to trust it."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from embedl_device import __version__, board
from embedl_device.arrays import Arrays, load_samples
from embedl_device.measure import Plan, judge, statistics_ms, take_samples
from embedl_device.program import say
from embedl_device.rounds import Turns, judge_rounds, queue_clock, take_rounds
from embedl_device.tensors import Tensor, check_feed, made_up_feed

FORMAT = 1


def measured(program: str, run: Callable[[], object], plan: Plan, load_us: float, model: Path) -> Dict[str, Any]:
    """Time a function by the plan and return the document's common part."""
    before = board.state()
    say(program, "measuring, at most {:g} s".format(plan.max_seconds + plan.max_warmup_seconds))
    samples = take_samples(run, plan)
    after = board.state()
    memory_mb, memory_method = board.peak_memory()
    verdict, reason = judge(samples, board.throttling_between(before, after), board.unreadable_in(after))
    return {
        "format": FORMAT,
        "tool": {"name": program, "version": __version__},
        "model": {"file_name": model.name, "size_bytes": model.stat().st_size},
        "latency_ms": statistics_ms(samples.times_us),
        "load_time_ms": load_us / 1e3,
        "first_latency_ms": samples.first_us / 1e3,
        "warmup": len(samples.warmup_us),
        "iterations": len(samples.times_us),
        "samples_us": samples.times_us,
        "warmup_us": samples.warmup_us,
        "verdict": verdict,
        "verdict_reason": reason,
        "peak_memory_mb": memory_mb,
        "memory_method": memory_method,
        "environment": {"board": board.describe(), "before": before, "after": after},
        "method": plan.method(),
    }


class Loaded(NamedTuple):
    """A model that is ready to be timed.

    Attributes:
        run: Runs it once.
        load_us: How long it took to load.
        facts: What else the document says of it.
    """

    run: Callable[[], object]
    load_us: float
    facts: Dict[str, Any]


def measured_in_turns(
    program: str, paths: Sequence[Path], load: Callable[[Path], Loaded], turns: Turns
) -> Dict[str, Any]:
    """Time models in turns and return the paired document's common part.

    Args:
        program: Who measures.
        paths: The model files; the first is what the others are held against.
        load: Makes a model of its file.
        turns: How turns are taken.
    """
    before = board.state()
    models: Dict[int, Loaded] = {}

    def load_all(order: Sequence[int]) -> List[Callable[[], object]]:
        runs = {}
        for number in order:
            loaded = load(paths[number])
            runs[number] = loaded.run
            # Only what is said of it: the model itself goes when it is loaded anew.
            models.setdefault(number, loaded._replace(run=_nothing))
        return [runs[number] for number in range(len(paths))]

    say(program, "measuring {} models in turns, at most {:g} s".format(len(paths), turns.plan.max_seconds))
    with queue_clock() as queue_ns:
        rounds = take_rounds(load_all, len(paths), turns, queue_ns=queue_ns)
    after = board.state()
    memory_mb, memory_method = board.peak_memory()
    verdict, reason = judge_rounds(rounds, board.throttling_between(before, after), board.unreadable_in(after))
    rows: List[Dict[str, Any]] = []
    for number, path in enumerate(paths):
        row = {
            "file_name": path.name,
            "size_bytes": path.stat().st_size,
            "latency_ms": statistics_ms(rounds.times_us[number]),
            "load_time_ms": models[number].load_us / 1e3,
            "first_latency_ms": rounds.first_us[number] / 1e3,
            "warmup": len(rounds.warmup_us[number]),
            "samples_us": rounds.times_us[number],
            "waited_us": None if rounds.waited_us is None else rounds.waited_us[number],
            "warmup_us": rounds.warmup_us[number],
        }
        rows.append(dict(row, **models[number].facts))
    return {
        "format": FORMAT,
        "kind": "paired",
        "tool": {"name": program, "version": __version__},
        "models": rows,
        "rounds": len(rounds.order),
        "order": rounds.order,
        "loaded_at": rounds.loaded_at,
        "verdict": verdict,
        "verdict_reason": reason,
        "peak_memory_mb": memory_mb,
        "memory_method": memory_method + "; all models together",
        "environment": {"board": board.describe(), "before": before, "after": after},
        "method": turns.method(),
    }


def _nothing() -> None:
    """Stand in for a model that has gone."""


def feed_for(
    inputs: Sequence[Tensor], input_dir: Optional[Path], shapes: Sequence[Tuple[str, Tuple[int, ...]]]
) -> Tuple[Arrays, Dict[str, Any]]:
    """Return the data to measure on, given or made up, and the words for the document."""
    if input_dir is not None:
        name, feed = load_samples(input_dir)[0]
        check_feed(inputs, feed)
        source = "given: {}".format(name)
    else:
        feed = made_up_feed(inputs, dict(shapes))
        source = "made up: normal numbers for floats, ones for the rest"
    facts = {name: {"dtype": np.asarray(array).dtype.name, "shape": list(array.shape)} for name, array in feed.items()}
    return feed, {"source": source, "inputs": facts}
