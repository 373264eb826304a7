"""Is the memory predicted before a model is sent what the runtime itself then says, and does memory by layer add up?

Twelve networks with random weights, every second one INT8 where the compiler makes it, in three runtimes: ONNX Runtime,
LiteRT with its own kernels and ExecuTorch with its own kernels. The prediction reads the compiled file alone. Against
it stands the runtime's own figure, from the device program in a process of its own: the arena of ONNX Runtime's
profile, the extent of LiteRT's arena by the addresses of its tensors, what ExecuTorch allocated for planned buffers.

    python benchmarks/hub/bench_memory.py [--only NAME ...] [--runtimes NAME ...] [--json FILE]
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from embedl_hub.core import HubContext
from embedl_hub.core.compile import ExecuTorchCompiler, ONNXRuntimeCompiler, TFLiteCompiler
from embedl_hub.core.device import Device, LiteRTConfig, ONNXRuntimeConfig
from embedl_hub.errors import HubError
from embedl_hub.models.onnx_file import read_graph
from embedl_hub.toolchains.executorch import memory as executorch
from embedl_hub.toolchains.onnxruntime.memory.measured import measured_memory as onnxruntime_measured
from embedl_hub.toolchains.onnxruntime.memory.predict import predict_memory
from embedl_hub.toolchains.tflite.memory import predict as tflite

sys.path.insert(0, str(Path(__file__).parents[1]))
from figures import Figure, bounded, rate
from hub.bench_predict import NETWORKS, export
from report import Session, parser, print_table

if TYPE_CHECKING:
    from collections.abc import Mapping

    from embedl_hub.core.document import MemoryProfile

WITHIN = 0.05
LEAST = 0.9
TWELVE = (
    "mobilenet_v2", "resnet18", "mobilenet_v3_small", "efficientnet_b0", "shufflenet_v2_x1_0", "squeezenet1_1",
    "regnet_y_400mf", "googlenet", "densenet121", "unet", "vit_6x384", "bert_4x256",
)  # fmt: skip
RUNTIMES = ("onnxruntime", "tflite", "executorch")
_PROFILE = (
    "--threads", "1", "--iterations", "1", "--min-seconds", "0", "--max-seconds", "0.1", "--max-warmup-seconds", "0",
    "--layer-runs", "2",
)  # fmt: skip
_LITERT = (
    "import json, sys; from pathlib import Path; from embedl_litert.session import Model, Settings; "
    "print(json.dumps(Model(Path(sys.argv[1]), Settings(1, False)).memory()))"
)
_EXECUTORCH = (
    "import json, sys; from pathlib import Path; from embedl_executorch.session import Model, Settings; "
    "print(json.dumps(Model(Path(sys.argv[1]), Settings(1)).memory()))"
)


def answer(argv: list[str]) -> dict[str, Any]:
    """Return what a process printed last, as JSON."""
    done = subprocess.run([sys.executable, *argv], capture_output=True, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def compiled(ctx: HubContext, runtime: str, path: Path, shape: tuple[int, ...], *, integers: bool) -> Path:
    """Compile a network for a runtime and return the file."""
    data = {"x": np.random.default_rng(1).normal(size=(1, *shape)).astype(np.float32)} if integers else None
    if runtime == "onnxruntime":
        return ONNXRuntimeCompiler().run(ctx, path, calibration_data=data).path.local()
    if runtime == "tflite":
        return TFLiteCompiler().run(ctx, path, calibration_data=data).path.local()
    return ExecuTorchCompiler().run(ctx, exported(path), backend="portable").path.local()


def exported(path: Path) -> Path:
    """Write a network as ExecuTorch's compiler takes it best, beside its ONNX file."""
    build, shape = NETWORKS[path.stem]
    torch.manual_seed(0)
    program = torch.export.export(build().eval(), (torch.randn(1, *shape),))
    torch.export.save(program, path.with_suffix(".pt2"))
    return path.with_suffix(".pt2")


def profiles(runtime: str, path: Path) -> tuple[MemoryProfile, MemoryProfile]:
    """Return what is predicted from a file, and what the runtime says."""
    if runtime == "onnxruntime":
        graph = read_graph(path)
        told = answer(["-m", "embedl_onnxruntime", "profile", "--model", str(path), *_PROFILE])["memory"]
        return predict_memory(graph, 1), onnxruntime_measured(told, graph)
    if runtime == "tflite":
        return tflite.plan_file(path, LiteRTConfig(xnnpack=False)), tflite.measured_memory(
            answer(["-c", _LITERT, str(path)]), path
        )
    return executorch.plan_file(path), executorch.measured_memory(answer(["-c", _EXECUTORCH, str(path)]), path)


def one(ctx: HubContext, name: str, runtime: str, folder: Path) -> dict[str, Any]:
    """Predict and measure one network in one runtime."""
    integers = TWELVE.index(name) % 2 == 1 and runtime != "executorch"
    row: dict[str, Any] = {"name": name, "runtime": runtime, "int8": integers}
    try:
        path = compiled(ctx, runtime, folder / f"{name}.onnx", NETWORKS[name][1], integers=integers)
        predicted, measured = profiles(runtime, path)
    except (HubError, subprocess.CalledProcessError) as error:
        return {**row, "failed": str(error).strip().partition("\n")[0][:200]}
    if predicted.arena_bytes is None or measured.arena_bytes is None:
        return {**row, "failed": predicted.problem or measured.problem}
    told = {each.name: each.in_use_bytes - _packed(measured) for each in measured.rows}
    same = sum(told.get(each.name) == each.in_use_bytes - _packed(predicted) for each in predicted.rows)
    # ExecuTorch tells no more than a sum: what adds up are the buffers of the plan.
    summed = predicted if runtime == "executorch" else measured
    return {
        **row,
        "predicted_bytes": predicted.arena_bytes,
        "measured_bytes": measured.arena_bytes,
        "weights_bytes": predicted.weights_bytes,
        "error": predicted.arena_bytes / measured.arena_bytes - 1,
        "adds_up": sum(part.size_bytes for part in summed.parts) == summed.arena_bytes,
        "named": runtime == "executorch" or not any("not known" in part.what for part in measured.parts),
        "layers": len(predicted.rows),
        "layers_same": same,
        "peak_layer": measured.peak_layer,
        "peak_layer_predicted": predicted.peak_layer,
    }


def _packed(profile: MemoryProfile) -> int:
    """Return what is in the arena before anything runs: a few hundred bytes of it are not predicted."""
    packed = profile.facts.get("packed_weights_bytes")
    return packed if isinstance(packed, int) else 0


def figures(data: Mapping[str, Any]) -> list[Figure]:
    """Return by runtime the share within 5 %, the worst error, and how often parts add up."""
    made = []
    for runtime in dict.fromkeys(row["runtime"] for row in data["rows"]):
        own = [row for row in data["rows"] if row["runtime"] == runtime]
        good = sum("error" in row and abs(row["error"]) <= WITHIN for row in own)
        worst = max((abs(row["error"]) for row in own if "error" in row), default=float("nan"))
        exact = sum(bool(row.get("adds_up")) for row in own)
        made += [
            rate(f"{runtime}: predicted arena within 5 % of the runtime's own", good, len(own))
            .required("at least 90 %", good >= LEAST * len(own))
            .in_short(),
            bounded(f"{runtime}: predicted arena, largest error", "%", 100 * worst, 1.0),
            rate(f"{runtime}: memory by layer adds up to the arena to the byte", exact, len(own))
            .required("all", exact == len(own))
            .in_short(),
        ]
    return made


def line(row: Mapping[str, Any]) -> list[str]:
    """Return one row of the table."""
    head = [row["name"], row["runtime"], "INT8" if row["int8"] else "float"]
    if "failed" in row:
        return [*head, "failed", "", "", str(row["failed"])[:60]]
    exact = "yes" if row["adds_up"] else "NO"
    layers = f"{row['layers_same']} of {row['layers']}"
    sizes = [f"{row[key] / 1e6:.3f}" for key in ("predicted_bytes", "measured_bytes")]
    return [*head, *sizes, f"{100 * row['error']:+.2f}", f"{exact}; {layers}"]


TITLES = ("net", "runtime", "numbers", "predicted, MB", "runtime's own, MB", "error, %", "adds up; layers the same")


def main() -> None:
    """Measure."""
    options = parser(__doc__)
    options.add_argument("--only", nargs="+", choices=TWELVE, default=list(TWELVE), help="some networks")
    options.add_argument("--runtimes", nargs="+", choices=RUNTIMES, default=list(RUNTIMES), help="some runtimes")
    arguments = options.parse_args()
    session = Session("memory", options, arguments)
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    device = Device("here", provider_type="local", provider_config=ONNXRuntimeConfig(threads=1, prediction=False))
    rows = []
    with tempfile.TemporaryDirectory() as name, HubContext("memory", [device], home=Path(name) / "home") as ctx:
        for network in arguments.only:
            export(network, Path(name))
            for runtime in arguments.runtimes:
                rows.append(one(ctx, network, runtime, Path(name)))
                print("  ".join(line(rows[-1])), flush=True)
    print_table(TITLES, [line(row) for row in rows])
    packages = ("onnx", "onnxruntime", "ai-edge-litert", "executorch", "torch", "torchvision", "transformers", "numpy")
    data = {"rows": rows}
    session.finish(data, figures(data), packages=packages, facts={"threads": 1})


if __name__ == "__main__":
    main()
