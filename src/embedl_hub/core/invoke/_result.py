"""The one shape of every invoker's result."""

from __future__ import annotations

import weakref
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Self

from embedl_hub.core.component import ComponentOutput, LoggedArtifact, RunType
from embedl_hub.core.invoke._compare import Parity, compare_outputs

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np

    from embedl_hub.core.context import HubContext
    from embedl_hub.tracking import Run


@dataclass(frozen=True)
class InvocationResult(ComponentOutput):
    """What a model answered.

    Attributes:
        output: Arrays by output name.
        output_file: The same as one .npz file.
        input_data: What it was asked, as the user gave it, as one .npz file; where the provider kept it.
    """

    output: Mapping[str, np.ndarray]
    output_file: LoggedArtifact
    input_data: LoggedArtifact | None = None
    _context: weakref.ref[HubContext] | None = field(default=None, repr=False, compare=False)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_context": None}

    @classmethod
    def from_current_run(cls, ctx: HubContext, **extra: object) -> Self:
        """Build the result from what the current run logged, and remember the context."""
        return super().from_current_run(ctx, _context=weakref.ref(ctx), **extra)

    def compare(self, reference: Mapping[str, np.ndarray], *, ctx: HubContext | None = None) -> Parity:
        """Tell how far the outputs are from reference arrays, and record it as a run of type EVAL.

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
            import numpy as np  # noqa: PLC0415 - importing the face must not cost numpy

            with np.load(artifact.local(), allow_pickle=False) as arrays:
                extra["output"] = {name: arrays[name] for name in arrays.files}
        return super().from_run(run, **extra)
