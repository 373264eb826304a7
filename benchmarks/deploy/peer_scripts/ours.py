"""Quantize with this project for ONNX Runtime on x86, or for the dialects asked for, a file each.

On request it keeps what the fake-quant model answers.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from deploy.peer_scripts.measure import job

JOB = job()

import numpy as np  # noqa: E402
import torch  # noqa: E402
from deploy import files  # noqa: E402

from embedl_deploy import transform  # noqa: E402
from embedl_deploy.backend import set_backend  # noqa: E402
from embedl_deploy.export import export_onnx  # noqa: E402
from embedl_deploy.quantize import CalibrationMethod, Correction, QuantConfig, TensorQuantConfig, quantize  # noqa: E402

torch.set_num_threads(1)
name, array = next(iter(JOB.batches().items()))
pictures = torch.from_numpy(array)
batches = [(picture[None],) for picture in pictures]
dynamic = bool(JOB.options.get("dynamic"))
example = (pictures[: 2 if dynamic else 1],)
model = files.build(JOB.options["net"], rescaled=JOB.options.get("rescaled", False))
config = QuantConfig()
if "method" in JOB.options:
    config = QuantConfig(activation=TensorQuantConfig(calibration_method=CalibrationMethod[JOB.options["method"]]))
set_backend("onnxruntime")
with JOB.measured("transform"):
    fused = transform(model, example).model
with JOB.measured("quantize"):
    quantized = quantize(
        fused, example, config, batches, corrections=tuple(Correction) if JOB.options.get("cures") else ()
    )
with JOB.measured("export"):
    for dialect, out in JOB.options.get("dialects", {"onnxruntime-x86": JOB.out}).items():
        export_onnx(quantized, example, out, dialect=dialect, dynamic_batch=dynamic, input_names=[name])
if "judge" in JOB.options:
    with np.load(JOB.options["judge"]) as stored, torch.no_grad():
        parts = [quantized(part) for part in torch.split(torch.from_numpy(stored[name]), 100)]
    np.savez(Path(JOB.out).with_suffix(".simulated.npz"), output=torch.cat(parts).numpy())
JOB.finish("torch", "onnx")
