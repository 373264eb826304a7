"""What does calibration add to a plain pass, and quantization-aware training to a plain step, on a GPU?

Everything that is compared runs in turns, each time between two CUDA events; the median of the turns counts.
"calibration" is the statistics of every tensor over four batches, against four passes of the transformed network.
"training" is one step of SGD on the quantized network against one on the network as it was written; the device is
waited for before and after each step. "Steps in a row" are eight of them, as a training loop has them: nobody waits,
and the host runs ahead. Memory is the peak of a step beyond what was there before the model. ModelOpt and torchao run
on the same network and batch in the same turns where they can be imported; what does not run is said. Steps under
`torch.compile` are measured by bench_compiled.py.

    python benchmarks/deploy/bench_gpu.py [--device cuda] [--only NET ...] [--batch 64] [--rounds 20] [--json FILE]
"""

from __future__ import annotations

import argparse
import copy
import gc
import statistics
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import report
from deploy import nets, qat_peers
from figures import Figure, declared

from embedl_deploy import transform
from embedl_deploy.onnxruntime import ONNXRUNTIME, ONNXRUNTIME_PATTERNS
from embedl_deploy.quantize import collect, quantize

if TYPE_CHECKING:
    from collections.abc import Callable

FOUR = ["resnet50", "mobilenet_v2", "vit_6x384", "unet"]
BATCHES = 4
IN_A_ROW = 8
LIMITS = {"calibration": 1.3, "training": 1.35, "memory": 1.3}


def stepper(model: nn.Module, batch: torch.Tensor) -> Callable[[], None]:
    """Return one training step of a model."""
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    targets = torch.zeros(len(batch), dtype=torch.int64, device=batch.device)

    def step() -> None:
        optimizer.zero_grad()
        out = model(batch)
        loss = nn.functional.cross_entropy(out.flatten(2).mean(2) if out.dim() > 2 else out, targets)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    return step


def in_turns(works: dict[str, Callable[[], Any]], rounds: int, device: str) -> dict[str, list[float]]:
    """Run every piece of work once a round and return the milliseconds of each turn."""
    taken: dict[str, list[float]] = {title: [] for title in works}
    # Opponents leave hundreds of thousands of objects, and whoever runs when they are looked through would pay.
    gc.collect()
    gc.disable()
    try:
        for number in range(rounds + 3):
            for title, work in works.items():
                if (one := timed(work, device)) and number > 2:
                    taken[title].append(one)
    finally:
        gc.enable()
    return taken


def timed(work: Callable[[], Any], device: str) -> float:
    """Run once and return the milliseconds: between two events on a GPU, by the clock elsewhere."""
    if device != "cuda":
        start = time.perf_counter_ns()
        work()
        return (time.perf_counter_ns() - start) / 1e6
    torch.cuda.synchronize()
    events: Any = torch.cuda.Event
    first, last = events(enable_timing=True), events(enable_timing=True)
    first.record()
    work()
    last.record()
    torch.cuda.synchronize()
    return float(first.elapsed_time(last))


def peak_memory(make: Callable[[], Callable[[], None]], device: str) -> float | None:
    """Return the megabytes at the peak of a step, beyond what was there before its model."""
    if device != "cuda":
        return None
    gc.collect()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated()
    step = make()
    for _ in range(2):
        step()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    step()
    torch.cuda.synchronize()
    return (torch.cuda.max_memory_allocated() - before) / 2**20


def kernels(work: Callable[[], Any], device: str, trace: Path | None = None) -> dict[str, float] | None:
    """Return how many kernels a piece of work launches, and their time together."""
    if device != "cuda":
        return None
    work()
    torch.cuda.synchronize()
    kinds = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=kinds) as profile:
        work()
        torch.cuda.synchronize()
    if trace is not None:
        profile.export_chrome_trace(str(trace))
    autograd: Any = torch.autograd
    ran = [event for event in profile.events() if event.device_type == autograd.DeviceType.CUDA]
    ran = [event for event in ran if not event.name.startswith(("Memcpy", "Memset"))]
    return {"kernels": len(ran), "kernel_ms": sum(event.time_range.elapsed_us() for event in ran) / 1e3}


def network(name: str) -> nn.Module:
    """Return a network with the momentum that batch norm is trained with: a running mean would ask the GPU to wait."""
    model = nets.timed(name)
    for part in model.modules():
        if isinstance(part, nn.BatchNorm2d):
            part.momentum = 0.1
    return model


def as_quantized(name: str, pictures: torch.Tensor, device: str) -> tuple[nn.Module, nn.Module]:
    """Return the transformed network and the calibrated one."""
    model = network(name)
    fused = transform(model, (pictures[:1],), ONNXRUNTIME_PATTERNS, verify=False).model
    quantized = quantize(fused, (pictures[:1],), forward_loop=[(pictures[:2],)], backend=ONNXRUNTIME)
    return fused.to(device).eval(), quantized.to(device)


def measure(name: str, device: str, batch: int, options: argparse.Namespace) -> dict[str, Any]:
    """Measure one network."""
    pictures = nets.pictures(batch, nets.SIZES[name])
    fused, quantized = as_quantized(name, pictures, device)
    plain = network(name).to(device)
    value = pictures.to(device)
    batches = [(value,)] * BATCHES
    row: dict[str, Any] = {"memory_mib": {}, "kernels": {}, "failed": {}, "ms": {}}

    def forward() -> None:
        with torch.no_grad():
            for args in batches:
                fused(*args)

    eager = {
        "step": lambda: stepper(copy.deepcopy(plain).train(), value),
        "QAT step": lambda: stepper(copy.deepcopy(quantized).train(), value),
    }
    passes: dict[str, Callable[[], Any]] = {"forward": forward, "calibration": lambda: collect(quantized, batches)}
    if not options.without_peers:
        add_peers(plain, batches, eager, passes, row["failed"])  # type: ignore[arg-type]
    if device == "cuda":
        eager["graphed step"] = lambda: stepper(graphed(plain, value), value)
        eager["graphed QAT step"] = lambda: stepper(graphed(quantized, value), value)
    for title, make_step in eager.items():
        row["memory_mib"][title] = peak_memory(make_step, device)
    works = passes | {title: make_step() for title, make_step in eager.items()}  # type: ignore[no-untyped-call]
    for title, work in works.items():
        trace = options.traces / f"{name}-{title.replace(' ', '-')}.json" if options.traces else None
        row["kernels"][title] = kernels(work, device, trace)
    row["ms"] |= in_turns(works, options.rounds, device)
    rows = {title: in_a_row(works[title]) for title in ("step", "QAT step")}
    row["in_a_row_ms"] = {
        title: [one / IN_A_ROW for one in taken] for title, taken in in_turns(rows, options.rounds, device).items()
    }
    row["host_ms"] = {title: host_time(work, device) for title, work in works.items()}
    return summary(row)


def graphed(model: nn.Module, value: torch.Tensor) -> nn.Module:
    """Return a copy whose passes are captured in CUDA graphs: what remains of the host's work is a launch each way."""
    made: Any = torch.cuda.make_graphed_callables(copy.deepcopy(model).train(), (value,))
    return made  # type: ignore[no-any-return]


def add_peers(
    plain: nn.Module,
    batches: qat_peers.Batches,
    eager: dict[str, Callable[[], Callable[[], None]]],
    passes: dict[str, Callable[[], Any]],
    failed: dict[str, str],
) -> None:
    """Add what every opponent can do with the network, and why it cannot do the rest."""
    value = batches[0][0]
    for peer in qat_peers.PEERS:
        for what, make in (("QAT step", peer.trained), ("calibration", peer.calibration)):
            title = f"{what}, {peer.name}"
            try:
                work: Any = make(copy.deepcopy(plain), batches)
                if what == "calibration":
                    work()
                    passes[title] = work
                else:
                    stepper(work, value)()
                    eager[title] = lambda made=work: stepper(made, value)  # type: ignore[misc]
            except Exception as error:  # noqa: BLE001 - whatever keeps an opponent from running is told
                failed[title] = f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0][:200]}"
                print(f"  {title}: {failed[title]}", file=sys.stderr, flush=True)


def in_a_row(step: Callable[[], None]) -> Callable[[], None]:
    """Return several steps, one after the other."""

    def steps() -> None:
        for _ in range(IN_A_ROW):
            step()

    return steps


def host_time(work: Callable[[], Any], device: str) -> float | None:
    """Return the milliseconds until everything was launched."""
    if device != "cuda":
        return None
    torch.cuda.synchronize()
    start = time.perf_counter_ns()
    work()
    taken = (time.perf_counter_ns() - start) / 1e6
    torch.cuda.synchronize()
    return taken


def summary(row: dict[str, Any]) -> dict[str, Any]:
    """Add medians and ratios."""
    middle = {title: statistics.median(taken) for title, taken in row["ms"].items()}
    row["calibration"] = middle["calibration"] / middle["forward"]
    row["training"] = middle["QAT step"] / middle["step"]
    row_of = {title: statistics.median(taken) for title, taken in row["in_a_row_ms"].items()}
    row["in_a_row"] = row_of["QAT step"] / row_of["step"]
    if "graphed step" in middle:
        row["graphed"] = middle["graphed QAT step"] / middle["graphed step"]
    if row["memory_mib"]["step"]:
        row["memory"] = row["memory_mib"]["QAT step"] / row["memory_mib"]["step"]
    row["median_ms"], row["median_in_a_row_ms"] = middle, row_of
    return row


def main() -> None:
    """Print the table."""
    parser = report.parser(__doc__)
    parser.add_argument("--only", nargs="+", choices=[*nets.TIMED, *nets.TOYS], default=FOUR)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
    parser.add_argument("--batch", type=int, nargs="+", default=[64])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--without-peers", action="store_true")
    parser.add_argument("--traces", type=Path, help="write the trace of one step of each kind there")
    options = parser.parse_args()
    if options.device == "cuda" and not torch.cuda.is_available():
        sys.exit("torch sees no GPU here; --device cpu measures the processor.")
    session = report.Session("gpu", parser, options, gpu=options.device == "cuda")
    place = torch.cuda.get_device_name() if options.device == "cuda" else "cpu"
    data: dict[str, Any] = {"device": place, "batches": {}}
    print("| batch | net | calibration | QAT step | in a row | graphed | memory | kernels of a step |")
    print("|---|---|---|---|---|---|---|---|")
    for batch in options.batch:
        rows = data["batches"][str(batch)] = {}
        for name in options.only:
            row = rows[name] = measure(name, options.device, batch, options)
            gc.collect()
            if options.device == "cuda":
                torch.cuda.empty_cache()
            print(_line(batch, name, row), flush=True)
            print(f"    {row['median_ms']}", file=sys.stderr)
            print(f"    host {row['host_ms']}", file=sys.stderr)
            print(f"    kernels {row['kernels']}", file=sys.stderr)
            print(f"    memory {row['memory_mib']}", file=sys.stderr)
    peers = {} if options.without_peers else {peer.name: qat_peers.version(peer) for peer in qat_peers.PEERS}
    session.finish(data, figures(data), packages=("torch", "triton"), facts={"device": place}, peers=peers)


def _line(batch: int, name: str, row: dict[str, Any]) -> str:
    cells = [
        f"{row[key]:.2f}" if key in row else "" for key in ("calibration", "training", "in_a_row", "graphed", "memory")
    ]
    counts = [row["kernels"].get(title) for title in ("step", "QAT step")]
    launched = " / ".join("" if count is None else str(int(count["kernels"])) for count in counts)
    return f"| {batch} | {name} | {' | '.join(cells)} | {launched} |"


def figures(data: dict[str, Any]) -> list[Figure]:
    """Return what is quoted: calibration next to a forward pass, a quantized step next to a plain one and to others."""
    made = []
    for batch, rows in data["batches"].items():
        for name, row in rows.items():
            made += _figures_of(f"{name} at batch {batch}", row, required=int(batch) == 64)
    return made


def _figures_of(where: str, row: dict[str, Any], *, required: bool) -> list[Figure]:
    middle = row["median_ms"]
    made = [
        ("calibration", declared(
            f"{where}: calibration", "ms", middle["calibration"], 0.15, "forward", middle["forward"])),
        ("training", declared(
            f"{where}: training step", "ms", middle["QAT step"], 0.15, "a plain step", middle["step"])),
    ]  # fmt: skip
    if "in_a_row" in row:
        title, both = f"{where}: training, {IN_A_ROW} steps in a row, a step", row["median_in_a_row_ms"]
        made.append(("in_a_row", declared(title, "ms", both["QAT step"], 0.15, "a plain step so", both["step"])))
    if "graphed" in row:
        title = f"{where}: training step as CUDA graphs"
        made.append(
            (
                "graphed",
                declared(title, "ms", middle["graphed QAT step"], 0.15, "a plain step so", middle["graphed step"]),
            )
        )
    if "memory" in row:
        both = row["memory_mib"]
        made.append(
            ("memory", declared(
                f"{where}: memory of a training step", "MiB", both["QAT step"], 0.05, "a plain step", both["step"]))
        )  # fmt: skip
    found = [figure.at_most(LIMITS[kind]) if required and kind in LIMITS else figure for kind, figure in made]
    for title, taken in middle.items():
        what, _, peer = title.partition(", ")
        if peer:
            ours, name = middle[what], f"{where}: {what} next to {peer}"
            if idle(row, title):
                figure = declared(name, "ms", ours, 0.15, peer)
                found.append(replace(figure, failed="launched no more kernels than a plain pass: it did nothing there"))
                continue
            figure = declared(name, "ms", ours, 0.15, peer, taken)
            found.append(figure.at_most(1.0) if required else figure)
    return found


def idle(row: dict[str, Any], title: str) -> bool:
    """Tell whether an opponent launched no more than the plain pass, and so neither observed nor rounded anything."""
    plain = row["kernels"].get("forward" if title.startswith("calibration") else "step")
    its = row["kernels"].get(title)
    return bool(plain and its and its["kernels"] <= plain["kernels"])


if __name__ == "__main__":
    main()
