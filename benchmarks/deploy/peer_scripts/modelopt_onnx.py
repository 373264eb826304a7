"""Quantize with ModelOpt's ONNX path, as its documentation says."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from deploy.peer_scripts.measure import job

JOB = job()

from modelopt.onnx import quantization  # noqa: E402

with JOB.measured():
    quantization.quantize(
        onnx_path=JOB.float_onnx,
        quantize_mode="int8",
        calibration_data=JOB.batches(),
        calibration_method="max",
        calibration_eps=["cpu"],
        high_precision_dtype="fp32",  # its default, fp16, is for GPUs: on a CPU every operator would be cast around
        output_path=JOB.out,
    )
JOB.finish("nvidia-modelopt", "onnxruntime-gpu", "onnx")
