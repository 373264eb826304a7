"""Compiling for TensorRT: declarations; providers carry them out."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from embedl_hub.core.component import CompiledModel, Component, NoProviderError, RunType

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping

    from embedl_hub.core.context import HubContext


@dataclass(frozen=True)
class TensorRTCompiledModel(CompiledModel):
    """A TensorRT engine; it runs only on the kind of GPU and the version it was built for.

    Attributes:
        engine: What it was built for and of: TensorRT's version, GPU, precision, inputs, outputs and their shapes.
    """

    engine: Mapping[str, Any] = field(default_factory=dict)


class TensorRTCompiler(Component):
    """Builds a TensorRT engine from an ONNX model, on the target itself."""

    run_type = RunType.COMPILE

    def __init__(
        self, *, name: str | None = None, device: str | None = None, input_shape: tuple[int, ...] | None = None
    ) -> None:
        """Set defaults for :meth:`run`."""
        super().__init__(name=name, device=device, input_shape=input_shape)

    def run(
        self,
        ctx: HubContext,
        onnx_path: str | os.PathLike[str],
        *,
        device: str | None = None,
        input_shape: tuple[int, ...] | None = None,
    ) -> TensorRTCompiledModel:
        """Build an engine.

        Args:
            ctx: An open context.
            onnx_path: An ONNX file, or a folder that holds one with its external data.
            device: A device on the context; the first that serves this step when not given.
            input_shape: Fixes the shape of the model's input.
        """
        raise NoProviderError
