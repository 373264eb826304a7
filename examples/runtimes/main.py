"""One network on every runtime that is installed: one calibration, a file for each runtime, one table.

    python examples/runtimes/main.py [FOLDER]

The files, the data and the plan of the sweep go into the folder, the runs into .embedl there.
"""

import importlib.util
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import nn

sys.path.append(str(Path(__file__).resolve().parents[1] / "shared"))

import handwritten

from embedl_demo.digits import load_digits
from embedl_deploy import transform
from embedl_deploy.dialect import dialect_for
from embedl_deploy.export import export_onnx
from embedl_deploy.onnxruntime import ONNXRUNTIME
from embedl_deploy.quantize import quantize

TESTED = 400


@dataclass(frozen=True)
class Runtime:
    """A runtime of this machine; ``package`` tells whether it is installed."""

    title: str
    toolchain: str
    dialect: str
    package: str
    setup: str  # the line that installs it

    @property
    def is_here(self) -> bool:
        """Whether it can be run."""
        return importlib.util.find_spec(self.package) is not None


RUNTIMES = tuple(
    Runtime(title, toolchain, dialect, package, f"pip install 'edgeproof-hub[{toolchain}]'")
    for title, toolchain, dialect, package in (
        ("ONNX Runtime", "onnxruntime", dialect_for("here").name, "onnxruntime"),
        ("OpenVINO", "openvino", "openvino", "openvino"),
        ("LiteRT", "tflite", "litert", "ai_edge_litert"),
        ("ExecuTorch", "executorch", "executorch", "executorch"),
    )
)


def write_files(folder: Path, runtimes: list[Runtime]) -> float:
    """Train, quantize once, write a file in each runtime's dialect, and return the accuracy that was simulated."""
    training, testing = load_digits()
    model = handwritten.network(width=32)
    handwritten.train(model, training, epochs=1, rate=0.01)
    example = (training[0][:1],)
    network = transform(model, example, ONNXRUNTIME).model
    simulated = quantize(network, example, forward_loop=torch.split(training[0][:512], 64), backend=ONNXRUNTIME)
    files: list[tuple[str, nn.Module, str | None]] = [("digits.onnx", network, None)]
    files += [(f"digits-{runtime.toolchain}.onnx", simulated, runtime.dialect) for runtime in runtimes]
    for name, source, dialect in files:
        export_onnx(
            source, example, folder / name, dialect=dialect, input_names=["image"], output_names=["scores"]
        )  # fmt: skip
    images, labels = testing[0][:TESTED], testing[1][:TESTED]
    np.savez(folder / "test.npz", image=images.numpy())
    np.save(folder / "labels.npy", labels.numpy())
    return handwritten.accuracy(simulated, (images, labels))


def write_plan(folder: Path, runtimes: list[Runtime]) -> Path:
    """Write the sweep: each runtime with the float file and with the one in its dialect."""
    data = {"test": "test.npz", "labels": "labels.npy"}
    data |= {runtime.toolchain: f"digits-{runtime.toolchain}.onnx" for runtime in runtimes}
    lines = [
        "[sweep]",
        'name = "runtimes"',
        'steps = ["compile", "profile", "invoke"]',
        f'reference = "{runtimes[0].title} float"',
        "[models.digits]",
        'path = "digits.onnx"',
        "data = { " + ", ".join(f'{name} = "{file}"' for name, file in data.items()) + " }",
    ]
    lines += ["[devices]", 'names = ["here"]']
    for runtime in runtimes:
        lines += [f'[options."{runtime.title} float"]', f'toolchain = "{runtime.toolchain}"']
        lines += [f'[options."{runtime.title} INT8"]', f'toolchain = "{runtime.toolchain}"']
        lines += [f'source = "${runtime.toolchain}"']
    plan = folder / "plan.toml"
    plan.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return plan


def write_device(home: Path) -> None:
    """Write down this machine with one thread: runtimes take as many as they like unless told."""
    home.mkdir(parents=True, exist_ok=True)
    lines = ("[devices.here]", 'type = "local"', 'runner = "none"', "config = { threads = 1, min_seconds = 0.5 }")
    (home / "devices.toml").write_text("\n".join(lines) + "\n", encoding="utf-8")


def main() -> int:
    """Run the example; the exit code is the sweep's."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path.cwd()
    folder.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(0)
    torch.set_num_threads(1)
    here = [runtime for runtime in RUNTIMES if runtime.is_here]
    for runtime in RUNTIMES:
        if not runtime.is_here:
            print(f"{runtime.title} is left out; it comes with: {runtime.setup}")
    simulated = write_files(folder, here)
    plan, home = write_plan(folder, here), folder / ".embedl"
    write_device(home)
    argv = [sys.executable, "-P", "-m", "embedl_hub", "sweep", str(plan), "--home", str(home)]
    code = subprocess.run(argv, check=False, timeout=1800).returncode
    print(f"accuracy of the quantized network in PyTorch: {simulated:.1f} %")
    print(f"runs stored in {home}")
    return code


if __name__ == "__main__":
    sys.exit(main())
