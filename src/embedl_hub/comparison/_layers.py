"""Layers of several runs, one over the other: matched by the nodes of the source model they stand for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


@dataclass(frozen=True)
class LayerRow:
    """What one part of the source model costs in each run.

    Runtimes fuse differently; a row is the smallest part that no run cuts through.

    Attributes:
        name: The part: its nodes, or the runtime's own word for what it added.
        source_nodes: The nodes of the source model; empty for what a runtime added.
        op_types: The runtime's operators in each run; empty where the run has none of it.
        compute_units: Where each run computed it.
        times_ms: Its time in each run; None where the run has none of it or told no time.
    """

    name: str
    source_nodes: tuple[str, ...]
    op_types: tuple[tuple[str, ...], ...]
    compute_units: tuple[tuple[str, ...], ...]
    times_ms: tuple[float | None, ...]


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
        """Make names one part."""
        for name in names[1:]:
            self._parent[self.find(name)] = self.find(names[0])


def overlay(tables: Sequence[Sequence[Mapping[str, Any]]]) -> tuple[LayerRow, ...]:
    """Return the layer tables of several runs as rows over all of them."""
    parts = _Parts()
    for rows in tables:
        for row in rows:
            if names := _nodes(row):
                parts.join(names)
    groups: dict[tuple[str, str], list[list[Mapping[str, Any]]]] = {}
    for number, rows in enumerate(tables):
        for row in rows:
            names = _nodes(row)
            # What a runtime adds or renames is called otherwise in each run; its operator is all that can be compared.
            key = ("nodes", parts.find(names[0])) if names else ("added", str(row.get("op_type") or row["name"]))
            groups.setdefault(key, [[] for _ in tables])[number].append(row)
    return tuple(_row(key, columns) for key, columns in groups.items())


def _row(key: tuple[str, str], columns: Sequence[Sequence[Mapping[str, Any]]]) -> LayerRow:
    nodes = tuple(dict.fromkeys(name for rows in columns for row in rows for name in _nodes(row)))
    return LayerRow(
        name=" + ".join(nodes) if nodes else f"{key[1]}, no source node known",
        source_nodes=nodes,
        op_types=tuple(_words(rows, "op_type") for rows in columns),
        compute_units=tuple(_words(rows, "compute_unit") for rows in columns),
        times_ms=tuple(_time(rows) for rows in columns),
    )


def _nodes(row: Mapping[str, Any]) -> tuple[str, ...]:
    names = row.get("source_nodes")
    return tuple(map(str, names)) if isinstance(names, list) else ()


def _words(rows: Sequence[Mapping[str, Any]], key: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(str(row[key]) for row in rows if row.get(key)))


def _time(rows: Sequence[Mapping[str, Any]]) -> float | None:
    times = [row.get("time_ms") for row in rows]
    known = [float(time) for time in times if isinstance(time, int | float)]
    return sum(known) if known else None
