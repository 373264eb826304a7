"""Is the INT8 model that LiteRT runs the one that was simulated, and is it as fast as its own quantizer's?

Twelve networks, each calibrated once. Ours: the file of the litert dialect, compiled by the hub. Theirs: the float
file, compiled by the hub with the same samples, which ai-edge-quantizer quantizes. All are run in turns in one process,
on one thread with XNNPACK; the least CPU time counts. Where ours is more than 1 dB below the simulated model, the kind
of operator whose rounding costs most is named: without it, the file in ONNX Runtime is so many dB better.

    python benchmarks/deploy/bench_litert.py [--only NET ...] [--rounds 200] [--json FILE]
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import onnxruntime
import torch
from ai_edge_litert.interpreter import Interpreter

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import report
from deploy import runtime_nets, scoring
from figures import Figure, bounded, least
from report import print_table

from embedl_deploy import transform
from embedl_deploy.dialect import check
from embedl_deploy.export import export_onnx
from embedl_deploy.quantize import quantize
from embedl_hub.core import HubContext
from embedl_hub.core.compile import TFLiteCompiler

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from embedl_hub.core.compile import TFLiteCompiledModel

OURS, THEIRS, FLOAT = "litert dialect", "ai-edge-quantizer", "float"
PACKAGES = ("torch", "onnx", "ai-edge-litert", "numpy")
TARGET = "litert"
CALIBRATION, SEEN = 16, 8
WORTH_DB = 1.0

Arrays = list[np.ndarray]


@dataclass(frozen=True)
class Net:
    """A network's files, and what it answers in float and simulated."""

    names: list[str]
    calibration: list[Arrays]
    seen: list[Arrays]
    floats: list[Arrays]
    simulated: list[Arrays]


def prepare(name: str, folder: Path) -> Net:
    """Calibrate a network once and write its files."""
    model, args = runtime_nets.build(name), runtime_nets.inputs(name, 0)
    batches = [runtime_nets.inputs(name, 100 + seed) for seed in range(CALIBRATION)]
    fused = transform(model, args, target=TARGET).model
    simulated = quantize(fused, args, forward_loop=batches, target=TARGET)
    export_onnx(fused, args, folder / "float.onnx")
    export_onnx(simulated, args, folder / "litert.onnx", dialect="litert")
    seen = [runtime_nets.inputs(name, 500 + seed) for seed in range(SEEN)]
    with torch.no_grad():
        answers = [[_arrays(net(*batch)) for batch in seen] for net in (model, simulated)]
    names = [value.name for value in onnx.load(folder / "litert.onnx").graph.input]
    return Net(names, [_arrays(batch) for batch in batches], [_arrays(batch) for batch in seen], *answers)


def _arrays(value: object) -> Arrays:
    values = value if isinstance(value, (tuple, list)) else (value,)
    return [np.asarray(one.detach() if isinstance(one, torch.Tensor) else one) for one in values]


class Runner:
    """A compiled model in LiteRT, on one thread."""

    def __init__(self, model: TFLiteCompiledModel) -> None:
        from embedl_hub.toolchains.tflite.converter import as_converted, as_source  # noqa: PLC0415

        self._to, self._back = as_converted, as_source
        self._interpreter = Interpreter(model_path=str(model.path.local()), num_threads=1)
        self._interpreter.allocate_tensors()
        self._inputs = {tensor["compiled_name"]: tensor for tensor in model.tensors["inputs"]}
        self._outputs = {tensor["compiled_name"]: tensor for tensor in model.tensors["outputs"]}

    def load(self, sample: Mapping[str, np.ndarray]) -> None:
        """Put a sample in."""
        for detail in self._interpreter.get_input_details():
            tensor = self._inputs[detail["name"]]
            self._interpreter.set_tensor(detail["index"], self._to(tensor, sample[tensor["name"]]))

    def run(self) -> None:
        """Run on what was put in."""
        self._interpreter.invoke()

    def answer(self) -> Arrays:
        """Return the outputs in the order of the source."""
        found = {}
        for detail in self._interpreter.get_output_details():
            tensor = self._outputs[detail["name"]]
            found[detail["name"]] = self._back(tensor, self._interpreter.get_tensor(detail["index"]))
        return [found[name] for name in self._outputs]


def race(runners: Mapping[str, Runner], rounds: int) -> dict[str, list[float]]:
    """Run all in turns, each round from another start, and return the CPU milliseconds of each round."""
    names = list(runners)
    times: dict[str, list[float]] = {name: [] for name in names}
    for number in range(rounds + 3):
        shift = number % len(names)
        for name in names[shift:] + names[:shift]:
            start = time.thread_time_ns()
            runners[name].run()
            if number >= 3:
                times[name].append((time.thread_time_ns() - start) / 1e6)
    return times


def _db(wanted: Sequence[Arrays], got: Sequence[Arrays]) -> float:
    """Return the ratio of the output that fares worst."""
    return min(
        scoring.sqnr(
            np.concatenate([one[at].ravel() for one in wanted]), np.concatenate([one[at].ravel() for one in got])
        )
        for at in range(len(wanted[0]))
    )


def costliest(file: Path, net: Net) -> str:
    """Name the operators whose rounding, which the simulated model has not, costs most."""
    model = onnx.load(file)
    told = {entry.key: entry.value for entry in model.metadata_props}
    simulated = {place["tensor"] for place in json.loads(told["edgeproof.origin"])["boundaries"].values()}
    maker = {name: node for node in model.graph.node for name in node.output}
    kinds: dict[str, dict[str, str]] = {}
    for node in model.graph.node:
        if node.op_type == "QuantizeLinear" and node.input[0] in maker and node.input[0] not in simulated:
            layer = maker[node.input[0]].name.rpartition("/")[0] or maker[node.input[0]].name
            kinds.setdefault(layer.rpartition(".")[2], {})[node.output[0]] = node.input[0]
    whole = _of_file(model, net)
    gains = {kind: _of_file(_without(model, pairs), net) - whole for kind, pairs in kinds.items()}
    if not gains:
        return ""
    best = max(gains, key=lambda kind: gains[kind])
    return f"{best} ({len(kinds[best])} outputs, {gains[best]:+.1f} dB without)"


def _without(model: onnx.ModelProto, pairs: Mapping[str, str]) -> onnx.ModelProto:
    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    for node in changed.graph.node:
        if node.op_type == "DequantizeLinear" and node.input[0] in pairs:
            plain = onnx.helper.make_node("Identity", [pairs[node.input[0]]], list(node.output), name=node.name)
            node.CopyFrom(plain)
    return changed


def _of_file(model: onnx.ModelProto, net: Net) -> float:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    opened = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return _db(net.floats, [opened.run(None, dict(zip(net.names, sample, strict=True))) for sample in net.seen])


def judge(name: str, rounds: int, folder: Path) -> dict[str, Any]:
    """Compile, compare and race one network."""
    net = prepare(name, folder)
    data = {
        at: np.concatenate(list(each)) for at, each in zip(net.names, zip(*net.calibration, strict=True), strict=True)
    }
    with HubContext("litert", home=folder / "home") as ctx:
        models = {
            OURS: TFLiteCompiler().run(ctx, folder / "litert.onnx"),
            THEIRS: TFLiteCompiler().run(ctx, folder / "float.onnx", calibration_data=data),
            FLOAT: TFLiteCompiler().run(ctx, folder / "float.onnx"),
        }
    runners = {candidate: Runner(model) for candidate, model in models.items()}
    answers: dict[str, list[Arrays]] = {candidate: [] for candidate in runners}
    for sample in net.seen:
        for candidate, runner in runners.items():
            runner.load(dict(zip(net.names, sample, strict=True)))
            runner.run()
            answers[candidate].append(runner.answer())
    contract = check(folder / "litert.onnx", "litert")
    known = [row for row in contract.rows if row.in_integers is not None]
    simulated, ours = _db(net.floats, net.simulated), _db(net.floats, answers[OURS])
    times = race(runners, rounds)
    return {
        "simulated_db": simulated,
        "db": {candidate: _db(net.floats, answers[candidate]) for candidate in runners},
        "costs": costliest(folder / "litert.onnx", net) if simulated - ours > WORTH_DB else "",
        "rounds_ms": {candidate: [round(value, 4) for value in each] for candidate, each in times.items()},
        "agree": [sum(row.agrees for row in known), len(known)],
        "disagree": [f"{row.node}: {row.state}, ran as {row.found}" for row in known if not row.agrees],
        "confirmed": contract.confirmed,
        "left_float": [item["node"] for item in models[OURS].quantization["left_float"]],
        "theirs_left_float": models[THEIRS].quantization["left_float"],
        "bytes": {candidate: model.path.size_bytes for candidate, model in models.items()},
    }


def figures(data: dict[str, Any]) -> list[Figure]:
    """Return what is quoted: speed next to ai-edge-quantizer's, and distance from the simulated model."""
    made = []
    for name, row in data["nets"].items():
        ms = row["rounds_ms"]
        made.append(least(f"{name}: time", "ms", ms[OURS], THEIRS, ms[THEIRS]))
        lost = row["simulated_db"] - row["db"][OURS]
        figure = bounded(f"{name}: below the simulated model", "dB", lost, 0.5)
        made.append(figure.required("at most 1 dB, or the operator named", lost <= WORTH_DB or bool(row["costs"])))
    return made


TITLES = (
    "net",
    "simulated, dB",
    "LiteRT, dB",
    "theirs, dB",
    "ms",
    "theirs, ms",
    "float, ms",
    "placement",
    "what costs",
)


def line(name: str, row: dict[str, Any]) -> list[str]:
    """Return one row of the table."""
    ms = {candidate: min(each) for candidate, each in row["rounds_ms"].items()}
    return [
        name, f"{row['simulated_db']:.1f}", f"{row['db'][OURS]:.1f}", f"{row['db'][THEIRS]:.1f}", f"{ms[OURS]:.3f}",
        f"{ms[THEIRS]:.3f}", f"{ms[FLOAT]:.3f}", f"{row['agree'][0]}/{row['agree'][1]}", row["costs"],
    ]  # fmt: skip


def main() -> None:
    """Print the table."""
    parser = report.parser(__doc__)
    names = list(runtime_nets.NETWORKS)
    parser.add_argument("--only", nargs="+", choices=names, default=names)
    parser.add_argument("--rounds", type=int, default=200)
    options = parser.parse_args()
    session = report.Session("litert", parser, options)
    data: dict[str, Any] = {"rounds": options.rounds, "nets": {}}
    for name in options.only:
        with tempfile.TemporaryDirectory() as folder:
            data["nets"][name] = judge(name, options.rounds, Path(folder))
        print_table(TITLES, [line(name, data["nets"][name])])
    print_table(TITLES, [line(name, row) for name, row in data["nets"].items()])
    session.finish(data, figures(data), packages=PACKAGES)


if __name__ == "__main__":
    main()
