"""Compile a small INT8 model for two NPUs, read Vela's estimates, and run the model on a few samples.

pip install ./examples/vela_toolchain
python examples/vela_toolchain/main.py [MODEL.tflite]
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from vela_toolchain.components import VelaCompiler, VelaInvoker, VelaProfiler

from embedl_hub.core import HubContext
from embedl_hub.errors import HubError

MODEL = Path(__file__).parent / "net_int8.tflite"


def main() -> None:
    """Run the example."""
    path = Path(sys.argv[1]) if len(sys.argv) > 1 else MODEL
    with HubContext("npu", home=".embedl") as ctx:
        for accelerator in ("ethos-u55-64", "ethos-u55-256"):
            model = VelaCompiler(accelerator=accelerator).run(ctx, path)
            profile = VelaProfiler().run(ctx, model)
            print(f"{accelerator}: {model.npu_operators} operators on the NPU, {model.cpu_operators} on the CPU")
            print(f"  {profile.latency.value:.4f} ms, {profile.verdict} {profile.verdict_reason}")
        if path == MODEL:
            samples = np.random.default_rng(0).normal(size=(3, 16, 16, 1)).astype(np.float32)
            answers = VelaInvoker().run(ctx, model, {"x": samples})
            print(f"classes of {len(samples)} samples: {answers.output['y'].argmax(axis=1).tolist()}")
        print(f"runs stored in {ctx.home}")


if __name__ == "__main__":
    try:
        main()
    except HubError as error:
        sys.exit(str(error))
