"""What `verify` found: rows for outputs and boundaries, as a table and as a page of its own."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from html import escape
from math import isfinite
from pathlib import Path
from typing import Any

from embedl_deploy._table import Printed, html_page, html_table, table
from embedl_deploy.dialect import RemedyRow


@dataclass(frozen=True)
class OutputRow:
    """One output of one stage against another stage."""

    output: str
    # What was compared: ``original``, ``transformed``, ``simulated``, ``written`` (the file with ONNX Runtime's
    # optimization off), ``file`` (as it runs), ``integer`` (exact arithmetic), ``layers`` (the file's operators on the
    # model's own values before them) or ``kernels`` (exact arithmetic on the runtime's own integers before them)
    stage: str
    against: str  # with what
    max_error: float
    sqnr_db: float  # signal over difference, in decibels; infinite when there is no difference
    # Share of samples whose largest entry is at the same place; of an output of integers, the share of equal entries
    agreement: float
    bound_db: float  # what `sqnr_db` must reach
    bound_agreement: float = 0.0  # what `agreement` must reach
    why: str = ""  # where the bound comes from

    @property
    def inside(self) -> bool:
        """Whether the output is near enough; one that is not a number never is."""
        return self.sqnr_db >= self.bound_db and self.agreement >= self.bound_agreement


@dataclass(frozen=True)
class BoundaryRow:
    """One quantized boundary of the file."""

    tensor: str
    module: str  # the module that makes it, where the file tells
    kernel: str
    kernel_lsb: int  # largest difference, in steps, between the runtime and exact integer arithmetic on the same inputs
    kernel_bound: int  # what `kernel_lsb` may be: 0, or 1 where the arithmetic is not reproduced to the bit
    # Largest difference, in steps, between the model in torch and the file's operators before rounding, on the values
    # that the model had before them; None without a simulation
    layer_lsb: float | None
    # Largest difference, in steps, between the runtime and the simulation after all layers before; for information,
    # because it grows with depth
    simulated_lsb: float | None
    sqnr_db: float | None  # of the runtime against the simulation, None if not known
    inside: bool  # whether kernel, layer and format lie within their bounds
    layer_bound: float = 0.5  # what `layer_lsb` may be: sums in another order, and the rounding of a bias
    # By how many steps the ends of the file's number format are away from the simulation's; infinite where the file or
    # the simulation has no Q/DQ here. None where the file's dialect has formats of its own.
    format_lsb: float | None = None
    float_db: float | None = None  # SQNR of the runtime against the float model, None if not known


@dataclass(frozen=True)
class LayerRow:
    """The operators of one layer in the file, against the layer of the model in torch on the same values."""

    layer: str  # the user's module, or the place of a function in the model's graph
    tensor: str
    operator: str
    difference: float  # the largest difference as a part of the value, or of usual ones
    bound: float  # what sums in another order and the rounding of a bias explain

    @property
    def inside(self) -> bool:
        """Whether the layer is what the model has; a value that is not a number never is."""
        return self.difference <= self.bound


@dataclass(frozen=True)
class MetricRow:
    """What the user's metric says of one stage; larger is better."""

    stage: str
    value: float
    bound: float | None  # what it must reach; None for a stage that others are measured by

    @property
    def inside(self) -> bool:
        """Whether it is large enough; one that is not a number never is."""
        return self.bound is None or self.value >= self.bound


@dataclass(frozen=True)
class FamilyRow:
    """What one family of processors answers, predicted by integer arithmetic."""

    family: str
    title: str  # what people call such processors
    same: bool  # whether it gives the bits of the file's own arithmetic
    tensor: str  # the first boundary that differs, empty for none
    module: str  # the module that makes it, where the file tells
    kernel: str
    lsb: int  # by how many steps it differs
    sqnr_db: float  # the outputs against those of the file's own arithmetic


@dataclass(frozen=True, repr=False)
class Verification(Printed):
    """The stages of a model side by side."""

    outputs: tuple[OutputRow, ...]  # A row per output and pair of stages
    boundaries: tuple[BoundaryRow, ...]  # A row per quantized boundary, in the order of the graph
    samples: int
    notes: tuple[str, ...] = ()  # what could not be compared, and why
    file: str = ""  # the file's name, empty for a model in memory
    dialect: str = ""  # what the file was written for, where it tells
    family: str = ""  # the kernel family of the processor that ran it
    cause: str = ""  # why boundaries are outside, where the processor explains it, and what mends it; else empty
    families: tuple[FamilyRow, ...] = ()  # what other processors answer, where they were asked for
    # What was done to each layer of a portable file so that no input can saturate it
    remedies: tuple[RemedyRow, ...] = ()
    unmet: str = ""  # what the file requires of a processor and this one does not have; empty for nothing
    layers: tuple[LayerRow, ...] = ()  # A row per layer that both the file and the model in torch have
    metrics: tuple[MetricRow, ...] = ()  # the user's metric, or the accuracy on the user's labels, of every stage
    stages: tuple[str, ...] = ()  # the stages that were compared
    unjudged: tuple[str, ...] = ()  # what was not judged, and what must be given for it
    random_layer: str | None = None  # the first layer that answers otherwise when asked again; None for none
    first_wrong: str = ""  # the first wrong layer, by the user's name for it; empty when nothing is wrong
    calibration: str = ""  # whether the calibration data is what the network was trained on, where that was looked at

    @property
    def first_outside(self) -> BoundaryRow | None:
        """The first boundary outside its bound: whatever is wrong begins there."""
        return next((row for row in self.boundaries if not row.inside), None)

    @property
    def first_far(self) -> OutputRow | None:
        """The first output that is further from another stage's than its bound."""
        return next((row for row in self.outputs if not row.inside), None)

    @property
    def passed(self) -> bool:
        """Whether every stage agrees within its bounds, and the processor is one the file is for."""
        return not self.failures

    @property
    def failures(self) -> tuple[str, ...]:
        """Everything that is outside its bound, a sentence each, what explains the rest first."""
        found = []
        if self.random_layer is not None:
            found.append("The model gives two answers to one sample, so nothing can be proved: is dropout left on?")
        if (row := self.first_outside) is not None:
            made = f"{row.kernel} {row.module or ''}".strip()
            found.append(f"First boundary outside its bound: {row.tensor!r}, made by {made}: {_exceeded(row)}.")
        far = [row for row in self.outputs if not row.inside]
        found += [_far(row) for row in sorted(far, key=lambda row: row.stage not in ("kernels", "layers"))]
        found += [
            f"The metric of {row.stage} is {row.value:.4g}, below the bound of {row.bound:.4g}."
            for row in self.metrics
            if not row.inside
        ]
        if self.unmet:
            found.append(f"{self.unmet[0].upper()}{self.unmet[1:]}.")
        return tuple(found)

    def to_dict(self) -> dict[str, Any]:
        """Return everything as JSON-able data; a number that is not finite is None."""
        data = asdict(self)
        sources: dict[str, Sequence[OutputRow | LayerRow | MetricRow]] = {
            "outputs": self.outputs, "layers": self.layers, "metrics": self.metrics,
        }  # fmt: skip
        for name, rows in sources.items():
            for row, source in zip(data[name], rows, strict=True):
                row["inside"] = source.inside
        for name in ("outputs", "boundaries", "families", "layers", "metrics"):
            for row in data[name]:
                row.update(
                    {key: None for key, value in row.items() if isinstance(value, float) and not isfinite(value)}
                )
        return {**data, "passed": self.passed, "failures": list(self.failures), "verdict": self.verdict}

    def _line(self) -> str:
        return self.verdict

    def __str__(self) -> str:
        lines = [table(_OUTPUT_HEAD, _output_cells(self.outputs)), ""]
        if self.metrics:
            lines += [table(_METRIC_HEAD, _metric_cells(self.metrics)), ""]
        if self.boundaries:
            lines += [table(_BOUNDARY_HEAD, _boundary_cells(self.boundaries)), ""]
        if wrong := self.wrong_layers:
            lines += [table(_LAYER_HEAD, _layer_cells(wrong)), ""]
        if self.remedies:
            lines += [table(_REMEDY_HEAD, _remedy_cells(self.remedies)), ""]
        if self.families:
            lines += [table(_FAMILY_HEAD, _family_cells(self.families)), ""]
        calibration = [self.calibration] if self.calibration else []
        return "\n".join([*lines, *calibration, *self.notes, self.verdict])

    @property
    def wrong_layers(self) -> tuple[LayerRow, ...]:
        """The layers of the file that do not compute what the model's layers do; none while everything agrees."""
        return () if self.passed else tuple(row for row in self.layers if not row.inside)

    @property
    def verdict(self) -> str:
        """The result in a sentence or two: what failed and where it begins, or what was compared and what was not."""
        if self.failures:
            where = f" First wrong layer: {self.first_wrong}." if self.first_wrong else ""
            more = f" {len(self.failures) - 1} more bounds are exceeded." if len(self.failures) > 1 else ""
            why = f" Cause: {self.cause}." if self.cause else ""
            return f"FAIL: {self.failures[0]}{where}{why}{more}"
        what = f"all {len(self.boundaries)} boundaries and all outputs" if self.boundaries else "all outputs"
        have = "" if self.boundaries else "; the file has no Q/DQ"
        compared = f"; compared: {', '.join(self.stages)}" if self.stages else ""
        left = f" Not judged: {'; '.join(self.unjudged)}." if self.unjudged else ""
        where = f"are within their bounds on {self.samples} samples"
        return f"PASS: {what[0].upper()}{what[1:]} {where}{have}{compared}.{left}"

    def save_html(self, path: str | Path) -> Path:
        """Write the report as one page."""
        when = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
        kernels = f"kernels of {self.family}" if self.family else ""
        what = ", ".join(item for item in (self.file or "a model in memory", self.dialect, kernels, when) if item)
        mark = "inside" if self.passed else "outside"
        body = [
            f"<h1>Verification</h1><p>{escape(what)}</p>",
            f"<p class='{mark}'><strong>{escape(self.verdict)}</strong></p>",
            *(f"<p class='outside'>{escape(text)}</p>" for text in self.failures[1:]),
            *(f"<p>{escape(note)}</p>" for note in (self.calibration, *self.notes) if note),
            f"<p>{escape(_LEGEND)}</p>",
            _section("Outputs", _OUTPUT_HEAD, _output_cells(self.outputs), [row.inside for row in self.outputs]),
        ]
        if self.metrics:
            inside = [row.inside for row in self.metrics]
            body.append(_section("Metric", _METRIC_HEAD, _metric_cells(self.metrics), inside))
        if self.boundaries:
            inside = [row.inside for row in self.boundaries]
            body.append(_section("Quantized boundaries", _BOUNDARY_HEAD, _boundary_cells(self.boundaries), inside))
        if self.layers:
            # A layer may look different and mean nothing (the exporter moved an operator); red is for what counts.
            inside = [row.inside or self.passed for row in self.layers]
            body.append(_section("Layers", _LAYER_HEAD, _layer_cells(self.layers), inside))
        if self.remedies:
            body.append(_section("Weights that no input can saturate", _REMEDY_HEAD, _remedy_cells(self.remedies)))
        if self.families:
            same = [row.same for row in self.families]
            body.append(_section("Predicted on other processors", _FAMILY_HEAD, _family_cells(self.families), same))
        target = Path(path)
        target.write_text(html_page("Verification", _STYLE, body), encoding="utf-8")
        return target


def _exceeded(row: BoundaryRow) -> str:
    """Say which of a boundary's bounds is exceeded."""
    if row.format_lsb == float("inf"):
        return "the file and the simulated model do not have the same Q/DQ here"
    if row.format_lsb is not None and not row.format_lsb <= FORMAT_BOUND:
        return (
            f"the file's scale or zero point is not the simulated one, its range is off by {row.format_lsb:.3g} steps"
        )
    if row.layer_lsb is not None and not row.layer_lsb <= row.layer_bound:
        return (
            f"the file's operators are {row.layer_lsb:.3g} steps from the model's layer on the same values, more than "
            f"{row.layer_bound:.2g}"
        )
    if row.kernel_lsb <= row.kernel_bound:
        return (
            f"its number format keeps {row.float_db:.1f} dB of what the float model has; calibrate on data like the "
            "samples, without outliers"
        )
    return f"the runtime's kernel is {row.kernel_lsb} steps from integer arithmetic, more than {row.kernel_bound}"


def _far(row: OutputRow) -> str:
    names = {"layers": "the file's operators on the model's values", "written": "the file as written",
             "kernels": "exact arithmetic on the runtime's integers", "file": "the file as it runs"}  # fmt: skip
    stage, against = names.get(row.stage, row.stage), names.get(row.against, row.against)
    if row.sqnr_db >= row.bound_db:
        return (
            f"Output {row.output!r} of {stage} against {against}: {row.agreement:.1%} agree, below the bound of "
            f"{row.bound_agreement:.1%}{_because(row)}."
        )
    other = " Is this the model that the file was made from?" if row.sqnr_db < OTHER_DB else ""
    return (
        f"Output {row.output!r} of {stage} against {against}: SQNR {row.sqnr_db:.1f} dB, below the bound of "
        f"{row.bound_db:.1f} dB{_because(row)}.{other}"
    )


def _because(row: OutputRow) -> str:
    return f" ({row.why})" if row.why else ""


FORMAT_BOUND = 0.5  # steps: a zero point that is off by one is a whole step, a scale by 0.2 % half of one
OTHER_DB = 3.0  # models that have nothing to do with each other come out near 0 or below
_LEGEND = (
    "Stages: written, the file with ONNX Runtime's optimization off; file, as it runs here; integer, exact arithmetic; "
    "kernels, exact arithmetic on the runtime's own integers; layers, the file's operators on the model's own values."
)
_METRIC_HEAD = ("metric of", "value", "bound", "")
_LAYER_HEAD = ("layer", "tensor", "operator", "difference", "bound", "")
_OUTPUT_HEAD = ("output", "stage", "against", "max error", "SQNR dB", "bound", "agreement", "bound", "why", "")
_BOUNDARY_HEAD = (
    "tensor", "module", "kernel", "kernel LSB", "bound", "layer LSB", "bound", "format LSB", "simulated LSB", "SQNR dB",
    "float dB", "",
)  # fmt: skip
_STYLE = ".outside { background: var(--bad-ground); } .inside { background: var(--good-ground); }"
_REMEDY_HEAD = ("layer", "remedy", "noise dB", "SQNR dB", "judged on", "cost of each remedy, dB")
_FAMILY_HEAD = ("processors", "answers", "first layer that differs", "kernel", "LSB", "outputs dB", "which are they")


def _remedy_cells(rows: Sequence[RemedyRow]) -> list[list[str]]:
    return [
        [row.node, row.remedy, f"{row.cost_db:+.1f}", f"{row.sqnr_db:.1f}", "samples" if row.measured else "weights",
         ", ".join(f"{name} {cost:+.1f}" for name, cost in sorted(row.tried.items(), key=lambda entry: entry[1]))]
        for row in rows
    ]  # fmt: skip


def _family_cells(rows: Sequence[FamilyRow]) -> list[list[str]]:
    return [
        [row.family, "same bits" if row.same else "DIFFER", row.module or row.tensor, row.kernel,
         str(row.lsb), _decibels(row.sqnr_db), row.title]
        for row in rows
    ]  # fmt: skip


def _section(title: str, head: Sequence[str], rows: Sequence[Sequence[str]], fine: Sequence[bool] | None = None) -> str:
    marks = [] if fine is None else ["" if holds else "outside" for holds in fine]
    return f"<h2>{escape(title)}</h2>{html_table(head, rows, marks=marks)}"


def _decibels(value: float | None) -> str:
    if value is None:
        return ""
    return "exact" if value == float("inf") else f"{value:.1f}"


def _output_cells(rows: Sequence[OutputRow]) -> list[list[str]]:
    return [
        [row.output, row.stage, row.against, f"{row.max_error:.3g}", _decibels(row.sqnr_db), f"{row.bound_db:.1f}",
         f"{row.agreement:.1%}", f"{row.bound_agreement:.1%}" if row.bound_agreement else "", row.why,
         "" if row.inside else "OUTSIDE"]
        for row in rows
    ]  # fmt: skip


def _boundary_cells(rows: Sequence[BoundaryRow]) -> list[list[str]]:
    return [
        [row.tensor, row.module, row.kernel, str(row.kernel_lsb), str(row.kernel_bound), _small(row.layer_lsb),
         "" if row.layer_lsb is None else _small(row.layer_bound), _steps(row.format_lsb, 2),
         _steps(row.simulated_lsb, 0), _decibels(row.sqnr_db), _decibels(row.float_db),
         "" if row.inside else "OUTSIDE"]
        for row in rows
    ]  # fmt: skip


def _small(value: float | None) -> str:
    return "" if value is None else f"{value:.2g}"


def _metric_cells(rows: Sequence[MetricRow]) -> list[list[str]]:
    return [
        [
            row.stage,
            f"{row.value:.4g}",
            "" if row.bound is None else f"{row.bound:.4g}",
            "" if row.inside else "OUTSIDE",
        ]
        for row in rows
    ]


def _layer_cells(rows: Sequence[LayerRow]) -> list[list[str]]:
    return [
        [row.layer, row.tensor, row.operator, f"{row.difference:.1e}", f"{row.bound:.1e}",
         "" if row.inside else "OUTSIDE"]
        for row in rows
    ]  # fmt: skip


def _steps(value: float | None, digits: int) -> str:
    return "" if value is None else f"{value:.{digits}f}"
