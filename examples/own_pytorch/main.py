"""A PyTorch model of one's own: transform, quantize, export, verify, compile, profile, run on the test set.

    python examples/own_pytorch/main.py [FOLDER]

The files go into the folder, the runs into .embedl there.
"""

import sys
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

sys.path.append(str(Path(__file__).resolve().parents[1] / "shared"))

import handwritten

from embedl_demo.digits import Batch, load_digits, share_right
from embedl_deploy import transform
from embedl_deploy.export import export_onnx, verify
from embedl_deploy.onnxruntime import ONNXRUNTIME
from embedl_deploy.quantize import quantize
from embedl_hub.core import HubContext
from embedl_hub.core.compile import ONNXRuntimeCompiler
from embedl_hub.core.device import Device, ONNXRuntimeConfig
from embedl_hub.core.invoke import ONNXRuntimeInvoker
from embedl_hub.core.profile import ONNXRuntimeProfiler

SHAPE = (1, 1, 28, 28)


@dataclass(frozen=True)
class Row:
    """What became of one file on the device."""

    name: str
    accuracy: float
    latency_ms: float
    verdict: str
    size_kb: float


def trained() -> tuple[nn.Module, Batch, Batch]:
    """Return a trained model and its data; yours comes from where you keep it."""
    training, testing = load_digits()
    model = handwritten.network(width=64)
    handwritten.train(model, training, epochs=1, rate=0.01)
    return model, training, testing


def deploy(model: nn.Module, training: Batch, folder: Path) -> dict[str, Path]:
    """Write the model as a float and as an INT8 file, and prove the INT8 one."""
    example = (training[0][:1],)
    network = transform(model, example, ONNXRUNTIME)
    print(network.report)
    quantized = quantize(network.model, example, forward_loop=torch.split(training[0][:512], 64), backend=ONNXRUNTIME)
    files = {"float": folder / "digits.onnx", "INT8": folder / "digits.int8.onnx"}
    export_onnx(network.model, example, files["float"], input_names=["image"])
    export_onnx(quantized, example, files["INT8"], dialect="onnxruntime-x86", input_names=["image"])
    proof = verify(
        files["INT8"],
        [training[0][at : at + 1] for at in range(512, 528)],  # not calibrated on
        original=model,
        transformed=network.model,
        simulated=quantized,
    )
    proof.save_html(folder / "report.html")
    assert proof.passed, proof
    print(f"{files['INT8'].name} computes what was simulated; see {folder / 'report.html'}")
    return files


def measure(files: dict[str, Path], testing: Batch, home: Path) -> list[Row]:
    """Compile, profile and invoke each file on this machine; every step is a recorded run."""
    here = Device("here", provider_type="local", provider_config=ONNXRuntimeConfig(threads=1, min_seconds=0.3))
    rows = []
    with HubContext("digits", devices=[here], home=home) as ctx:
        for name, path in files.items():
            model = ONNXRuntimeCompiler(input_shape=SHAPE).run(ctx, path)
            profile = ONNXRuntimeProfiler().run(ctx, model)
            answer = ONNXRuntimeInvoker().run(ctx, model, {"image": testing[0].numpy()})
            (scores,) = answer.output.values()
            median = profile.latency_median or profile.latency
            size = model.path.size_bytes / 1e3
            right = share_right(scores, testing[1])
            rows.append(Row(name, right, median.value, str(profile.verdict), size))
        print(f"runs stored in {ctx.home}")
    return rows


def main() -> None:
    """Run the example."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path.cwd()
    folder.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model, training, testing = trained()
    rows = measure(deploy(model, training, folder), testing, folder / ".embedl")
    print(f"{'':8}{'accuracy':>10}{'median':>12}{'verdict':>10}{'size':>10}")
    print(f"{'PyTorch':8}{handwritten.accuracy(model, testing):>8.1f} %")
    for row in rows:
        print(f"{row.name:8}{row.accuracy:>8.1f} %{row.latency_ms:>9.4f} ms{row.verdict:>10}{row.size_kb:>7.1f} kB")
    assert rows[0].accuracy - rows[1].accuracy <= 1, "INT8 must stay within a point of float"


if __name__ == "__main__":
    main()
