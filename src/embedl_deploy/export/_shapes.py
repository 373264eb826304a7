"""A file with open dimensions, proved at several shapes."""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import onnx

from embedl_deploy._table import Printed, table
from embedl_deploy.dialect._files import load
from embedl_deploy.dialect._observe import Sample, by_input
from embedl_deploy.errors import InputError
from embedl_deploy.export._verification import Verification
from embedl_deploy.export._verify import verify
from embedl_deploy.target import TargetLike


@dataclass(frozen=True)
class ShapeRow:
    """What was found at one shape."""

    shape: str  # the sizes of the open dimensions, or the shapes of all inputs
    samples: int
    file_db: float  # the file against the simulated model, the worst output; infinite for the same bits
    against: str  # what `file_db` is against: ``simulated``, or the first stage that was given
    original_db: float | None  # the file against the original model, None without one
    passed: bool
    verdict: str

    @property
    def mark(self) -> str:
        """The word for tables."""
        return "" if self.passed else "FAIL"


@dataclass(frozen=True, repr=False)
class ShapeVerification(Printed):
    """A file proved at several shapes; prints as a table."""

    rows: tuple[ShapeRow, ...]
    verifications: tuple[Verification, ...]  # what `verify` found at each

    @property
    def passed(self) -> bool:
        """Whether the file is right at every shape."""
        return all(row.passed for row in self.rows)

    @property
    def worst(self) -> ShapeRow:
        """The shape that fails, or else the one where the file is furthest from the model."""
        return min(self.rows, key=lambda row: (row.passed, row.file_db))

    @property
    def verdict(self) -> str:
        """The result in a sentence."""
        worst = self.worst
        if not worst.passed:
            return f"FAIL: At {worst.shape}: {worst.verdict}"
        return f"PASS: {len(self.rows)} shapes; the worst is {worst.shape} with {_decibels(worst.file_db)}."

    def to_dict(self) -> dict[str, Any]:
        """Return everything as JSON-able data."""
        return {
            "passed": self.passed,
            "worst": self.worst.shape,
            "rows": [asdict(row) for row in self.rows],
            "verifications": [each.to_dict() for each in self.verifications],
        }

    def _line(self) -> str:
        return self.verdict

    def __str__(self) -> str:
        head = ("shape", "samples", f"file against {self.rows[0].against}", "file against original", "")
        cells = [
            (row.shape, str(row.samples), _decibels(row.file_db), _decibels(row.original_db), row.mark)
            for row in self.rows
        ]
        return f"{table(head, cells)}\n\n{self.verdict}"


def _decibels(value: float | None) -> str:
    if value is None:
        return ""
    return "the same bits" if value == float("inf") else f"{value:.1f} dB"


def verify_shapes(
    exported: onnx.ModelProto | str | os.PathLike[str],
    samples: Iterable[Sample],
    *,
    original: Callable[..., Any] | None = None,
    transformed: Callable[..., Any] | None = None,
    simulated: Callable[..., Any] | None = None,
    min_sqnr_db: float = 6.0,
    target: TargetLike | None = None,
) -> ShapeVerification:
    """Prove a file with open dimensions at every shape that the samples have, and name the worst.

    Args:
        exported: The file.
        samples: Inputs of several shapes, each as for `verify`; those of one shape make a row.
        original: The model before anything was done to it.
        transformed: The model after conversions and fusions.
        simulated: The quantized model in torch.
        min_sqnr_db: What every output must reach at every shape, as for `verify`.
        target: What the file is for.

    Raises:
        ModelFileError: The file cannot be read, or is written for another target.
        InputError: There are no samples, or one does not fit or is not finite.
    """
    model = load(exported)
    names = [value.name for value in model.graph.input]
    groups: dict[str, list[Sample]] = {}
    for sample in samples:
        groups.setdefault(_shape(model, by_input(sample, names)), []).append(sample)
    if not groups:
        raise InputError("There are no samples to verify with; give some of every shape.")
    found = {
        shape: verify(
            exported, group, original=original, transformed=transformed, simulated=simulated, target=target,
            min_sqnr_db=min_sqnr_db,
        )
        for shape, group in groups.items()
    }  # fmt: skip
    stages = {"simulated": simulated, "transformed": transformed, "original": original}
    against = next((name for name, stage in stages.items() if stage is not None), "integer")
    rows = tuple(_row(shape, result, against, original=original is not None) for shape, result in found.items())
    return ShapeVerification(rows, tuple(found.values()))


def _shape(model: onnx.ModelProto, feed: Mapping[str, Any]) -> str:
    """Name the shape of a sample by its open dimensions."""
    sizes: dict[str, int] = {}
    for value in model.graph.input:
        if value.name in feed:
            given = feed[value.name].shape
            for size, dim in zip(given, value.type.tensor_type.shape.dim, strict=False):
                if dim.dim_param:
                    sizes[dim.dim_param] = size
    if sizes:
        return ", ".join(f"{name} {size}" for name, size in sizes.items())
    return ", ".join(f"{name} {list(value.shape)}" for name, value in feed.items())


def _row(shape: str, result: Verification, against: str, *, original: bool) -> ShapeRow:
    def worst(stage: str, other: str) -> float | None:
        # A comparison is listed in one direction only; the difference is the same in both.
        pairs: Sequence[float] = [row.sqnr_db for row in result.outputs if {row.stage, row.against} == {stage, other}]
        return min(pairs, default=None)

    found = worst("file", against)
    return ShapeRow(
        shape, result.samples, float("nan") if found is None else found, against,
        worst("file", "original") if original else None, result.passed, result.verdict,
    )  # fmt: skip
