"""Quantize with torchao's PT2E flow for x86, then export what it gives by torch's own ONNX exporter."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from deploy.peer_scripts.measure import job

JOB = job()

import torch  # noqa: E402
import torchao.quantization.pt2e.quantizer.x86_inductor_quantizer as x86  # noqa: E402
from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e  # noqa: E402

torch.set_num_threads(1)
name, array = next(iter(JOB.batches().items()))
pictures = torch.from_numpy(array)
program = torch.export.load(JOB.program)
with JOB.measured(), torch.no_grad():
    quantizer = x86.X86InductorQuantizer()
    quantizer.set_global(x86.get_default_x86_inductor_quantization_config())
    prepared = prepare_pt2e(program.module(), quantizer)
    for index in range(len(pictures)):
        prepared(pictures[index : index + 1])
    converted = convert_pt2e(prepared)
with JOB.measured("export"), torch.no_grad():
    dynamic = {0: torch.export.Dim("batch")} if JOB.options.get("dynamic") else None
    example = pictures[: 2 if dynamic else 1]
    torch.onnx.export(
        converted, (example,), JOB.out, dynamo=True, input_names=[name], external_data=False, verbose=False,
        dynamic_shapes=None if dynamic is None else (dynamic,),
    )  # fmt: skip
JOB.finish("torchao", "torch", "onnxscript")
