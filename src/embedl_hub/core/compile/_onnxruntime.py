"""Compiling for ONNX Runtime: declarations; providers carry them out."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from embedl_hub.core.component import CompiledModel, Component, NoProviderError, RunType

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping

    import numpy as np

    from embedl_hub.core.context import HubContext

CalibrationData: TypeAlias = "str | os.PathLike[str] | Mapping[str, np.ndarray]"


@dataclass(frozen=True)
class ONNXRuntimeCompiledModel(CompiledModel):
    """A model ready for ONNX Runtime.

    Attributes:
        input_name_mapping: The compiled names of inputs by their original ones, where the compiler renamed them.
        output_name_mapping: Likewise for outputs.
        quantization: For INT8: method, number format, and scale and zero point of integer inputs and outputs.
    """

    input_name_mapping: Mapping[str, str] = field(default_factory=dict)
    output_name_mapping: Mapping[str, str] = field(default_factory=dict)
    quantization: Mapping[str, Any] = field(default_factory=dict)


class ONNXRuntimeCompiler(Component):
    """Turns an ONNX model into one that ONNX Runtime runs fast on a device."""

    run_type = RunType.COMPILE

    def __init__(
        self,
        *,
        name: str | None = None,
        device: str | None = None,
        input_shape: tuple[int, ...] | None = None,
        calibration_data: CalibrationData | None = None,
        calibration_method: str | None = None,
        per_channel: bool = False,
        quantize_io: bool = False,
    ) -> None:
        """Set defaults for :meth:`run`."""
        super().__init__(
            name=name,
            device=device,
            input_shape=input_shape,
            calibration_data=calibration_data,
            calibration_method=calibration_method,
            per_channel=per_channel,
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
        calibration_method: str | None = None,
        per_channel: bool = False,
        quantize_io: bool = False,
    ) -> ONNXRuntimeCompiledModel:
        """Compile a model.

        Args:
            ctx: An open context.
            onnx_path: An ONNX file, or a folder that holds one with its external data.
            device: A device on the context; the first that serves this step when not given.
            input_shape: Fixes the shape of the model's input.
            calibration_data: Given: INT8. A folder of .npy/.npz files, one .npz, or a mapping of input names to
                arrays with samples on axis 0. Not given: float.
            calibration_method: How ranges are found from the data: minmax (the default), entropy or percentile.
            per_channel: One scale per output channel of a weight.
            quantize_io: Inputs and outputs of the model are integers too.
        """
        raise NoProviderError
