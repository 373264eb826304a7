"""Compiling for TFLite: declarations; providers carry them out."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from embedl_hub.core.component import CompiledModel, Component, NoProviderError, RunType

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping

    from embedl_hub.core.compile._onnxruntime import CalibrationData
    from embedl_hub.core.context import HubContext


@dataclass(frozen=True)
class TFLiteCompiledModel(CompiledModel):
    """A TFLite model, with what its tensors were before.

    Attributes:
        input_name_mapping: The compiled names of inputs by their original ones, where the compiler renamed them.
        output_name_mapping: Likewise for outputs.
        tensors: ``inputs`` and ``outputs``: name, type, shape and order of axes before and after, scale, zero point.
        quantization: For INT8: scheme, operators left float, and the difference from the float source.
        source_of_tensors: The source's nodes by the tensors they became.
        from_cache: Whether the same conversion had been made before.
    """

    input_name_mapping: Mapping[str, str] = field(default_factory=dict)
    output_name_mapping: Mapping[str, str] = field(default_factory=dict)
    tensors: Mapping[str, Any] = field(default_factory=dict)
    quantization: Mapping[str, Any] = field(default_factory=dict)
    source_of_tensors: Mapping[str, str] = field(default_factory=dict)
    from_cache: bool = False


class TFLiteCompiler(Component):
    """Turns an ONNX model into a TFLite one."""

    run_type = RunType.COMPILE

    def __init__(
        self,
        *,
        name: str | None = None,
        device: str | None = None,
        input_shape: tuple[int, ...] | None = None,
        calibration_data: CalibrationData | None = None,
        quantize_io: bool = False,
    ) -> None:
        """Set defaults for :meth:`run`."""
        super().__init__(
            name=name,
            device=device,
            input_shape=input_shape,
            calibration_data=calibration_data,
            quantize_io=quantize_io,
        )

    def run(
        self,
        ctx: HubContext,
        onnx_path: str | os.PathLike[str],
        *,
        device: str | None = None,
        input_shape: tuple[int, ...] | None = None,
        calibration_data: CalibrationData | None = None,
        quantize_io: bool = False,
    ) -> TFLiteCompiledModel:
        """Compile a model.

        Args:
            ctx: An open context.
            onnx_path: An ONNX file, or a folder that holds one with its external data.
            device: A device on the context; the first that serves this step when not given.
            input_shape: Fixes the shape of the model's input.
            calibration_data: Given: INT8, from a path or a mapping of input names to arrays. Not given: float.
            quantize_io: Inputs and outputs of the model are integers too.
        """
        raise NoProviderError
