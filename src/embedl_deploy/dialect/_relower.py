"""`relower`: a Q/DQ file made by any tool, in another dialect."""

import json
import os
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from embedl_deploy.dialect._dialects import Dialect, get_dialect
from embedl_deploy.dialect._files import load, save
from embedl_deploy.dialect._lower import lower
from embedl_deploy.dialect._model import ORIGIN, RANGES, notes_of, read, read_entry, set_metadata
from embedl_deploy.dialect._observe import Sample, observe
from embedl_deploy.dialect._origin import recall
from embedl_deploy.dialect._portable import RemedyRow, remedies_of
from embedl_deploy.errors import ModelFileError


@dataclass(frozen=True)
class Relowered:
    """What `relower` wrote.

    Attributes:
        path: The file.
        dialect: Its dialect.
        boundaries: How many quantised activations it has.
        weights: How many quantised weights it has.
        notes: What was given up or left in float, a line each.
        remedies: What the layers of a portable file got.
    """

    path: Path
    dialect: str
    boundaries: int
    weights: int
    notes: tuple[str, ...]
    remedies: tuple[RemedyRow, ...] = ()

    def __str__(self) -> str:
        lines = [f"{self.path}: {self.dialect}, {self.boundaries} quantised activations, {self.weights} weights"]
        if self.remedies:
            counts = Counter(row.remedy for row in self.remedies)
            told = ", ".join(f"{count} {name}" for name, count in counts.most_common())
            judged = "samples" if self.remedies[0].measured else "weights alone, --data on samples"
            lines.append(f"  portable, no input can saturate {len(self.remedies)} layers: {told}; judged on {judged}")
        return "\n".join([*lines, *(f"  {note}" for note in self.notes)])


def relower(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    *,
    dialect: str | Dialect,
    scales: Literal["keep", "refit"] = "keep",
    float_type: str = "float32",
    fallback: bool = False,
    samples: Iterable[Sample] | None = None,
) -> Relowered:
    """Write a Q/DQ file in another dialect; scales that the dialect can hold stay, bit for bit.

    Args:
        source: The file: of another dialect, or made by another tool.
        target: Where to write; may be the same file.
        dialect: As for `lower`.
        scales: As for `lower`.
        float_type: As for `lower`.
        fallback: As for `lower`.
        samples: Inputs, each as for `verify`; ranges that the file does not tell and the dialect asks for are observed.

    Raises:
        ModelFileError: The file cannot be read, has no Q/DQ, or cannot be written.
        DialectError: The dialect is unknown or cannot express what the file says.
        InputError: The samples do not fit.
    """
    chosen = get_dialect(dialect)
    model = load(source)
    if samples is not None:
        samples = list(samples)
        parts = recall(read(model))
        observe(parts, samples)
        set_metadata(model, {RANGES: json.dumps({name: list(pair) for name, pair in parts.ranges.items()})})
    if not any(node.op_type in ("QuantizeLinear", "DequantizeLinear") for node in model.graph.node):
        raise ModelFileError(
            f"{str(source)!r} has no Q/DQ: there is nothing to lower. Quantise it first.", path=str(source)
        )
    lowered = lower(model, chosen, scales=scales, float_type=float_type, fallback=fallback, samples=samples)
    path = save(lowered, target)
    counts = read(lowered) if float_type == "float32" else None
    origin = read_entry(lowered, ORIGIN, "{}")
    return Relowered(
        path,
        chosen.name,
        len(origin["lowered"]),
        len(counts.weights) if counts else 0,
        notes_of(lowered),
        remedies_of(lowered),
    )
