"""What does a network that was trained answer on each runtime? One calibration, a file per runtime, one sweep.

Three networks on CIFAR-10's test pictures and one on passages of Python's library. Each is calibrated once, written in
each runtime's dialect and run through `embedl_hub.fleet`: accuracy, latency with its verdict, memory and size. "lost"
is in points against the simulated model's accuracy.

    python benchmarks/deploy/bench_runtime_accuracy.py [--only NET ...] [--tests 4000] [--picture NET] [--json FILE]

--picture makes docs/images/runtimes.png anew from a network's sweep.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import cache
import report
from deploy import files, nets, runtime_nets, text_data
from figures import Figure, bounded
from report import print_table
from torch import nn
from torch.nn import functional

from embedl_deploy import transform
from embedl_deploy.dialect import dialect_for
from embedl_deploy.export import export_onnx
from embedl_deploy.onnxruntime import ONNXRUNTIME
from embedl_deploy.quantize import quantize
from embedl_hub.core import HubContext
from embedl_hub.core.device import Device, LocalConfig
from embedl_hub.fleet import StepKind, Sweep, SweepModel, SweepOption, plan_sweep, run_sweep

if TYPE_CHECKING:
    from collections.abc import Iterable

    from embedl_hub.fleet import SweepResult

ROOT = Path(__file__).resolve().parents[2]
RUNTIMES = {
    "onnxruntime": ("ONNX Runtime", dialect_for("here").name),
    "openvino": ("OpenVINO", "openvino"),
    "tflite": ("LiteRT", "litert"),
    "executorch": ("ExecuTorch", "executorch"),
}
PICTURES = ("resnet20", "mobilenet", "vit")
TEXT = "text"
CALIBRATED = 128
LIMIT = 0.2
PACKAGES = ("torch", "onnx", "onnxruntime", "openvino", "ai-edge-litert", "executorch", "numpy")
Set = tuple[torch.Tensor, torch.Tensor]


@dataclass(frozen=True)
class Row:
    """A network on a runtime, float or INT8."""

    network: str
    option: str
    accuracy: float | None  # in percent
    lost: float | None  # against the simulated model, or the float one in PyTorch
    latency_ms: float | None
    memory_mb: float | None
    size_mb: float | None
    cosine: float | None
    verdict: str
    reason: str = ""


def trained(name: str) -> tuple[nn.Module, torch.Tensor, Set]:
    """Return a trained network, what it is calibrated on and what it is judged on."""
    if name != TEXT:
        return files.build(name), files.calibration_pictures(name, CALIBRATED), files.test_pictures(name)
    training = text_data.passages(runtime_nets.TOKENS, runtime_nets.VOCABULARY, is_test=False)
    judged = text_data.passages(runtime_nets.TOKENS, runtime_nets.VOCABULARY, is_test=True)
    return text_network(training), training[0][:CALIBRATED], judged


def text_network(training: Set) -> nn.Module:
    """Return the trained text network; its weights are kept."""
    torch.manual_seed(0)
    model = runtime_nets.NETWORKS[TEXT].make()
    weights = cache.folder("weights") / "text.pt"
    if weights.exists():
        model.load_state_dict(torch.load(weights, weights_only=True))
        return model.eval()
    print("text: training, a minute or two, once ...", file=sys.stderr, flush=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.05)
    for _ in range(8):
        for rows in torch.split(torch.randperm(len(training[0])), 64):
            loss = functional.cross_entropy(model(training[0][rows]), training[1][rows], label_smoothing=0.05)
            optimizer.zero_grad()
            torch.autograd.backward(loss)
            optimizer.step()
    torch.save(model.state_dict(), weights)
    return model.eval()


def share_right(model: nn.Module, data: Set) -> float:
    """Return the accuracy of a network in PyTorch, in percent."""
    right = 0
    with torch.no_grad():
        for inputs, labels in zip(torch.split(data[0], 100), torch.split(data[1], 100), strict=True):
            right += int((model(inputs).argmax(-1) == labels).sum())
    return 100 * right / len(data[1])


def sweep_of(name: str, folder: Path, runtimes: Iterable[str], tests: int) -> tuple[Sweep, float, float]:
    """Write a network's files and data; return the sweep over them, and the accuracies in PyTorch, float and INT8."""
    model, seen, judged = trained(name)
    judged = judged[0][:tests], judged[1][:tests]
    example = (seen[:1],)
    network = transform(model, example, ONNXRUNTIME).model
    simulated = quantize(network, example, forward_loop=list(torch.split(seen, 16)), backend=ONNXRUNTIME)
    np.savez(folder / "test.npz", x=judged[0].numpy())
    np.save(folder / "labels.npy", judged[1].numpy())
    data = {"test": folder / "test.npz", "labels": folder / "labels.npy"}
    export_onnx(network, example, folder / "float.onnx", input_names=["x"])
    options = []
    for runtime in runtimes:
        title, dialect = RUNTIMES[runtime]
        data[runtime] = export_onnx(simulated, example, folder / f"{runtime}.onnx", dialect=dialect, input_names=["x"])
        options.append(SweepOption(f"{title} float", toolchain=runtime))
        options.append(SweepOption(f"{title} INT8", toolchain=runtime, source=f"${runtime}"))
    sweep = Sweep(
        f"{name} on its runtimes", "onnxruntime", (SweepModel(name, folder / "float.onnx", data),), tuple(options),
        steps=(StepKind.COMPILE, StepKind.PROFILE, StepKind.INVOKE), reference=options[0].name,
    )  # fmt: skip
    return sweep, share_right(model, judged), share_right(simulated, judged)


def rows_of(name: str, result: SweepResult, plain: float, simulated: float) -> list[Row]:
    """Return a row for each cell."""
    rows = []
    for each in result.cells:
        wanted = plain if each.cell.option.endswith("float") else simulated
        share = each.metrics.get("accuracy")
        profile = each.outcomes.get(StepKind.PROFILE)
        rows.append(
            Row(
                name, each.cell.option, None if share is None else 100 * share,
                None if share is None else wanted - 100 * share, each.metrics.get("latency_median"),
                each.metrics.get("peak_memory_mb"), each.metrics.get("model_size_mb"), each.metrics.get("cosine"),
                str((profile and profile.verdict) or each.state), each.reason or "",
            )
        )  # fmt: skip
    return rows


TITLES = ("net", "runtime", "right, %", "lost", "median, ms", "verdict", "memory, MB", "size, MB", "cosine to float")


def line(row: Row) -> list[str]:
    """Return one row of the table."""
    if row.accuracy is None or row.lost is None:
        return [row.network, row.option, row.verdict, "", "", "", "", "", row.reason.partition("\n")[0][:90]]
    numbers = (row.latency_ms, row.memory_mb, row.size_mb, row.cosine)
    shown = ["-" if value is None else f"{value:.4g}" for value in numbers]
    return [
        row.network, row.option, f"{row.accuracy:.2f}", f"{row.lost:+.2f}", shown[0], row.verdict, *shown[1:],
    ]  # fmt: skip


def figures(rows: list[Row]) -> list[Figure]:
    """Return what is quoted: the points that each INT8 file lost against its simulation."""
    judged = [row for row in rows if row.lost is not None and row.option.endswith("INT8")]
    return [bounded(f"{row.network}: {row.option}, lost", "points", row.lost or 0.0, LIMIT) for row in judged]


def take_picture(ctx: HubContext, sweep: str) -> None:
    """Keep a picture of a sweep's page."""
    sys.path += [str(ROOT / "tools"), str(ROOT / "tests")]
    from screenshots import browsing, photograph  # noqa: PLC0415 - a browser, on use
    from support.served_page import served  # noqa: PLC0415

    store = ctx.client.store
    assert store is not None
    with served(store) as site, browsing() as browser:
        photograph(browser.new_page(color_scheme="light"), f"{site}/sweeps/{sweep}", "runtimes", 900)


def main() -> None:
    """Print the table."""
    parser = report.parser(__doc__)
    parser.add_argument("--only", nargs="+", choices=(*PICTURES, TEXT), default=[*PICTURES, TEXT])
    parser.add_argument("--runtimes", nargs="+", choices=list(RUNTIMES), default=list(RUNTIMES))
    parser.add_argument("--tests", type=int, default=4_000, help="so many of the test set (%(default)s)")
    parser.add_argument("--picture", choices=(*PICTURES, TEXT), help="make docs/images/runtimes.png anew")
    options = parser.parse_args()
    session = report.Session("runtime_accuracy", parser, options)
    torch.set_num_threads(1)
    device = Device("here", provider_type="local", provider_config=LocalConfig(threads=1, min_seconds=2.0))
    rows: list[Row] = []
    folder = Path(tempfile.mkdtemp(prefix="edgeproof-runtimes-"))
    with HubContext("runtimes", [device], home=folder / "home") as ctx:
        for name in options.only:
            own = folder / name
            own.mkdir()
            sweep, plain, simulated = sweep_of(name, own, options.runtimes, options.tests)
            result = run_sweep(ctx, plan_sweep(ctx, sweep))
            rows.append(Row(name, "PyTorch float", plain, 0.0, None, None, None, None, "-"))
            rows.append(Row(name, "PyTorch simulated", simulated, 0.0, None, None, None, None, "-"))
            rows += rows_of(name, result, plain, simulated)
            print_table(TITLES, [line(row) for row in rows if row.network == name])
            if options.picture == name:
                take_picture(ctx, result.id)
    shutil.rmtree(folder)
    weights = {name: files.digest_of(name) for name in options.only if name in nets.TRAINED}
    session.finish({"weights": weights, "rows": [asdict(row) for row in rows]}, figures(rows), packages=PACKAGES)


if __name__ == "__main__":
    main()
