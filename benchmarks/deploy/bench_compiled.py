"""What does quantization-aware training add to a plain step on a GPU when both are compiled?

Both networks run under `torch.compile` without graph breaks, in its default mode and in "reduce-overhead", which
replays CUDA graphs; steps take turns, each between two CUDA events, and the median of the turns counts. Gradients are
held against those of the same network in eager mode: a compiled step that left work out would be fast.

A pair takes minutes to compile: several networks are compiled in processes of their own, all at once, into Inductor's
cache, before anything is measured.

    python benchmarks/deploy/bench_compiled.py [--device cuda] [--only NET ...] [--batch 64] [--rounds 30] [--json FILE]
"""

from __future__ import annotations

import copy
import gc
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import report
from deploy import bench_gpu, nets
from figures import Figure, declared

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import nn

MODES = {"compiled": "default", "reduced": "reduce-overhead"}  # of `torch.compile`
LIMIT = 1.2
WARM_SECONDS = 480


def gradients(model: nn.Module, run: Callable[[torch.Tensor], torch.Tensor], value: torch.Tensor) -> torch.Tensor:
    """Return the gradients of all parameters for one batch."""
    out = run(value)
    torch.manual_seed(0)
    (out * torch.randn(out.shape).to(out)).sum().backward()  # type: ignore[no-untyped-call]
    missing = [name for name, part in model.named_parameters() if part.grad is None]
    if missing:
        raise RuntimeError(f"no gradient for {missing[:3]}")
    return torch.cat([part.grad.flatten().double() for part in model.parameters() if part.grad is not None])


def agreement(one: torch.Tensor, other: torch.Tensor) -> float:
    """Return how close gradients are, in decibels: a compiled step that left work out would be fast."""
    return float(10 * torch.log10(one.square().sum() / (one - other).square().sum().clamp(min=1e-30)))


def compiled(
    plain: nn.Module, quantized: nn.Module, value: torch.Tensor, device: str, mode: str, rounds: int
) -> dict[str, Any]:
    """Measure both steps under `torch.compile`, without graph breaks."""
    torch.compiler.reset()
    start = time.monotonic()
    works, agree = {}, {}
    for title, given in (("step", plain), ("QAT step", quantized)):
        model = copy.deepcopy(given).train()
        twin = copy.deepcopy(model)
        expected = gradients(twin, twin, value)
        run: Any = torch.compile(model, fullgraph=True, mode=mode)
        agree[title] = agreement(expected, gradients(model, run, value))
        model.zero_grad()
        works[title] = bench_gpu.stepper(run, value)
    seconds = time.monotonic() - start
    memory = {title: bench_gpu.peak_memory(lambda work=work: work, device) for title, work in works.items()}  # type: ignore[misc]
    counted = {title: bench_gpu.kernels(work, device) for title, work in works.items()}
    taken = bench_gpu.in_turns(works, rounds, device)
    one, other = (statistics.median(turns) for turns in taken.values())
    return {
        "ratio": other / one, "median_ms": {"step": one, "QAT step": other}, "ms": taken, "kernels": counted,
        "seconds": seconds, "memory_mib": memory, "gradients_db": agree,
    }  # fmt: skip


def measure(name: str, device: str, batch: int, rounds: int) -> dict[str, Any]:
    """Measure one network in every mode."""
    pictures = nets.pictures(batch, nets.SIZES[name])
    _, quantized = bench_gpu.as_quantized(name, pictures, device)
    row: dict[str, Any] = {}
    for kind, mode in MODES.items():
        try:
            row[kind] = found = compiled(
                bench_gpu.network(name).to(device), quantized, pictures.to(device), device, mode, rounds
            )
        except Exception as error:  # noqa: BLE001 - a compiler that fails is a result too
            row[kind] = {"failed": f"{type(error).__name__}: {error}"[:300]}
            print(f"{kind} {name}: {row[kind]['failed']}", flush=True)
            continue
        told = {title: round(taken, 2) for title, taken in found["median_ms"].items()}
        print(f"{kind} {name}: {found['ratio']:.2f}, ms {told}, kernels {found['kernels']}", flush=True)
        print(f"    in {found['seconds']:.0f} s, MiB {found['memory_mib']}", flush=True)
        print(f"    gradients agree by {found['gradients_db']} dB", flush=True)
        gc.collect()
    return row


def warm(names: list[str], device: str, batch: int) -> None:
    """Compile networks at once, into the cache."""
    argv = [sys.executable, __file__, "--device", device, "--batch", str(batch), "--rounds", "1", "--only"]
    started = [subprocess.Popen([*argv, name], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) for name in names]
    ends = time.monotonic() + WARM_SECONDS
    for process in started:
        try:
            process.wait(max(0.0, ends - time.monotonic()))
        except subprocess.TimeoutExpired:  # it is compiled again, then, where it is measured
            process.kill()
            process.wait()


def main() -> None:
    """Print what was measured."""
    parser = report.parser(__doc__)
    parser.add_argument("--only", nargs="+", choices=[*nets.TIMED, *nets.TOYS], default=bench_gpu.FOUR)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=30)
    options = parser.parse_args()
    if options.device == "cuda" and not torch.cuda.is_available():
        sys.exit("torch sees no GPU here; --device cpu measures the processor.")
    session = report.Session("compiled", parser, options, gpu=options.device == "cuda")
    if len(options.only) > 1:
        warm(options.only, options.device, options.batch)
    place = torch.cuda.get_device_name() if options.device == "cuda" else "cpu"
    rows = {name: measure(name, options.device, options.batch, options.rounds) for name in options.only}
    data = {"device": place, "batch": options.batch, "nets": rows}
    session.finish(data, figures(data), packages=("torch", "triton"), facts={"device": place}, peers={})


def figures(data: dict[str, Any]) -> list[Figure]:
    """Return what is quoted: a compiled quantized step next to a compiled plain one."""
    made = []
    for name, row in data["nets"].items():
        for kind, mode in MODES.items():
            title = f"{name} at batch {data['batch']}: compiled training step, mode {mode}"
            if "failed" in row[kind]:
                continue
            both = row[kind]["median_ms"]
            figure = declared(title, "ms", both["QAT step"], 0.15, "a plain step so", both["step"])
            made.append(figure.at_most(LIMIT) if data["batch"] == 64 else figure)
    return made


if __name__ == "__main__":
    main()
