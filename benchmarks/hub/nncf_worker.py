"""Quantize a float ONNX file for OpenVINO with NNCF, as its documentation says: FLOAT.onnx DATA.npz OUT.xml KIND.

Runs in NNCF's own environment; ``DATA.npz`` has each input with samples on axis 0.
"""

import sys

import nncf
import numpy as np
import openvino as ov

source, data, output, kind = sys.argv[1:]
with np.load(data) as arrays:
    inputs = {name: arrays[name] for name in arrays.files}
count = len(next(iter(inputs.values())))
samples = [{name: array[at : at + 1] for name, array in inputs.items()} for at in range(count)]
model_type = nncf.ModelType.TRANSFORMER if kind == "transformer" else None
made = nncf.quantize(
    ov.Core().read_model(source), nncf.Dataset(samples), subset_size=len(samples), model_type=model_type
)
ov.save_model(made, output, compress_to_fp16=False)
