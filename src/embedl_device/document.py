"""The profile document's part that no runtime changes: what was measured, on what, and how far to trust it."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Callable, Dict, Optional, Sequence, Tuple

import numpy as np

from embedl_device import __version__, board
from embedl_device.arrays import Arrays, load_samples
from embedl_device.measure import Plan, judge, statistics_ms, take_samples
from embedl_device.program import say
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
