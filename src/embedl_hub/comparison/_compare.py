"""Runs side by side: first what differs in what was measured, then the ratios and how far they can be trusted."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from embedl_hub.comparison._facts import FACTS, Document, facts_of, read_document
from embedl_hub.comparison._layers import LayerRow, overlay
from embedl_hub.comparison._statistics import RATES, Error, Ratio, error_of, ratio_of, take
from embedl_hub.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from embedl_hub.tracking import Run

_UNITS = {
    "fps": "1/s", "load_time": "ms", "first_latency": "ms", "peak_memory_mb": "MB", "model_size_mb": "MB",
}  # fmt: skip
# How a measurement was made, not what came out.
_EFFORT = frozenset({"iterations", "warmup"})
# The order in which a reader asks; others follow by name.
_FIRST = (
    "latency_median", "latency", "latency_p90", "latency_p99", "latency_min", "latency_std", "fps", "load_time",
    "first_latency", "peak_memory_mb",
)  # fmt: skip
_TRUSTED = (None, "stable")


@dataclass(frozen=True)
class ComparedRun:
    """One of the runs.

    Attributes:
        verdict: What the profiler thinks of its own numbers; None for runs that are no profiles.
        missing: Why there are no samples and layers, if there are none.
    """

    id: str
    name: str
    project: str
    type: str
    status: str
    device: str | None
    started_ms: int
    error: str | None
    verdict: str | None
    verdict_reason: str | None
    missing: str | None


@dataclass(frozen=True)
class FactRow:
    """One fact or parameter in each run; None where it is not known."""

    name: str
    values: tuple[str | None, ...]

    @property
    def differs(self) -> bool:
        """Whether two runs are known to differ in it."""
        return len({value for value in self.values if value is not None}) > 1

    @property
    def is_partly_unknown(self) -> bool:
        """Whether some run does not tell, while another does."""
        return None in self.values and any(value is not None for value in self.values)


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
        return "not known" if ratio is None else conclusion_of(self.name, ratio)


def conclusion_of(metric: str, ratio: Ratio) -> str:
    """Say in words what a ratio of a metric shows: ``slower``, ``no difference shown`` and so on."""
    shows = ratio.shows_difference
    if shows is None:
        return "the same" if ratio.value == 1 else "no uncertainty known"
    if not shows:
        return "no difference shown"
    is_more = ratio.value > 1
    if metric.startswith("latency"):
        return "slower" if is_more else "faster"
    if metric in RATES:
        return "faster" if is_more else "slower"
    return "higher" if is_more else "lower"


@dataclass(frozen=True)
class Comparison:
    """Two or more runs side by side; the first is what the others are held against. Plain data.

    Attributes:
        runs: The runs.
        facts: What was measured on what: model, precision, runtime, device, threads, power, batch and so on.
        params: Further parameters that differ.
        metrics: The numbers, with their ratios to the first run.
        layers: What each part of the model costs in each run.
        cautions: What a reader must know before believing a ratio.
    """

    runs: tuple[ComparedRun, ...]
    facts: tuple[FactRow, ...]
    params: tuple[FactRow, ...]
    metrics: tuple[MetricRow, ...]
    layers: tuple[LayerRow, ...]
    cautions: tuple[str, ...]

    @property
    def differences(self) -> tuple[FactRow, ...]:
        """The facts that differ: they come before any ratio."""
        return tuple(row for row in self.facts if row.differs)

    def headline(self) -> tuple[str, ...]:
        """Return one sentence per further run about the first metric with an interval, else about the first."""
        row = next((row for row in self.metrics if any(r and r.low is not None for r in row.ratios)), None)
        row = row or next(iter(self.metrics), None)
        if row is None:
            return ()
        return tuple(_sentence(self.runs, row, number) for number in range(1, len(self.runs)))

    def as_dict(self) -> dict[str, Any]:
        """Return everything as plain JSON values."""
        values = asdict(self)
        for given, row in zip(values["facts"], self.facts, strict=True):
            given["differs"] = row.differs
        for given, metric in zip(values["metrics"], self.metrics, strict=True):
            given["conclusions"] = [metric.conclusion(number) for number in range(len(self.runs))]
        values["headline"] = list(self.headline())
        plain: dict[str, Any] = json.loads(json.dumps(values))
        return plain


def compare(runs: Sequence[Run]) -> Comparison:
    """Hold runs against the first of them.

    Args:
        runs: Two or more runs with their values, as ``Store.run`` gives them. Failed runs and runs that are no
            profiles are welcome; what they lack is left out.
    """
    if len(runs) < 2:
        raise ConfigError(f"A comparison needs two runs or more, not {len(runs)}.")
    if len({run.id for run in runs}) < len(runs):
        raise ConfigError("A run was given twice; against itself it shows no difference.")
    documents = [read_document(run) for run in runs]
    facts = [facts_of(run, document) for run, document in zip(runs, documents, strict=True)]
    fact_rows = tuple(FactRow(name, tuple(fact[name] for fact in facts)) for name in FACTS)
    compared = tuple(_compared(run, document) for run, document in zip(runs, documents, strict=True))
    return Comparison(
        runs=compared,
        facts=tuple(row for row in fact_rows if any(value is not None for value in row.values)),
        params=_differing_params(runs),
        metrics=_metric_rows(runs, documents),
        layers=overlay([document.layers for document in documents]),
        cautions=_cautions(compared, fact_rows),
    )


def _compared(run: Run, document: Document) -> ComparedRun:
    verdict, reason = run.params.get("verdict"), run.params.get("verdict_reason")
    is_profile = run.type == "PROFILE"
    return ComparedRun(
        id=run.id,
        name=run.name,
        project=run.project,
        type=run.type,
        status=str(run.status),
        device=run.device,
        started_ms=run.started_ms,
        error=run.error,
        verdict=None if verdict is None else str(verdict.value),
        verdict_reason=None if reason is None else str(reason.value),
        missing=document.missing if is_profile else None,
    )


def _differing_params(runs: Sequence[Run]) -> tuple[FactRow, ...]:
    names = sorted({name for run in runs for name in run.params if name not in {"verdict", "verdict_reason"}})
    rows = []
    for name in names:
        values = [run.params[name].value if name in run.params else None for run in runs]
        row = FactRow(name, tuple(None if value is None else _text(value) for value in values))
        if row.differs or (row.is_partly_unknown and not name.startswith("$")):
            rows.append(row)
    return tuple(rows)


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, sort_keys=True)


def _metric_rows(runs: Sequence[Run], documents: Sequence[Document]) -> tuple[MetricRow, ...]:
    names = {metric.name for run in runs for metric in run.metrics} - _EFFORT
    ordered = [name for name in _FIRST if name in names] + sorted(names - set(_FIRST))
    samples = [take(document.samples_us) for document in documents]
    rows = []
    for name in ordered:
        values = [_finite(run, name) for run in runs]
        errors = [error_of(name, taken) for taken in samples]
        ratios = [_ratio(values, errors, place) for place in range(len(runs))]
        unit = _UNITS.get(name, "ms" if name.startswith("latency") else "")
        rows.append(MetricRow(name, unit, tuple(values), tuple(ratios)))
    return tuple(rows)


def _ratio(values: Sequence[float | None], errors: Sequence[Error | None], place: int) -> Ratio | None:
    value, first = values[place], values[0]
    if place == 0 or value is None or first is None or first == 0:
        return None
    return ratio_of(value, first, errors[place], errors[0])


def _finite(run: Run, name: str) -> float | None:
    metric = run.metric(name)
    return metric.value if metric is not None and math.isfinite(metric.value) else None


def _cautions(runs: Sequence[ComparedRun], facts: Sequence[FactRow]) -> tuple[str, ...]:
    said = [f"Run {run.id} ({run.name}) is {run.status}: {run.error or 'no reason kept'}" for run in runs
            if run.status != "FINISHED"]  # fmt: skip
    said += [f"Run {run.id}: {run.missing}, so its numbers come without an interval." for run in runs if run.missing]
    said += [
        f"Run {run.id} is {run.verdict} ({run.verdict_reason}): measure it again before believing a ratio."
        for run in runs
        if run.verdict not in _TRUSTED
    ]
    unknown = [row.name for row in facts if row.is_partly_unknown]
    if unknown:
        said.append(f"Not every run tells its {', '.join(unknown)}; they may differ there too.")
    if sum(run.type == "PROFILE" for run in runs) > 1:
        said.append(
            "Intervals come from the samples within each run; what changed between the runs is not in them. "
            "To be sure, measure in turns: embedl-hub gate."
        )
    return tuple(said)


def _sentence(runs: Sequence[ComparedRun], row: MetricRow, number: int) -> str:
    ratio, pair = row.ratios[number], f"{runs[number].id} against {runs[0].id}: {row.name}"
    if ratio is None:
        return f"{pair} cannot be compared"
    interval = "" if ratio.low is None or ratio.high is None else f" ({ratio.low:.3f} to {ratio.high:.3f})"
    return f"{pair} × {ratio.value:.3f}{interval}: {row.conclusion(number)}"
