"""Layers and modules of several runs, one over the other, and what leaving a module in float would cost."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from embedl_hub.core.document import LayerRow
    from embedl_hub.core.profile import ModuleTime, ModuleTimes

# A module is worth a sentence for this part of the whole loss, or when float is faster by this part of the whole time.
_WORTH_SAYING = 0.005
_WORTH_SAVING = 0.01


@dataclass(frozen=True)
class ComparedLayer:
    """What one part of the source model costs in each run.

    Runtimes fuse differently; a row is the smallest part that no run cuts through.
    """

    name: str  # the part: its nodes, or the runtime's own word for what it added
    source_nodes: tuple[str, ...]  # the nodes of the source model; empty for what a runtime added
    op_types: tuple[tuple[str, ...], ...]  # the runtime's operators in each run; empty where the run has none of it
    compute_units: tuple[tuple[str, ...], ...]  # where each run computed it
    times_ms: tuple[float | None, ...]  # its time in each run; None where the run has none of it or told no time


class _Parts:
    """Names that belong together, however long the chain between them."""

    def __init__(self) -> None:
        self._parent: dict[str, str] = {}

    def find(self, name: str) -> str:
        """Return the one name that stands for all it belongs to."""
        path = []
        while (parent := self._parent.setdefault(name, name)) != name:
            path.append(name)
            name = parent
        for step in path:
            self._parent[step] = name
        return name

    def join(self, names: Sequence[str]) -> None:
        for name in names[1:]:
            self._parent[self.find(name)] = self.find(names[0])


def overlay(tables: Sequence[Sequence[LayerRow]]) -> tuple[ComparedLayer, ...]:
    """Return the layer tables of several runs as rows over all of them."""
    parts = _Parts()
    for rows in tables:
        for row in rows:
            if row.source_nodes:
                parts.join(row.source_nodes)
    groups: dict[tuple[str, str], list[list[LayerRow]]] = {}
    for number, rows in enumerate(tables):
        for row in rows:
            names = row.source_nodes
            # What a runtime adds or renames is called otherwise in each run; its operator is all that can be compared.
            key = ("nodes", parts.find(names[0])) if names else ("added", row.op_type or row.name)
            groups.setdefault(key, [[] for _ in tables])[number].append(row)
    return tuple(_layer_row(key, columns) for key, columns in groups.items())


def _layer_row(key: tuple[str, str], columns: Sequence[Sequence[LayerRow]]) -> ComparedLayer:
    nodes = tuple(dict.fromkeys(name for rows in columns for row in rows for name in row.source_nodes))
    return ComparedLayer(
        name=" + ".join(nodes) if nodes else f"{key[1]}, no source node known",
        source_nodes=nodes,
        op_types=tuple(_words(rows, "op_type") for rows in columns),
        compute_units=tuple(_words(rows, "compute_unit") for rows in columns),
        times_ms=tuple(_time(rows) for rows in columns),
    )


def _words(rows: Sequence[LayerRow], attribute: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(word for row in rows if (word := str(getattr(row, attribute)))))


def _time(rows: Sequence[LayerRow]) -> float | None:
    known = [row.time_ms for row in rows if row.time_ms is not None]
    return sum(known) if known else None


@dataclass(frozen=True)
class ModuleRow:
    """What one module of the network costs in each run; None where a run does not name it."""

    name: str  # its qualified name; empty for the network itself
    times_ms: tuple[float | None, ...]  # its time with that of all modules inside it
    own_ms: tuple[float | None, ...]  # the time of its own layers
    precisions: tuple[str | None, ...]  # the number format it ran in
    sensitivity_share: float | None  # its part of what quantizing all modules costs, by the first run that tells it

    @property
    def depth(self) -> int:
        """How many modules it lies inside of."""
        return self.name.count(".") + 1 if self.name else 0


@dataclass(frozen=True)
class FloatChoice:
    """What leaving one module in float would cost and win back, told by a float run and a quantized one.

    Both are times of layers run one by one, without an interval; where quantized neighbors meet a float module,
    conversions come on top.
    """

    name: str
    float_run: int  # number of the run in which it is float; in ``quantized_run`` it is not
    quantized_run: int
    float_ms: float  # its own layers in float
    quantized_ms: float
    sensitivity_share: float  # the part of what quantizing all modules costs that would be gone

    @property
    def extra_ms(self) -> float:
        """What an inference would take longer."""
        return self.float_ms - self.quantized_ms

    def sentence(self) -> str:
        """Say it in words."""
        name = self.name or "what the network itself computes"
        time = f"costs +{self.extra_ms:.3g} ms" if self.extra_ms > 0 else f"saves {-self.extra_ms:.3g} ms"
        return f"Leaving {name} in float {time} and wins back {self.sensitivity_share:.1%} of the quantization loss."


def overlay_modules(tables: Sequence[ModuleTimes | None]) -> tuple[ModuleRow, ...]:
    """Return the module tables of several runs as rows over all of them, the costliest of neighbors first."""
    columns = [{} if times is None else {row.name: row for row in times.rows} for times in tables]
    names = {name for column in columns for name in column}

    def cost(name: str) -> float:
        return max(column[name].time_ms for column in columns if name in column)

    inside: dict[str, list[str]] = {}
    for name in names - {""}:
        inside.setdefault(name.rpartition(".")[0], []).append(name)
    waiting, rows = [""] if names else [], []
    while waiting:
        name = waiting.pop()
        rows.append(_module_row(name, [column.get(name) for column in columns]))
        waiting += sorted(inside.get(name, ()), key=lambda inner: (cost(inner), inner))
    return tuple(rows)


def _module_row(name: str, times: Sequence[ModuleTime | None]) -> ModuleRow:
    shares = (each.sensitivity_share for each in times if each is not None and each.sensitivity_share is not None)
    return ModuleRow(
        name=name,
        times_ms=tuple(None if each is None else each.time_ms for each in times),
        own_ms=tuple(None if each is None else each.own_ms for each in times),
        precisions=tuple(None if each is None else each.precision for each in times),
        sensitivity_share=next(shares, None),
    )


def float_choices(rows: Sequence[ModuleRow]) -> tuple[FloatChoice, ...]:
    """Return which modules to leave in float, the most accuracy for the least time first.

    Rows of one pair of runs stand together; a module that is not worth a sentence is left out.
    """
    choices = [
        choice
        for row in rows
        for choice in _choices(row)
        if choice.sensitivity_share >= _WORTH_SAYING
        or -choice.extra_ms > _WORTH_SAVING * (rows[0].times_ms[choice.quantized_run] or 0.0)
    ]
    return tuple(sorted(choices, key=lambda choice: (choice.quantized_run, *_order(choice))))


def _choices(row: ModuleRow) -> Iterator[FloatChoice]:
    known = [
        (number, time, precision.startswith("float"))
        for number, (time, precision) in enumerate(zip(row.own_ms, row.precisions, strict=True))
        if time is not None and precision is not None
    ]
    plain = next(((number, time) for number, time, is_float in known if is_float), None)
    if plain is None or row.sensitivity_share is None:
        return
    for number, time, is_float in known:
        if not is_float:
            yield FloatChoice(row.name, plain[0], number, plain[1], time, row.sensitivity_share)


def _order(choice: FloatChoice) -> tuple[bool, float]:
    if choice.extra_ms <= 0:
        return False, choice.extra_ms
    return True, choice.extra_ms / choice.sensitivity_share
