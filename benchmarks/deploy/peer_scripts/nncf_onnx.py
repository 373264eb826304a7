"""Quantize with NNCF's ONNX backend, as its documentation says."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from deploy.peer_scripts.measure import job

JOB = job()

import nncf  # noqa: E402
import onnx  # noqa: E402

name, array = next(iter(JOB.batches().items()))
dataset = nncf.Dataset([{name: array[index : index + 1]} for index in range(len(array))])
kind = nncf.ModelType.TRANSFORMER if JOB.options.get("transformer") else None
with JOB.measured():
    made = nncf.quantize(onnx.load(JOB.float_onnx), dataset, subset_size=len(array), model_type=kind)
    onnx.save(made, JOB.out)
JOB.finish("nncf", "onnxruntime", "onnx")
