"""Are the bounds of p90 and p99 those of MLPerf's LoadGen, and do they hold where its assumption does not?

The same latencies go to LoadGen (mlcommons_loadgen, single stream, early stopping) and to us. LoadGen measures real
time; here its clock is a virtual one (virtual_clock.c) that each query moves by its latency, so that its own C++ works
on exactly the given numbers. Half of the cases are independent samples, as LoadGen assumes: normal, log-normal, Pareto,
of two kinds. The others hang together: autoregressive with normal and heavy tails, a machine that is slow in stretches,
seasons, bursts; every state comes around at least thirty times in a run. Their true percentiles are known from how they
are made. More cases of those are judged without LoadGen, by the rule that the others show to be its.

And what does sampling cost? A model's mean latency in a profile is held against that in a bare loop, in turns.

    nice python benchmarks/hub/bench_loadgen.py [--cases 1000] [--more 4000] [--turns 1000] [--json FILE]
"""

from __future__ import annotations

import array
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embedl_device.rounds import Plan, queue_clock, take_samples
from embedl_device.statistics import Tail, paired_ratio, slowest_of_bound, tails

sys.path.insert(0, str(Path(__file__).parents[1]))
from environments import ALL, PeerError, find
from figures import Figure, bounded, rate
from report import Session, parser

Floats = NDArray[np.float64]
Random = np.random.Generator

HERE = Path(__file__).parent
PERCENTS = (90, 99)
LEAST_COVERED = 99.0
MOST_OVERHEAD = 1.0
SECONDS = 1200
ROUNDS_OF_A_STATE = 30
_BASE_NS, _UNIT_NS = 5_000_000, 200_000


@dataclass(frozen=True)
class Case:
    """Samples, and the part of them that truly lies at or below a value."""

    kind: str
    values: Floats  # in units of their kind; ns after `as_ns`
    below: Callable[[float], float]

    def truth(self, percent: int) -> float:
        """Return the true percentile, by bisection."""
        low, high = -50.0, 1e6
        for _ in range(50):
            middle = (low + high) / 2
            low, high = (middle, high) if self.below(middle) < percent / 100 else (low, middle)
        return high


def normal_below(value: float) -> float:
    """Return the part of standard normal samples below a value."""
    return 0.5 * math.erfc(-value / math.sqrt(2))


def pareto_below(value: float, shape: float) -> float:
    """Return the part of Pareto samples below a value."""
    return 1 - math.exp(-shape * math.log(max(1.0, value)))


def log_uniform(random: Random, low: float, high: float) -> float:
    """Return a number between two, any order of magnitude as likely as any other."""
    return math.exp(float(random.uniform(math.log(low), math.log(high))))


def autoregressive(random: Random, count: int, weight: float) -> Floats:
    """Return standard normal samples each of which takes a part from the one before."""
    value, values = random.normal(), []
    for step in (random.normal(size=count) * math.sqrt(1 - weight**2)).tolist():
        value = weight * value + step
        values.append(value)
    return np.array(values)


def states(random: Random, count: int, fast: float, slow: float) -> NDArray[np.bool_]:
    """Return when a machine is slow: stretches of geometric lengths with these means, begun anywhere."""
    is_slow, place, now = np.empty(count, bool), 0, bool(random.random() < slow / (fast + slow))
    while place < count:
        length = int(random.geometric(1 / (slow if now else fast)))
        is_slow[place : place + length] = now
        place, now = place + length, not now
    return is_slow


def independent(random: Random, kind: str) -> Case:
    """Return independent samples of a kind."""
    count = int(log_uniform(random, 70, 20_000))
    if kind == "normal":
        return Case(kind, random.normal(size=count), normal_below)
    if kind == "log-normal":
        width = random.uniform(0.3, 1.5)
        values = np.exp(width * random.normal(size=count))
        return Case(kind, values, lambda value: normal_below(math.log(max(value, 1e-9)) / width))
    if kind == "Pareto":
        shape = random.uniform(1.2, 3.0)
        return Case(kind, random.pareto(shape, count) + 1, lambda value: pareto_below(value, shape))
    share, apart = random.uniform(0.01, 0.5), random.uniform(3, 10)
    values = np.where(random.random(count) < share, apart, 0.0) + random.normal(size=count)
    return Case(kind, values, lambda value: _of_two(value, share, apart))


def _of_two(value: float, share: float, apart: float) -> float:
    return (1 - share) * normal_below(value) + share * normal_below(value - apart)


def dependent(random: Random, kind: str) -> Case:
    """Return samples of a kind that hang together."""
    count = int(log_uniform(random, 700, 20_000))
    if kind.startswith("autoregressive"):
        values = autoregressive(random, count, random.uniform(0.1, 0.95))
        if kind == "autoregressive":
            return Case(kind, values, normal_below)
        shape = random.uniform(1.2, 3.0)
        above = np.array([normal_below(-value) for value in values.tolist()])
        return Case(kind, above ** (-1 / shape), lambda value: pareto_below(value, shape))
    if kind == "seasons":
        period, height = log_uniform(random, 5, count / ROUNDS_OF_A_STATE), random.uniform(0.5, 3)
        phases = np.arange(count) / period * 2 * math.pi + random.uniform(0, 2 * math.pi)
        level = (height * np.sin((np.arange(64) + 0.5) / 64 * 2 * math.pi)).tolist()
        values = height * np.sin(phases) + random.normal(size=count)
        return Case(kind, values, lambda value: statistics.fmean(normal_below(value - each) for each in level))
    cycle = log_uniform(random, 5, count / ROUNDS_OF_A_STATE)
    share = random.uniform(0.05, 0.5) if kind == "slow in stretches" else random.uniform(0.01, 0.1)
    slow = max(1.0, share * cycle)
    fast = max(1.0, cycle - slow)
    share = slow / (fast + slow)
    is_slow, noise = states(random, count, fast, slow), random.normal(size=count)
    if kind == "slow in stretches":
        apart = random.uniform(3, 10)
        return Case(kind, np.where(is_slow, apart, 0.0) + noise, lambda value: _of_two(value, share, apart))
    size = random.uniform(2, 10)
    values = np.where(is_slow, 3 + size * random.exponential(size=count), noise)

    def below(value: float) -> float:
        burst = 1 - math.exp(-max(0.0, value - 3) / size)
        return (1 - share) * normal_below(value) + share * burst

    return Case(kind, values, below)


INDEPENDENT = ("normal", "log-normal", "Pareto", "of two kinds")
DEPENDENT = ("autoregressive", "autoregressive, heavy tail", "slow in stretches", "seasons", "bursts")


def make_cases(seed: int, number_of: int, *, only_dependent: bool = False) -> Iterator[Case]:
    """Yield cases, half of them independent unless only others are wanted."""
    for number in range(number_of):
        random = np.random.default_rng([seed, number])
        if number % 2 and not only_dependent:
            yield independent(random, INDEPENDENT[number // 2 % len(INDEPENDENT)])
        else:
            turn = number if only_dependent else number // 2
            yield dependent(random, DEPENDENT[turn % len(DEPENDENT)])


def as_ns(values: Floats) -> list[int]:
    """Return samples as whole latencies; LoadGen knows no others."""
    return [int(value) for value in np.maximum(1, np.rint(_BASE_NS + _UNIT_NS * values))]


def ask_loadgen(python: Path, cases: list[list[int]], folder: Path) -> list[dict[str, int | None]]:
    """Return LoadGen's answers."""
    clock, given = folder / "virtual_clock.so", folder / "cases.bin"
    build = ["cc", "-O2", "-shared", "-fPIC", str(HERE / "virtual_clock.c"), "-o", str(clock)]
    subprocess.run(build, check=True, timeout=60)
    with given.open("wb") as file:
        for latencies in cases:
            array.array("q", [len(latencies), *latencies]).tofile(file)
    command = [str(python), str(HERE / "loadgen_worker.py"), str(clock), str(given)]
    environment = dict(os.environ, LD_PRELOAD=str(clock))
    done = subprocess.run(
        command, check=False, capture_output=True, text=True, timeout=SECONDS, env=environment, cwd=folder
    )
    if done.returncode:
        raise PeerError(f"LoadGen: {done.stderr.strip()[-300:] or done.returncode}")
    answers = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    if [answer["max"] for answer in answers] != [max(latencies) for latencies in cases]:
        raise PeerError("LoadGen did not measure the latencies it was given; does its clock_gettime go past the shim?")
    return answers


@dataclass
class Tally:
    """What came out for one kind of samples and one percentile."""

    cases: int = 0
    asked: int = 0  # for how many LoadGen itself was asked
    rule_holds: int = 0  # how often it took the sample that its rule says
    equal: int = 0  # how often our bound was its bound, or neither had one
    told: int = 0  # how often we gave a bound
    covered: int = 0  # how often that covers the truth
    loadgen_told: int = 0  # the same for LoadGen, or for its rule where it was not asked
    loadgen_covered: int = 0

    def add(self, tail: Tail, rule: int | None, answer: dict[str, int | None] | None, truth: float) -> None:
        """Count one case."""
        theirs = rule if answer is None else answer[f"p{tail.percent}"]
        self.cases += 1
        if answer is not None:
            self.asked += 1
            self.rule_holds += theirs == rule
            self.equal += theirs == tail.high
        # Latencies are whole nanoseconds; the truth is not.
        if tail.high is not None:
            self.told += 1
            self.covered += tail.high >= truth - 1
        if theirs is not None:
            self.loadgen_told += 1
            self.loadgen_covered += theirs >= truth - 1


Tallies = dict[str, dict[str, Tally]]


def count(tallies: Tallies, case: Case, answer: dict[str, int | None] | None) -> None:
    """Judge one case and count it."""
    latencies = as_ns(case.values)
    ordered = sorted(latencies)
    for tail in tails([float(latency) for latency in latencies], PERCENTS):
        place = slowest_of_bound(len(latencies), tail.percent)
        tally = tallies.setdefault(case.kind, {}).setdefault(f"p{tail.percent}", Tally())
        tally.add(tail, ordered[-place] if place else None, answer, _BASE_NS + _UNIT_NS * case.truth(tail.percent))


def measure_sampling(turns: int, runs: int) -> dict[str, list[float]]:
    """Return the mean latency of a model, in us, in a bare loop and in profiles, one of each in each turn.

    Without what it waited for a processor: on a busy machine that is many times what is looked for.
    """
    import onnx  # noqa: PLC0415 - only for this question
    import onnxruntime  # noqa: PLC0415
    from onnx import TensorProto, helper, numpy_helper  # noqa: PLC0415

    weight = numpy_helper.from_array(np.random.default_rng(0).normal(size=(256, 256)).astype(np.float32), "w")
    nodes = [helper.make_node("MatMul", ["x" if n == 0 else f"h{n}", "w"], [f"h{n + 1}"]) for n in range(8)]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [32, 256]) for name in ("x", "h8")]
    graph = helper.make_graph(nodes, "net", ends[:1], ends[1:], [weight])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    onnx.checker.check_model(model)
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    feed = {"x": np.ones((32, 256), np.float32)}

    def run() -> object:
        return session.run(None, feed)

    def bare() -> float:
        start = time.perf_counter_ns()
        for _ in range(runs):
            run()
        return (time.perf_counter_ns() - start) / runs / 1e3

    def profiled() -> float:
        return statistics.fmean(take_samples(run, Plan(runs, 0.0, 60.0, 0.0)).times_us)

    ways: dict[str, Callable[[], float]] = {"bare loop": bare, "profile": profiled}
    means: dict[str, list[float]] = {name: [] for name in ways}
    with queue_clock() as queue_ns:
        for turn in range(turns):
            for name in list(ways) if turn % 2 else list(ways)[::-1]:
                run()
                queued = queue_ns() if queue_ns else 0
                mean_us = ways[name]()
                waited_us = ((queue_ns() if queue_ns else 0) - queued) / 1e3
                means[name].append(max(mean_us - waited_us / runs, 0.001 * mean_us))
    return means


def figures(data: dict[str, Any]) -> list[Figure]:
    """Return what is quoted."""
    made: list[Figure] = []
    for percent in PERCENTS:
        made += _of_percent(percent, data)
    ratio = paired_ratio(data["sampling"]["profile"], data["sampling"]["bare loop"])
    low, value, high = (100 * (each - 1) for each in (ratio.low or 0.0, ratio.value, ratio.high or 0.0))
    words = "99 % interval in turns, at least ±1 %"
    what = "what a profile's own sampling adds to the latency"
    figure = Figure(what, "%", value, min(low, value - 1), max(high, value + 1), words, "a bare loop")
    made.append(figure.at_most(MOST_OVERHEAD).in_short())
    return made


def _of_percent(percent: int, data: dict[str, Any]) -> list[Figure]:
    name = f"p{percent}"
    alike, apart = (_sum(data["kinds"], name, kinds) for kinds in (INDEPENDENT, DEPENDENT))
    every = _sum(data["kinds"], name, (*INDEPENDENT, *DEPENDENT))
    made = []
    if every.asked:
        made = [
            rate(f"{name}: independent samples, bound equals LoadGen's", alike.equal, alike.asked)
            .at_least(100)
            .in_short(),
            rate(f"{name}: all samples, LoadGen's bound is that of its rule", every.rule_holds, every.asked).at_least(
                100
            ),
        ]
    together = f"{name}: samples that hang together"
    theirs = 100 * apart.loadgen_covered / apart.loadgen_told
    figure = rate(f"{together}, the bound covers the truth", apart.covered, apart.told, "LoadGen's rule")
    return [
        *made,
        rate(f"{name}: independent samples, the bound covers the truth", alike.covered, alike.told),
        replace(figure, theirs=theirs).at_least(LEAST_COVERED).in_short(),
        bounded(f"{together}, there is a bound", "%", 100 * apart.told / apart.loadgen_told, 5.0),
    ]


def _sum(kinds: dict[str, Any], name: str, wanted: tuple[str, ...]) -> Tally:
    whole = Tally()
    for kind in wanted:
        for key, number in kinds.get(kind, {}).get(name, {}).items():
            setattr(whole, key, getattr(whole, key) + number)
    return whole


def main() -> None:
    """Measure and report."""
    options = parser(__doc__)
    options.add_argument("--cases", type=int, default=1000, help="cases for both (default 1000)")
    options.add_argument("--more", type=int, default=4000, help="more cases that hang together (default 4000)")
    options.add_argument("--turns", type=int, default=1000, help="turns for the cost of sampling (default 1000)")
    options.add_argument("--runs", type=int, default=10, help="inferences in each (default 10)")
    options.add_argument("--without-peers", action="store_true", help="leave LoadGen out")
    arguments = options.parse_args()
    session = Session("loadgen", options, arguments)
    python, version = find(ALL["LoadGen"], wanted=not arguments.without_peers)
    cases = list(make_cases(1, arguments.cases))
    answers: list[dict[str, int | None] | None] = [None] * len(cases)
    if python is not None:
        with tempfile.TemporaryDirectory(prefix="bench-loadgen-") as folder:
            answers = list(ask_loadgen(python, [as_ns(case.values) for case in cases], Path(folder)))
    tallies: Tallies = {kind: {} for kind in (*INDEPENDENT, *DEPENDENT)}
    for case, answer in zip(cases, answers, strict=True):
        count(tallies, case, answer)
    for case in make_cases(2, arguments.more, only_dependent=True):
        count(tallies, case, None)
    data = {
        "kinds": {kind: {name: asdict(tally) for name, tally in row.items()} for kind, row in tallies.items()},
        "sampling": measure_sampling(arguments.turns, arguments.runs),
    }
    session.finish(data, figures(data), packages=("numpy", "onnxruntime"), peers={"LoadGen": version})


if __name__ == "__main__":
    main()
