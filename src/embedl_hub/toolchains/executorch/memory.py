"""The memory of an ExecuTorch program: planned when it was compiled, and written in its file, tensor by tensor.

A flatbuffer that is read in place; the layout is that of ``schema/program.fbs``, format ET12. What a delegate such as
XNNPACK takes for itself is in no file.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from embedl_device.flatbuffer import FlatBuffer
from embedl_device.readers import UnreadableError, read_plain, telling
from embedl_hub.core.document import LayerMemory, MemoryPart, MemoryProfile
from embedl_hub.refusal import RefusedError

if TYPE_CHECKING:
    from embedl_hub.core.device import ProviderConfig

METHOD = "planned by ExecuTorch's compiler, from the program's file"
# The program with a small model, on x86-64: Python, torch and the runtime.
_OWN_BYTES = 240_000_000
_MAGIC = b"ET12"
_LARGEST_BYTES = 2 << 30
_FORWARD = "forward"
_MOST_LIVES = 20_000_000
_ALIGNMENT = 16
# The places of fields in their tables.
_PLANS, _SEGMENTS = 1, 4
_NAME, _VALUES, _OUTPUTS, _CHAINS, _OPERATORS, _DELEGATES, _SIZES = 0, 2, 4, 5, 6, 7, 8
_TENSOR, _KERNEL_CALL, _DELEGATE_CALL = 5, 1, 2
_TYPE, _SHAPE, _ALLOCATION = 0, 2, 6
# Bytes of an element by the runtime's number of its type.
_ELEMENTS = {0: 1, 1: 1, 2: 2, 3: 4, 4: 8, 5: 2, 6: 4, 7: 8, 11: 1, 15: 2, 27: 2, 28: 4, 29: 8}


class _Place(NamedTuple):
    value: int
    memory: int
    offset: int
    size: int


class _Call(NamedTuple):
    name: str
    is_delegated: bool
    values: tuple[int, ...]


class Program(NamedTuple):
    """What a file says of its forward method: buffers, tensors in them, calls, and the bytes of its constants."""

    buffers: tuple[int, ...]
    places: Mapping[int, _Place]
    calls: tuple[_Call, ...]
    outputs: tuple[int, ...]
    constants: int


def plan_file(path: Path, config: ProviderConfig | None = None) -> MemoryProfile:
    """Return what was planned for a program."""
    del config
    return _profile(read_program(path), METHOD)


def measured_memory(told: Mapping[str, Any], path: Path) -> MemoryProfile:
    """Return what a device program told, with the layers of the plan where the two agree."""
    planned = plan_file(path)
    facts = {} if told.get("allocated_bytes") is None else {"allocated_bytes": told["allocated_bytes"]}
    problem = told.get("missing_because") or planned.problem
    return MemoryProfile(
        str(told["method"]), told.get("arena_bytes"), planned.facts.get("constants_bytes"), planned.peak_layer,  # type: ignore[arg-type]
        planned.rows, _with_rest(planned.parts, told.get("arena_bytes")), problem, _OWN_BYTES, facts,
    )  # fmt: skip


def _with_rest(parts: Sequence[MemoryPart], arena_bytes: int | None) -> tuple[MemoryPart, ...]:
    rest = (arena_bytes or 0) - sum(part.size_bytes for part in parts)
    return (*parts, MemoryPart("the runtime's own records of the program", rest)) if rest > 0 else ()


def read_program(path: Path) -> Program:
    """Read the forward method of a program."""
    try:
        content = read_plain(path, _LARGEST_BYTES)
        if content[4:8] != _MAGIC:
            raise RefusedError(f"{path} is not an ExecuTorch program that is known here: it does not begin as one.")
        with telling():
            return _Reader(content).program()
    except (OSError, UnreadableError, struct.error, IndexError, UnicodeDecodeError) as error:
        raise RefusedError(f"{path} is not an ExecuTorch program, or it was cut short: {error}.") from error


class _Reader(FlatBuffer):
    def program(self) -> Program:
        root = self.root
        plans = {self.text(table, _NAME): table for table in self.tables(root, _PLANS)}
        if _FORWARD not in plans:
            raise UnreadableError("it has no method forward")
        plan = plans[_FORWARD]
        names = [self.text(table, _NAME) for table in self.tables(plan, _OPERATORS)]
        delegates = [self.text(table, _NAME) for table in self.tables(plan, _DELEGATES)]
        buffers = tuple(self.numbers(plan, _SIZES, "<q"))
        places = [self._place(index, table, buffers) for index, table in enumerate(self.tables(plan, _VALUES))]
        calls = []
        for chain in self.tables(plan, _CHAINS):
            calls += [self._call(table, names, delegates) for table in self.tables(chain, 2)]
        segments = [self.scalar(table, 1, "<Q") for table in self.tables(root, _SEGMENTS)]
        return Program(
            buffers,
            {place.value: place for place in places if place is not None},
            tuple(call for call in calls if call is not None),
            tuple(self.numbers(plan, _OUTPUTS, "<i")),
            sum(segments),
        )

    def _place(self, index: int, value: int, buffers: Sequence[int]) -> _Place | None:
        if self.scalar(value, 0, "<B") != _TENSOR:
            return None
        table = self.inner(value, 1)
        allocation = None if table is None else self.field(table, _ALLOCATION)
        if table is None or allocation is None:
            return None
        details = self.pointer(allocation)
        low, high = self.scalar(details, 1, "<I"), self.scalar(details, 2, "<I")
        element = _ELEMENTS.get(self.scalar(table, _TYPE, "<b"))
        if element is None:
            raise UnreadableError("it has tensors of a type whose size is not known")
        size = element * math.prod(max(number, 0) for number in self.numbers(table, _SHAPE, "<i"))
        memory, offset = self.scalar(details, 0, "<I"), low + (high << 32)
        if memory >= len(buffers) or offset + size > buffers[memory]:
            raise UnreadableError(f"tensor {index} lies outside its buffer")
        return _Place(index, memory, offset, size)

    def _call(self, instruction: int, names: Sequence[str], delegates: Sequence[str]) -> _Call | None:
        kind, table = self.scalar(instruction, 0, "<B"), self.inner(instruction, 1)
        if table is None or kind not in {_KERNEL_CALL, _DELEGATE_CALL}:
            return None
        number = self.scalar(table, 0, "<i")
        titles = names if kind == _KERNEL_CALL else delegates
        if not 0 <= number < len(titles):
            raise UnreadableError(f"it calls number {number} of {len(titles)}")
        return _Call(titles[number], kind == _DELEGATE_CALL, tuple(self.numbers(table, 1, "<i")))


def _profile(program: Program, method: str) -> MemoryProfile:
    arena = sum(program.buffers[1:])
    if min(program.buffers, default=0) < 0 or len(program.calls) * len(program.places) > _MOST_LIVES:
        return MemoryProfile(method, problem="it has buffers that are none, or more calls than are planned here")
    first, last = _lives(program)
    alive = [
        sorted(
            (place for index, place in program.places.items() if index in first and first[index] <= at <= last[index]),
            key=lambda place: (place.memory, place.offset, -place.size),
        )
        for at in range(len(program.calls))
    ]
    rows = tuple(
        LayerMemory(f"{call.name}:{at}", call.name, _covered(places))
        for at, (call, places) in enumerate(zip(program.calls, alive, strict=True))
    )
    delegates = sorted({call.name for call in program.calls if call.is_delegated})
    facts = {"constants_bytes": program.constants}
    problem = f"{', '.join(delegates)} has memory of its own, which no file tells" if delegates else None
    at = max(range(len(rows)), key=lambda number: rows[number].in_use_bytes, default=None)
    parts = () if at is None else _parts(alive[at], program, first, arena)
    layer = None if at is None else rows[at].name
    # With a delegate the arena alone is no answer to what the model takes.
    weights = None if delegates else program.constants
    return MemoryProfile(method, arena, weights, layer, rows, parts, problem, _OWN_BYTES, facts)


def _lives(program: Program) -> tuple[dict[int, int], dict[int, int]]:
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    for at, call in enumerate(program.calls):
        for index in call.values:
            first.setdefault(index, at)
            last[index] = at
    last |= dict.fromkeys(program.outputs, len(program.calls))
    return first, last


def _covered(places: Sequence[_Place]) -> int:
    """Return the bytes that tensors cover; those that share a place count once."""
    total, end, memory = 0, 0, -1
    for place in places:
        if place.memory != memory:
            memory, end = place.memory, 0
        total += max(0, place.offset + place.size - max(end, place.offset))
        end = max(end, place.offset + place.size)
    return total


def _parts(places: Sequence[_Place], program: Program, first: Mapping[int, int], arena: int) -> tuple[MemoryPart, ...]:
    """Walk through the buffers: tensors by the call that writes them, alignment between them, and what is free."""
    found, at, memory, aligned, free = [], 0, -1, 0, 0
    for place in places:
        if place.memory != memory:
            free += (program.buffers[memory] - at) if memory >= 0 else 0
            memory, at = place.memory, 0
        gap, end = place.offset - at, place.offset + place.size
        if end <= at:
            continue
        aligned, free = (aligned + gap, free) if 0 <= gap < _ALIGNMENT else (aligned, free + max(gap, 0))
        writer = program.calls[first[place.value]].name
        found.append(MemoryPart(f"tensor {place.value} of {writer}:{first[place.value]}", end - max(at, place.offset)))
        at = end
    free += (program.buffers[memory] - at) if memory >= 0 else arena
    found += [MemoryPart("alignment", aligned), MemoryPart("free while this layer runs", free)]
    return tuple(part for part in found if part.size_bytes)
