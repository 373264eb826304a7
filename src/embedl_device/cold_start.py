"""What the user of an app waits for: a fresh process, the runtime's import, the model's loading, the first inference.

Each start is a process of its own. Starts with the files in the page cache and without take turns, so that what the
board does meanwhile happens to both. The cache is emptied of the files that a start reads, which needs no rights; files
that another process has mapped stay, and what was really read from storage tells whether it worked.
"""

from __future__ import annotations

import os
import time
from argparse import Namespace
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence, Tuple

from embedl_device import board
from embedl_device.document import common_facts, warnings_of
from embedl_device.loader import Loader
from embedl_device.processes import Child
from embedl_device.program import say
from embedl_device.rounds import orders
from embedl_device.statistics import judge, percentile, summarize

PARTS = ("process", "import", "load", "first_inference")
_LATER_RUNS = 5
_SPEAK_EVERY_S = 10.0


def cold_starts(arguments: Namespace, loader: Loader) -> Dict[str, Any]:
    """Start the model anew so often, and return the document."""
    if arguments.child:
        return _start_once(arguments, loader)
    before = board.state()
    say(loader.program, "starting {} times".format(1 + 2 * arguments.starts))
    trial = _start(arguments)  # finds the files, and brings all of them into the page cache
    files = _files_of(arguments.model, trial["mapped"])
    taken: Tuple[List[Dict[str, Any]], List[Dict[str, Any]]] = ([], [])
    spoken = time.monotonic()
    for order, _ in zip(orders(2), range(arguments.starts)):
        for is_cold in order:
            if is_cold:
                _drop(files)
            taken[is_cold].append(_start(arguments))
        if time.monotonic() - spoken > _SPEAK_EVERY_S:
            spoken = time.monotonic()
            say(loader.program, "{} of {} starts".format(2 * len(taken[0]), 2 * arguments.starts))
    after = board.state()
    cached, cold = taken
    problem = _not_dropped(cached, cold, files)
    throttling, unreadable = board.throttling_between(before, after), board.unreadable_in(after)
    judgement = judge([_total(each) for each in cached], throttling, unreadable)
    model = {"file_name": arguments.model.name, "size_bytes": arguments.model.stat().st_size}
    document = common_facts(loader.program, judgement, before, after)
    # The memory of the process that starts the others says nothing of the model.
    known = [each["peak_memory_mb"] for each in cached if each["peak_memory_mb"] is not None]
    document.update(peak_memory_mb=percentile(known, 50) if known else None)
    rows = [{"file_name": arguments.model.name, "warnings": trial["warnings"]}]
    return {
        **document,
        **trial["facts"],
        "kind": "cold_start",
        "model": model,
        "starts": arguments.starts,
        "cached": _described(cached),
        "cold": None if problem else _described(cold),
        "cold_problem": problem,
        "later_latency_ms": percentile([each["later_us"] for each in cached], 50) / 1e3,
        "files": {"count": len(files), "bytes": sum(size for _, size in files)},
        "data": trial["data"],
        "method": {
            "start": "one process for each start; the time from its creation to the first answer, made of {}".format(
                ", ".join(PARTS)
            ),
            "order": "with the files in the page cache and without in turns, in random order",
            "page_cache": "posix_fadvise(DONTNEED) of the model and of every file that a start maps",
        },
        "warnings": warnings_of(rows),
    }


def _start_once(arguments: Namespace, loader: Loader) -> Dict[str, Any]:
    """Be one start: load the model, run it, and tell how long each part took."""
    begun = time.monotonic_ns()
    loader.start()
    imported = time.monotonic_ns()
    loaded = loader.load(arguments.model, True)
    times_us = []
    for _ in range(1 + _LATER_RUNS):
        start = time.monotonic_ns()
        loaded.run()
        times_us.append((time.monotonic_ns() - start) / 1e3)
    read_bytes = _read_bytes()
    memory_mb, _ = board.peak_memory()
    return {
        "begun_ns": begun,
        "parts_us": {"import": (imported - begun) / 1e3, "load": loaded.load_us, "first_inference": times_us[0]},
        "later_us": percentile(times_us[1:], 50),
        "read_bytes": read_bytes,
        "peak_memory_mb": memory_mb,
        "mapped": _mapped(),
        "data": loaded.facts.get("data"),
        "warnings": loaded.facts.get("warnings", []),
        "facts": loader.facts(),
    }


def _start(arguments: Namespace) -> Dict[str, Any]:
    created = time.monotonic_ns()
    child = Child(arguments, ["--child"])
    try:
        answer = child.answer()
    finally:
        child.close()
    answer["parts_us"] = dict({"process": (answer["begun_ns"] - created) / 1e3}, **answer["parts_us"])
    return answer


def _total(start: Dict[str, Any]) -> float:
    return float(sum(start["parts_us"].values()))


def _described(starts: Sequence[Dict[str, Any]]) -> Dict[str, Any]:
    """Return the distributions of the whole and of its parts; the raw times are kept."""
    return {
        "total_ms": summarize([_total(each) for each in starts], 1e3)._asdict(),
        "parts_ms": {part: summarize([each["parts_us"][part] for each in starts], 1e3)._asdict() for part in PARTS},
        "samples_us": {part: [each["parts_us"][part] for each in starts] for part in PARTS},
        "read_mb": None if starts[0]["read_bytes"] is None else _read_mb(starts),
    }


def _read_mb(starts: Sequence[Dict[str, Any]]) -> float:
    return percentile([each["read_bytes"] for each in starts], 50) / 1e6


def _not_dropped(
    cached: Sequence[Dict[str, Any]], cold: Sequence[Dict[str, Any]], files: Sequence[Tuple[Path, int]]
) -> Optional[str]:
    """Return why the starts without the page cache count for nothing; None if they do."""
    if not hasattr(os, "posix_fadvise"):
        return "this system cannot empty the page cache of single files"
    if cold[0]["read_bytes"] is None:
        return "this system does not tell what a process read from storage, so nobody knows whether it did"
    more_mb, size_mb = _read_mb(cold) - _read_mb(cached), files[0][1] / 1e6
    if more_mb < size_mb / 2:
        return (
            "the files stayed in the page cache: a start read {:.1f} MB more from storage, and the model alone has "
            "{:.1f} MB".format(more_mb, size_mb)
        )
    return None


def _drop(files: Sequence[Tuple[Path, int]]) -> None:
    for path, _ in files:
        try:
            handle = os.open(str(path), os.O_RDONLY)
        except OSError:
            continue  # gone meanwhile
        try:
            if hasattr(os, "posix_fadvise"):
                os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
        except OSError:
            pass  # a file system without a page cache
        finally:
            os.close(handle)


def _files_of(model: Path, mapped: Sequence[str]) -> List[Tuple[Path, int]]:
    """Return the files that a start reads with their sizes, the model first: its weights may lie beside it."""
    beside = [path for path in model.parent.iterdir() if path.name.startswith(model.stem) and path.is_file()]
    # Others that are mapped may have been deleted.
    files = [path for path in dict.fromkeys((model, *sorted(beside), *map(Path, mapped))) if path.is_file()]
    return [(path, path.stat().st_size) for path in files]


def _mapped(maps: Path = board.PROC / "self" / "maps") -> List[str]:
    """Return the files that this process has mapped."""
    try:
        lines = maps.read_text(errors="replace").splitlines()
    except OSError:
        return []
    return sorted(
        {fields[5] for fields in (line.split(None, 5) for line in lines) if fields[5:] and fields[5][0] == "/"}
    )


def _read_bytes(io: Path = board.PROC / "self" / "io") -> Optional[int]:
    """Return what this process has had read from storage; None where the system does not tell."""
    try:
        lines = io.read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) for line in lines if line.startswith("read_bytes:")), None)
