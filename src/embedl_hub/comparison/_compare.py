"""Runs side by side: first what differs in what was measured, then the ratios and how far they can be trusted."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from embedl_device.statistics import LogError, Ratio, Series, Verdict, log_error, ratio_of, series_of
from embedl_hub import notebook
from embedl_hub.comparison._overlay import (
    ComparedLayer,
    FloatChoice,
    ModuleRow,
    float_choices,
    overlay,
    overlay_modules,
)
from embedl_hub.core.document import ProfileDocument, document_of, find_metric, in_order
from embedl_hub.core.profile import module_times
from embedl_hub.core.steps import place_of
from embedl_hub.errors import ConfigError

if TYPE_CHECKING:
    from embedl_hub.tracking import Run

# Operators that ONNX Runtime and its optimizer use for integers.
_INTEGER_OPS = ("QLinear", "QGemm", "QuantizeLinear", "DequantizeLinear", "MatMulInteger", "ConvInteger", "QAttention")

# The order is the order in which a reader must look: a ratio between two models means something else than one
# between two boards.
FACTS = (
    "model", "precision", "runtime", "execution providers", "device", "system", "threads", "power", "batch", "data",
    "optimization", "provider",
)  # fmt: skip


@dataclass(frozen=True)
class ComparedRun:
    """One of the runs."""

    id: str
    name: str
    project: str
    type: str
    status: str
    device: str | None
    started_ms: int
    error: str | None
    verdict: Verdict | None  # what the profiler thinks of its own numbers; None for runs that are no profiles
    verdict_reason: str | None
    missing: str | None  # why there are no samples and layers, if there are none

    @property
    def is_estimated(self) -> bool:
        """Whether nothing ran to give its numbers."""
        return self.verdict is not None and not self.verdict.is_measured


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

    def cell(self, number: int) -> str:
        """Return a run's value with what it shows."""
        value = self.values[number]
        text = "" if value is None else notebook.short(value)
        return f"{text} ({self.conclusion(number)})" if number and text else text


def conclusion_of(metric: str, ratio: Ratio) -> str:
    """Say in words what a ratio of a metric shows: ``slower``, ``no difference shown`` and so on."""
    if find_metric(metric).is_bound:
        return "a bound, not judged"
    shows = ratio.shows_difference
    if shows is None:
        return "the same" if ratio.value == 1 else "no uncertainty known"
    if not shows:
        return "no difference shown"
    return find_metric(metric).difference(is_more=ratio.value > 1)


@dataclass(frozen=True, repr=False)
class Comparison:
    """Two or more runs side by side; the first is what the others are held against. Plain data."""

    runs: tuple[ComparedRun, ...]
    # What was measured on what: model, precision, runtime, device, threads, power, batch and so on
    facts: tuple[FactRow, ...]
    params: tuple[FactRow, ...]  # further parameters that differ
    metrics: tuple[MetricRow, ...]  # the numbers, with their ratios to the first run
    layers: tuple[ComparedLayer, ...]  # what each part of the model costs in each run
    modules: tuple[ModuleRow, ...]  # what each module of the network costs in each run, where the models name them
    # Time of each run's layers that belong to no known module; None where a run names none
    outside_ms: tuple[float | None, ...]
    float_choices: tuple[FloatChoice, ...]  # which modules to leave in float, and what that costs
    cautions: tuple[str, ...]  # what a reader must know before believing a ratio

    def __repr__(self) -> str:
        return notebook.line("Comparison", self.headline() or (run.id for run in self.runs))

    def _repr_html_(self) -> str:
        rows: list[tuple[object, ...]] = [(row.name, *row.values) for row in self.differences]
        rows += [
            (f"{row.name} {row.unit}", *(row.cell(number) for number in range(len(self.runs)))) for row in self.metrics
        ]
        title = "; ".join((*self.headline(), *self.cautions)) or "Comparison"
        return notebook.table(title, rows, ("", *(run.id for run in self.runs)))

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

    def as_dict(self) -> dict[str, object]:
        """Return everything as plain JSON values."""
        values = asdict(self)
        for given, row in zip(values["facts"], self.facts, strict=True):
            given["differs"] = row.differs
        for given, metric in zip(values["metrics"], self.metrics, strict=True):
            given["conclusions"] = [metric.conclusion(number) for number in range(len(self.runs))]
        for given, choice in zip(values["float_choices"], self.float_choices, strict=True):
            given["extra_ms"], given["sentence"] = choice.extra_ms, choice.sentence()
        values["headline"] = list(self.headline())
        plain: dict[str, object] = json.loads(json.dumps(values))
        return plain


def compare(runs: Sequence[Run]) -> Comparison:
    """Hold two or more runs, as ``Store.run`` gives them, against the first; what a run lacks is left out."""
    if len(runs) < 2:
        raise ConfigError(f"A comparison needs two runs or more, not {len(runs)}.")
    if len({run.id for run in runs}) < len(runs):
        raise ConfigError("A run was given twice; against itself it shows no difference.")
    documents, missing = zip(*map(document_of, runs), strict=True)
    facts = [facts_of(run, document) for run, document in zip(runs, documents, strict=True)]
    fact_rows = tuple(FactRow(name, tuple(fact[name] for fact in facts)) for name in FACTS)
    compared = tuple(map(_compared, runs, missing))
    times = [module_times(document) for document in documents]
    modules = overlay_modules(times)
    return Comparison(
        runs=compared,
        facts=tuple(row for row in fact_rows if any(value is not None for value in row.values)),
        # What stands among the facts already is not said twice.
        params=tuple(row for row in _differing_params(runs) if row not in fact_rows),
        metrics=_metric_rows(runs, documents),
        layers=overlay([document.rows for document in documents]),
        modules=modules,
        outside_ms=tuple(None if each is None else each.added_ms + each.unnamed_ms for each in times),
        float_choices=float_choices(modules),
        cautions=_cautions(compared, fact_rows),
    )


def _compared(run: Run, missing: str | None) -> ComparedRun:
    verdict, reason = run.params.get("verdict"), run.params.get("verdict_reason")
    return ComparedRun(
        run.id, run.name, run.project, run.type, str(run.status), run.device, run.started_ms, run.error,
        verdict=None if verdict is None else Verdict.of(verdict.value),
        verdict_reason=None if reason is None else str(reason.value),
        missing=missing if run.type == "PROFILE" else None,
    )  # fmt: skip


# What a run found, and when it held its device: no two runs have the same.
_NO_SETTINGS = frozenset({"verdict", "verdict_reason", "goal", "$claimed"})


def _differing_params(runs: Sequence[Run]) -> tuple[FactRow, ...]:
    names = sorted({name for run in runs for name in run.params if name not in _NO_SETTINGS})
    rows = [FactRow(name, tuple(_text(_param(run, name)) for run in runs)) for name in names]
    return tuple(row for row in rows if row.differs or (row.is_partly_unknown and not row.name.startswith("$")))


def _text(value: object) -> str | None:
    if value is None or isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False, sort_keys=True)


def _metric_rows(runs: Sequence[Run], documents: Sequence[ProfileDocument]) -> tuple[MetricRow, ...]:
    names = {metric.name for run in runs for metric in run.metrics}
    ordered = in_order(name for name in names if not find_metric(name).is_effort)
    samples = [series_of(document.samples_us) for document in documents]

    def row(name: str) -> MetricRow:
        values = tuple(_finite(run, name) for run in runs)
        # A bound holds the uncertainty already; to give it another would count it twice.
        errors = [None if find_metric(name).is_bound else error_of(name, series) for series in samples]
        ratios = tuple(_ratio(values, errors, place) for place in range(len(runs)))
        return MetricRow(name, find_metric(name).unit, values, ratios)

    return tuple(map(row, ordered))


def _ratio(values: Sequence[float | None], errors: Sequence[LogError | None], place: int) -> Ratio | None:
    value, first = values[place], values[0]
    if place == 0 or value is None or first is None or first == 0:
        return None
    return ratio_of(value, first, errors[place], errors[0])


def _finite(run: Run, name: str) -> float | None:
    metric = run.metric(name)
    return metric.value if metric is not None and math.isfinite(metric.value) else None


def _cautions(runs: Sequence[ComparedRun], facts: Sequence[FactRow]) -> tuple[str, ...]:
    cautions = [f"Run {run.id} ({run.name}) is {run.status}: {run.error or 'no reason kept'}" for run in runs
                if run.status != "FINISHED"]  # fmt: skip
    cautions += [
        f"Run {run.id}: {run.missing}, so its numbers come without an interval." for run in runs if run.missing
    ]
    cautions += [
        f"Run {run.id} is {run.verdict} ({run.verdict_reason}): measure it again before believing a ratio."
        for run in runs
        if run.verdict is not None and not run.verdict.is_stable and run.verdict.is_measured
    ]
    cautions += [
        f"The numbers of run {run.id} are estimated, not measured ({run.verdict_reason}): no ratio of them shows which "
        "is faster on a device."
        for run in runs
        if run.is_estimated
    ]
    unknown = [row.name for row in facts if row.is_partly_unknown]
    if unknown:
        cautions.append(f"Not every run tells its {', '.join(unknown)}; they may differ there too.")
    if sum(run.type == "PROFILE" and not run.is_estimated for run in runs) > 1:
        cautions.append(
            "Intervals come from the samples within each run; what changed between the runs is not in them. "
            "To be sure, measure in turns: embedl-hub compare --paired, or embedl-hub gate."
        )
    return tuple(cautions)


def _sentence(runs: Sequence[ComparedRun], row: MetricRow, number: int) -> str:
    ratio, pair = row.ratios[number], f"{runs[number].id} against {runs[0].id}: {row.name}"
    if ratio is None:
        return f"{pair} cannot be compared"
    interval = "" if ratio.low is None or ratio.high is None else f" ({ratio.low:.3f} to {ratio.high:.3f})"
    return f"{pair} × {ratio.value:.3f}{interval}: {row.conclusion(number)}"


def error_of(key: str, series: Series | None) -> LogError | None:
    """Return how far a metric is known from its samples; None where they do not tell."""
    statistic = find_metric(key).statistic
    return None if statistic is None else log_error(series, None if statistic == "mean" else statistic)


def facts_of(run: Run, document: ProfileDocument) -> dict[str, str | None]:
    model, spec = run.artifacts.get("input"), _param(run, "$device_spec")
    spec = spec if isinstance(spec, dict) else {}
    facts = {
        "model": None if model is None else f"{model.title} ({model.sha256[:12]})",
        "precision": _precision(run, document),
        "runtime": _runtime(run, document),
        "execution providers": _joined(document.fact("settings", "providers")),
        "device": _device(run, document, spec),
        "system": document.fact("environment", "board", "system") or spec.get("os"),
        "threads": _threads(document),
        "power": _power(document),
        "batch": _batch(document),
        "data": document.fact("data", "source"),
        "optimization": document.fact("settings", "level"),
        "provider": run.provider,
    }
    return {name: None if facts[name] is None else str(facts[name]) for name in FACTS}


def _precision(run: Run, document: ProfileDocument) -> str | None:
    if isinstance(told := _param(run, "precision"), str):
        return told
    if run.params.get("quantization") is not None:
        return "int8"
    if not document.rows:
        return None
    return "int8" if any(row.op_type.startswith(_INTEGER_OPS) for row in document.rows) else "float"


def _runtime(run: Run, document: ProfileDocument) -> str | None:
    name = document.runtime.name or _param(run, "$runtime")
    version = document.runtime.version or _param(run, "runtime_version")
    return " ".join(str(part) for part in (name, version) if part) or None


def _device(run: Run, document: ProfileDocument, spec: Mapping[str, Any]) -> str | None:
    board = document.fact("environment", "board")
    board = board if isinstance(board, Mapping) else {}
    hardware = [spec.get("device_name") or board.get("model"), board.get("cpu") or spec.get("cpu")]
    described = ", ".join(str(part) for part in hardware if part)
    name = place_of(run) if run.device else document.place or place_of(run)
    return f"{name} ({described})" if name and described else name or described or None


def _threads(document: ProfileDocument) -> str | None:
    settings = document.fact("settings")
    if not isinstance(settings, dict) or "threads" not in settings:
        return None
    cores = document.fact("environment", "board", "cores_usable")
    return str(settings["threads"] or f"left to the runtime, {cores or 'unknown'} cores")


def _power(document: ProfileDocument) -> str | None:
    before = document.fact("environment", "before")
    if not isinstance(before, dict):
        return None
    governor, limit = before.get("governor"), before.get("clock_limit_mhz")
    return ", ".join(filter(None, [str(governor or ""), f"at most {limit} MHz" if limit else ""])) or None


def _batch(document: ProfileDocument) -> str | None:
    inputs = document.fact("data", "inputs")
    if not isinstance(inputs, dict):
        return None
    shapes = {name: value.get("shape") for name, value in inputs.items() if isinstance(value, dict)}
    return ", ".join(f"{name} {_joined(shape, '×')}" for name, shape in sorted(shapes.items())) or None


def _joined(values: object, mark: str = ", ") -> str | None:
    return mark.join(map(str, values)) if isinstance(values, list) and values else None


def _param(run: Run, name: str) -> Any:  # noqa: ANN401 - any JSON
    return run.params[name].value if name in run.params else None
