"""What `verify` found: rows for outputs and boundaries, as a table and as a page of its own."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from html import escape
from math import isfinite
from pathlib import Path
from typing import Any

from embedl_deploy._table import table
from embedl_deploy.dialect import RemedyRow


@dataclass(frozen=True)
class OutputRow:
    """One output of one stage against another stage.

    Attributes:
        output: The output's name.
        stage: What was compared: ``original``, ``transformed``, ``simulated``, ``file`` or ``integer``.
        against: With what.
        max_error: Largest absolute difference.
        sqnr_db: Signal over difference, in decibels; infinite when there is no difference.
        agreement: Share of samples whose largest entry is at the same place.
        bound_db: What `sqnr_db` must reach.
    """

    output: str
    stage: str
    against: str
    max_error: float
    sqnr_db: float
    agreement: float
    bound_db: float

    @property
    def inside(self) -> bool:
        """Whether the output is near enough; one that is not a number never is."""
        return self.sqnr_db >= self.bound_db


@dataclass(frozen=True)
class BoundaryRow:
    """One quantised boundary of the file.

    Attributes:
        tensor: The tensor it stands on.
        module: The module that makes it, where the file tells.
        kernel: The kernel that makes it.
        kernel_lsb: Largest difference, in steps, between the runtime and exact integer arithmetic on the same inputs.
        kernel_bound: What `kernel_lsb` may be: 0, or 1 where the arithmetic is not reproduced to the bit.
        layer_lsb: Largest difference, in steps, between the simulation in torch and the file's operators on the values
            that the simulation had before them; None without a simulation. It may be 1: both round.
        simulated_lsb: Largest difference, in steps, between the runtime and the simulation after all layers before; for
            information, because it grows with depth.
        sqnr_db: Of the runtime against the simulation, None if not known.
        inside: Whether the first two lie within their bounds.
    """

    tensor: str
    module: str
    kernel: str
    kernel_lsb: int
    kernel_bound: int
    layer_lsb: float | None
    simulated_lsb: float | None
    sqnr_db: float | None
    inside: bool


@dataclass(frozen=True)
class FamilyRow:
    """What one family of processors answers, predicted by integer arithmetic.

    Attributes:
        family: Its name.
        title: What people call such processors.
        same: Whether it gives the bits of the file's own arithmetic.
        tensor: The first boundary that differs, empty for none.
        module: The module that makes it, where the file tells.
        kernel: The kernel that makes it.
        lsb: By how many steps it differs.
        sqnr_db: The outputs against those of the file's own arithmetic.
    """

    family: str
    title: str
    same: bool
    tensor: str
    module: str
    kernel: str
    lsb: int
    sqnr_db: float


@dataclass(frozen=True)
class Verification:
    """The stages of a model side by side.

    Attributes:
        outputs: A row per output and pair of stages.
        boundaries: A row per quantised boundary, in the order of the graph.
        samples: How many samples were run.
        notes: What could not be compared, and why.
        file: The file's name, empty for a model in memory.
        dialect: What the file was written for, where it tells.
        family: The kernel family of the processor that ran it.
        cause: Why boundaries are outside, where the processor explains it, and what mends it; else empty.
        families: What other processors answer, where they were asked for.
        remedies: What was done to each layer of a portable file so that no input can saturate it.
        unmet: What the file requires of a processor and this one does not have; empty for nothing.
    """

    outputs: tuple[OutputRow, ...]
    boundaries: tuple[BoundaryRow, ...]
    samples: int
    notes: tuple[str, ...] = ()
    file: str = ""
    dialect: str = ""
    family: str = ""
    cause: str = ""
    families: tuple[FamilyRow, ...] = ()
    remedies: tuple[RemedyRow, ...] = ()
    unmet: str = ""

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
        parts = [
            "<!doctype html><html lang='en'><head><meta charset='utf-8'><title>Verification</title>",
            f"<style>{_STYLE}</style></head><body><h1>Verification</h1><p>{escape(what)}</p>",
            f"<p class='{mark}'><strong>{escape(self.verdict)}</strong></p>",
            *(f"<p>{escape(note)}</p>" for note in self.notes),
            "<h2>Outputs</h2>",
            _page_table(_OUTPUT_HEAD, _output_cells(self.outputs), [row.inside for row in self.outputs]),
            "<h2>Quantised boundaries</h2>",
            _page_table(_BOUNDARY_HEAD, _boundary_cells(self.boundaries), [row.inside for row in self.boundaries]),
            *_section("Weights that no input can saturate", _REMEDY_HEAD, _remedy_cells(self.remedies)),
            *_section(
                "Predicted on other processors",
                _FAMILY_HEAD,
                _family_cells(self.families),
                [row.same for row in self.families],
            ),
            "</body></html>",
        ]
        target = Path(path)
        target.write_text("\n".join(parts), encoding="utf-8")
        return target


_OUTPUT_HEAD = ("output", "stage", "against", "max error", "SQNR dB", "bound", "agreement", "")
_BOUNDARY_HEAD = ("tensor", "module", "kernel", "kernel LSB", "bound", "layer LSB", "simulated LSB", "SQNR dB", "")
_STYLE = """
body { font: 14px/1.45 system-ui, sans-serif; margin: 2rem auto; max-width: 1180px; padding: 0 1rem; color: #222; }
table { border-collapse: collapse; width: 100%; }
th, td { text-align: left; padding: .2rem .6rem .2rem 0; border-bottom: 1px solid #e4e4e4; }
th { color: #666; font-weight: 500; } .outside { background: #fde8e8; }
.inside { background: #e6f6e8; }
"""


_REMEDY_HEAD = ("layer", "remedy", "noise dB", "SQNR dB", "judged on", "cost of each remedy, dB")
_FAMILY_HEAD = ("processors", "answers", "first layer that differs", "kernel", "LSB", "outputs dB", "which are they")


def _remedy_cells(rows: Sequence[RemedyRow]) -> list[list[str]]:
    return [
        [row.node, row.remedy, f"{row.cost_db:+.1f}", f"{row.sqnr_db:.1f}", "samples" if row.measured else "weights",
         ", ".join(f"{name} {cost:+.1f}" for name, cost in sorted(row.tried.items(), key=lambda one: one[1]))]
        for row in rows
    ]  # fmt: skip


def _family_cells(rows: Sequence[FamilyRow]) -> list[list[str]]:
    return [
        [row.family, "same bits" if row.same else "DIFFER", row.module or row.tensor, row.kernel,
         str(row.lsb), _decibels(row.sqnr_db), row.title]
        for row in rows
    ]  # fmt: skip


def _section(
    title: str, head: Sequence[str], rows: Sequence[Sequence[str]], fine: Sequence[bool] | None = None
) -> list[str]:
    """Return a heading and its table, nothing for no rows."""
    return [f"<h2>{escape(title)}</h2>", _page_table(head, rows, fine or [True] * len(rows))] if rows else []


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


def _page_table(head: Sequence[str], rows: Sequence[Sequence[str]], fine: Sequence[bool]) -> str:
    top = "".join(f"<th>{escape(cell)}</th>" for cell in head)
    body = []
    for row, inside in zip(rows, fine, strict=True):
        cells = "".join(f"<td>{escape(cell)}</td>" for cell in row)
        body.append(f"<tr>{cells}</tr>" if inside else f"<tr class='outside'>{cells}</tr>")
    return f"<table><thead><tr>{top}</tr></thead><tbody>{''.join(body)}</tbody></table>"
