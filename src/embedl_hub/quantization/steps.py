"""INT8 as a part of compiling: the data checked, the number format of the machine, the result recorded."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from embedl_hub.core.invoke import is_ruined
from embedl_hub.machine.program import call_program
from embedl_hub.models.calibration import on_disk, open_calibration
from embedl_hub.quantization.quantize import METHODS, NumberFormat, Request, number_format, quantize, refuse_quantized
from embedl_hub.refusal import RefusedError

if TYPE_CHECKING:
    from embedl_hub.core.compile import CalibrationData
    from embedl_hub.core.context import HubContext
    from embedl_hub.core.device import MeasuringConfig
    from embedl_hub.machine.machine import Machine, Runtime
    from embedl_hub.models.onnx_file import Tensor

_LOG = logging.getLogger("embedl_hub")


@dataclass(frozen=True)
class Wanted:
    """What the user asked of INT8; ``op_types`` are the operators that become integers, ONNX Runtime's when empty."""

    data: CalibrationData | None
    method: str | None = None
    per_channel: bool = False
    quantize_io: bool = False
    op_types: tuple[str, ...] = ()


@dataclass(frozen=True)
class Calibration:
    """What is known before the long part: the data on disk, the method, and what the machine says of itself."""

    wanted: Wanted
    data: Path
    method: str
    doctor: Mapping[str, Any]


def prepare(
    ctx: HubContext,
    machine: Machine[MeasuringConfig],
    runtime: Runtime,
    prepared: Path,
    inputs: Sequence[Tensor],
    wanted: Wanted,
) -> Calibration:
    """Refuse what cannot be quantized or calibrated, and a machine without the runtime, before the long part."""
    refuse_quantized(prepared)
    method = wanted.method or METHODS[0]
    if method not in METHODS:
        raise RefusedError(f"calibration_method is one of {', '.join(METHODS)}, not {method!r}.")
    assert wanted.data is not None  # noqa: S101 - whoever asks for INT8 has data
    data = on_disk(wanted.data, machine.scratch)
    ctx.client.log_param("calibration_samples", open_calibration(data, inputs).count)
    doctor = call_program(machine, runtime, "doctor", [])
    if doctor.get("problem"):
        raise RefusedError(f"{doctor['problem']} (doctor on {machine.title})")
    return Calibration(wanted, data, method, doctor)


def quantize_there(
    ctx: HubContext, machine: Machine[MeasuringConfig], prepared: Path, calibration: Calibration
) -> tuple[Path, dict[str, object]]:
    """Return the INT8 model for a machine and how its integers stand for numbers."""
    form, wanted = _number_format(machine, calibration.doctor), calibration.wanted
    ctx.client.run.log_batch({"number_format": asdict(form), "int8_kernels": form.kernels})
    answer = quantize(
        Request(
            str(prepared), str(prepared.with_name(prepared.name.replace(".prepared", ".int8"))), str(calibration.data),
            calibration.method, form.portable, activations=form.activations, weights=form.weights,
            per_channel=wanted.per_channel, quantize_io=wanted.quantize_io, op_types=wanted.op_types,
        ),
        machine.scratch,
    )  # fmt: skip
    quantization = {"method": calibration.method, "format": asdict(form), **answer["io"]}
    params = {"quantized_ops": answer["ops"], "remedies": answer["remedies"], "quantization": quantization}
    ctx.client.run.log_batch({**params, "calibration_samples_left_out": answer["samples_left_out"]})
    _log_drift(ctx, answer["drift"])
    return Path(answer["output"]), quantization


def _number_format(machine: Machine[MeasuringConfig], doctor: Mapping[str, Any]) -> NumberFormat:
    """Return the format for a machine; what the board answered counts unless the spec names another processor."""
    board = doctor.get("board") or {}
    same = str(board.get("architecture", "")).lower() == machine.architecture.lower()
    kernels = (doctor.get("kernels") or {}) if same else {}
    return number_format(machine.architecture, tuple(board.get("cpu_features") or ()), kernels.get("u8s8"))


def _log_drift(ctx: HubContext, drift: Sequence[Mapping[str, Any]]) -> None:
    """Record how far INT8 is from float on calibration data, and say aloud what no user would want."""
    ctx.client.log_param("calibration_drift", drift)
    for output in drift:
        if is_ruined(output["cosine"], output["finite_share"]):
            _LOG.warning(
                "INT8 changes output %r beyond use even on calibration data: cosine %.3f to float, %.0f%% of its "
                "values are finite. Another calibration_method or per_channel may help; some models cannot be INT8 as "
                "a whole.",
                output["name"], output["cosine"], 100 * output["finite_share"],
            )  # fmt: skip
    if drift:
        ctx.client.log_metric("calibration_cosine", min(output["cosine"] for output in drift))
