"""How far two sets of outputs are apart."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from embedl_hub.errors import InvokeError, known

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np


POOR_COSINE = 0.9
"""Below this cosine to the reference nobody would call the answers the model's."""


@dataclass(frozen=True)
class OutputDifference:
    """How far one output is from its reference.

    Attributes:
        name: The output.
        max_abs_error: The largest difference of two elements.
        mean_abs_error: The mean difference.
        cosine: Of the angle between the two as vectors; 1 is the same direction.
        sqnr_db: Signal to noise, in dB; None when they are equal.
        finite_share: The share of elements that are numbers on both sides; NaN and infinity agree with themselves only.
        top1_agreement: Of outputs with one score per class: how often the largest is the same one; else None.
    """

    name: str
    max_abs_error: float
    mean_abs_error: float
    cosine: float
    sqnr_db: float | None
    finite_share: float
    top1_agreement: float | None


def is_ruined(cosine: float, finite_share: float = 1.0) -> bool:
    """Tell whether answers are too far from the ones they should be to be of use; no number is near nothing."""
    return finite_share < 1 or not cosine >= POOR_COSINE


@dataclass(frozen=True)
class Parity:
    """The differences of all outputs; the properties are the worst of them."""

    outputs: tuple[OutputDifference, ...]

    @property
    def max_abs_error(self) -> float:
        """The largest difference anywhere."""
        return max(output.max_abs_error for output in self.outputs)

    @property
    def cosine(self) -> float:
        """The least cosine."""
        return min(output.cosine for output in self.outputs)

    @property
    def finite_share(self) -> float:
        """The least share of numbers."""
        return min(output.finite_share for output in self.outputs)

    @property
    def top1_agreement(self) -> float | None:
        """The least agreement, of the outputs that have one."""
        return min((out.top1_agreement for out in self.outputs if out.top1_agreement is not None), default=None)

    @property
    def is_ruined(self) -> bool:
        """Whether an output is too far off to be of use."""
        return any(is_ruined(out.cosine, out.finite_share) for out in self.outputs)

    def __str__(self) -> str:
        lines = []
        for out in self.outputs:
            top1 = "" if out.top1_agreement is None else f", top-1 agreement {out.top1_agreement:.1%}"
            sqnr = "equal" if out.sqnr_db is None else f"{out.sqnr_db:.1f} dB"
            numbers = "" if out.finite_share == 1 else f", only {out.finite_share:.1%} are numbers"
            lines.append(
                f"{out.name}: max error {out.max_abs_error:.3g}, cosine {out.cosine:.6f}, {sqnr}{top1}{numbers}"
            )
        return "\n".join(lines)


def compare_outputs(output: Mapping[str, np.ndarray], reference: Mapping[str, np.ndarray]) -> Parity:
    """Compare outputs by name; names and shapes must agree."""
    if set(output) != set(reference) or not output:
        raise InvokeError(
            f"Outputs {known(output)} cannot be compared with {known(reference)}: the names must be the same."
        )
    return Parity(tuple(_difference(name, output[name], reference[name]) for name in output))


def _difference(name: str, output: np.ndarray, reference: np.ndarray) -> OutputDifference:
    import numpy as np  # noqa: PLC0415 - importing the face must not cost numpy

    if np.shape(output) != np.shape(reference):
        raise InvokeError(
            f"Output {name!r} has shape {list(np.shape(output))}, its reference {list(np.shape(reference))}."
        )
    if np.asarray(output).dtype.kind not in "fiub":
        raise InvokeError(f"Output {name!r} is {np.asarray(output).dtype}; only numbers can be compared.")
    one, two = np.array(output, np.float64), np.array(reference, np.float64)
    if one.size == 0:
        return OutputDifference(name, 0.0, 0.0, 1.0, None, 1.0, None)
    top1 = float(np.mean(one.argmax(axis=1) == two.argmax(axis=1))) if one.ndim == 2 and one.shape[1] > 1 else None
    finite = float(np.mean(np.isfinite(one) & np.isfinite(two)))
    # Both NaN, or both the same infinity, is agreement and says nothing more; one of them alone is as far as can be.
    agreed = ~np.isfinite(one) & ((one == two) | (np.isnan(one) & np.isnan(two)))
    one[agreed] = two[agreed] = 0.0
    with np.errstate(invalid="ignore", over="ignore"):
        error = np.nan_to_num(np.abs(one - two), nan=np.inf, posinf=np.inf)
        noise, signal = float(np.sum(error**2)), float(np.sum(two**2))
        lengths = float(np.linalg.norm(one) * np.linalg.norm(two))
        cosine = float(np.dot(one.ravel(), two.ravel())) / lengths if lengths else float(noise == 0)
    sqnr = None if noise == 0 else 10 * float(np.log10(signal / noise)) if signal / noise > 0 else float("-inf")
    return OutputDifference(name, float(error.max()), float(error.mean()), cosine, sqnr, finite, top1)
