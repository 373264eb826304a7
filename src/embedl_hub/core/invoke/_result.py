"""The one shape of every invoker's result."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from embedl_hub.core.component import ComponentOutput, LoggedArtifact

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np

    from embedl_hub.tracking import Run


@dataclass(frozen=True)
class InvocationResult(ComponentOutput):
    """What a model answered.

    Attributes:
        output: Arrays by output name.
        output_file: The same as one .npz file.
    """

    output: Mapping[str, np.ndarray]
    output_file: LoggedArtifact

    @classmethod
    def from_run(cls, run: Run, **extra: object) -> Self:
        """Build the result of a recorded run again; the arrays come from its .npz file."""
        if "output" not in extra and (artifact := run.artifacts.get("output_file")) is not None:
            import numpy as np  # noqa: PLC0415 - importing the face must not cost numpy

            with np.load(artifact.local(), allow_pickle=False) as arrays:
                extra["output"] = {name: arrays[name] for name in arrays.files}
        return super().from_run(run, **extra)
