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
    stage: str  # what was compared: ``original``, ``transformed``, ``simulated``, ``file`` or ``integer``
    against: str  # with what
    max_error: float
    sqnr_db: float  # signal over difference, in decibels; infinite when there is no difference
    agreement: float  # share of samples whose largest entry is at the same place
    bound_db: float  # what `sqnr_db` must reach

    @property
    def inside(self) -> bool:
        """Whether the output is near enough; one that is not a number never is."""
        return self.sqnr_db >= self.bound_db


@dataclass(frozen=True)
class BoundaryRow:
    """One quantized boundary of the file."""

    tensor: str
    module: str  # the module that makes it, where the file tells
    kernel: str
    kernel_lsb: int  # largest difference, in steps, between the runtime and exact integer arithmetic on the same inputs
    kernel_bound: int  # what `kernel_lsb` may be: 0, or 1 where the arithmetic is not reproduced to the bit
    # Largest difference, in steps, between the simulation in torch and the file's operators on the values that the
    # simulation had before them; None without a simulation. It may be 1: both round.
    layer_lsb: float | None
    # Largest difference, in steps, between the runtime and the simulation after all layers before; for information,
    # because it grows with depth
    simulated_lsb: float | None
    sqnr_db: float | None  # of the runtime against the simulation, None if not known
    inside: bool  # whether the first two lie within their bounds


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
        """Whether every boundary and every output is within its bound, and the processor is one the file is for."""
        return self.first_outside is None and self.first_far is None and not self.unmet

    def to_dict(self) -> dict[str, Any]:
        """Return everything as JSON-able data; a number that is not finite is None."""
        data = asdict(self)
        for row, source in zip(data["outputs"], self.outputs, strict=True):
            row["inside"] = source.inside
        for row in (*data["outputs"], *data["boundaries"], *data["families"]):
            row.update({key: None for key, value in row.items() if isinstance(value, float) and not isfinite(value)})
        return {**data, "passed": self.passed}

    def _line(self) -> str:
        return self.verdict

    def __str__(self) -> str:
        lines = [table(_OUTPUT_HEAD, _output_cells(self.outputs)), ""]
        if self.boundaries:
            lines += [table(_BOUNDARY_HEAD, _boundary_cells(self.boundaries)), ""]
        if self.remedies:
            lines += [table(_REMEDY_HEAD, _remedy_cells(self.remedies)), ""]
        if self.families:
            lines += [table(_FAMILY_HEAD, _family_cells(self.families)), ""]
        return "\n".join([*lines, *self.notes, self.verdict])

    @property
    def verdict(self) -> str:
        """The result in a sentence."""
        row, far = self.first_outside, self.first_far
        if row is not None:
            made = f"{row.kernel} {row.module or ''}".strip()
            why = f" Cause: {self.cause}." if self.cause else ""
            return f"FAIL: First boundary outside its bound: {row.tensor!r}, made by {made}.{why}"
        if far is not None:
            return (
                f"FAIL: Output {far.output!r} of {far.stage} against {far.against}: SQNR {far.sqnr_db:.1f} dB, below "
                f"the bound of {far.bound_db:.1f} dB. Is this the model that the file was made from?"
            )
        if self.unmet:
            return f"FAIL: {self.unmet[0].upper()}{self.unmet[1:]}."
        if not self.boundaries:
            return f"PASS: All outputs are within their bounds on {self.samples} samples; the file has no Q/DQ."
        return (
            f"PASS: All {len(self.boundaries)} boundaries and all outputs are within their bounds on "
            f"{self.samples} samples."
        )

    def save_html(self, path: str | Path) -> Path:
        """Write the report as one page."""
        when = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
        kernels = f"kernels of {self.family}" if self.family else ""
        what = ", ".join(item for item in (self.file or "a model in memory", self.dialect, kernels, when) if item)
        mark = "inside" if self.passed else "outside"
        body = [
            f"<h1>Verification</h1><p>{escape(what)}</p>",
            f"<p class='{mark}'><strong>{escape(self.verdict)}</strong></p>",
            *(f"<p>{escape(note)}</p>" for note in self.notes),
            _section("Outputs", _OUTPUT_HEAD, _output_cells(self.outputs), [row.inside for row in self.outputs]),
            _section("Quantized boundaries", _BOUNDARY_HEAD, _boundary_cells(self.boundaries),
                     [row.inside for row in self.boundaries]),
        ]  # fmt: skip
        if self.remedies:
            body.append(_section("Weights that no input can saturate", _REMEDY_HEAD, _remedy_cells(self.remedies)))
        if self.families:
            same = [row.same for row in self.families]
            body.append(_section("Predicted on other processors", _FAMILY_HEAD, _family_cells(self.families), same))
        target = Path(path)
        target.write_text(html_page("Verification", _STYLE, body), encoding="utf-8")
        return target


_OUTPUT_HEAD = ("output", "stage", "against", "max error", "SQNR dB", "bound", "agreement", "")
_BOUNDARY_HEAD = ("tensor", "module", "kernel", "kernel LSB", "bound", "layer LSB", "simulated LSB", "SQNR dB", "")
_STYLE = ".outside { background: #fde8e8; } .inside { background: #e6f6e8; }"
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
         f"{row.agreement:.1%}", "" if row.inside else "OUTSIDE"]
        for row in rows
    ]  # fmt: skip


def _boundary_cells(rows: Sequence[BoundaryRow]) -> list[list[str]]:
    return [
        [row.tensor, row.module, row.kernel, str(row.kernel_lsb), str(row.kernel_bound), _steps(row.layer_lsb, 2),
         _steps(row.simulated_lsb, 0), _decibels(row.sqnr_db), "" if row.inside else "OUTSIDE"]
        for row in rows
    ]  # fmt: skip


def _steps(value: float | None, digits: int) -> str:
    return "" if value is None else f"{value:.{digits}f}"
