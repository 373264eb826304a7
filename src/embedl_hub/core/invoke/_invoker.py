"""Invokers, what they return, and how far two sets of outputs are apart."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Generic, Self, TypeVar

from embedl_device.readers import UnreadableError, read_npz
from embedl_hub.core.component import (
    CompiledModel,
    Component,
    ComponentOutput,
    LoggedArtifact,
    NoProviderError,
    RunType,
)
from embedl_hub.errors import InvokeError, OutputError, quoted_list

if TYPE_CHECKING:
    import numpy as np

    from embedl_hub.core.context import HubContext
    from embedl_hub.tracking import Run

POOR_COSINE = 0.9
"""Below this cosine to the reference nobody would call the answers the model's."""


@dataclass(frozen=True)
class OutputDifference:
    """How far one output is from its reference."""

    name: str  # the output
    max_abs_error: float  # the largest difference of two elements
    mean_abs_error: float  # the mean difference
    cosine: float  # of the angle between the two as vectors; 1 is the same direction
    sqnr_db: float | None  # signal to noise, in dB; None when they are equal
    # The share of elements that are numbers on both sides; NaN and infinity agree with themselves only.
    finite_share: float
    # Of outputs with one score per class: how often the largest is the same one; else None.
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
            numbers = "" if out.finite_share == 1 else f", only {out.finite_share:.1%} of the values are finite"
            lines.append(
                f"{out.name}: max error {out.max_abs_error:.3g}, cosine {out.cosine:.6f}, {sqnr}{top1}{numbers}"
            )
        return "\n".join(lines)


def compare_outputs(output: Mapping[str, np.ndarray], reference: Mapping[str, np.ndarray]) -> Parity:
    """Compare outputs by name; names and shapes must agree."""
    if set(output) != set(reference) or not output:
        raise InvokeError(
            f"Outputs {quoted_list(output)} cannot be compared with {quoted_list(reference)}: the names must be the "
            f"same."
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


@dataclass(frozen=True)
class InvocationResult(ComponentOutput):
    """What a model answered."""

    output: Mapping[str, np.ndarray]  # arrays by output name
    output_file: LoggedArtifact  # the same as one .npz file
    # What it was asked, as the user gave it, as one .npz file; where the provider kept it.
    input_data: LoggedArtifact | None = None
    _context: weakref.ref[HubContext] | None = field(default=None, repr=False, compare=False)

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_context": None}

    @classmethod
    def from_current_run(cls, ctx: HubContext, **extra: object) -> Self:
        """Build the result from what the current run logged, and remember the context."""
        return super().from_current_run(ctx, _context=weakref.ref(ctx), **extra)

    def compare(self, reference: Mapping[str, np.ndarray], *, ctx: HubContext | None = None) -> Parity:
        """Tell how far the outputs are from reference arrays, and record it as a run of type EVAL.

        It is a run of its own because a run that has ended never changes.

        Args:
            reference: Arrays by output name.
            ctx: Where to record it; the context the result was made in, when it is still open.
        """
        return self._record(compare_outputs(self.output, reference), ctx, None)

    def _record(self, parity: Parity, ctx: HubContext | None, reference: LoggedArtifact | None) -> Parity:
        found = ctx or (self._context() if self._context is not None else None)
        if found is None or not found.is_open:
            return parity
        with found.client.start_run(RunType.EVAL, "compare") as run:
            run.log_tag("compared_run", self.output_file.run_id)
            run.log_artifact(self.output_file, name="input", ctx=found)
            if reference is not None:
                run.log_artifact(reference, name="reference", ctx=found)
            run.log_param("differences", [asdict(output) for output in parity.outputs])
            run.log_metric("max_abs_error", parity.max_abs_error)
            run.log_metric("cosine", parity.cosine)
            if parity.top1_agreement is not None:
                run.log_metric("top1_agreement", parity.top1_agreement)
        return parity

    @classmethod
    def from_run(cls, run: Run, **extra: object) -> Self:
        """Build the result of a recorded run again; the arrays come from its .npz file."""
        if "output" not in extra and (artifact := run.artifacts.get("output_file")) is not None:
            try:
                extra["output"] = read_npz(artifact.local())
            except (OSError, UnreadableError) as error:
                raise OutputError(f"The outputs of run {run.id} cannot be read: {error}. Run it again.") from error
        return super().from_run(run, **extra)


Model = TypeVar("Model", bound=CompiledModel)
Result = TypeVar("Result", bound=InvocationResult)


class Invoker(Component, Generic[Model, Result]):
    """Runs a compiled model on a device, on the user's data."""

    run_type = RunType.INFERENCE

    def run(
        self,
        ctx: HubContext,
        model: Model,
        input_data: Mapping[str, np.ndarray],
        *,
        device: str | None = None,
        use_compiled_names: bool = False,
    ) -> Result:
        """Run a model.

        Args:
            ctx: An open context.
            model: A compiled model.
            input_data: Arrays by input name.
            device: A device on the context; the first compatible one when not given.
            use_compiled_names: Take and give the names the compiler made, instead of the original ones.
        """
        raise NoProviderError
