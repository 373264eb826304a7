"""Invoking with ONNXRuntime: declarations; providers carry them out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from embedl_hub.core.compile import ONNXRuntimeCompiledModel
from embedl_hub.core.component import Component, NoProviderError, RunType
from embedl_hub.core.context import HubContext
from embedl_hub.core.invoke._compare import Parity, compare_outputs
from embedl_hub.core.invoke._result import InvocationResult
from embedl_hub.errors import InvokeError

if TYPE_CHECKING:
    import os

    import numpy as np


@dataclass(frozen=True)
class ONNXRuntimeInvocationResult(InvocationResult):
    """What a model answered in ONNX Runtime."""

    def compare(
        self,
        reference: Mapping[str, np.ndarray] | str | os.PathLike[str] | ONNXRuntimeCompiledModel,
        *,
        ctx: HubContext | None = None,
    ) -> Parity:
        """Tell how far the outputs are from a reference, and record it as a run of type EVAL.

        Args:
            reference: Arrays by output name; or a model, compiled or as an ONNX file, that is run on this machine on
                the same data: the float source of an INT8 model, for instance.
            ctx: Where to record it; the context the result was made in, when it is still open.
        """
        if isinstance(reference, Mapping):
            return super().compare(reference, ctx=ctx)
        if self.input_data is None:
            raise InvokeError("The run kept no input_data, so a model has nothing to answer; compare with arrays.")
        import numpy as np  # noqa: PLC0415 - importing the face must not cost numpy

        with np.load(self.input_data.local(), allow_pickle=False) as arrays:
            data = {name: arrays[name] for name in arrays.files}
        # A context of its own without devices: the reference always runs here and leaves no run behind.
        with HubContext("reference", tracking=False) as quiet:
            if isinstance(reference, ONNXRuntimeCompiledModel):
                model = reference
            else:
                with quiet.client.start_run(RunType.CUSTOM, "reference") as run:
                    model = ONNXRuntimeCompiledModel(path=run.log_artifact(reference, name="path"))
            answer = ONNXRuntimeInvoker().run(quiet, model, data)
            return self._record(compare_outputs(self.output, answer.output), ctx, model.path)


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
