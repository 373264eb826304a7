"""The runtime's event dump (ETDump): what each operator of each run took.

A flatbuffer that is read in place. The vendor's own reader needs pandas and the compiler's packages, which a board does
not have. The layout is that of ``devtools/etdump/etdump_schema_flatcc.fbs``, format ED00.
"""

from __future__ import annotations

import struct
from typing import Any, Dict, List, NamedTuple, Sequence, Tuple

from embedl_device.flatbuffer import FlatBuffer
from embedl_device.readers import UnreadableError
from embedl_device.statistics import percentile

_MAGIC = b"ED00"
# The places of fields in their tables.
_RUNS = 1  # ETDump.run_data
_EVENTS = 3  # RunData.events
_PROFILE = 0  # Event.profile_event
_NAME, _INSTRUCTION, _DELEGATE_NAME, _START, _END = 0, 2, 4, 6, 7  # ProfileEvent
# What stands for a whole run, an instruction or a delegate's whole call.
_FRAMES = frozenset({"Method::execute", "OPERATOR_CALL", "DELEGATE_CALL", "Method::init", "Program::load_method"})
_KERNEL = "native_call_"
_TICKS = 1e3  # per us


class NoLayersError(Exception):
    """The layers cannot be had; the text says why."""


class Event(NamedTuple):
    """One operator in one run; ``instruction`` is the program's that it belongs to."""

    name: str
    instruction: int
    is_delegated: bool
    time_us: float


def read_runs(content: bytes) -> List[List[Event]]:
    """Return the operators of each run in a dump, in the order they ran."""
    # Its size comes first.
    content = content[4:]
    if content[4:8] != _MAGIC:
        raise NoLayersError("this build of the runtime writes no event dump, or one of another format")
    try:
        return _Reader(content).runs()
    except (UnreadableError, struct.error, IndexError, UnicodeDecodeError) as error:
        raise NoLayersError("the event dump cannot be read: {}".format(error)) from error


class _Reader(FlatBuffer):
    def runs(self) -> List[List[Event]]:
        found = []
        # One block has the events of one run; times are in ns, of which XNNPACK counts thousands.
        for block in self.tables(self.root, _RUNS):
            raw = [self._event(table) for table in self._profiles(block)]
            runs: List[List[Tuple[str, int, bool, int]]] = [[]]
            for event in raw:
                runs[-1].append(event)
                if event[0] == "Method::execute":
                    runs.append([])
            found += [_operators(run) for run in runs if run and run[-1][0] == "Method::execute"]
        return found

    def _profiles(self, block: int) -> List[int]:
        tables = (self.inner(event, _PROFILE) for event in self.tables(block, _EVENTS))
        return [table for table in tables if table is not None]

    def _event(self, table: int) -> Tuple[str, int, bool, int]:
        own, delegate = self.text(table, _NAME), self.text(table, _DELEGATE_NAME)
        instruction = self.scalar(table, _INSTRUCTION, "<i", -1)
        spent = self.scalar(table, _END, "<Q") - self.scalar(table, _START, "<Q")
        return own or delegate, instruction, bool(delegate), spent


def _operators(run: Sequence[Tuple[str, int, bool, int]]) -> List[Event]:
    """Return what computed: kernels and a delegate's operators, or the delegate as one where it tells nothing more."""
    telling = {instruction for _, instruction, is_delegated, _ in run if is_delegated}
    found = []
    for name, instruction, is_delegated, spent in run:
        if is_delegated:
            found.append(Event(name, instruction, True, spent / _TICKS))
        elif name.startswith(_KERNEL):
            found.append(Event(name[len(_KERNEL) :], instruction, False, spent / _TICKS))
        elif name == "DELEGATE_CALL" and instruction not in telling:
            found.append(Event(name, instruction, True, spent / _TICKS))
        elif name not in _FRAMES:
            found.append(Event(name, instruction, False, spent / _TICKS))
    return found


def as_rows(runs: Sequence[Sequence[Event]]) -> Dict[str, Any]:
    """Return the table of layers: medians over the runs, in the order they ran."""
    shapes = {tuple(event[:3] for event in run) for run in runs}
    if len(shapes) != 1 or not runs[0]:
        raise NoLayersError("the runs were not alike, or had no operators")
    times = [percentile([run[at].time_us for run in runs], 50) for at in range(len(runs[0]))]
    whole = sum(event.time_us for run in runs for event in run)
    total = sum(times) or 1.0
    rows = [
        {
            "name": event.name,
            "op_type": event.name.partition(" #")[0],
            "provider": "XNNPACK" if event.is_delegated else "portable",
            "instruction": event.instruction,
            "time_ms": time_us / 1e3,
            "share": time_us / total,
        }
        for event, time_us in zip(runs[0], times)
    ]
    return {"runs": len(runs), "mean_run_ms": whole / len(runs) / 1e3, "rows": rows}
