"""A compiled model from the cloud, for both toolchains: a quantize job where there is data, then a compile job."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from embedl_hub.providers.qai_hub import files
from embedl_hub.toolchain import model as models

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from embedl_hub.core.compile import CalibrationData
    from embedl_hub.core.context import HubContext
    from embedl_hub.providers.qai_hub.service import Service
    from embedl_hub.toolchain.model import Tensor


@dataclass(frozen=True)
class Wishes:
    """How a model is to be compiled.

    Attributes:
        runtime: The vendor's word for what is to run it.
        input_shape: The first input's shape, where the model leaves it open.
        calibration_data: Makes it INT8.
        quantize_io: Integers at its ends, too.
        quantize_options: For the quantize job, before those of the device.
    """

    runtime: str
    input_shape: tuple[int, ...] | None
    calibration_data: CalibrationData | None
    quantize_io: bool
    quantize_options: str = ""


@dataclass(frozen=True)
class Fetched:
    """What came back, and the tensors of the model that was sent."""

    path: Path
    inputs: Sequence[Tensor]
    outputs: Sequence[Tensor]


def compile_model(
    ctx: HubContext, onnx_path: Path, scratch: Path, wishes: Wishes, open_service: Callable[[], Service]
) -> Fetched:
    """Send a model, have it compiled and fetch it; what can be refused is refused before the cloud is asked."""
    source = ctx.client.log_artifact(models.gather(onnx_path, scratch), name="input")
    ctx.client.log_param("$runtime", wishes.runtime)
    model = models.read_model(source.local())
    if wishes.input_shape is not None:
        models.fix_input_shape(model, wishes.input_shape)
    inputs, outputs = models.inputs_of(model), models.outputs_of(model)
    specs = files.input_specs(inputs)
    calibration = wishes.calibration_data
    data = None if calibration is None else files.calibration_entries(calibration, inputs, scratch)
    packed = models.write_model(model, scratch / f"{onnx_path.stem}.onnx")
    service = open_service()
    uploaded = service.upload_model(packed)
    if data is not None:
        options = f"{wishes.quantize_options} {service.config.quantize_options}".strip()
        uploaded = service.quantize(uploaded, service.upload_data(data), options)
    words = [f"--target_runtime {wishes.runtime}", "--quantize_io" if wishes.quantize_io else ""]
    options = " ".join(filter(None, [*words, service.config.compile_options]))
    fetched = service.compile(uploaded, specs, options, scratch / f"target.{wishes.runtime}")
    return Fetched(fetched, inputs, outputs)
