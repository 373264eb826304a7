"""The one shape of every profiler's result."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from embedl_hub.core.component import ComponentOutput, LoggedArtifact, LoggedMetric
from embedl_hub.core.profile._modules import ModuleTimes, module_times

if TYPE_CHECKING:
    from collections.abc import Mapping

    from embedl_hub.tracking import Run


@dataclass(frozen=True)
class ProfiledLayer:
    """One layer as the runtime ran it.

    Attributes:
        name: The runtime's name for it.
        op_type: What it computes.
        compute_unit: Where: ``CPU``, ``GPU``, ``NPU`` or the runtime's own word.
        time_ms: Time in one inference, the median of several or the tool's mean; None where the tool tells none.
        share: Its part of the time of all layers.
        source_nodes: The nodes of the source model it stands for; empty for what the runtime added.
        modules: The modules of the network that these come from, the main one first, where the source tells them.
    """

    name: str
    op_type: str
    compute_unit: str
    time_ms: float | None
    share: float | None
    source_nodes: tuple[str, ...] = ()
    modules: tuple[str, ...] = ()

    @property
    def added_by_runtime(self) -> bool:
        """Whether it stands for nothing in the source model."""
        return not self.source_nodes

    @classmethod
    def from_row(cls, row: Mapping[str, object]) -> Self:
        """Build a layer from a row of the document."""
        names, modules = row.get("source_nodes"), row.get("modules")
        return cls(
            name=str(row["name"]),
            op_type=str(row.get("op_type", "")),
            compute_unit=str(row.get("compute_unit", "")),
            time_ms=_number(row.get("time_ms")),
            share=_number(row.get("share")),
            source_nodes=tuple(map(str, names)) if isinstance(names, list) else (),
            modules=tuple(map(str, modules)) if isinstance(modules, list) else (),
        )


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) else None


@dataclass(frozen=True)
class ProfilingResult(ComponentOutput):
    """How fast a model is, and how far the number can be trusted.

    Attributes:
        latency: Mean time of one inference, in ms.
        latency_median: Its median, in ms; ``latency_p90``, ``latency_p99``, ``latency_min``, ``latency_std`` likewise.
        fps: Inferences per second.
        load_time: Time to load the model, in ms.
        first_latency: Time of the very first inference, in ms.
        peak_memory_mb: Peak memory; the document names the method.
        iterations: Measured inferences.
        warmup: Inferences before them that do not count.
        verdict: ``stable``, ``drifting``, ``throttled``, ``noisy`` or ``indicative``.
        verdict_reason: Why.
        layers: What the time went into, in the order it ran.
        modules: The same by modules of the network, where the source model names them.
        output_file: One versioned JSON document: raw samples, layers, environment and method.
    """

    latency: LoggedMetric
    latency_median: LoggedMetric | None = None
    latency_p90: LoggedMetric | None = None
    latency_p99: LoggedMetric | None = None
    latency_min: LoggedMetric | None = None
    latency_std: LoggedMetric | None = None
    fps: LoggedMetric | None = None
    load_time: LoggedMetric | None = None
    first_latency: LoggedMetric | None = None
    peak_memory_mb: LoggedMetric | None = None
    iterations: LoggedMetric | None = None
    warmup: LoggedMetric | None = None
    verdict: str | None = None
    verdict_reason: str | None = None
    output_file: LoggedArtifact | None = None
    layers: tuple[ProfiledLayer, ...] = ()
    modules: ModuleTimes | None = None

    @classmethod
    def from_run(cls, run: Run, **extra: object) -> Self:
        """Build the result of a recorded run again; the layers come from its document."""
        artifact = run.artifacts.get("output_file")
        if "layers" not in extra and artifact is not None and artifact.file_name.endswith(".json"):
            document = json.loads(artifact.local().read_text(encoding="utf-8"))
            layers = document.get("layers") if isinstance(document, dict) else None
            if isinstance(layers, dict):
                extra["layers"] = tuple(ProfiledLayer.from_row(row) for row in layers.get("rows", ()))
                extra["modules"] = module_times(document)
        return super().from_run(run, **extra)
