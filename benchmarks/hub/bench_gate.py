"""How often does the gate cry wolf, and how often does it miss a real slowdown?

Real profiles by the real profiler, each in a process of its own, recorded in a store as a user's are. The slowdown is
real too: the same net with more layers, whose true ratio is measured by a long run of short profiles in turns. The
rates are set beside two rules people use today, on the very same records: a fixed limit on two single measurements
(candidate over baseline above the tolerance), and Welch's t-test on their samples.

    nice python benchmarks/hub/bench_gate.py [--alike 200] [--slower 200] [--minutes 20] [--json FILE]
"""

from __future__ import annotations

import json
import math
import os
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from embedl_hub.comparison import Decision, gate
from embedl_hub.core import HubContext
from embedl_hub.core.compile import ONNXRuntimeCompiledModel, ONNXRuntimeCompiler
from embedl_hub.core.device import Device, ONNXRuntimeConfig
from embedl_hub.core.profile import ONNXRuntimeProfiler

sys.path.insert(0, str(Path(__file__).parents[1]))
from figures import Figure, bounded, rate
from report import Session, parser

if TYPE_CHECKING:
    from embedl_hub.tracking import Run

TOLERANCE = 0.05
MOST_FALSE_ALARMS = 0.01
LEAST_DETECTED = 0.95
_LAYERS = (20, 22)
_CHANNELS, _SIZE = 16, 24
_QUICK = ONNXRuntimeConfig(threads=1, iterations=100, min_seconds=0.15, max_warmup_seconds=0.2, layer_runs=0)


def make_net(layers: int, path: Path) -> Path:
    """Write a net of equal layers, so that its work grows with their number."""
    random = np.random.default_rng(0)
    nodes, constants, tensor = [], [], "x"
    for number in range(layers):
        kernel = (random.normal(size=(_CHANNELS, _CHANNELS, 3, 3)) * 0.05).astype(np.float32)
        constants.append(numpy_helper.from_array(kernel, f"w{number}"))
        nodes.append(helper.make_node("Conv", [tensor, f"w{number}"], [f"c{number}"], pads=[1] * 4))
        nodes.append(helper.make_node("Relu", [f"c{number}"], [f"r{number}"]))
        tensor = f"r{number}"
    shape = [1, _CHANNELS, _SIZE, _SIZE]
    graph = helper.make_graph(
        nodes, "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info(tensor, TensorProto.FLOAT, shape)],
        constants,
    )  # fmt: skip
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


class Bench:
    """The two models on this machine, and profiles of them."""

    def __init__(self, ctx: HubContext, folder: Path) -> None:
        self._ctx = ctx
        self.profiles = 0
        self._models: dict[str, ONNXRuntimeCompiledModel] = {}
        for name, layers in zip(("base", "slower"), _LAYERS, strict=True):
            self._models[name] = ONNXRuntimeCompiler().run(ctx, make_net(layers, folder / f"{name}.onnx"))

    def profile(self, name: str) -> Run:
        """Profile a model as a user would and return the recorded run."""
        self.profiles += 1
        result = ONNXRuntimeProfiler(name=name).run(self._ctx, self._models[name])
        assert self._ctx.client.store is not None
        assert result.output_file is not None
        return self._ctx.client.store.run(result.output_file.run_id)

    def again(self, run: Run) -> Run:
        """Measure again what a run measured."""
        return self.profile(run.name)


def true_ratio(bench: Bench, pairs: int) -> tuple[float, float, float]:
    """Return the slower net's real ratio with a 95 % interval: medians in turns, and the middle of many of those."""
    logs = []
    for turn in range(pairs):
        order = ("base", "slower") if turn % 2 else ("slower", "base")
        values = {name: _median(bench.profile(name)) for name in order}
        logs.append(math.log(values["slower"] / values["base"]))
    random = np.random.default_rng(1)
    drawn = np.median(random.choice(logs, (2000, len(logs))), axis=1)
    low, high = np.percentile(drawn, [2.5, 97.5])
    return math.exp(statistics.median(logs)), math.exp(low), math.exp(high)


def _median(run: Run) -> float:
    metric = run.metric("latency_median")
    assert metric is not None
    return metric.value


@dataclass
class Tally:
    """What was said, by whom, in all trials of a kind."""

    trials: int = 0
    said: dict[str, int] = field(default_factory=lambda: {str(verdict): 0 for verdict in Decision})
    fixed_limit: int = 0
    t_test: int = 0
    turns: list[int] = field(default_factory=list)
    first_looks: list[float] = field(default_factory=list)
    loads: list[float] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        """Return the figures."""
        return {
            "trials": self.trials,
            **self.said,
            "fixed_limit_says_worse": self.fixed_limit,
            "t_test_says_worse": self.t_test,
            "median_turns": statistics.median(self.turns) if self.turns else None,
            "most_turns": max(self.turns, default=None),
            "first_look_range": [min(self.first_looks), max(self.first_looks)] if self.first_looks else None,
            "load_range": [min(self.loads), max(self.loads)] if self.loads else None,
        }


def one_trial(bench: Bench, candidate_name: str, tally: Tally) -> None:
    """Profile a baseline and a candidate once, as two builds would, and ask everybody."""
    baseline, candidate = bench.profile("base"), bench.profile(candidate_name)
    result = gate(candidate, baseline, tolerance=TOLERANCE, measure_again=bench.again)
    tally.trials += 1
    tally.said[result.decision] += 1
    tally.turns.append(len(result.pairs))
    first = _median(candidate) / _median(baseline)
    tally.first_looks.append(round(first, 4))
    tally.fixed_limit += first > 1 + TOLERANCE
    tally.t_test += _t_test(_samples(candidate), _samples(baseline))
    tally.loads.append(os.getloadavg()[0])


def _samples(run: Run) -> np.ndarray:
    return np.asarray(json.loads(run.artifacts["output_file"].local().read_text())["samples_us"], float)


def _t_test(candidate: np.ndarray, baseline: np.ndarray) -> bool:
    """Tell whether Welch's test calls the candidate's mean larger at 1 %, one-sided."""
    error = math.sqrt(candidate.var(ddof=1) / len(candidate) + baseline.var(ddof=1) / len(baseline))
    return bool((candidate.mean() - baseline.mean()) / error > 2.33)


def figures(data: dict[str, Any]) -> list[Figure]:
    """Return what is quoted."""
    alike, slower, true = data["alike"], data["slower"], data["true_ratio"]
    made = []
    for opponent, key in (("a fixed limit", "fixed_limit_says_worse"), ("Welch's t-test", "t_test_says_worse")):
        false = rate(
            f"gate: false alarms among equal pairs, against {opponent}",
            alike["worse"],
            alike["trials"],
            opponent,
            alike[key],
        )
        found = rate(
            f"gate: found among pairs, one with 10 % more layers, against {opponent}",
            slower["worse"],
            slower["trials"],
            opponent,
            slower[key],
        )
        made += [false.at_most(100 * MOST_FALSE_ALARMS), found.at_least(100 * LEAST_DETECTED)]
    width = (true["high"] - true["low"]) / 2
    return [made[0].in_short(), made[1].in_short(), *made[2:],
            bounded("the slower net's true ratio", "", true["value"], max(width, 0.02))]  # fmt: skip


def main() -> None:
    """Ask the gate in turns: alike, slower, alike, slower ..."""
    options = parser(__doc__)
    options.add_argument("--alike", type=int, default=200)
    options.add_argument("--slower", type=int, default=200)
    options.add_argument("--pairs", type=int, default=60, help="profiles of each net for the true ratio")
    options.add_argument("--minutes", type=float, default=60.0, help="stop asking after so long, whatever is left")
    arguments = options.parse_args()
    session = Session("gate", options, arguments)
    started = time.monotonic()
    tallies = {"base": Tally(), "slower": Tally()}
    wanted = {"base": arguments.alike, "slower": arguments.slower}
    here = Device("here", provider_config=_QUICK, lease_dir=None)
    with tempfile.TemporaryDirectory() as folder, HubContext("gate", [here], home=Path(folder) / "home") as ctx:
        bench = Bench(ctx, Path(folder))
        ratio = true_ratio(bench, arguments.pairs)
        print(f"true ratio {ratio[0]:.4f} ({ratio[1]:.4f} to {ratio[2]:.4f})", flush=True)
        while any(tallies[name].trials < wanted[name] for name in wanted):
            if time.monotonic() - started > 60 * arguments.minutes:
                break
            # Whoever is furthest behind goes next, so that both meet the same weather.
            name = min(wanted, key=lambda each: tallies[each].trials / max(1, wanted[each]))
            one_trial(bench, name, tallies[name])
            if tallies[name].trials % 10 == 0:
                print({each: tally.said for each, tally in tallies.items()}, flush=True)
        profiles = bench.profiles
    data = {
        "tolerance": TOLERANCE,
        "true_ratio": {"value": ratio[0], "low": ratio[1], "high": ratio[2], "pairs": arguments.pairs},
        "alike": tallies["base"].as_dict(), "slower": tallies["slower"].as_dict(), "profiles": profiles,
        "minutes": round((time.monotonic() - started) / 60, 1),
    }  # fmt: skip
    made = figures(data)
    session.finish(data, made, packages=("onnxruntime",))
    sys.exit(0 if all(figure.met is not False for figure in made) else 1)


if __name__ == "__main__":
    main()
