"""Kinds of measurement that are the same for every runtime with a device program: cold starts, models at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from embedl_device.readers import MOST_DOCUMENT_BYTES, UnreadableError, parse_json, telling
from embedl_device.statistics import Ratio, Verdict
from embedl_hub.core.component import CompiledModel, Component, ComponentOutput, LoggedArtifact, LoggedMetric, RunType
from embedl_hub.errors import NoProviderError, OutputError

if TYPE_CHECKING:
    import numpy as np

    from embedl_hub.core.context import HubContext
    from embedl_hub.tracking import Run


# The parts of a start as a document names them, by the metrics that they are logged as.
START_PARTS: Mapping[str, str] = {
    "process": "process_time", "import": "import_time", "load": "load_time", "first_inference": "first_latency"
}  # fmt: skip


@dataclass(frozen=True)
class ColdStartResult(ComponentOutput):
    """What the user of an app waits for until the first answer; medians over fresh processes, in ms."""

    start_time: LoggedMetric  # from the creation of the process to the first answer, the files in the page cache
    output_file: LoggedArtifact  # one versioned JSON document: every start with its parts, environment and method
    # Its parts: the process itself, the import of the runtime, the loading of the model, the first inference.
    process_time: LoggedMetric | None = None
    import_time: LoggedMetric | None = None
    load_time: LoggedMetric | None = None
    first_latency: LoggedMetric | None = None
    # The same with the files read from storage, where that could be had.
    start_time_cold: LoggedMetric | None = None
    process_time_cold: LoggedMetric | None = None
    import_time_cold: LoggedMetric | None = None
    load_time_cold: LoggedMetric | None = None
    first_latency_cold: LoggedMetric | None = None
    starts: LoggedMetric | None = None  # so many starts with the page cache, and as many without
    cold_problem: str | None = None  # why nothing is known of starts without the page cache
    verdict: Verdict | None = None  # said of the starts with the page cache
    verdict_reason: str | None = None  # why

    @classmethod
    def from_run(cls, run: Run, **extra: object) -> Self:
        """Build the result of a recorded run again."""
        return super().from_run(run, **with_verdict(run, extra))


class ColdStartProfiler(Component):
    """Measures what a fresh process takes to answer: its start, the runtime's import, the loading, the first inference.

    For every toolchain with a device program.
    """

    run_type = RunType.PROFILE

    def run(
        self,
        ctx: HubContext,
        model: CompiledModel,
        *,
        device: str | None = None,
        starts: int = 20,
        input_data: Mapping[str, np.ndarray] | None = None,
    ) -> ColdStartResult:
        """Start a model anew and anew.

        Args:
            ctx: An open context.
            model: A compiled model.
            device: A device on the context; the first compatible one when not given.
            starts: So many starts with the files in the page cache, and as many with the files read from storage.
            input_data: Arrays by input name to run on; made up from the model's shapes when not given.
        """
        raise NoProviderError


@dataclass(frozen=True)
class ConcurrentModel:
    """One of the models that ran at once."""

    name: str  # what the run calls its file: ``input``, ``input_2``, ``input_3`` and so on
    file_name: str  # the file's own name
    latency_alone: float  # mean time of one inference while nothing else of these ran, in ms
    latency_beside: float  # the same while all the others ran too, in ms
    interference: Ratio  # beside over alone, with its 99 % interval
    fps_alone: float  # inferences per second
    fps_beside: float
    waiting_share_beside: float | None = None  # how much of the time beside the others it waited for a processor

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
    alone, beside, ratio = row["alone"], row["beside"], row["interference"]
    return ConcurrentModel(
        name=row["artifact"],
        file_name=row["file_name"],
        latency_alone=alone["latency_ms"]["mean"],
        latency_beside=beside["latency_ms"]["mean"],
        interference=Ratio(ratio["value"], ratio["low"], ratio["high"]),
        fps_alone=alone["per_second"],
        fps_beside=beside["per_second"],
        waiting_share_beside=beside["waiting_share"],
    )


def with_verdict(run: Run, extra: dict[str, object]) -> dict[str, object]:
    """Return what a result is built from, with the verdict that the run logged."""
    if "verdict" in run.params:
        extra.setdefault("verdict", Verdict.of(run.params["verdict"].value))
    return extra
