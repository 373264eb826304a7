"""Models at once on one device, for every runtime with a device program."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from embedl_device.readers import MOST_DOCUMENT_BYTES, UnreadableError, parse_json, telling
from embedl_device.statistics import Ratio, Verdict
from embedl_hub.core.component import CompiledModel, Component, ComponentOutput, LoggedArtifact, RunType
from embedl_hub.core.profile._verdict import with_verdict
from embedl_hub.errors import NoProviderError, OutputError

if TYPE_CHECKING:
    import numpy as np

    from embedl_hub.core.context import HubContext
    from embedl_hub.tracking import Run


@dataclass(frozen=True)
class ConcurrentModel:
    """One of the models that ran at once."""

    name: str  # what the run calls its file: ``input``, ``input_2``, ``input_3`` and so on
    file_name: str  # the file's own name
    latency_alone: float  # mean time of one inference while nothing else of these ran, in ms
    latency_concurrent: float  # the same while all the others ran too, in ms
    interference: Ratio  # beside over alone, with its 99 % interval
    fps_alone: float  # inferences per second
    fps_concurrent: float
    waiting_share_concurrent: float | None = None  # how much of the time beside the others it waited for a processor

    @property
    def conclusion(self) -> str:
        """What the interval shows."""
        shows = self.interference.shows_difference
        if shows is None:
            return "too few rounds to tell"
        if not shows:
            return "no significant difference"
        return "slower beside the others" if self.interference.value > 1 else "faster beside the others"


@dataclass(frozen=True)
class ConcurrentResult(ComponentOutput):
    """What models cost each other that ran at once on one device."""

    models: tuple[ConcurrentModel, ...]  # the models in the order they were given
    output_file: LoggedArtifact  # one versioned JSON document: medians of each window, environment and method
    rounds: int  # how often each ran alone and beside the others
    verdict: Verdict | None = None  # said of the ratios
    verdict_reason: str | None = None  # why

    @classmethod
    def from_run(cls, run: Run, **extra: object) -> Self:
        """Build the result of a recorded run again; the models come from its document."""
        artifact = run.artifacts.get("output_file")
        if artifact is not None and "models" not in extra:
            try:
                with telling(), artifact.open() as file:
                    document = parse_json(file.read(MOST_DOCUMENT_BYTES + 1))
                    extra["models"] = tuple(map(concurrent_model, document["models"]))
            except (OSError, UnreadableError) as error:
                raise OutputError(f"The document of run {run.id} cannot be read: {error}. Measure again.") from error
        return super().from_run(run, **with_verdict(run, extra))


class ConcurrentProfiler(Component):
    """Measures models at once on one device: each alone and beside the others, every one in a process of its own.

    For every toolchain with a device program; the models must be of one toolchain.
    """

    run_type = RunType.PROFILE

    def run(
        self,
        ctx: HubContext,
        models: Sequence[CompiledModel],
        *,
        device: str | None = None,
        rounds: int = 20,
        idle_processes: int = 0,
        input_data: Mapping[str, np.ndarray] | None = None,
    ) -> ConcurrentResult:
        """Measure models at once.

        Args:
            ctx: An open context.
            models: Two or more compiled models; one is enough with idle processes.
            device: A device on the context; the first compatible one when not given.
            rounds: At least so many rounds; in each every model runs alone once, and all run at once.
            idle_processes: So many further processes that do nothing, to see that those change nothing.
            input_data: Arrays by input name that every model is run on; made up from the shapes when not given.
        """
        raise NoProviderError


def concurrent_model(row: Mapping[str, Any]) -> ConcurrentModel:
    """Return a model of a document."""
    alone, concurrent, ratio = row["alone"], row["concurrent"], row["interference"]
    return ConcurrentModel(
        name=row["artifact"],
        file_name=row["file_name"],
        latency_alone=alone["latency_ms"]["mean"],
        latency_concurrent=concurrent["latency_ms"]["mean"],
        interference=Ratio(ratio["value"], ratio["low"], ratio["high"]),
        fps_alone=alone["per_second"],
        fps_concurrent=concurrent["per_second"],
        waiting_share_concurrent=concurrent["waiting_share"],
    )
