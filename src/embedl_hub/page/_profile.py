"""What a profile run shows: headline numbers, verdict, layers and what they add up to."""

from __future__ import annotations

import json
import math
import statistics
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from embedl_hub.core.profile import ModuleTimes, ProfiledLayer, module_times

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from embedl_hub.tracking import Run

_LARGEST_BYTES = 64_000_000
_BLOCKS = 10
_FEWEST_SAMPLES = 3 * _BLOCKS
# Student's t for ten blocks, 95 % two-sided.
_T_95 = 2.262
_MOST_SAMPLES_DRAWN = 5000


@dataclass(frozen=True)
class Group:
    """Layers that have something in common, together."""

    name: str
    count: int
    time_ms: float | None
    share: float | None


@dataclass(frozen=True)
class Interval:
    """A number and the interval that it is known to, if one is known."""

    value: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Profile:
    """A profile run for the page.

    Attributes:
        latency: The mean, in ms, with its 95 % interval from the means of ten stretches of samples.
        median: The median, in ms, with the interval the document gives.
        layers: In the order they ran.
        modules: The layers added up by modules of the network, where the model names them.
        by_op_type: Largest time first.
        by_unit: Largest time first.
        samples_ms: Every time taken, thinned out where there are very many.
        facts: What was measured, on what and how, as name and value.
        missing: Why there are no layers, if there are none.
    """

    latency: Interval | None = None
    median: Interval | None = None
    peak_memory_mb: float | None = None
    memory_method: str | None = None
    verdict: str | None = None
    verdict_reason: str | None = None
    layers: tuple[ProfiledLayer, ...] = ()
    modules: ModuleTimes | None = None
    by_op_type: tuple[Group, ...] = ()
    by_unit: tuple[Group, ...] = ()
    samples_ms: tuple[float, ...] = ()
    facts: tuple[tuple[str, str], ...] = ()
    missing: str | None = None
    numbers: Mapping[str, float] = field(default_factory=dict)

    @property
    def top_unit(self) -> Group | None:
        """The compute unit that most of the time, or else most of the layers, went to."""
        return self.by_unit[0] if self.by_unit else None


def profile_of(run: Run) -> Profile | None:
    """Return the profile of a run, as far as its document can be read; None for a run that is no profile."""
    if run.type != "PROFILE":
        return None
    document, missing = _document(run)
    rows = _get(document, "layers", "rows")
    layers = tuple(ProfiledLayer.from_row(row) for row in rows if _is_layer(row)) if isinstance(rows, list) else ()
    numbers = {metric.name: metric.value for metric in run.metrics if math.isfinite(metric.value)}
    samples = _samples(document)
    return Profile(
        latency=_mean(numbers.get("latency"), samples),
        median=_median(numbers.get("latency_median"), document),
        peak_memory_mb=numbers.get("peak_memory_mb"),
        memory_method=_text(run, "memory_method"),
        verdict=_text(run, "verdict"),
        verdict_reason=_text(run, "verdict_reason"),
        layers=layers,
        modules=module_times(document) if layers else None,
        by_op_type=_groups(layers, "op_type"),
        by_unit=_groups(layers, "compute_unit"),
        samples_ms=tuple(samples[:: len(samples) // _MOST_SAMPLES_DRAWN + 1]),
        facts=_facts(document),
        missing=missing if missing or layers else "the document holds no layers",
        numbers=numbers,
    )


def _document(run: Run) -> tuple[Mapping[str, Any], str | None]:
    artifact = run.artifacts.get("output_file")
    if artifact is None or artifact.local_path is None or not artifact.file_name.endswith(".json"):
        return {}, "the run kept no profile document"
    if artifact.size_bytes > _LARGEST_BYTES:
        return {}, f"the profile document has {artifact.size_bytes} bytes, too many to show; download it instead"
    try:
        content = json.loads(artifact.local_path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        return {}, f"the profile document cannot be read ({type(error).__name__})"
    return (content, None) if isinstance(content, dict) else ({}, "the profile document is no object")


def _is_layer(row: object) -> bool:
    return isinstance(row, dict) and "name" in row


def _samples(document: Mapping[str, Any]) -> list[float]:
    samples = document.get("samples_us")
    known = samples if isinstance(samples, list) else []
    return [value / 1000 for value in known if isinstance(value, int | float) and math.isfinite(value)]


def _mean(value: float | None, samples: Sequence[float]) -> Interval | None:
    """Return the mean with an interval. Samples resemble their neighbours; the means of whole stretches less so."""
    if value is None:
        return None
    if len(samples) < _FEWEST_SAMPLES:
        return Interval(value)
    size = len(samples) / _BLOCKS
    means = [statistics.fmean(samples[int(n * size) : int((n + 1) * size)]) for n in range(_BLOCKS)]
    half = _T_95 * statistics.stdev(means) / math.sqrt(_BLOCKS)
    return Interval(value, max(0.0, value - half), value + half)


def _median(value: float | None, document: Mapping[str, Any]) -> Interval | None:
    low, high = (_get(document, "latency_ms", name) for name in ("median_low", "median_high"))
    known = isinstance(low, int | float) and isinstance(high, int | float)
    return None if value is None else Interval(value, low if known else None, high if known else None)


def _groups(layers: Sequence[ProfiledLayer], attribute: str) -> tuple[Group, ...]:
    together: dict[str, list[ProfiledLayer]] = {}
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
    ("optimisation", ("settings", "level")), ("data", ("data", "source")), ("place", ("place",)),
    ("processor", ("environment", "board", "cpu")), ("system", ("environment", "board", "system")),
    ("governor", ("environment", "before", "governor")),
    ("temperature before, °C", ("environment", "before", "temperature_c")),
    ("temperature after, °C", ("environment", "after", "temperature_c")),
    ("clock", ("method", "clock")), ("warm-up rule", ("method", "warmup_rule")), ("stop rule", ("method", "stop_rule")),
    ("percentiles", ("method", "percentile_rule")),
)  # fmt: skip


def _facts(document: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    found = [(name, _get(document, *path)) for name, path in _FACTS]
    return tuple(
        (name, ", ".join(map(str, value)) if isinstance(value, list) else str(value))
        for name, value in found
        if value is not None
    )


def _get(document: Mapping[str, Any], *keys: str) -> Any:  # noqa: ANN401 - any JSON
    found: Any = document
    for key in keys:
        found = found.get(key) if isinstance(found, dict) else None
    return found


def _text(run: Run, name: str) -> str | None:
    return str(run.params[name].value) if name in run.params and run.params[name].value is not None else None
