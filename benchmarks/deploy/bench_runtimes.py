"""Does one calibration serve every runtime? Twelve networks, each exported once per dialect and really run.

ONNX Runtime and OpenVINO unless told; LiteRT and ExecuTorch have benchmarks of their own, which race their quantizers.

For each network and runtime: "float" is the largest difference of the float file from PyTorch, as a share of the
output's range; "INT8" is the signal-to-noise ratio of the file in the runtime's dialect against PyTorch's float model,
beside that of the simulated model; "placed" counts the operators that ran as `check` predicted.

    python benchmarks/deploy/bench_runtimes.py [--only NET ...] [--runtimes NAME ...] [--json FILE]
"""

from __future__ import annotations

import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import report
from deploy import runtime_nets, scoring
from figures import Figure, bounded
from report import print_table

from embedl_deploy import transform
from embedl_deploy.dialect import check, dialect_for
from embedl_deploy.export import export_onnx
from embedl_deploy.onnxruntime import ONNXRUNTIME
from embedl_deploy.quantize import quantize
from embedl_hub.core import HubContext
from embedl_hub.core.component import RunType
from embedl_hub.core.device import Device, LocalConfig
from embedl_hub.core.toolchain import find_component
from embedl_hub.errors import HubError

DIALECTS = {
    "onnxruntime": dialect_for("here").name,
    "openvino": "openvino",
    "tflite": "litert",
    "executorch": "executorch",
}
CALIBRATED, JUDGED = 32, 8
FLOAT_LIMIT, SQNR_LIMIT, PLACED_LIMIT = 1e-3, 1.0, 1.0
PACKAGES = ("torch", "onnx", "onnxruntime", "openvino", "ai-edge-litert", "executorch", "numpy")


@dataclass(frozen=True)
class Judged:
    """One network in one runtime; ``failed`` says why there are no numbers."""

    network: str
    runtime: str
    float_error: float | None = None  # of the output's range
    sqnr_db: float | None = None  # the runtime's outputs against float
    simulated_db: float | None = None  # the simulated model's
    parity_db: float | None = None  # the runtime's against the simulated model's
    agree: int = 0  # operators that ran as predicted
    told: int = 0  # operators of which the runtime told
    float_ms: float | None = None
    int8_ms: float | None = None
    failed: str = ""

    @property
    def lost_db(self) -> float | None:
        """How much the runtime lost against the simulation."""
        return None if self.sqnr_db is None or self.simulated_db is None else self.simulated_db - self.sqnr_db


@dataclass(frozen=True)
class Case:
    """A network with its files and what they should answer."""

    name: str
    folder: Path
    inputs: tuple[str, ...]
    data: tuple[np.ndarray, ...]
    wanted: np.ndarray
    simulated: np.ndarray


def first(answer: Any) -> np.ndarray:  # noqa: ANN401 - whatever a network returns
    """Return the first output of a model as numbers."""
    while isinstance(answer, (tuple, list)):
        answer = answer[0]
    if isinstance(answer, dict):
        answer = next(iter(answer.values()))
    return np.asarray(answer.detach().numpy())


def prepare(name: str, folder: Path, dialects: dict[str, str]) -> Case:
    """Quantize a network once and write its files."""
    model = runtime_nets.build(name)
    example = runtime_nets.inputs(name, seed=0)
    network = transform(model, example, ONNXRUNTIME).model
    batches = [runtime_nets.inputs(name, seed=seed) for seed in range(CALIBRATED)]
    forward = [batch[0] if len(batch) == 1 else batch for batch in batches]
    simulated = quantize(network, example, forward_loop=forward, backend=ONNXRUNTIME)
    inputs = tuple(f"input_{place}" for place in range(len(example)))
    files: dict[str, tuple[nn.Module, str | None]] = {"float": (network, None)}
    files |= {runtime: (simulated, dialect) for runtime, dialect in dialects.items()}
    for title, (source, dialect) in files.items():
        export_onnx(source, example, folder / f"{title}.onnx", dialect=dialect, input_names=list(inputs))
    judged = [runtime_nets.inputs(name, seed=10_000 + seed) for seed in range(JUDGED)]
    with torch.no_grad():
        wanted, got = (np.concatenate([first(one(*args)) for args in judged]) for one in (model, simulated))
    data = tuple(np.concatenate([args[place].numpy() for args in judged]) for place in range(len(example)))
    return Case(name, folder, inputs, data, wanted, got)


def run(ctx: HubContext, toolchain: str, case: Case, file: str) -> tuple[np.ndarray, float]:
    """Compile a file, measure it and return the first output on the data, with the median latency."""

    def step(kind: RunType, *args: object) -> Any:  # noqa: ANN401 - a result of the toolchain's own
        component: Any = find_component(kind, toolchain)
        return component().run(ctx, *args)

    model = step(RunType.COMPILE, case.folder / f"{file}.onnx")
    latency = step(RunType.PROFILE, model).latency_median.value
    feed = dict(zip(case.inputs, case.data, strict=True))
    return next(iter(step(RunType.INFERENCE, model, feed).output.values())), latency


def judge(ctx: HubContext, case: Case, runtime: str) -> Judged:
    """Run a network's files in a runtime."""
    try:
        plain, float_ms = run(ctx, runtime, case, "float")
        got, int8_ms = run(ctx, runtime, case, runtime)
    except HubError as error:
        return Judged(case.name, runtime, failed=str(error).strip().partition("\n")[0][:200])
    contract = check(case.folder / f"{runtime}.onnx", DIALECTS[runtime])
    told = [row.agrees for row in contract.rows if row.found and row.state != "taken"]
    share = float(np.abs(plain - case.wanted).max() / np.ptp(case.wanted))
    return Judged(
        case.name, runtime, share, scoring.sqnr(case.wanted, got), scoring.sqnr(case.wanted, case.simulated),
        scoring.sqnr(case.simulated, got), sum(told), len(told), float_ms, int8_ms,
    )  # fmt: skip


def line(row: Judged) -> list[str]:
    """Return one row of the table."""
    if row.failed:
        return [row.network, row.runtime, "failed", "", "", "", "", "", row.failed[:80]]
    assert row.float_error is not None
    return [
        row.network, row.runtime, f"{row.float_error:.1e}", f"{row.simulated_db:.1f}", f"{row.sqnr_db:.1f}",
        f"{row.parity_db:.1f}", f"{row.agree} of {row.told}", f"{row.float_ms:.3f}", f"{row.int8_ms:.3f}",
    ]  # fmt: skip


TITLES = ("net", "runtime", "float", "simulated, dB", "INT8, dB", "parity, dB", "placed", "float, ms", "INT8, ms")


def figures(rows: list[Judged]) -> list[Figure]:
    """Return what is quoted: by runtime the worst float error, the most lost, and how many ran as predicted."""
    made = []
    for runtime in dict.fromkeys(row.runtime for row in rows):
        own = [row for row in rows if row.runtime == runtime and not row.failed]
        worst = max((row.float_error or 0 for row in own), default=float("nan"))
        lost = max((row.lost_db or 0 for row in own), default=float("nan"))
        told = sum(row.told for row in own)
        share = 100 * sum(row.agree for row in own) / told if told else float("nan")
        made.append(bounded(f"{runtime}: float, largest error", "of the range", worst, FLOAT_LIMIT))
        made.append(bounded(f"{runtime}: INT8, most lost against the simulation", "dB", lost, SQNR_LIMIT))
        made.append(bounded(f"{runtime}: operators not placed as predicted", "%", 100 - share, PLACED_LIMIT))
    return made


def main() -> None:
    """Print the table."""
    parser = report.parser(__doc__)
    parser.add_argument("--only", nargs="+", choices=list(runtime_nets.NETWORKS), default=list(runtime_nets.NETWORKS))
    parser.add_argument("--runtimes", nargs="+", choices=list(DIALECTS), default=["onnxruntime", "openvino"])
    parser.add_argument("--seconds", type=float, default=0.5, help="at least so long for each profile (%(default)s)")
    options = parser.parse_args()
    session = report.Session("runtimes", parser, options)
    torch.set_num_threads(1)
    settings = LocalConfig(threads=1, min_seconds=options.seconds, max_warmup_seconds=1.0, layer_runs=0)
    rows: list[Judged] = []
    with tempfile.TemporaryDirectory() as folder:
        device = Device("here", provider_type="local", provider_config=settings)
        with HubContext("runtimes", [device], home=Path(folder) / "home") as ctx:
            for name in options.only:
                own = Path(folder) / name
                own.mkdir()
                case = prepare(name, own, {runtime: DIALECTS[runtime] for runtime in options.runtimes})
                for runtime in options.runtimes:
                    rows.append(judge(ctx, case, runtime))
                    print("  ".join(line(rows[-1])), flush=True)
    print_table(TITLES, [line(row) for row in rows])
    session.finish({"rows": [asdict(row) for row in rows]}, figures(rows), packages=PACKAGES)


if __name__ == "__main__":
    main()
