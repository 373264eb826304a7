"""What do transform and calibration cost in CPU seconds and memory, and do five methods cost more than one?

Three questions:

- CPU seconds and peak memory, every candidate on the same network and the same 16 pictures, each in a process of its
  own on one core, the least of some rounds. Peers start from a float ONNX file and end with a quantized one. We start
  from a torch module; the export to ONNX, which the peers' users pay before, is shown apart.
- One pass that serves all methods against a pass that keeps least and largest values alone, in turns in one process.
- Peak memory at 16 and at 1,024 pictures, made as they are asked for.

    python benchmarks/deploy/bench_ptq.py [--only NET ...] [--rounds 3] [--json FILE]
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import cache
import report
from deploy import files, nets, peers
from figures import Figure, declared, least
from report import print_table

from embedl_deploy import transform
from embedl_deploy.backend import get_backend, set_backend
from embedl_deploy.nn import Mode, QuantStub
from embedl_deploy.quantize import (
    CalibrationMethod,
    QuantConfig,
    TensorQuantConfig,
    apply_calibration,
    collect,
    insert_qdq,
    plan_qdq,
)

if TYPE_CHECKING:
    from torch import fx

PACKAGES = ("torch", "onnx", "onnxruntime", "numpy")
CANDIDATES = (peers.OURS, peers.ORT, peers.ORT_PERCENTILE, peers.NNCF, peers.MODELOPT, peers.TORCHAO)
METHODS = tuple(CalibrationMethod)


def costs(name: str, rounds: int, chosen: list[peers.Peer]) -> dict[str, dict[str, Any]]:
    """Let every candidate quantize a network some times and keep the least CPU seconds of each step."""
    folder = cache.folder("ptq", name)
    rows: dict[str, dict[str, Any]] = {}
    for _ in range(rounds):
        for candidate, row in files.candidates(name, folder, chosen, keep=False).items():
            before = rows.get(candidate, row)
            if "failed" not in row and "failed" not in before:
                row["rounds_s"] = [*before.get("rounds_s", []), ptq_seconds(row)]
                steps = row["cpu_s"]
                row["cpu_s"] = {step: min(seconds, before["cpu_s"][step]) for step, seconds in steps.items()}
                row["peak_mb"] = min(row["peak_mb"], before["peak_mb"])
            rows[candidate] = row
    return rows


def ptq_seconds(row: dict[str, Any]) -> float:
    """Return the seconds of everything but the export from torch to ONNX."""
    return float(sum(seconds for step, seconds in row["cpu_s"].items() if step != "export"))


def watched(name: str) -> fx.GraphModule:
    """Return a network with pairs in place and no ranges yet."""
    set_backend("onnxruntime")
    example = (files.calibration_pictures(name, 1),)
    fused = transform(files.build(name), example, verify=False).model
    config = QuantConfig()
    placement = plan_qdq(fused, example, config)
    return insert_qdq(fused, placement, config, symmetric=get_backend().symmetric_activations)


def least_and_largest(model: fx.GraphModule, batches: list[tuple[torch.Tensor]]) -> None:
    """Run the batches and keep two numbers of every tensor: what min-max alone needs."""
    kept: dict[str, tuple[float, float]] = {}
    stubs = {name: part for name, part in model.named_modules() if isinstance(part, QuantStub)}

    def observer(name: str) -> Any:  # noqa: ANN401
        def observe(_stub: QuantStub, value: torch.Tensor) -> None:
            low, high = torch.stack(torch.aminmax(value)).tolist()
            old = kept.get(name, (low, high))
            kept[name] = (min(old[0], low), max(old[1], high))

        return observe

    modes: dict[Any, Mode] = {part: part.mode for part in model.modules() if hasattr(part, "mode")}  # type: ignore[misc]
    for part in modes:
        part.mode = Mode.FLOAT
    for name, stub in stubs.items():
        stub.observer = observer(name)
    with torch.no_grad():
        for batch in batches:
            model(*batch)
    for stub in stubs.values():
        stub.observer = None
    for part, mode in modes.items():
        part.mode = mode
    for name, (low, high) in kept.items():
        stubs[name].set_range(low, high)


def every_method(model: fx.GraphModule, batches: list[tuple[torch.Tensor]]) -> None:
    """Run the batches once and solve the scales by each method in turn."""
    found = collect(model, batches)
    for method in METHODS:
        apply_calibration(model, found, config=QuantConfig(activation=TensorQuantConfig(calibration_method=method)))


def one_pass(name: str, rounds: int) -> dict[str, float]:
    """Compare a pass for all methods with a pass for min-max alone and with the bare network, in turns."""
    torch.set_num_threads(1)
    model = watched(name)
    batches = [(picture[None],) for picture in files.calibration_pictures(name)]
    plain = files.build(name)
    best: dict[str, float] = {}
    for _ in range(rounds):
        for title, work in (
            ("all_methods_s", lambda: every_method(model, batches)),
            ("min_max_s", lambda: least_and_largest(model, batches)),
            ("forward_s", lambda: [plain(*batch) for batch in batches]),
        ):
            with torch.no_grad():
                start = time.process_time()
                work()
                spent = time.process_time() - start
            best[title] = min(best.get(title, spent), spent)
    best["ratio"] = best["all_methods_s"] / best["min_max_s"]
    return best


def stream(name: str, count: int) -> None:
    """Calibrate on pictures made as they are asked for, and print the peak memory in MB."""
    torch.set_num_threads(1)
    model = watched(name)
    size = nets.SIZES[name]
    found = collect(model, ((nets.pictures(1, size, seed=number),) for number in range(count)))
    apply_calibration(model, found)
    peak = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    print(int(peak.split()[1]) / 1024)


def memory(name: str, counts: tuple[int, ...]) -> dict[str, float]:
    """Measure the peak memory of a streamed calibration, each in a process of its own."""
    found = {}
    for count in counts:
        command = [sys.executable, "-W", "ignore", __file__, "--stream", name, str(count)]
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=1800)
        found[str(count)] = float(done.stdout.split()[-1])
    return found


def figures(data: dict[str, Any]) -> list[Figure]:
    """Return what is quoted: our seconds next to each opponent's, one pass next to another, memory at many pictures."""
    made = []
    for name, rows in data["costs"].items():
        ours = rows[peers.OURS.name]
        for candidate, row in rows.items():
            if row is not ours and "failed" not in row and "failed" not in ours:
                made.append(least(f"{name}: {candidate}", "CPU s", ours["rounds_s"], candidate, row["rounds_s"]))
    for name, row in data["one_pass"].items():
        made.append(
            declared(
                f"{name}: one pass for all methods",
                "CPU s",
                row["all_methods_s"],
                0.3,
                "min-max alone",
                row["min_max_s"],
            )
        )
    for name, peaks in data["memory_mb"].items():
        (few, low), (many, high) = peaks.items()
        made.append(declared(f"{name}: peak memory at {many} pictures", "MB", high, 0.15, f"at {few}", low))
    return made


def main() -> None:
    """Print the tables."""
    parser = report.parser(__doc__)
    known = [*nets.TIMED, *nets.TOYS]
    parser.add_argument("--only", nargs="+", choices=known, default=["mobilenet_v2", "resnet50", "vit_6x384"])
    parser.add_argument("--candidates", nargs="*", help="names; all unless told")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--pictures", type=int, nargs=2, default=(16, 1024), help="few and many, for the memory")
    parser.add_argument("--stream", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.stream:
        stream(options.stream[0], int(options.stream[1]))
        return
    session = report.Session("ptq", parser, options)
    chosen, told = peers.ready(
        [peer for peer in CANDIDATES if options.candidates is None or peer.name in options.candidates]
    )
    data: dict[str, Any] = {"costs": {}, "one_pass": {}, "memory_mb": {}}
    rows = []
    for name in options.only:
        found = costs(name, options.rounds, chosen) | peers.rows_of_missing(told)
        data["costs"][name] = files.told(found)
        ours = found[peers.OURS.name]
        for candidate, row in found.items():
            if "failed" in row:
                rows.append([name, candidate, "failed", "-", "-", row["failed"][:80]])
                continue
            spent = ptq_seconds(row)
            ratio = "-" if "failed" in ours else f"{spent / ptq_seconds(ours):.2f}"
            export = row["cpu_s"].get("export")
            shown = "" if export is None else f"export {export:.1f} s"
            rows.append([name, candidate, f"{spent:.2f}", ratio, f"{row['peak_mb']:.0f}", shown])
    print_table(("net", "candidate", "CPU s", "times ours", "peak MB", ""), rows)
    for name in options.only:
        data["one_pass"][name] = one_pass(name, max(options.rounds, 5))
        data["memory_mb"][name] = memory(name, tuple(options.pictures))
    print()
    passes = [[name, *[f"{value:.2f}" for value in row.values()]] for name, row in data["one_pass"].items()]
    print_table(("net", "all methods, s", "min-max alone, s", "bare network, s", "all / min-max"), passes)
    print()
    peaks = [[name, *[f"{value:.0f}" for value in row.values()]] for name, row in data["memory_mb"].items()]
    print_table(("net", *[f"peak MB at {count} pictures" for count in options.pictures]), peaks)
    print()
    session.finish(data, figures(data), packages=PACKAGES, peers=told)


if __name__ == "__main__":
    main()
