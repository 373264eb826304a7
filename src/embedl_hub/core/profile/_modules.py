"""Time per module: layers of a profile added up over the modules of the network that the model was exported from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

_INTEGERS = "int8"
_FLOATS = "float32"


@dataclass(frozen=True)
class ModuleTime:
    """What one module of the network costs.

    Attributes:
        name: Its qualified name; empty for the network itself.
        time_ms: Its time with that of all modules inside it.
        own_ms: The time of its own layers; None when it has none.
        share: Its part of the time of all layers.
        layers: How many layers are its own.
        precision: The number format it ran in, as far as the runtime tells; else the one the file asks for.
        sensitivity: What quantising it costs, in the unit of the table.
        sensitivity_share: Its part of what quantising all modules costs.
    """

    name: str
    time_ms: float
    own_ms: float | None
    share: float | None
    layers: int
    precision: str | None = None
    sensitivity: float | None = None
    sensitivity_share: float | None = None

    @property
    def depth(self) -> int:
        """How many modules it lies inside of."""
        return self.name.count(".") + 1 if self.name else 0


@dataclass(frozen=True)
class ModuleTimes:
    """A profile by modules.

    Attributes:
        rows: A module stands before those inside it, the costliest of its neighbours first. The first is the network.
        total_ms: The time of all layers.
        added_ms: Time of layers that the runtime added: they stand for no node of the source.
        unnamed_ms: Time of layers whose nodes no module is known for, or that the runtime does not lead back to nodes.
        unit: What the sensitivities are.
        method: How they were found out.
        problem: What the model's remarks say that cannot be read.
    """

    rows: tuple[ModuleTime, ...]
    total_ms: float
    added_ms: float
    unnamed_ms: float
    unit: str | None = None
    method: str | None = None
    problem: str | None = None

    @property
    def costliest(self) -> tuple[ModuleTime, ...]:
        """The modules that have layers of their own, the costliest first."""
        own = [row for row in self.rows if row.own_ms is not None]
        return tuple(sorted(own, key=lambda row: (-(row.own_ms or 0.0), row.name)))


def module_times(document: Mapping[str, Any]) -> ModuleTimes | None:
    """Add up the layers of a profile document by module; None when it names no modules."""
    told, layers = document.get("modules"), document.get("layers")
    rows = layers.get("rows") if isinstance(layers, dict) else None
    if not isinstance(told, dict) or not isinstance(rows, list):
        return None
    rows = [row for row in rows if isinstance(row, dict)]
    problem = told.get("problem")
    owners: dict[str, list[Mapping[str, Any]]] = {}
    added = unnamed = 0.0
    for row in rows:
        names = row.get("modules")
        if isinstance(names, list) and names and isinstance(names[0], str):
            owners.setdefault(names[0], []).append(row)
        elif row.get("source_nodes") or row.get("added_by_runtime") is False:
            unnamed += _time(row)
        else:
            added += _time(row)
    costs = _Costs.of(told.get("sensitivity"))
    return ModuleTimes(
        rows=tuple(_tree(owners, _words(told.get("precisions")), costs, sum(map(_time, rows)))),
        total_ms=sum(map(_time, rows)),
        added_ms=added,
        unnamed_ms=unnamed,
        unit=costs.unit,
        method=costs.method,
        problem=problem if isinstance(problem, str) else None,
    )


@dataclass(frozen=True)
class _Costs:
    """What quantising each module costs."""

    values: Mapping[str, float]
    unit: str | None = None
    method: str | None = None

    @classmethod
    def of(cls, told: object) -> _Costs:
        values = told.get("modules") if isinstance(told, dict) else None
        if not isinstance(told, dict) or not isinstance(values, dict):
            return cls({})
        known = {str(name): float(value) for name, value in values.items() if isinstance(value, int | float)}
        return cls(known, str(told.get("unit", "")), str(told.get("method", "")))

    def share(self, name: str) -> float | None:
        whole = sum(self.values.values())
        return self.values[name] / whole if name in self.values and whole else None


def _tree(
    owners: Mapping[str, Sequence[Mapping[str, Any]]], precisions: Mapping[str, str], costs: _Costs, whole: float
) -> Iterator[ModuleTime]:
    is_mixed = not all(word.startswith("float") for word in precisions.values())
    times: dict[str, float] = {}
    for name, rows in owners.items():
        for above in _way_up(name):
            times[above] = times.get(above, 0.0) + sum(map(_time, rows))
    inside: dict[str, list[str]] = {}
    for name in times:
        if name:
            inside.setdefault(name.rpartition(".")[0], []).append(name)

    waiting = [""] if times else []
    while waiting:
        name = waiting.pop()
        own = owners.get(name)
        yield ModuleTime(
            name=name,
            time_ms=times[name],
            own_ms=None if own is None else sum(map(_time, own)),
            share=times[name] / whole if whole else None,
            layers=len(own or ()),
            precision=None if own is None else _precision(own, precisions.get(name), is_mixed=is_mixed),
            sensitivity=costs.values.get(name),
            sensitivity_share=costs.share(name),
        )
        waiting += sorted(inside.get(name, ()), key=lambda one: (times[one], one))


def _way_up(name: str) -> Iterator[str]:
    """Yield a name and those of all modules around it, the network last."""
    yield name
    while name:
        name = name.rpartition(".")[0]
        yield name


def _precision(rows: Sequence[Mapping[str, Any]], asked: str | None, *, is_mixed: bool) -> str | None:
    """Return what a module's layers computed in; the runtime's word counts for more than the file's.

    A file that quantises others and not this one asked for float; one that quantises nothing was quantised by us.
    """
    ran = {row.get("integer") for row in rows} - {None}
    if not ran:
        return asked
    is_float = asked is None or asked.startswith("float")
    if ran == {True}:
        told = f"{_INTEGERS}, asked for {asked}" if is_mixed and asked is not None else _INTEGERS
        return told if is_float else asked
    word = asked if asked is not None and is_float else _FLOATS
    if ran == {False}:
        return word if is_float else f"{word}, asked for {asked}"
    return f"{_INTEGERS if is_float else asked} and {_FLOATS}"


def _words(value: object) -> dict[str, str]:
    return {str(name): str(word) for name, word in value.items()} if isinstance(value, dict) else {}


def _time(row: Mapping[str, Any]) -> float:
    time = row.get("time_ms")
    return float(time) if isinstance(time, int | float) and not isinstance(time, bool) else 0.0
