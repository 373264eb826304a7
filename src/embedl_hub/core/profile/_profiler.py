"""Profilers and their results: one model, its time per module, or several models measured in turns."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

from embedl_device.readers import MOST_DOCUMENT_BYTES, UnreadableError, parse_json, telling
from embedl_device.statistics import Ranked, Ratio, Verdict
from embedl_hub.core.component import (
    CompiledModel,
    Component,
    ComponentOutput,
    LoggedArtifact,
    LoggedMetric,
    NoProviderError,
    RunType,
)
from embedl_hub.core.document import LayerRow, ModuleNotes, ProfileDocument, read_document, write_document
from embedl_hub.errors import OutputError

if TYPE_CHECKING:
    from pathlib import Path

    from embedl_hub.core.context import HubContext
    from embedl_hub.tracking import Run

_INTEGERS = "int8"
_FLOATS = "float32"


@dataclass(frozen=True)
class ModuleTime:
    """What one module of the network costs."""

    name: str  # its qualified name; empty for the network itself
    time_ms: float  # its time with that of all modules inside it
    own_ms: float | None  # the time of its own layers; None when it has none
    share: float | None  # its part of the time of all layers
    layers: int  # how many layers are its own
    # The number format it ran in, as far as the runtime tells; else the one the file asks for.
    precision: str | None = None
    sensitivity: float | None = None  # what quantizing it costs, in the unit of the table
    sensitivity_share: float | None = None  # its part of what quantizing all modules costs

    @property
    def depth(self) -> int:
        """How many modules it lies inside of."""
        return self.name.count(".") + 1 if self.name else 0


@dataclass(frozen=True)
class ModuleTimes:
    """A profile by modules."""

    # A module stands before those inside it, the costliest of its neighbors first. The first is the network.
    rows: tuple[ModuleTime, ...]
    total_ms: float  # the time of all layers
    added_ms: float  # time of layers that the runtime added: they stand for no node of the source
    # Time of layers whose nodes no module is known for, or that the runtime does not lead back to nodes.
    unnamed_ms: float
    unit: str | None = None  # what the sensitivities are
    method: str | None = None  # how they were found out
    problem: str | None = None  # what the model's remarks say that cannot be read

    @property
    def costliest(self) -> tuple[ModuleTime, ...]:
        """The modules that have layers of their own, the costliest first."""
        own = [row for row in self.rows if row.own_ms is not None]
        return tuple(sorted(own, key=lambda row: (-(row.own_ms or 0.0), row.name)))


def module_times(document: ProfileDocument) -> ModuleTimes | None:
    """Add up the layers of a profile document by module; None when it names no modules."""
    notes, layers = document.modules, document.layers
    if notes is None or layers is None:
        return None
    owners: dict[str, list[LayerRow]] = {}
    added = unnamed = 0.0
    for row in layers.rows:
        if row.modules:
            owners.setdefault(row.modules[0], []).append(row)
        elif row.added_by_runtime:
            added += row.time_ms or 0.0
        else:
            unnamed += row.time_ms or 0.0
    total, costs = _time(layers.rows), notes.sensitivity
    unit, method = (None, None) if costs is None else (costs.unit, costs.method)
    return ModuleTimes(tuple(_tree(owners, notes, total)), total, added, unnamed, unit, method, notes.problem)


def _tree(owners: Mapping[str, Sequence[LayerRow]], notes: ModuleNotes, whole: float) -> Iterator[ModuleTime]:
    precisions = notes.precisions
    costs = {} if notes.sensitivity is None else notes.sensitivity.modules
    whole_cost = sum(costs.values())
    is_mixed = not all(word.startswith("float") for word in precisions.values())
    times: dict[str, float] = {}
    for name, rows in owners.items():
        parts = name.split(".") if name else []
        for depth in range(len(parts) + 1):
            above = ".".join(parts[:depth])
            times[above] = times.get(above, 0.0) + _time(rows)
    inside: dict[str, list[str]] = {}
    for name in times:
        if name:
            inside.setdefault(name.rpartition(".")[0], []).append(name)

    waiting = [""] if times else []
    while waiting:
        name = waiting.pop()
        own = owners.get(name)
        own_ms = None if own is None else _time(own)
        share = times[name] / whole if whole else None
        precision = None if own is None else _precision(own, precisions.get(name), is_mixed=is_mixed)
        cost_share = costs[name] / whole_cost if name in costs and whole_cost else None
        yield ModuleTime(name, times[name], own_ms, share, len(own or ()), precision, costs.get(name), cost_share)
        waiting += sorted(inside.get(name, ()), key=lambda inner: (times[inner], inner))


def _precision(rows: Sequence[LayerRow], asked: str | None, *, is_mixed: bool) -> str | None:
    """Return what a module's layers computed in; the runtime's word counts for more than the file's.

    A file that quantizes others and not this one asked for float; one that quantizes nothing was quantized by us.
    """
    ran = {row.integer for row in rows} - {None}
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


def _time(rows: Iterable[LayerRow]) -> float:
    return sum(row.time_ms or 0.0 for row in rows)


@dataclass(frozen=True)
class ProfilingResult(ComponentOutput):
    """How fast a model is, and how far the number can be trusted."""

    latency: LoggedMetric  # mean time of one inference, in ms
    # Its median, in ms; ``latency_p90``, ``latency_p99``, ``latency_min``, ``latency_std`` likewise. A percentile of
    # fewer samples than its bound needs (64 for p90, 130 for p95, 662 for p99) is None.
    latency_median: LoggedMetric | None = None
    latency_p90: LoggedMetric | None = None
    latency_p95: LoggedMetric | None = None
    latency_p99: LoggedMetric | None = None
    # Their 99 % upper bounds, one-sided; None where the samples support none, and the document says why.
    latency_p90_high: LoggedMetric | None = None
    latency_p95_high: LoggedMetric | None = None
    latency_p99_high: LoggedMetric | None = None
    latency_min: LoggedMetric | None = None
    latency_std: LoggedMetric | None = None
    fps: LoggedMetric | None = None  # inferences per second
    load_time: LoggedMetric | None = None  # time to load the model, in ms
    first_latency: LoggedMetric | None = None  # time of the very first inference, in ms
    peak_memory_mb: LoggedMetric | None = None  # peak memory; the document names the method
    arena_peak_mb: LoggedMetric | None = None  # what the runtime's own arena holds, where it tells
    predicted_memory_mb: LoggedMetric | None = None  # arena and weights as predicted before it was sent
    peak_layer: str | None = None  # the layer at which most of the arena is in use, where that is told
    iterations: LoggedMetric | None = None  # measured inferences
    warmup: LoggedMetric | None = None  # inferences before them that do not count
    # ``stable``, ``drifting``, ``throttled``, ``noisy``, ``indicative`` or ``estimated``
    verdict: Verdict | None = None
    verdict_reason: str | None = None  # why
    # One versioned JSON document: raw samples, layers, environment and method.
    output_file: LoggedArtifact | None = None
    layers: tuple[LayerRow, ...] = ()  # what the time went into, in the order it ran
    modules: ModuleTimes | None = None  # the same by modules of the network, where the source model names them

    @classmethod
    def from_document(cls, ctx: HubContext, document: ProfileDocument) -> Self:
        """Build the result of the current run, whose document is at hand."""
        return cls.from_current_run(ctx, layers=document.rows, modules=module_times(document))

    @classmethod
    def from_run(cls, run: Run, **extra: object) -> Self:
        """Build the result of a recorded run again; the layers come from its document."""
        artifact = run.artifacts.get("output_file")
        if "layers" not in extra and artifact is not None and artifact.file_name.endswith(".json"):
            document = read_document(artifact.local())
            extra |= {"layers": document.rows, "modules": module_times(document)}
        if "verdict" in run.params:
            extra.setdefault("verdict", Verdict.of(run.params["verdict"].value))
        return super().from_run(run, **extra)


def log_document(ctx: HubContext, document: ProfileDocument, *, written: Path | None = None) -> None:
    """Keep a document with the current run, and log what every profile has in common; what is not known is left out.

    The page, comparisons, sweeps and the gate read these: the artifact ``output_file``, the metrics of the table, and
    the parameters ``verdict``, ``verdict_reason``, ``memory_method``, ``peak_layer`` and ``runtime_version``.

    Args:
        ctx: A context within a run.
        document: The document.
        written: Its file, where there is one already; else it is written into the run's folder.
    """
    path, client = written or ctx.artifact_dir / "profile.json", ctx.client
    if written is None:
        write_document(document, path)
    client.log_artifact(path, name="output_file")
    for name, value in document.metrics().items():
        client.log_metric(name, value)
    if document.judgement is not None:
        client.log_param("verdict", document.judgement.verdict.value)
        client.log_param("verdict_reason", document.judgement.reason)
    if isinstance(goal := document.fact("goal", "text"), str):
        client.log_param("goal", goal)
    client.log_param("memory_method", document.memory_method)
    if isinstance(layer := document.fact("memory", "peak_layer"), str):
        client.log_param("peak_layer", layer)
    client.log_param("runtime_version", document.runtime.version)


Model = TypeVar("Model", bound=CompiledModel)
Result = TypeVar("Result", bound=ProfilingResult)


class Profiler(Component, Generic[Model, Result]):
    """Measures a compiled model on a device."""

    run_type = RunType.PROFILE

    def run(self, ctx: HubContext, model: Model, *, device: str | None = None) -> Result:
        """Measure a model.

        Args:
            ctx: An open context.
            model: A compiled model.
            device: A device on the context; the first compatible one when not given.
        """
        raise NoProviderError


@dataclass(frozen=True)
class PairedModel:
    """One of the models."""

    name: str  # what the run calls its file: ``input``, ``input_2``, ``input_3`` and so on
    file_name: str  # the file's own name
    latency_median: float  # median time of one inference among the others, in ms
    ratio: Ratio  # its time over the first model's; 1 for the first itself


@dataclass(frozen=True)
class PairedResult(ComponentOutput):
    """How models compare that were measured in turns; the first is what the others are held against."""

    models: tuple[PairedModel, ...]  # the models in the order they were given
    ranking: tuple[Ranked, ...]  # the models from the fastest to the slowest, each held against the next
    # One versioned JSON document: raw samples of each round, its order, environment and method.
    output_file: LoggedArtifact
    rounds: int  # how often each was timed
    # How much of the measured time models stood in the queue for a processor, where the system tells; it is in
    # ``latency_median`` and not in the ratios.
    waiting_share: float | None = None
    verdict: Verdict | None = None  # ``stable``, ``drifting``, ``throttled`` or ``noisy``, said of the ratios
    verdict_reason: str | None = None  # why

    @property
    def ratios(self) -> tuple[Ratio, ...]:
        """Each model's time over the first one's."""
        return tuple(model.ratio for model in self.models)

    @classmethod
    def from_run(cls, run: Run, **extra: object) -> Self:
        """Build the result of a recorded run again; models and ranking come from its document."""
        artifact = run.artifacts.get("output_file")
        if artifact is not None and not {"models", "ranking"} <= set(extra):
            try:
                with telling(), artifact.open() as file:
                    document = parse_json(file.read(MOST_DOCUMENT_BYTES + 1))
                    extra["models"] = tuple(map(_model, document["models"]))
                    ranking = (Ranked(row["model"], _ratio(row["to_next"])) for row in document["ranking"])
                    extra["ranking"] = tuple(ranking)
            except (OSError, UnreadableError) as error:
                raise OutputError(f"The document of run {run.id} cannot be read: {error}. Measure again.") from error
        if "verdict" in run.params:
            extra.setdefault("verdict", Verdict.of(run.params["verdict"].value))
        return super().from_run(run, **extra)


class PairedProfiler(Component, Generic[Model]):
    """Base of the steps that measure several models in turns; a toolchain has at most one, and may add options."""

    run_type = RunType.PROFILE

    def run(
        self, ctx: HubContext, models: Sequence[Model], *, device: str | None = None, samples: int = 200
    ) -> PairedResult:
        """Measure models in turns.

        Args:
            ctx: An open context.
            models: Two or more compiled models; the first is the reference.
            device: A device on the context; the first compatible one when not given.
            samples: At least so many rounds; each times every model once.
        """
        raise NoProviderError


def _model(row: Mapping[str, Any]) -> PairedModel:
    ratio = _ratio(row["ratio"]) or Ratio(1.0)
    return PairedModel(row["artifact"], row["file_name"], row["latency_ms"]["median"], ratio)


def _ratio(value: Mapping[str, float | None] | None) -> Ratio | None:
    return None if value is None or value["value"] is None else Ratio(value["value"], value["low"], value["high"])
