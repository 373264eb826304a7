"""One profile: the numbers, the samples, the layers and how far to trust them.

``from_json`` takes what it can: documents of earlier versions lack keys, those of others may hold anything.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Self

from embedl_device import DOCUMENT_FORMAT
from embedl_device.readers import parse_json
from embedl_device.statistics import Judgement, Summary, Verdict
from embedl_hub.core.document import _metrics
from embedl_hub.errors import TrackingError
from embedl_hub.paths import open_plain

if TYPE_CHECKING:
    from embedl_hub.tracking import Run


@dataclass(frozen=True)
class Runtime:
    """What ran the model."""

    name: str | None = None
    version: str | None = None
    available: tuple[str, ...] = ()


@dataclass(frozen=True)
class LayerRow:
    """One layer as the runtime ran it."""

    name: str  # the runtime's name for it
    op_type: str = ""  # what it computes
    compute_unit: str = ""  # where: ``CPU``, ``GPU``, ``NPU`` or the runtime's own word
    # Time in one inference, the median of several or the tool's mean; None where the tool tells none.
    time_ms: float | None = None
    share: float | None = None  # its part of the time of all layers
    source_nodes: tuple[str, ...] = ()  # the nodes of the source model it stands for; empty for what the runtime added
    # The modules of the network that these come from, the main one first, where the source tells them.
    modules: tuple[str, ...] = ()
    added_by_runtime: bool = False  # whether it stands for nothing in the source model
    provider: str = ""  # what ran it, in the runtime's word
    # Whether it computed in integers; None for one that only moves or converts, or where nobody tells.
    integer: bool | None = None
    extra: Mapping[str, object] = field(default_factory=dict)  # what only this runtime tells of it

    @classmethod
    def from_json(cls, row: Mapping[str, object]) -> Self:
        """Read a row of a document."""
        known = {name: row.get(name) for name in cls.__dataclass_fields__}
        nodes, integer = _texts(known["source_nodes"]), known["integer"]
        texts = {name: str(known[name] or "") for name in ("op_type", "compute_unit", "provider")}
        return cls(
            name=str(row["name"]),
            time_ms=_number(known["time_ms"]),
            share=_number(known["share"]),
            source_nodes=nodes,
            modules=_texts(known["modules"]),
            # A layer that says it is not added stands for some of the model's nodes, nobody knows which.
            added_by_runtime=not nodes and known["added_by_runtime"] is not False,
            integer=integer if isinstance(integer, bool) else None,
            extra={name: value for name, value in row.items() if name not in known},
            **texts,
        )

    def as_json(self) -> dict[str, object]:
        """Return the row for a document."""
        own = {name: getattr(self, name) for name in self.__dataclass_fields__ if name not in {"extra", "modules"}}
        own["source_nodes"] = list(self.source_nodes)
        return {**own, **({"modules": list(self.modules)} if self.modules else {}), **self.extra}


@dataclass(frozen=True)
class LayerTable:
    """The layers in the order they ran, and what else is told of the runs that showed them."""

    rows: tuple[LayerRow, ...] = ()
    facts: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True)
class Sensitivity:
    """What quantizing each module costs, how that was found out and in which unit."""

    modules: Mapping[str, float]
    unit: str = ""
    method: str = ""


@dataclass(frozen=True)
class ModuleNotes:
    """What the source model says of the modules of its network."""

    precisions: Mapping[str, str] = field(default_factory=dict)  # the number format of each module in the file
    sensitivity: Sensitivity | None = None  # what quantizing each costs; None where nobody asked
    problem: str | None = None  # what could not be read, in words


@dataclass(frozen=True)
class ProfileDocument:
    """Everything that is kept of one profile."""

    latency_ms: Summary = field(default_factory=Summary)  # the headline numbers of one inference
    # Further numbers by the name of their field, such as ``load_time_ms``.
    numbers: Mapping[str, float | None] = field(default_factory=dict)
    samples_us: tuple[float, ...] = ()  # every time that counts, in the order they were taken
    warmup_us: tuple[float, ...] = ()  # those before them
    judgement: Judgement | None = None  # the verdict and its reason
    memory_method: str | None = None  # how memory was found out
    runtime: Runtime = field(default_factory=Runtime)  # what ran the model
    place: str | None = None  # where
    layers: LayerTable | None = None  # what the time went into; None where the document has no table
    modules: ModuleNotes | None = None  # what the source says of its modules; None where it says nothing
    # What else is told: ``tool``, ``settings``, ``data``, ``environment``, ``method``, ``source`` and so on.
    facts: Mapping[str, object] = field(default_factory=dict)

    @property
    def rows(self) -> tuple[LayerRow, ...]:
        """The layers, if there are any."""
        return () if self.layers is None else self.layers.rows

    def with_rows(self, rows: Iterable[LayerRow]) -> Self:
        """Return the document with other layers."""
        return replace(self, layers=replace(self.layers or LayerTable(), rows=tuple(rows)))

    def with_facts(self, **facts: object) -> Self:
        """Return the document with more facts."""
        return replace(self, facts={**self.facts, **facts})

    def fact(self, *keys: str) -> object:
        """Return what is told under a path of keys, or None."""
        value: object = {**self.facts, "runtime": vars(self.runtime), "place": self.place}
        for key in keys:
            value = value.get(key) if isinstance(value, Mapping) else None
        return list(value) if isinstance(value, tuple) else value

    def metrics(self) -> dict[str, float]:
        """Return what the document tells of the metrics in the table."""
        values = {metric.key: self._metric(metric) for metric in _metrics.METRICS}
        return {key: value for key, value in values.items() if value is not None}

    def _metric(self, metric: _metrics.Metric) -> float | None:
        group, _, name = (metric.field or metric.key).rpartition(".")
        value = getattr(self.latency_ms, name) if group == "latency_ms" else self.numbers.get(name)
        if metric.per_second:
            return 1e3 / value if value else None
        return value

    @classmethod
    def from_json(cls, content: Mapping[str, object]) -> Self:
        """Read a document as far as it can be read."""
        latency, layers, runtime = (_section(content, key) for key in ("latency_ms", "layers", "runtime"))
        rows, verdict = layers.pop("rows", None), Verdict.of(content.get("verdict"))
        notes = content.get("modules")
        rest = {key: value for key, value in content.items() if key not in _TYPED}
        numbers = {key: value for key, value in rest.items() if _number(value) is not None}
        return cls(
            latency_ms=Summary(*(_number(latency.get(name)) for name in Summary._fields)),
            numbers={key: value for key, value in numbers.items() if isinstance(value, int | float)},
            samples_us=_numbers(content.get("samples_us")),
            warmup_us=_numbers(content.get("warmup_us")),
            judgement=None if verdict is None else Judgement(verdict, str(content.get("verdict_reason") or "")),
            memory_method=_text(content.get("memory_method")),
            runtime=Runtime(
                _text(runtime.get("name")), _text(runtime.get("version")), _texts(runtime.get("available"))
            ),
            place=_text(content.get("place")),
            layers=LayerTable(
                tuple(LayerRow.from_json(row) for row in rows if isinstance(row, Mapping) and "name" in row), layers
            ) if isinstance(rows, list) else None,
            modules=_notes(notes) if isinstance(notes, Mapping) else None,
            facts={key: value for key, value in rest.items() if key not in numbers},
        )  # fmt: skip

    def as_json(self) -> dict[str, object]:
        """Return the document as it is kept."""
        judged = self.judgement
        content: dict[str, object] = {
            "format": DOCUMENT_FORMAT,
            "runtime": {**vars(self.runtime), "available": list(self.runtime.available)},
            "place": self.place,
            "latency_ms": self.latency_ms._asdict(),
            "samples_us": list(self.samples_us),
            "warmup_us": list(self.warmup_us),
            "verdict": None if judged is None else judged.verdict.value,
            "verdict_reason": None if judged is None else judged.reason,
            "memory_method": self.memory_method,
            **self.numbers,
            **self.facts,
        }
        if self.layers is not None:
            rows = [row.as_json() for row in self.layers.rows]
            content["layers"] = {**self.layers.facts, "rows": rows}
        if self.modules is not None:
            costs = self.modules.sensitivity
            content["modules"] = {
                "precisions": dict(self.modules.precisions),
                "sensitivity": None if costs is None else {**vars(costs), "modules": dict(costs.modules)},
                "problem": self.modules.problem,
            }
        return content


_TYPED = frozenset({
    "format", "latency_ms", "layers", "runtime", "place", "samples_us", "warmup_us", "verdict", "verdict_reason",
    "memory_method", "modules",
})  # fmt: skip


def _notes(value: Mapping[str, object]) -> ModuleNotes:
    given, sensitivity = _section(value, "sensitivity"), None
    if isinstance(costs := given.get("modules"), Mapping):
        modules = {str(name): float(cost) for name, cost in costs.items() if isinstance(cost, int | float)}
        sensitivity = Sensitivity(modules, str(given.get("unit", "")), str(given.get("method", "")))
    precisions = {str(name): str(word) for name, word in _section(value, "precisions").items()}
    return ModuleNotes(precisions, sensitivity, _text(value.get("problem")))


def _section(content: Mapping[str, object], key: str) -> dict[str, object]:
    value = content.get(key)
    return dict(value) if isinstance(value, Mapping) else {}


def _number(value: object) -> float | None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number and math.isfinite(value) else None  # type: ignore[arg-type]


def _numbers(value: object) -> tuple[float, ...]:
    found = map(_number, value) if isinstance(value, list) else ()
    return tuple(number for number in found if number is not None)


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _texts(value: object) -> tuple[str, ...]:
    return tuple(text for text in value if isinstance(text, str)) if isinstance(value, list) else ()


_LARGEST_BYTES = 64_000_000


def write_document(document: ProfileDocument, path: Path) -> None:
    """Write a document."""
    path.write_text(json.dumps(document.as_json(), indent=1), encoding="utf-8")


def read_document(path: Path) -> ProfileDocument:
    """Read a document, or say why it cannot be read."""
    return _read(lambda: open_plain(path))


def _read(opened: Callable[[], BinaryIO]) -> ProfileDocument:
    try:
        with opened() as file:
            content = parse_json(_limited(file))
    except (OSError, ValueError) as error:
        raise TrackingError(f"the profile document cannot be read ({type(error).__name__}: {error})") from error
    if not isinstance(content, dict):
        raise TrackingError("the profile document is no object")
    version = content.get("format", DOCUMENT_FORMAT)
    if version != DOCUMENT_FORMAT:
        raise TrackingError(f"the profile document has format {version!r}, and this hub reads {DOCUMENT_FORMAT}")
    return ProfileDocument.from_json(content)


def _limited(file: BinaryIO) -> bytes:
    # Not what its record says: that came from wherever the file did.
    if (size := os.fstat(file.fileno()).st_size) > _LARGEST_BYTES:
        raise ValueError(f"it has {size} bytes, too many to read")
    return file.read(_LARGEST_BYTES)


def document_of(run: Run) -> tuple[ProfileDocument, str | None]:
    """Return what can be read of a run's document; an empty one, and why, where nothing can."""
    artifact = run.artifacts.get("output_file")
    if artifact is None or not artifact.file_name.endswith(".json"):
        return ProfileDocument(), "the run kept no profile document"
    if artifact.local_path is None:
        return ProfileDocument(), "the profile document is not on this machine"
    if artifact.size_bytes > _LARGEST_BYTES:
        return ProfileDocument(), f"the profile document has {artifact.size_bytes} bytes, too many to show"
    try:
        return _read(artifact.open), None
    except TrackingError as error:
        return ProfileDocument(), str(error)
