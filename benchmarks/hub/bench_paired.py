"""Does a paired measurement tell equal models from unequal ones on a busy machine?

Four questions, the first two each with its opponent, in turns within one run:

- a real model against itself, 200 samples each, again and again: how many of the 95 % intervals contain 1, and how wide
  are they? Opponent: two profiles of the same length, one after the other, held against each other by compare. The
  paired samples are also looked at as plain wall-clock times;
- the same model with one more convolution in front: how many answers say slower, and how many say faster?
- several models, the same one among them twice: is the ranking right, are the twins not told apart?
- what does an untimed run before each timed one change for a small model beside a large one, against the small one
  beside itself?

    python benchmarks/hub/bench_paired.py [--repeats 50] [--unequal 20] [--samples 200] [--only QUESTION] [--json FILE]
"""

from __future__ import annotations

import argparse
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
import onnxruntime
from onnx import helper, numpy_helper

from embedl_hub.comparison import Ratio, compare, paired_ratio
from embedl_hub.core import HubContext
from embedl_hub.core.compile import ONNXRuntimeCompiler
from embedl_hub.core.device import Device, ONNXRuntimeConfig
from embedl_hub.core.profile import ONNXRuntimePairedProfiler, ONNXRuntimeProfiler

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))
from report import machine, print_table
from support.models import resnet50, save
from support.real_models import REAL_MODELS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from embedl_hub.core.compile import ONNXRuntimeCompiledModel

THREADS = 1
MODEL = "page orientation"
SHAPE = (1, 3, 224, 224)
WIDEST = 0.03


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


def measure_self(bench: Bench, model: ONNXRuntimeCompiledModel, repeats: int) -> tuple[list[Any], dict[str, Any]]:
    """Hold a model against itself."""
    rows = bench.both([model, model], repeats, "itself")
    sides = {
        "paired": [row["paired"]["ratio"] for row in rows],
        "paired, wall clock": [row["paired"]["wall_clock"] for row in rows],
        "two profiles": [row["apart"]["ratio"] for row in rows],
    }
    found = {name: _intervals(ratios) for name, ratios in sides.items()}
    ours, theirs = found["paired"], found["two profiles"]
    table = [
        ("intervals of a model against itself that contain 1", f"{ours['hold_1']:.0%}", "two profiles",
         f"{theirs['hold_1']:.0%}", ">= 95 %", met(ours["hold_1"] >= 0.95)),
        ("their width, median", f"{ours['median_width']:.2%}", "two profiles", f"{theirs['median_width']:.2%}",
         "<= 3 %", met(ours["median_width"] <= WIDEST)),
        ("their width, worst", f"{ours['worst_width']:.2%}", "two profiles", f"{theirs['worst_width']:.2%}",
         "<= 3 %", met(ours["worst_width"] <= WIDEST)),
        ("farthest from 1", f"{ours['farthest']:.2%}", "two profiles", f"{theirs['farthest']:.2%}", "-", "-"),
        ("same, waiting for a processor counted in: contain 1", f"{found['paired, wall clock']['hold_1']:.0%}",
         "width, median", f"{found['paired, wall clock']['median_width']:.2%}", "-", "-"),
        ("seconds for an answer, median", f"{_middle(rows, 'paired'):.1f}", "two profiles",
         f"{_middle(rows, 'apart'):.1f}", "-", "-"),
    ]  # fmt: skip
    return table, {"summary": found, "repeats": rows}


def measure_unequal(
    bench: Bench, models: Sequence[ONNXRuntimeCompiledModel], repeats: int
) -> tuple[list[Any], dict[str, Any]]:
    """Hold a model with more work against the one without."""
    rows = bench.both(models, repeats, "more work")
    middle = statistics.median(row["paired"]["ratio"]["value"] for row in rows)
    ours, theirs = (_answers([row[side]["ratio"] for row in rows]) for side in ("paired", "apart"))
    table = [
        (f"{what} said of a model with {middle - 1:.1%} more time", f"{ours[what]:.0%}", "two profiles",
         f"{theirs[what]:.0%}", required, holds)
        for what, required, holds in (
            ("slower", "-", "-"), ("no difference shown", "-", "-"), ("faster", "0 %", met(ours["faster"] == 0)),
        )
    ]  # fmt: skip
    return table, {"median_ratio": middle, "paired": ours, "two_profiles": theirs, "repeats": rows}


def measure_ranking(
    ctx: HubContext, models: Sequence[ONNXRuntimeCompiledModel], samples: int, repeats: int
) -> tuple[list[Any], dict[str, Any]]:
    """Rank slow, fast, fast again: the twins come first and are not told apart, the slow one comes last and is."""
    right, twins = 0, 0
    seen = []
    for _ in range(repeats):
        ranking = ONNXRuntimePairedProfiler().run(ctx, models, samples=samples).ranking
        right += ranking[2].number == 0 and bool(ranking[1].is_told_apart)
        twins += not ranking[0].is_told_apart
        seen.append([(each.number, each.is_told_apart) for each in ranking])
    table = [
        ("rankings with the slow model last, told apart", f"{right}/{repeats}", "-", "-", "-", "-"),
        ("rankings that do not tell the twins apart", f"{twins}/{repeats}", "-", "-", "-", "-"),
    ]
    return table, {"rankings": seen}


def measure_lead_in(small: Path, large: Path, repeats: int) -> tuple[list[Any], dict[str, Any]]:
    """Time a small model beside a large one, with and without an untimed run first, against beside itself."""
    times: dict[str, list[float]] = {"beside itself": [], "no lead-in": [], "one": [], "two": []}
    for _ in range(repeats):
        for name, partner, lead_in in (
            ("beside itself", small, 1), ("no lead-in", large, 0), ("one", large, 1), ("two", large, 2)
        ):  # fmt: skip
            document = pair(small, partner, "--lead-in", lead_in, "--iterations", 30, "--loads", 5)
            row = document["models"][0]
            own = [
                sample - wait
                for sample, wait in zip(row["samples_us"], row["waited_us"] or row["samples_us"], strict=True)
            ]
            times[name].append(statistics.median(own))
        _say(f"lead-in: { ({name: round(values[-1], 1) for name, values in times.items()}) } us")
    base = times["beside itself"]
    ratios = {
        name: statistics.median(one / two for one, two in zip(values, base, strict=True))
        for name, values in times.items()
    }
    table = [
        (f"small model beside a large one, lead-in {name}", f"× {ratios[name]:.3f}", "beside itself", "× 1", "-", "-")
        for name in ("no lead-in", "one", "two")
    ]
    return table, {"median_us": times, "ratios": ratios}


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


def _intervals(ratios: Sequence[dict[str, float]]) -> dict[str, float]:
    widths = [ratio["high"] - ratio["low"] for ratio in ratios]
    return {
        "hold_1": sum(ratio["low"] <= 1 <= ratio["high"] for ratio in ratios) / len(ratios),
        "median_width": statistics.median(widths),
        "worst_width": max(widths),
        "narrower_than_3_percent": sum(width <= WIDEST for width in widths) / len(widths),
        "farthest": max(abs(ratio["value"] - 1) for ratio in ratios),
    }


def _answers(ratios: Sequence[dict[str, float]]) -> dict[str, float]:
    count = len(ratios)
    slower = sum(ratio["low"] > 1 for ratio in ratios) / count
    faster = sum(ratio["high"] < 1 for ratio in ratios) / count
    return {"slower": slower, "faster": faster, "no difference shown": 1 - slower - faster}


def _middle(rows: Sequence[dict[str, Any]], side: str) -> float:
    return statistics.median(float(row[side]["seconds"]) for row in rows)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def met(holds: bool) -> str:
    """Return the table's word."""
    return "yes" if holds else "NO"


def main() -> None:
    """Measure and report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=50, help="a model against itself so often (default 50)")
    parser.add_argument("--unequal", type=int, default=20, help="against one with more work so often (default 20)")
    parser.add_argument("--samples", type=int, default=200, help="samples of each model (default 200)")
    parser.add_argument("--only", choices=("itself", "unequal", "ranking", "lead_in"), help="one of the questions")
    parser.add_argument("--json", type=Path, help="write every single number there")
    arguments = parser.parse_args()
    facts = {**machine(), "onnxruntime": onnxruntime.__version__, "threads": THREADS, "model": MODEL}
    config = ONNXRuntimeConfig(
        threads=THREADS, iterations=arguments.samples, min_seconds=0, max_seconds=60, layer_runs=0
    )
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
            bench = Bench(ctx, arguments.samples)
            measures: dict[str, Callable[[], tuple[list[Any], dict[str, Any]]]] = {
                "itself": lambda: measure_self(bench, plain, arguments.repeats),
                "unequal": lambda: measure_unequal(bench, [plain, more], arguments.unequal),
                "ranking": lambda: measure_ranking(
                    ctx, [more, plain, plain], arguments.samples, arguments.unequal // 2
                ),
                "lead_in": lambda: measure_lead_in(plain.path.local(), large.path.local(), 5),
            }
            parts = {key: measure() for key, measure in measures.items() if arguments.only in (None, key)}
    rows = [row for rows, _ in parts.values() for row in rows]
    print_table(("what", "ours", "opponent", "its figure", "required", "met"), rows)
    facts["load_after"] = os.getloadavg()[0]
    print(f"machine: {', '.join(f'{key} {value}' for key, value in facts.items())}")
    if arguments.json:
        write(arguments.json, {key: {"machine": facts, **result} for key, (_, result) in parts.items()})


def write(path: Path, parts: dict[str, Any]) -> None:
    """Write the parts; those of the file that were not measured now stay."""
    path.parent.mkdir(parents=True, exist_ok=True)
    before = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps({**before, **parts}, indent=1) + "\n")


if __name__ == "__main__":
    main()
