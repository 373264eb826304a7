"""Profiling with ONNXRuntime: declarations; providers carry them out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from embedl_hub.core.component import Component, NoProviderError, RunType
from embedl_hub.core.profile._result import ProfilingResult

if TYPE_CHECKING:
    from embedl_hub.core.compile import ONNXRuntimeCompiledModel
    from embedl_hub.core.context import HubContext


@dataclass(frozen=True)
class ONNXRuntimeProfilingResult(ProfilingResult):
    """How fast a model is in ONNXRuntime."""


class ONNXRuntimeProfiler(Component):
    """Measures a compiled model in ONNXRuntime on a device."""

    run_type = RunType.PROFILE

    def __init__(self, *, name: str | None = None, device: str | None = None) -> None:
        """Set defaults for :meth:`run`."""
        super().__init__(name=name, device=device)

    def run(
        self, ctx: HubContext, model: ONNXRuntimeCompiledModel, *, device: str | None = None
    ) -> ONNXRuntimeProfilingResult:
        """Measure a model.

        Args:
            ctx: An open context.
            model: A compiled model.
            device: A device on the context; the first that serves this step when not given.
        """
        raise NoProviderError
