"""Quantize with onnxruntime.quantization: its pre-processing, then static Q/DQ."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from deploy.peer_scripts.measure import job

JOB = job()

from onnxruntime.quantization import (  # noqa: E402
    CalibrationDataReader,
    CalibrationMethod,
    QuantFormat,
    QuantType,
    quantize_static,
)
from onnxruntime.quantization.shape_inference import quant_pre_process  # noqa: E402


class Reader(CalibrationDataReader):  # type: ignore[misc]
    """Hand out the calibration pictures one at a time."""

    def __init__(self, batches: dict[str, Any]) -> None:
        """Cut the stored array."""
        name, array = next(iter(batches.items()))
        self.rest = iter([{name: array[index : index + 1]} for index in range(len(array))])

    def get_next(self) -> dict[str, Any] | None:
        """Return the next picture."""
        return next(self.rest, None)


def prepared(folder: str) -> str:
    """Pre-process; a network on which that fails is quantized as it is."""
    out = f"{folder}/prepared.onnx"
    try:
        quant_pre_process(JOB.float_onnx, out)
    except Exception as error:  # noqa: BLE001 - whatever the peer raises is the finding
        JOB.note(f"quant_pre_process failed ({type(error).__name__}: {str(error)[:90]}); quantized without it")
        return JOB.float_onnx
    return out


U8, S8 = QuantType.QUInt8, QuantType.QInt8
SETTINGS: dict[str, dict[str, Any]] = {
    "u8": {"activation_type": U8, "weight_type": S8, "per_channel": True},
    "u8 reduced": {"activation_type": U8, "weight_type": S8, "per_channel": True, "reduce_range": True},
    "u8u8": {"activation_type": U8, "weight_type": U8, "per_channel": True},
    "s8s8": {"activation_type": S8, "weight_type": S8, "per_channel": True},
    "default": {},
}
settings = SETTINGS[JOB.options.get("settings", "u8")]
method = CalibrationMethod[JOB.options.get("method", "MinMax")]
reader = Reader(JOB.batches())
with tempfile.TemporaryDirectory() as scratch, JOB.measured():
    quantize_static(
        prepared(scratch), JOB.out, reader, quant_format=QuantFormat.QDQ, calibrate_method=method, **settings
    )
JOB.finish("onnxruntime", "onnx")
