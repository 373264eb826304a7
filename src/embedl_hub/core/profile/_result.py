"""The one shape of every profiler's result."""

from __future__ import annotations

from dataclasses import dataclass

from embedl_hub.core.component import ComponentOutput, LoggedArtifact, LoggedMetric


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
