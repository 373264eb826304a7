"""Profiling with ONNXRuntime: declarations; providers carry them out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from embedl_hub.core.component import Component, NoProviderError, RunType
from embedl_hub.core.profile._paired import PairedProfiler, PairedResult
from embedl_hub.core.profile._result import ProfilingResult

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy as np

    from embedl_hub.core.compile import ONNXRuntimeCompiledModel
    from embedl_hub.core.context import HubContext


@dataclass(frozen=True)
class ONNXRuntimeProfilingResult(ProfilingResult):
    """How fast a model is in ONNXRuntime."""


class ONNXRuntimeProfiler(Component):
    """Measures a compiled model in ONNXRuntime on a device."""

    run_type = RunType.PROFILE

    def __init__(
        self,
        *,
        name: str | None = None,
        device: str | None = None,
        require_provider: str | None = None,
        input_data: Mapping[str, np.ndarray] | None = None,
    ) -> None:
        """Set defaults for :meth:`run`."""
        super().__init__(name=name, device=device, require_provider=require_provider, input_data=input_data)

    def run(
        self,
        ctx: HubContext,
        model: ONNXRuntimeCompiledModel,
        *,
        device: str | None = None,
        require_provider: str | None = None,
        input_data: Mapping[str, np.ndarray] | None = None,
    ) -> ONNXRuntimeProfilingResult:
        """Measure a model.

        Args:
            ctx: An open context.
            model: A compiled model.
            device: A device on the context; the first that serves this step when not given.
            require_provider: An execution provider of ONNX Runtime; the run fails if a node runs elsewhere.
            input_data: Arrays by input name to measure on; made up from the model's shapes when not given.
        """
        raise NoProviderError


class ONNXRuntimePairedProfiler(PairedProfiler):
    """Measures compiled models in turns in ONNXRuntime on a device."""

    toolchain = "onnxruntime"

    def __init__(
        self,
        *,
        name: str | None = None,
        device: str | None = None,
        samples: int = 200,
        require_provider: str | None = None,
        input_data: Mapping[str, np.ndarray] | None = None,
    ) -> None:
        """Set defaults for :meth:`run`."""
        super().__init__(
            name=name, device=device, samples=samples, require_provider=require_provider, input_data=input_data
        )

    def run(
        self,
        ctx: HubContext,
        models: Sequence[ONNXRuntimeCompiledModel],
        *,
        device: str | None = None,
        samples: int = 200,
        require_provider: str | None = None,
        input_data: Mapping[str, np.ndarray] | None = None,
    ) -> PairedResult:
        """Measure models in turns.

        Args:
            ctx: An open context.
            models: Two or more compiled models; the first is what the others are held against.
            device: A device on the context; the first that serves this step when not given.
            samples: At least so many rounds; each times every model once.
            require_provider: An execution provider of ONNX Runtime; the run fails if a node runs elsewhere.
            input_data: Arrays by input name that every model is run on; made up from the shapes when not given.
        """
        raise NoProviderError
