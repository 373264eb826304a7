"""Invoking with ONNXRuntime: declarations; providers carry them out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from embedl_hub.core.component import Component, NoProviderError, RunType
from embedl_hub.core.invoke._result import InvocationResult

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np

    from embedl_hub.core.compile import ONNXRuntimeCompiledModel
    from embedl_hub.core.context import HubContext


@dataclass(frozen=True)
class ONNXRuntimeInvocationResult(InvocationResult):
    """What a model answered in ONNXRuntime."""


class ONNXRuntimeInvoker(Component):
    """Runs a compiled model in ONNXRuntime on a device, on the user's data."""

    run_type = RunType.INFERENCE

    def __init__(self, *, name: str | None = None, device: str | None = None, use_compiled_names: bool = False) -> None:
        """Set defaults for :meth:`run`."""
        super().__init__(name=name, device=device, use_compiled_names=use_compiled_names)

    def run(
        self,
        ctx: HubContext,
        model: ONNXRuntimeCompiledModel,
        input_data: Mapping[str, np.ndarray],
        *,
        device: str | None = None,
        use_compiled_names: bool = False,
    ) -> ONNXRuntimeInvocationResult:
        """Run a model.

        Args:
            ctx: An open context.
            model: A compiled model.
            input_data: Arrays by input name.
            device: A device on the context; the first that serves this step when not given.
            use_compiled_names: Take and give the names the compiler made, instead of the original ones.
        """
        raise NoProviderError
