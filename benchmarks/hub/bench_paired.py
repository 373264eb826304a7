"""Does a paired measurement tell equal models from unequal ones on a busy machine?

Four questions, the first two each with its opponent, in turns within one run:

- a real model against itself, 200 samples each, again and again: how many of the 95 % intervals contain 1, and how wide
  are they? Opponent: two profiles of the same length, one after the other, held against each other by compare. The
  paired samples are also looked at as plain wall-clock times;
- the same model with one more convolution in front: how many answers say slower, and how many say faster?
- several models, the same one among them twice: is the ranking right, are the twins not told apart?
- what does an untimed run before each timed one change for a small model beside a large one, against the small one
  beside itself?

    python benchmarks/hub/bench_paired.py [--repeats 50] [--unequal 20] [--samples 200] [--lead-ins 5]
                                          [--only QUESTION] [--json FILE]
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from embedl_device.statistics import Ratio, paired_ratio
from embedl_hub.comparison import compare
from embedl_hub.core import HubContext
from embedl_hub.core.compile import ONNXRuntimeCompiler
from embedl_hub.core.device import Device, ONNXRuntimeConfig
from embedl_hub.core.profile import ONNXRuntimePairedProfiler, ONNXRuntimeProfiler

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))
from figures import Figure, against, alone, declared, rate
from report import Session, parser
from support.models import resnet50, save
from support.real_models import REAL_MODELS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from embedl_hub.core.compile import ONNXRuntimeCompiledModel

THREADS = 1
MODEL = "page orientation"
SHAPE = (1, 3, 224, 224)
APART = "two profiles"
LEAST_HOLDING, WIDEST = 95.0, 3.0
"""Per cent of the intervals that contain 1, and per cent that the widest may span."""


def with_more_work(source: Path, target: Path) -> Path:
    """Write the model with one convolution more, 3 to 3 channels, right behind its input."""
    model = onnx.load(source)
    (value,) = model.graph.input
    kernel = np.random.default_rng(0).normal(size=(3, 3, 3, 3)).astype(np.float32) * 0.1
    model.graph.initializer.append(numpy_helper.from_array(kernel, "extra_kernel"))
    for node in model.graph.node:
        for place, name in enumerate(node.input):
            if name == value.name:
                node.input[place] = "extra_out"
    extra = helper.make_node("Conv", [value.name, "extra_kernel"], ["extra_out"], name="extra", pads=[1, 1, 1, 1])
    model.graph.node.insert(0, extra)
    return save(model, target)


class Bench:
    """Measures pairs both ways."""

    def __init__(self, ctx: HubContext, samples: int) -> None:
        self._ctx = ctx
        self._samples = samples

    def paired(self, models: Sequence[ONNXRuntimeCompiledModel]) -> dict[str, Any]:
        """Return the paired ratio of the second to the first, and what plain wall-clock times would have said."""
        start = time.perf_counter()
        result = ONNXRuntimePairedProfiler().run(self._ctx, models, samples=self._samples)
        document = json.loads(result.output_file.local().read_text())
        wall = [row["samples_us"] for row in document["models"]]
        return {
            "ratio": _plain(result.ratios[1]),
            "wall_clock": _plain(paired_ratio(wall[1], wall[0], document["loaded_at"])),
            "rounds": result.rounds,
            "verdict": result.verdict,
            "waiting_share": result.waiting_share,
            "load": os.getloadavg()[0],
            "seconds": time.perf_counter() - start,
        }

    def apart(self, models: Sequence[ONNXRuntimeCompiledModel]) -> dict[str, Any]:
        """Return the ratio of two profiles, one after the other."""
        start = time.perf_counter()
        results = [ONNXRuntimeProfiler().run(self._ctx, model) for model in models]
        took = time.perf_counter() - start
        store = self._ctx.client.store
        assert store is not None
        runs = [store.run(result.output_file.run_id) for result in results if result.output_file is not None]
        (row,) = [row for row in compare(runs).metrics if row.name == "latency_median"]
        ratio = row.ratios[1]
        assert ratio is not None
        return {"ratio": _plain(ratio), "verdicts": [result.verdict for result in results], "seconds": took}

    def both(self, models: Sequence[ONNXRuntimeCompiledModel], repeats: int, what: str) -> list[dict[str, Any]]:
        """Measure both ways in turns."""
        rows = []
        for number in range(repeats):
            row: dict[str, Any] = {}
            for side in ("paired", "apart")[:: 1 if number % 2 else -1]:
                row[side] = getattr(self, side)(models)
            rows.append(row)
            _say(f"{what} {number + 1}/{repeats}: {row['paired']['ratio']} apart {row['apart']['ratio']}")
        return rows


def measure_ranking(
    ctx: HubContext, models: Sequence[ONNXRuntimeCompiledModel], samples: int, repeats: int
) -> list[list[tuple[int, bool | None]]]:
    """Rank slow, fast, fast again, so often; return each ranking with what is told apart from the next."""
    seen = []
    for _ in range(repeats):
        ranking = ONNXRuntimePairedProfiler().run(ctx, models, samples=samples).ranking
        seen.append([(each.number, each.is_significant) for each in ranking])
    return seen


def measure_lead_in(small: Path, large: Path, repeats: int) -> dict[str, list[float]]:
    """Time a small model beside a large one, with and without an untimed run first, and beside itself."""
    times: dict[str, list[float]] = {"beside itself": [], "no lead-in": [], "one": [], "two": []}
    for _ in range(repeats):
        for name, partner, lead_in in (
            ("beside itself", small, 1), ("no lead-in", large, 0), ("one", large, 1), ("two", large, 2)
        ):  # fmt: skip
            document = pair(small, partner, "--lead-in", lead_in, "--iterations", 30, "--loads", 5)
            row = document["models"][0]
            waited = row["waited_us"] or [0.0] * len(row["samples_us"])
            own = [sample - wait for sample, wait in zip(row["samples_us"], waited, strict=True)]
            times[name].append(statistics.median(own))
        _say(f"lead-in: { ({name: round(values[-1], 1) for name, values in times.items()}) } us")
    return times


def pair(one: Path, two: Path, *words: object) -> dict[str, Any]:
    """Run the device program's own command."""
    argv = [
        sys.executable, "-m", "embedl_onnxruntime", "pair", "--model", one, "--model", two, "--threads", THREADS,
        "--min-seconds", 0, "--max-seconds", 60, *words,
    ]  # fmt: skip
    done = subprocess.run(list(map(str, argv)), capture_output=True, text=True, check=True)
    document: dict[str, Any] = json.loads(done.stdout)
    return document


def _plain(ratio: Ratio) -> dict[str, float | None]:
    return {"value": ratio.value, "low": ratio.low, "high": ratio.high}


def figures(data: dict[str, Any]) -> list[Figure]:
    """Return what is quoted of the questions that were asked."""
    return [figure for question, make in _MAKERS.items() if question in data for figure in make(data[question])]


def _of_itself(part: dict[str, Any]) -> list[Figure]:
    rows = part["repeats"]
    paired, wall = ([row["paired"][key] for row in rows] for key in ("ratio", "wall_clock"))
    apart = [row["apart"]["ratio"] for row in rows]
    hold = "a model against itself: intervals that contain 1"
    width = "a model against itself: width of the interval"
    narrow, plain, wide = (_widths(ratios) for ratios in (paired, wall, apart))
    usual = against(f"{width}, against {APART}", "%", narrow, APART, wide)
    widest = declared(f"{width}, widest", "%", max(narrow), 0.5, APART, max(wide))
    clock = "plain wall-clock times"
    return [
        rate(f"{hold}, against {APART}", _held(paired), len(rows), APART, _held(apart))
        .at_least(LEAST_HOLDING)
        .in_short(),
        rate(f"{hold}, against {clock}", _held(paired), len(rows), clock, _held(wall)),
        usual.required(f"at most {WIDEST:g} %", usual.ours <= WIDEST).in_short(),
        against(f"{width}, against {clock}", "%", narrow, clock, plain),
        widest.required(f"at most {WIDEST:g} %", widest.ours <= WIDEST),
        declared("a model against itself: farthest from 1", "%", _farthest(paired), 0.5, APART, _farthest(apart)),
        against("a model against itself: time for an answer", "s", *_seconds(rows)),
    ]


def _of_unequal(part: dict[str, Any]) -> list[Figure]:
    rows = part["repeats"]
    ours, theirs = (_answers([row[side]["ratio"] for row in rows]) for side in ("paired", "apart"))
    said = {what: rate(f"a model with more work: {what}", ours[what], len(rows), APART, theirs[what]) for what in ours}
    return [
        said["called slower"].in_short(),
        said["called faster"].at_most(0),
        said["not told apart"],
        alone("a model with more work: its ratio", "", [row["paired"]["ratio"]["value"] for row in rows]),
    ]


def _of_rankings(part: dict[str, Any]) -> list[Figure]:
    """The twins come first and are not told apart; the slow one comes last and is."""
    rankings = part["rankings"]
    right = sum(ranking[2][0] == 0 and bool(ranking[1][1]) for ranking in rankings)
    twins = sum(not ranking[0][1] for ranking in rankings)
    return [
        rate("rankings with the slow model last, told apart", right, len(rankings)),
        rate("rankings that do not tell the twins apart", twins, len(rankings)),
    ]


def _of_lead_in(part: dict[str, Any]) -> list[Figure]:
    times = {name: [value / 1000 for value in values] for name, values in part["median_us"].items()}
    return [
        against(f"a small model beside a large one, untimed runs before: {words}", "ms", times[name],
                "beside itself", times["beside itself"])
        for name, words in (("no lead-in", "none"), ("one", "one"), ("two", "two"))
    ]  # fmt: skip


_MAKERS: dict[str, Callable[[dict[str, Any]], list[Figure]]] = {
    "itself": _of_itself, "unequal": _of_unequal, "ranking": _of_rankings, "lead_in": _of_lead_in,
}  # fmt: skip


def _widths(ratios: Sequence[dict[str, float]]) -> list[float]:
    return [100 * (ratio["high"] - ratio["low"]) for ratio in ratios]


def _held(ratios: Sequence[dict[str, float]]) -> int:
    return sum(ratio["low"] <= 1 <= ratio["high"] for ratio in ratios)


def _farthest(ratios: Sequence[dict[str, float]]) -> float:
    return max(100 * abs(ratio["value"] - 1) for ratio in ratios)


def _seconds(rows: Sequence[dict[str, Any]]) -> tuple[list[float], str, list[float]]:
    ours, theirs = ([float(row[side]["seconds"]) for row in rows] for side in ("paired", "apart"))
    return ours, APART, theirs


def _answers(ratios: Sequence[dict[str, float]]) -> dict[str, int]:
    slower = sum(ratio["low"] > 1 for ratio in ratios)
    faster = sum(ratio["high"] < 1 for ratio in ratios)
    return {"called slower": slower, "called faster": faster, "not told apart": len(ratios) - slower - faster}


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main() -> None:
    """Measure and report."""
    options = parser(__doc__)
    options.add_argument("--repeats", type=int, default=50, help="a model against itself so often (default 50)")
    options.add_argument("--unequal", type=int, default=20, help="against one with more work so often (default 20)")
    options.add_argument("--samples", type=int, default=200, help="samples of each model (default 200)")
    options.add_argument(
        "--lead-ins", type=int, default=5, help="a small model beside a large one so often (default 5)"
    )
    options.add_argument("--only", choices=tuple(_MAKERS), help="one of the questions")
    arguments = options.parse_args()
    session = Session("paired", options, arguments)
    samples = arguments.samples
    config = ONNXRuntimeConfig(threads=THREADS, iterations=samples, min_seconds=0, max_seconds=60, layer_runs=0)
    device = Device("here", provider_type="local", provider_config=config)
    with tempfile.TemporaryDirectory(prefix="bench-paired-") as place:
        folder = Path(place)
        source = REAL_MODELS[MODEL].fetch(folder)
        with HubContext("bench", [device], home=folder / "home") as ctx:
            plain, more = (
                ONNXRuntimeCompiler().run(ctx, path, input_shape=SHAPE)
                for path in (source, with_more_work(source, folder / "more.onnx"))
            )
            large = ONNXRuntimeCompiler().run(ctx, save(resnet50(), folder / "large.onnx"), input_shape=SHAPE)
            bench = Bench(ctx, samples)
            measures: dict[str, Callable[[], dict[str, Any]]] = {
                "itself": lambda: {"repeats": bench.both([plain, plain], arguments.repeats, "itself")},
                "unequal": lambda: {"repeats": bench.both([plain, more], arguments.unequal, "more work")},
                "ranking": lambda: {
                    "rankings": measure_ranking(ctx, [more, plain, plain], samples, max(1, arguments.unequal // 2))
                },
                "lead_in": lambda: {
                    "median_us": measure_lead_in(plain.path.local(), large.path.local(), arguments.lead_ins)
                },
            }
            data = {key: measure() for key, measure in measures.items() if arguments.only in (None, key)}
    facts = {"model": MODEL, "threads": THREADS}
    session.finish(data, figures(data), packages=("onnxruntime",), facts=facts)


if __name__ == "__main__":
    main()
