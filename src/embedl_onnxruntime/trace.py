"""ONNX Runtime's profile file, read as a stream: one event per line, a million of them in little memory.

The file is a JSON array of Chrome-trace events (https://onnxruntime.ai/docs/performance/tune-performance/), one per
line, times in microseconds. Only a few fields of each line matter, so they are picked out without parsing the rest.
Old versions do not escape node names: a name with a quote breaks the JSON but not the picking.
"""

from __future__ import annotations

import json
import re
from array import array
from pathlib import Path
from typing import Dict, List, NamedTuple, Sequence, Tuple

_KERNEL = b"_kernel_time"
# Written by every version from 1.16 on in this order; the name may hold anything and ends before its args.
_EVENT = re.compile(
    rb'^\{"cat" ?: ?"Node",.*?"dur" ?: ?(\d+),"ts" ?: ?\d+,"ph" ?: ?"X","name" ?: ?"(.*?)_kernel_time","args" ?: ?\{'
)
_FIELD = {
    name: re.compile(rb'"' + name.encode() + rb'" ?: ?"([^"]*)"') for name in ("op_name", "provider", "node_index")
}
_RUN = re.compile(rb'"dur" ?: ?(\d+),.*"name" ?: ?"model_run"')


class Layer(NamedTuple):
    """One node as the runtime ran it; ``runs_us`` has what it took in each profiled run, the cold one first."""

    name: str
    op_type: str
    provider: str
    total_us: float
    calls: int
    runs_us: Sequence[float]


class Trace(NamedTuple):
    """What a profile file holds: layers in the order they first ran, and the profiled runs."""

    layers: List[Layer]
    runs: int
    run_us: float
    first_run_us: float
    unreadable_lines: int


class _Sum:
    __slots__ = ("_last_run", "calls", "op_type", "provider", "runs_us")

    def __init__(self, op_type: str, provider: str) -> None:
        self.op_type = op_type
        self.provider = provider
        self.runs_us = array("d")
        self.calls = 0
        self._last_run = -1

    def add(self, time_us: float, run: int) -> None:
        """Add a call; a node in a loop has several in one run."""
        if run == self._last_run:
            self.runs_us[-1] += time_us
        else:
            self.runs_us.append(time_us)
            self._last_run = run
        self.calls += 1


def read_trace(path: Path) -> Trace:
    """Sum up a profile file per node."""
    sums: Dict[Tuple[bytes, bytes], _Sum] = {}
    runs, run_us, first_run_us, unreadable = 0, 0.0, 0.0, 0
    with path.open("rb") as file:
        for line in file:
            event = _EVENT.match(line)
            if event is not None:
                args = line[event.end() :]
                key = (event[2], _field(args, "node_index"))
                found = sums.get(key)
                if found is None:
                    found = sums[key] = _Sum(_text(_field(args, "op_name")), _text(_field(args, "provider")))
                found.add(int(event[1]), runs)
            elif b'"model_run"' in line:
                run = _RUN.search(line)
                if run is not None:
                    first_run_us = int(run[1]) if runs == 0 else first_run_us
                    runs += 1
                    run_us += int(run[1])
            elif _KERNEL in line:
                unreadable += not _add_by_json(line, sums, runs)
    layers = [
        Layer(_unescaped(name), found.op_type, found.provider, sum(found.runs_us), found.calls, found.runs_us)
        for (name, _), found in sums.items()
    ]
    return Trace(layers, runs, run_us, first_run_us, unreadable)


def _field(args: bytes, name: str) -> bytes:
    found = _FIELD[name].search(args)
    return found[1] if found is not None else b""


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")


def _unescaped(name: bytes) -> str:
    """Return a node's name; newer versions escape it as JSON does, older ones write it raw."""
    text = _text(name)
    try:
        value = json.loads('"{}"'.format(text))
    except ValueError:
        return text
    return value if isinstance(value, str) else text


def _add_by_json(line: bytes, sums: Dict[Tuple[bytes, bytes], _Sum], run: int) -> bool:
    """Take a line written in another order of fields, as a later version might."""
    try:
        event = json.loads(line.strip().rstrip(b",").decode("utf-8", "replace"))
        name = event["name"][: -len(_KERNEL)].encode()
        args = event.get("args") or {}
        key = (name, str(args.get("node_index", "")).encode())
        time_us = float(event["dur"])
    except (ValueError, KeyError, TypeError, AttributeError):
        return False
    if key not in sums:
        sums[key] = _Sum(str(args.get("op_name", "")), str(args.get("provider", "")))
    sums[key].add(time_us, run)
    return True
