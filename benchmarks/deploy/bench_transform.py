"""What does a transform cost next to tracing alone, in time and in memory, and is it linear in the size of the graph?

"Run" is the time the user's own model takes on the example inputs, for shapes and proofs; it is left out of the ratio
and shown beside it.
"""

import gc
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import fx, nn

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))
sys.path.insert(0, str(ROOT / "benchmarks"))

import report  # noqa: E402
from figures import Figure, alone, declared, least  # noqa: E402
from support import deploy_zoo  # noqa: E402

from embedl_deploy import transform  # noqa: E402
from embedl_deploy.tensorrt import TENSORRT_PATTERNS  # noqa: E402


def seconds(work: Callable[[], Any]) -> float:
    """Time one call."""
    gc.collect()
    start = time.perf_counter_ns()
    work()
    return (time.perf_counter_ns() - start) / 1e9


def cost(name: str, rounds: int) -> dict[str, Any]:
    """Compare a transform with the tracing it is built on, interleaved."""
    if name.startswith("hf:"):
        model, kwargs = deploy_zoo.hugging_face(name.removeprefix("hf:"))
        args: tuple[Any, ...] = ()
        trace = lambda: torch.export.export(model, (), kwargs, strict=False)  # noqa: E731
    else:
        model, args = deploy_zoo.torchvision_model(name, size=224)
        kwargs = {}
        trace = lambda: fx.symbolic_trace(model)  # type: ignore[assignment, return-value]  # noqa: E731
    traced, ours, run, proved = [], [], [], []
    for _ in range(rounds):
        traced.append(seconds(trace))
        gc.collect()
        spent = transform(model, args, TENSORRT_PATTERNS, kwargs=kwargs, verify=False).report.seconds
        ours.append(sum(value for part, value in spent.items() if part != "run"))
        run.append(spent["run"])
        spent = transform(model, args, TENSORRT_PATTERNS, kwargs=kwargs).report.seconds
        proved.append(sum(spent.values()))
    return {
        "rounds_trace_ms": [value * 1e3 for value in traced],
        "rounds_transform_ms": [value * 1e3 for value in ours],
        "trace_ms": min(traced) * 1e3,
        "transform_ms": min(ours) * 1e3,
        "ratio": min(ours) / min(traced),
        "run_ms": min(run) * 1e3,
        "with_proofs_ms": min(proved) * 1e3,
    }


class Chain(nn.Module):
    """Blocks of convolution, batch norm, ReLU and a residual add, to any depth."""

    def __init__(self, blocks: int) -> None:
        super().__init__()
        self.convs = nn.ModuleList(nn.Conv2d(2, 2, 1) for _ in range(blocks))
        self.bns = nn.ModuleList(nn.BatchNorm2d(2) for _ in range(blocks))
        self.relu = nn.ReLU()
        self.dropout = nn.Dropout()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Run the blocks."""
        for conv, bn in zip(self.convs, self.bns, strict=True):
            x = self.relu(bn(conv(self.dropout(x))) + x)
        return x


def scaling(sizes: list[int]) -> list[dict[str, float]]:
    """Transform graphs of growing size."""
    rows = []
    for size in sizes:
        model = Chain(size // 5).eval()
        nodes = len(fx.symbolic_trace(model).graph.nodes)
        trace = partial(fx.symbolic_trace, model)
        work = partial(transform, model, None, TENSORRT_PATTERNS)
        pairs = [(seconds(trace), seconds(work)) for _ in range(3)]
        traced, ours = (min(column) for column in zip(*pairs, strict=True))
        rows.append({"nodes": nodes, "trace_s": traced, "transform_s": ours, "us_per_node": ours / nodes * 1e6})
    return rows


COLUMNS = ("trace_ms", "transform_ms", "ratio", "run_ms", "with_proofs_ms")
HEADLINES = ("resnet50", "swin_t")

IMPORT = """
import time, torch
start = time.perf_counter()
from embedl_deploy import transform
print(time.perf_counter() - start)
"""

MEMORY = """
import gc, sys, torch
sys.path.insert(0, sys.argv[1])
def status(key):
    return next(int(l.split()[1]) for l in open("/proc/self/status") if l.startswith(key)) / 1024
def reset():
    open("/proc/self/clear_refs", "w").write("5")
torch.set_num_threads(1)
from support import deploy_zoo
from embedl_deploy import transform
from embedl_deploy.tensorrt import TENSORRT_PATTERNS
verify = sys.argv[3] == "verify"
small, args = deploy_zoo.torchvision_model("resnet18", size=224)
transform(small, args, TENSORRT_PATTERNS, verify=verify)
del small
gc.collect()
import ctypes; ctypes.CDLL("libc.so.6").malloc_trim(0)
before = status("VmRSS")
import torchvision.models as zoo
model = zoo.get_model(sys.argv[2], weights=None).eval()
held = status("VmRSS") - before
with torch.no_grad():
    model(torch.randn(1, 3, 224, 224))
    gc.collect(); ctypes.CDLL("libc.so.6").malloc_trim(0)
    reset()
    model(torch.randn(1, 3, 224, 224))
forward = status("VmHWM") - before
gc.collect(); ctypes.CDLL("libc.so.6").malloc_trim(0)
reset()
result = transform(model, (torch.randn(1, 3, 224, 224),), TENSORRT_PATTERNS, verify=verify)
peak = status("VmHWM") - before
size = sum(p.numel() * p.element_size() for p in model.parameters()) / 2**20
theirs = {p.untyped_storage().data_ptr() for p in model.parameters()}
ours = [p for p in result.model.parameters() if p.untyped_storage().data_ptr() not in theirs]
new = sum(p.numel() * p.element_size() for p in ours)
print(held, peak, size, new / 2**20, forward)
"""


def measured(code: str, *arguments: str) -> list[float]:
    """Run code in a fresh interpreter and read the numbers it prints."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code, *arguments], capture_output=True, text=True, check=True
    )
    return [float(word) for word in done.stdout.split()]


def figures(data: dict[str, Any]) -> list[Figure]:
    """Return what is quoted."""
    made = []
    for name, row in data["cost"].items():
        opponent = "`torch.export` alone" if name.startswith("hf:") else "`torch.fx` trace alone"
        made.append(
            least(f"transform {name}, proofs apart", "ms", row["rounds_transform_ms"], opponent, row["rounds_trace_ms"])
        )
        made[-1] = made[-1].in_short() if name in HEADLINES else made[-1]
    largest = data["scaling"][-1]
    made.append(declared(f"transform a graph of {largest['nodes']:,} nodes", "s", largest["transform_s"], 0.3))
    made.append(
        alone("`from embedl_deploy import transform` after torch", "ms", [1e3 * value for value in data["import_s"]])
    )
    made += [
        declared(f"peak memory of a transform, {name}", "MiB", row["peak_mib"], 0.1, "the model", row["model_mib"])
        for name, row in data["memory"].items()
    ]
    return made


def main() -> None:
    """Print the figures."""
    parser = report.parser(__doc__)
    parser.add_argument("--quick", action="store_true", help="one round on small cases")
    options = parser.parse_args()
    torch.set_num_threads(1)
    session = report.Session("transform", parser, options)
    data: dict[str, Any] = {}
    names = ["resnet18"] if options.quick else ["resnet50", "swin_t", "vit_b_16", "hf:vit", "hf:swin"]
    data["cost"] = {name: cost(name, 1 if options.quick else 10) for name in names}
    print("| model | trace alone, ms | transform, ms | ratio | run, ms | with proofs, ms |\n|---|---|---|---|---|---|")
    for name, row in data["cost"].items():
        print(f"| {name} | " + " | ".join(f"{row[key]:.2f}" for key in COLUMNS) + " |", flush=True)
    data["scaling"] = scaling([500] if options.quick else [1250, 2500, 5000, 10000, 20000])
    print("\n| nodes | trace alone, s | transform, s | µs per node |\n|---|---|---|---|")
    for row in data["scaling"]:
        print(
            f"| {row['nodes']} | {row['trace_s']:.3f} | {row['transform_s']:.3f} | {row['us_per_node']:.1f} |",
            flush=True,
        )
    data["import_s"] = [measured(IMPORT)[0] for _ in range(1 if options.quick else 7)]
    print(f"\nfrom embedl_deploy import transform, after torch: {min(data['import_s']) * 1e3:.0f} ms")
    data["memory"] = {}
    for name in [] if options.quick else ["resnet50", "vit_l_16"]:
        for mode in ("plain", "verify"):
            held, peak, size, new, forward = measured(MEMORY, str(ROOT / "tests"), name, mode)
            data["memory"][f"{name} {mode}"] = {
                "model_mib": held,
                "peak_mib": peak,
                "ratio": peak / held,
                "new_mib": new,
                "forward_ratio": forward / held,
            }
            print(
                f"{name}, {mode}: weights {size:.0f} MiB, {new:.1f} MiB of them new; peak {peak / held:.2f} × the model"
            )
            print(f"    (one forward pass of the model itself: {forward / held:.2f} ×)", flush=True)
    session.finish(data, figures(data), packages=("torch", "torchvision", "transformers"))


if __name__ == "__main__":
    main()
