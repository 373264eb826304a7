"""What does calibration add to a plain pass, and quantization-aware training to a plain step, on a GPU?

The float network, the network under calibration and the network with fake quantization run in turns; the least time of
each counts. "calibration" is against the transformed network's own forward pass over the same batches. "training" is
one step of SGD on the quantized network against one on the network as it was written.

    python benchmarks/deploy/bench_gpu.py [--device cuda] [--only NET ...] [--batch 64 256] [--rounds 10] [--json FILE]
"""

from __future__ import annotations

import copy
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import report
from deploy import nets
from figures import Figure, declared

from embedl_deploy import transform
from embedl_deploy.onnxruntime import ONNXRUNTIME, ONNXRUNTIME_PATTERNS
from embedl_deploy.quantize import collect, quantize

if TYPE_CHECKING:
    from collections.abc import Callable


def stepper(model: nn.Module, batch: torch.Tensor) -> Callable[[], None]:
    """Return one training step of a model."""
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    model.train()
    targets = torch.zeros(len(batch), dtype=torch.int64, device=batch.device)

    def step() -> None:
        optimizer.zero_grad()
        out = model(batch)
        loss = nn.functional.cross_entropy(out.flatten(2).mean(2) if out.dim() > 2 else out, targets)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    return step


def least(works: dict[str, Callable[[], Any]], rounds: int, device: str) -> dict[str, float]:
    """Run every piece of work once a round and return the least milliseconds of each."""
    best = dict.fromkeys(works, float("inf"))
    for number in range(rounds + 2):
        for title, work in works.items():
            _settle(device)
            start = time.perf_counter_ns()
            work()
            _settle(device)
            if number > 1:
                best[title] = min(best[title], (time.perf_counter_ns() - start) / 1e6)
    return best


def _settle(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def measure(name: str, device: str, batch: int, rounds: int) -> dict[str, float]:
    """Measure one network."""
    pictures = nets.pictures(batch, nets.SIZES[name])
    model = nets.timed(name)
    fused = transform(model, (pictures[:1],), ONNXRUNTIME_PATTERNS, verify=False).model
    quantized = quantize(fused, (pictures[:1],), forward_loop=[(pictures[:2],)], backend=ONNXRUNTIME).to(device)
    fused, on_device = fused.to(device).eval(), pictures.to(device)
    batches = [(on_device,)] * 4

    def forward() -> None:
        with torch.no_grad():
            for args in batches:
                fused(*args)

    trained = copy.deepcopy(quantized)
    works = {
        "forward_ms": forward,
        "calibration_ms": lambda: collect(quantized, batches),
        "step_ms": stepper(nets.timed(name).to(device), on_device),
        "qat_step_ms": stepper(trained, on_device),
    }
    row = least(works, rounds, device)
    row["calibration"] = row["calibration_ms"] / row["forward_ms"]
    row["training"] = row["qat_step_ms"] / row["step_ms"]
    return row


def main() -> None:
    """Print the table."""
    parser = report.parser(__doc__)
    names = [*nets.TIMED, *nets.TOYS]
    parser.add_argument("--only", nargs="+", choices=names, default=["resnet50", "mobilenet_v2", "vit_6x384", "unet"])
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
    parser.add_argument("--batch", type=int, nargs="+", default=[64, 256])
    parser.add_argument("--rounds", type=int, default=10)
    options = parser.parse_args()
    if options.device == "cuda" and not torch.cuda.is_available():
        sys.exit("torch sees no GPU here; --device cpu measures the processor.")
    session = report.Session("gpu", parser, options)
    place = torch.cuda.get_device_name() if options.device == "cuda" else "cpu"
    data: dict[str, Any] = {"device": place, "batches": {}}
    print("| batch | net | forward, ms | calibration, ms | ratio | step, ms | QAT step, ms | ratio |")
    print("|---|---|---|---|---|---|---|---|")
    for batch in options.batch:
        rows = data["batches"][str(batch)] = {}
        for name in options.only:
            row = rows[name] = measure(name, options.device, batch, options.rounds)
            print(
                f"| {batch} | {name} | {row['forward_ms']:.2f} | {row['calibration_ms']:.2f} "
                f"| {row['calibration']:.2f} | {row['step_ms']:.2f} | {row['qat_step_ms']:.2f} "
                f"| {row['training']:.2f} |",
                flush=True,
            )
    session.finish(data, figures(data), packages=("torch",), facts={"device": place})


def figures(data: dict[str, Any]) -> list[Figure]:
    """Return what is quoted: calibration next to a forward pass, a quantized step next to a plain one."""
    made = []
    for batch, rows in data["batches"].items():
        for name, row in rows.items():
            where = f"{name} at batch {batch}"
            made += [
                declared(f"{where}: calibration", "ms", row["calibration_ms"], 0.15, "forward", row["forward_ms"]),
                declared(f"{where}: training step", "ms", row["qat_step_ms"], 0.15, "a plain step", row["step_ms"]),
            ]
    return made


if __name__ == "__main__":
    main()
