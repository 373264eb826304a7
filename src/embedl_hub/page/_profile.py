"""What a profile run shows: headline numbers, verdict, layers and what they add up to."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from embedl_device.statistics import PERCENTS, Interval, Verdict, mean_interval
from embedl_hub.core.document import (
    LayerRow,
    MemoryProfile,
    Metric,
    ProfileDocument,
    document_of,
    find_metric,
    in_order,
)
from embedl_hub.core.profile import ModuleTimes, module_times
from embedl_hub.page._measurements import Table, table_of
from embedl_hub.page._memory import memory_picture
from embedl_hub.page._sustained import Chart, chart_of

if TYPE_CHECKING:
    from embedl_hub.tracking import Run

_MOST_SAMPLES_DRAWN = 5000


@dataclass(frozen=True)
class Group:
    """Layers that have something in common, together."""

    name: str
    count: int
    time_ms: float | None
    share: float | None


@dataclass(frozen=True)
class Headline:
    """A number at the top of the page, with its 95 % interval if one is known; the note says how it was found out."""

    metric: Metric
    number: Interval
    note: str = ""


@dataclass(frozen=True)
class TailRow:
    """A percentile with its bound, or why there is none."""

    name: str
    value: float | None
    high: float | None
    samples: int | None = None
    effective: int | None = None  # what the samples count as
    reason: str = ""


@dataclass(frozen=True)
class Memory:
    """A run's memory for the page."""

    picture: str  # as SVG; empty where there is nothing to draw
    heading: str
    method: str
    problem: str | None
    parts: tuple[tuple[str, int, float], ...]  # what the arena is made of at its peak, with bytes and share
    peak_layer: str | None
    fit: str | None  # whether it fits, as it was said before anything was sent


@dataclass(frozen=True)
class Profile:
    """A profile run for the page."""

    # The numbers at its top: the mean with an interval from the means of ten stretches of samples, the median with the
    # interval the document gives
    headlines: tuple[Headline, ...] = ()
    tails: tuple[TailRow, ...] = ()
    verdict: Verdict | None = None
    verdict_reason: str | None = None
    layers: tuple[LayerRow, ...] = ()
    modules: ModuleTimes | None = None  # the layers added up by modules of the network, where the model names them
    by_op_type: tuple[Group, ...] = ()
    by_unit: tuple[Group, ...] = ()
    samples_ms: tuple[float, ...] = ()  # every time taken, thinned out where there are very many
    facts: tuple[tuple[str, str], ...] = ()
    missing: str | None = None  # why there are no layers, if there are none
    kind: Table | None = None  # what another kind of measurement than a profile found
    sustained: Chart | None = None  # a load over time
    memory: Memory | None = None  # what the runtime told of its memory, or what was predicted

    @property
    def layers_ms(self) -> float | None:
        """The time of all layers together, where it is told."""
        times = [layer.time_ms for layer in self.layers if layer.time_ms is not None]
        return sum(times) if times else None

    @property
    def top_unit(self) -> Group | None:
        """The compute unit that most of the time, or else most of the layers, went to."""
        return self.by_unit[0] if self.by_unit else None


def profile_of(run: Run) -> Profile | None:
    """Return the profile of a run, as far as its document can be read; None for a run that is no profile."""
    if run.type != "PROFILE":
        return None
    document, missing = document_of(run)
    layers = document.rows
    samples = [value / 1000 for value in document.samples_us]
    return Profile(
        headlines=tuple(_headlines(run, document, samples)),
        tails=tuple(_tails(document)),
        verdict=Verdict.of(_param(run, "verdict")),
        verdict_reason=_param(run, "verdict_reason"),
        layers=layers,
        modules=module_times(document) if layers else None,
        by_op_type=_groups(layers, "op_type"),
        by_unit=_groups(layers, "compute_unit"),
        samples_ms=tuple(samples[:: len(samples) // _MOST_SAMPLES_DRAWN + 1]),
        facts=_facts(document),
        missing=missing if missing or layers or document.fact("kind") else "the document holds no layers",
        kind=table_of(document),
        sustained=chart_of(document),
        memory=_memory(run, document),
    )


def _memory(run: Run, document: ProfileDocument) -> Memory | None:
    """Return what was measured, else what was predicted; None where a document says nothing of either."""
    told, foreseen = document.facts.get("memory"), document.facts.get("predicted_memory")
    measured = MemoryProfile.from_json(told) if isinstance(told, Mapping) else None
    predicted = MemoryProfile.from_json(foreseen) if isinstance(foreseen, Mapping) else None
    is_measured = measured is not None and bool(measured.rows)
    shown = measured if is_measured else predicted if predicted is not None and predicted.rows else measured
    if shown is None:
        return None
    arena = shown.arena_bytes or 0
    parts = tuple((part.what, part.size_bytes, part.size_bytes / arena if arena else 0.0) for part in shown.parts)
    numbers = {row.name: number for number, row in enumerate(document.rows, 1)}
    is_same_order = len(document.rows) == len(shown.rows) and all(row.name in numbers for row in shown.rows)
    link = "#layer-{}" if is_same_order else None
    return Memory(
        memory_picture(shown, predicted if is_measured else None, link=link),
        "Memory over the layers" if is_measured else "Memory over the layers, predicted",
        shown.method, (measured or shown).problem, parts, shown.peak_layer, _param(run, "memory_fit"),
    )  # fmt: skip


def _headlines(run: Run, document: ProfileDocument, samples: Sequence[float]) -> Iterator[Headline]:
    for key in in_order({metric.name for metric in run.metrics if math.isfinite(metric.value)}):
        metric, logged = find_metric(key), run.metric(key)
        is_goal = document.fact("goal", "metric") == key
        if logged is None or not (metric.column or is_goal) or metric.key != key:
            continue
        if metric.statistic == "mean":
            yield Headline(metric, mean_interval(logged.value, samples))
        elif metric.statistic == 50.0:
            summary = document.latency_ms
            yield Headline(metric, Interval(logged.value, summary.median_low, summary.median_high))
        elif is_goal:
            high = getattr(document.latency_ms, f"{key.removeprefix('latency_')}_high", None)
            bound = "" if high is None else f"at most {high:.4g} ms with 99 % confidence"
            yield Headline(metric, Interval(logged.value), bound)
        else:
            # Only memory says how: a process may be asked for it in many ways.
            note = _param(run, "memory_method") if metric.key == "peak_memory_mb" else None
            low, high = run.metric(f"{key}_low"), run.metric(f"{key}_high")
            ends = (None, None) if low is None or high is None else (low.value, high.value)
            yield Headline(metric, Interval(logged.value, *ends), note or "")


def _tails(document: ProfileDocument) -> Iterator[TailRow]:
    summary = document.latency_ms
    for percent in PERCENTS:
        name = f"p{percent}"
        facts = document.fact("tails", name)
        if not isinstance(facts, Mapping):
            continue
        samples, effective = (_count(facts.get(key)) for key in ("samples", "effective"))
        values = (getattr(summary, name), getattr(summary, f"{name}_high"))
        yield TailRow(name, *values, samples, effective, str(facts.get("reason") or ""))


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _groups(layers: Sequence[LayerRow], attribute: str) -> tuple[Group, ...]:
    together: dict[str, list[LayerRow]] = {}
    for layer in layers:
        together.setdefault(getattr(layer, attribute) or "not told", []).append(layer)
    whole = sum(layer.time_ms or 0.0 for layer in layers)
    groups = []
    for name, members in together.items():
        times = [layer.time_ms for layer in members if layer.time_ms is not None]
        time_ms = sum(times) if times else None
        groups.append(Group(name, len(members), time_ms, time_ms / whole if time_ms is not None and whole else None))
    return tuple(sorted(groups, key=lambda group: (-(group.time_ms or 0.0), -group.count, group.name)))


_FACTS = (
    ("runtime", ("runtime", "name")), ("runtime version", ("runtime", "version")),
    ("execution providers", ("settings", "providers")), ("threads", ("settings", "threads")),
    ("optimization", ("settings", "level")), ("data", ("data", "source")), ("place", ("place",)),
    ("processor", ("environment", "board", "cpu")), ("system", ("environment", "board", "system")),
    ("governor", ("environment", "before", "governor")),
    ("temperature before, °C", ("environment", "before", "temperature_c")),
    ("temperature after, °C", ("environment", "after", "temperature_c")),
    ("rules", ("method", "rules")), ("goal", ("goal", "text")), ("samples kept", ("samples_kept",)),
    ("clock", ("method", "clock")), ("warm-up rule", ("method", "warmup_rule")), ("stop rule", ("method", "stop_rule")),
    ("percentiles", ("method", "percentile_rule")), ("bounds of percentiles", ("method", "bound_rule")),
)  # fmt: skip


def _facts(document: ProfileDocument) -> tuple[tuple[str, str], ...]:
    values = [(name, document.fact(*path)) for name, path in _FACTS]
    return tuple(
        (name, ", ".join(map(str, value)) if isinstance(value, list) else str(value))
        for name, value in values
        if value is not None
    )


def _param(run: Run, name: str) -> str | None:
    return str(run.params[name].value) if name in run.params and run.params[name].value is not None else None
