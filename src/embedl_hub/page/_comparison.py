"""Runs side by side, for the compare page: what differs first, then the ratios to the first run."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from embedl_hub.errors import ConfigError
from embedl_hub.page import _words
from embedl_hub.page._profile import Interval, Profile, profile_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from embedl_hub.core.profile import ProfiledLayer
    from embedl_hub.tracking import Run

_VERDICT = frozenset({"verdict", "verdict_reason"})
_HOW_MEASURED = frozenset({"iterations", "warmup"})


@dataclass(frozen=True)
class FactRow:
    """One fact or parameter in each run; None where it is not known."""

    name: str
    values: tuple[str | None, ...]

    @property
    def differs(self) -> bool:
        """Whether two runs are known to differ in it."""
        return len({value for value in self.values if value is not None}) > 1


@dataclass(frozen=True)
class Ratio:
    """One number over another, with the interval that the two intervals allow."""

    value: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class MetricRow:
    """One metric in each run, and its ratio to the first run; None where a run does not have it."""

    name: str
    unit: str
    values: tuple[float | None, ...]
    ratios: tuple[Ratio | None, ...]

    def conclusion(self, number: int) -> str:
        """Say in words what the ratio of a run to the first shows."""
        ratio = self.ratios[number]
        if ratio is None:
            return "not known"
        if ratio.low is None or ratio.high is None:
            return "no uncertainty known"
        if ratio.low <= 1 <= ratio.high:
            return "no difference shown"
        return "slower" if ratio.value > 1 else "faster"


@dataclass(frozen=True)
class LayerRow:
    """What one part of the source model costs in each run."""

    name: str
    op_types: tuple[tuple[str, ...], ...]
    times_ms: tuple[float | None, ...]


@dataclass(frozen=True)
class Comparison:
    """Two or more runs side by side; the first is what the others are held against."""

    facts: tuple[FactRow, ...]
    params: tuple[FactRow, ...]
    metrics: tuple[MetricRow, ...]
    layers: tuple[LayerRow, ...]
    cautions: tuple[str, ...]

    @property
    def differences(self) -> tuple[FactRow, ...]:
        """The facts that differ: they come before any ratio."""
        return tuple(row for row in self.facts if row.differs)


def compare(runs: Sequence[Run]) -> Comparison:
    """Hold runs against the first of them."""
    if len({run.id for run in runs}) < len(runs):
        raise ConfigError("A run was given twice; against itself it shows no difference.")
    profiles = [profile_of(run) or Profile() for run in runs]
    return Comparison(
        _facts(runs, profiles), _params(runs), _metrics(runs, profiles), _layers(profiles), _cautions(runs)
    )


def _facts(runs: Sequence[Run], profiles: Sequence[Profile]) -> tuple[FactRow, ...]:
    tables = [{"model": _model(run), "device": run.device, "provider": run.provider} for run in runs]
    for table, profile in zip(tables, profiles, strict=True):
        table.update(dict(profile.facts))
    names = list(dict.fromkeys(name for table in tables for name in table))
    return tuple(FactRow(name, tuple(table.get(name) for table in tables)) for name in names)


def _model(run: Run) -> str | None:
    artifact = run.artifacts.get("input")
    return None if artifact is None else f"{artifact.file_name} ({artifact.sha256[:12]})"


def _params(runs: Sequence[Run]) -> tuple[FactRow, ...]:
    names = sorted({name for run in runs for name in run.params} - _VERDICT)
    values = {
        name: tuple(_words.value(run.params[name].value) if name in run.params else None for run in runs)
        for name in names
    }
    return tuple(FactRow(name, of_runs) for name, of_runs in values.items() if len(set(of_runs)) > 1)


def _metrics(runs: Sequence[Run], profiles: Sequence[Profile]) -> tuple[MetricRow, ...]:
    names = list(
        dict.fromkeys(metric.name for run in runs for metric in run.metrics if metric.name not in _HOW_MEASURED)
    )
    rows = []
    for name in names:
        found = [_interval(run, profile, name) for run, profile in zip(runs, profiles, strict=True)]
        ratios = (None, *(_ratio(interval, found[0]) for interval in found[1:]))
        unit = "ms" if name.startswith("latency") or name in {"load_time", "first_latency"} else ""
        rows.append(MetricRow(name, unit, tuple(one.value if one else None for one in found), ratios))
    return tuple(rows)


def _interval(run: Run, profile: Profile, name: str) -> Interval | None:
    metric = run.metric(name)
    if metric is None or not math.isfinite(metric.value):
        return None
    known = {"latency": profile.latency, "latency_median": profile.median}
    return known.get(name) or Interval(metric.value)


def _ratio(one: Interval | None, first: Interval | None) -> Ratio | None:
    if one is None or first is None or first.value == 0:
        return None
    if one.low is None or one.high is None or not first.low or first.high is None:
        return Ratio(one.value / first.value)
    return Ratio(one.value / first.value, one.low / first.high, one.high / first.low)


def _layers(profiles: Sequence[Profile]) -> tuple[LayerRow, ...]:
    rows: dict[str, list[list[ProfiledLayer]]] = {}
    for number, profile in enumerate(profiles):
        for layer in profile.layers:
            name = " + ".join(layer.source_nodes) or f"{layer.op_type}, added by the runtime"
            rows.setdefault(name, [[] for _ in profiles])[number].append(layer)
    return tuple(
        LayerRow(
            name,
            tuple(tuple(dict.fromkeys(layer.op_type for layer in layers)) for layers in columns),
            tuple(sum(layer.time_ms or 0.0 for layer in layers) if layers else None for layers in columns),
        )
        for name, columns in rows.items()
    )


def _cautions(runs: Sequence[Run]) -> tuple[str, ...]:
    said = [f"{run.name} ({run.id}) is {run.status}: {run.error or 'no reason kept'}" for run in runs
            if run.status != "FINISHED"]  # fmt: skip
    verdicts = [(run, str(run.params["verdict"].value)) for run in runs if "verdict" in run.params]
    said += [f"{run.name} ({run.id}) is {verdict}: measure it again before believing a ratio."
             for run, verdict in verdicts if verdict != "stable"]  # fmt: skip
    return tuple(said)
