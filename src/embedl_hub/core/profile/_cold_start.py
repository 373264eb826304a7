"""Cold starts: what a fresh process takes to its first answer, for every runtime with a device program."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from embedl_hub.core.component import CompiledModel, Component, ComponentOutput, LoggedArtifact, LoggedMetric, RunType
from embedl_hub.core.profile._verdict import with_verdict
from embedl_hub.errors import NoProviderError

if TYPE_CHECKING:
    import numpy as np

    from embedl_device.statistics import Verdict
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
