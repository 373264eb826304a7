"""Models measured in turns: what every toolchain's step has in common, and the one shape of its result."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self

from embedl_hub.comparison import Ranked, Ratio
from embedl_hub.core.component import Component, ComponentOutput, LoggedArtifact, RunType, installed_providers
from embedl_hub.errors import ConfigError, known

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from embedl_hub.tracking import Run


class PairedProfiler(Component):
    """Base of the steps that measure several models in turns; a toolchain has at most one.

    Its ``run`` is ``run(ctx, models, *, device=None, samples=200)``, and a toolchain may add options.

    Attributes:
        toolchain: The name of the toolchain, as the command line spells it.
    """

    run_type = RunType.PROFILE
    toolchain: ClassVar[str]


def paired_profiler(toolchain: str) -> type[PairedProfiler]:
    """Return the step that measures models of a toolchain in turns, by the toolchain's name: ``onnxruntime``."""
    found = _by_toolchain()
    if toolchain not in found:
        # A package that is installed but was not needed yet may bring it.
        installed_providers()
        found = _by_toolchain()
    if toolchain not in found:
        raise ConfigError(
            f"Models of {toolchain!r} cannot be measured in turns within one process; those of {known(found)} can. "
            "Profile each and let embedl-hub gate hold them against each other: it profiles in turns."
        )
    return found[toolchain]


def _by_toolchain() -> dict[str, type[PairedProfiler]]:
    return {each.toolchain: each for each in _subclasses(PairedProfiler) if hasattr(each, "toolchain")}


def _subclasses(base: type[PairedProfiler]) -> Iterator[type[PairedProfiler]]:
    for each in base.__subclasses__():
        yield each
        yield from _subclasses(each)


@dataclass(frozen=True)
class PairedModel:
    """One of the models.

    Attributes:
        name: What the run calls its file: ``input``, ``input_2``, ``input_3`` and so on.
        file_name: The file's own name.
        latency_median: Median time of one inference among the others, in ms.
        ratio: Its time over the first model's; 1 for the first itself.
    """

    name: str
    file_name: str
    latency_median: float
    ratio: Ratio


@dataclass(frozen=True)
class PairedResult(ComponentOutput):
    """How models compare that were measured in turns; the first is what the others are held against.

    Attributes:
        models: The models in the order they were given.
        ranking: The models from the fastest to the slowest, each held against the next.
        rounds: How often each was timed.
        waiting_share: How much of the measured time models stood in the queue for a processor, where the system tells;
            it is in ``latency_median`` and not in the ratios.
        verdict: ``stable``, ``drifting``, ``throttled`` or ``noisy``, said of the ratios.
        verdict_reason: Why.
        output_file: One versioned JSON document: raw samples of each round, its order, environment and method.
    """

    models: tuple[PairedModel, ...]
    ranking: tuple[Ranked, ...]
    output_file: LoggedArtifact
    rounds: int
    waiting_share: float | None = None
    verdict: str | None = None
    verdict_reason: str | None = None

    @property
    def ratios(self) -> tuple[Ratio, ...]:
        """Each model's time over the first one's."""
        return tuple(model.ratio for model in self.models)

    @classmethod
    def from_run(cls, run: Run, **extra: object) -> Self:
        """Build the result of a recorded run again; models and ranking come from its document."""
        artifact = run.artifacts.get("output_file")
        if artifact is not None and not {"models", "ranking"} <= set(extra):
            document = json.loads(artifact.local().read_text(encoding="utf-8"))
            extra["models"] = tuple(map(_model, document["models"]))
            extra["ranking"] = tuple(Ranked(row["model"], _ratio(row["to_next"])) for row in document["ranking"])
        return super().from_run(run, **extra)


def _model(row: Mapping[str, Any]) -> PairedModel:
    ratio = _ratio(row["ratio"]) or Ratio(1.0)
    return PairedModel(row["artifact"], row["file_name"], row["latency_ms"]["median"], ratio)


def _ratio(value: Mapping[str, float | None] | None) -> Ratio | None:
    return None if value is None or value["value"] is None else Ratio(value["value"], value["low"], value["high"])
