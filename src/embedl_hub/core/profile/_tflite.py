"""Profiling with TFLite: declarations; providers carry them out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from embedl_hub.core.component import Component, NoProviderError, RunType
from embedl_hub.core.profile._paired import PairedProfiler, PairedResult
from embedl_hub.core.profile._result import ProfilingResult

if TYPE_CHECKING:
    from collections.abc import Sequence

    from embedl_hub.core.compile import TFLiteCompiledModel
    from embedl_hub.core.context import HubContext


@dataclass(frozen=True)
class TFLiteProfilingResult(ProfilingResult):
    """How fast a model is in TFLite."""


class TFLiteProfiler(Component):
    """Measures a compiled model in TFLite on a device."""

    run_type = RunType.PROFILE

    def __init__(self, *, name: str | None = None, device: str | None = None) -> None:
        """Set defaults for :meth:`run`."""
        super().__init__(name=name, device=device)

    def run(self, ctx: HubContext, model: TFLiteCompiledModel, *, device: str | None = None) -> TFLiteProfilingResult:
        """Measure a model.

        Args:
            ctx: An open context.
            model: A compiled model.
            device: A device on the context; the first that serves this step when not given.
        """
        raise NoProviderError


class TFLitePairedProfiler(PairedProfiler):
    """Measures compiled models in turns in TFLite on a device."""

    toolchain = "tflite"

    def __init__(self, *, name: str | None = None, device: str | None = None, samples: int = 200) -> None:
        """Set defaults for :meth:`run`."""
        super().__init__(name=name, device=device, samples=samples)

    def run(
        self, ctx: HubContext, models: Sequence[TFLiteCompiledModel], *, device: str | None = None, samples: int = 200
    ) -> PairedResult:
        """Measure models in turns.

        Args:
            ctx: An open context.
            models: Two or more compiled models; the first is what the others are held against.
            device: A device on the context; the first that serves this step when not given.
            samples: At least so many rounds; each times every model once.
        """
        raise NoProviderError
