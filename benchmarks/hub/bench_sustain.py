"""Does a sustained run tell throttling from a busy machine, and what does watching cost?

- a model under load in a control group that gets a CPU quota at a known second: how many onsets are found, how far off?
- the same without a quota, every other time beside a process that begins to compete for the processors at such a
  second: how many onsets are found there?
- the load with and without the thread that samples the board and writes the journal, in turns within one process; the
  board is a recorded one with eight processors, ten thermal zones, RAPL and INA sensors: by how much does the latency
  change?

It must run as root, or where control groups can be made.

    python benchmarks/hub/bench_sustain.py [--repeats 20] [--seconds 14] [--turns 60] [--only QUESTION] [--json FILE]
"""

from __future__ import annotations

import contextlib
import json
import os
import random
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

from embedl_device.interpreter import python_argv
from embedl_device.power._sysfs import find_hwmon, find_powercap
from embedl_device.rounds import queue_clock
from embedl_device.statistics import paired_ratio
from embedl_device.sustained._journal import Journal
from embedl_device.sustained._load import LoadPlan, Recorder
from embedl_device.sustained._watch import Watch

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))
from figures import Figure, alone, declared, rate
from report import Session, parser
from support.models import mobilenet_v2, residual_net, save

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

QUOTA = 0.05
"""Of one processor, with one thread: less than other jobs leave of a busy machine, or it would throttle nothing."""
WITHIN_S = 2.0
MOST_OVERHEAD = 0.01
SEED = 20_264
_PERIOD_US = 100_000


class Group:
    """A control group of version 1 or 2 that a process starts in."""

    def __init__(self, name: str) -> None:
        root = Path("/sys/fs/cgroup")
        self._is_first = (root / "cpu").is_dir()
        self.path = (root / "cpu" if self._is_first else root) / name

    @contextlib.contextmanager
    def made(self) -> Iterator[Group]:
        """Make it, and remove it when it is empty."""
        try:
            self.path.mkdir()
        except OSError as error:
            sys.exit(f"A control group cannot be made here ({error}); run this as root on Linux.")
        try:
            yield self
        finally:
            for _ in range(50):
                try:
                    self.path.rmdir()
                    break
                except OSError:
                    time.sleep(0.1)

    def join(self) -> None:
        """Put the calling process into it."""
        (self.path / "cgroup.procs").write_text(str(os.getpid()))

    def limit(self, share: float) -> None:
        """Give it a quota of one processor."""
        quota_us = int(share * _PERIOD_US)
        if self._is_first:
            (self.path / "cpu.cfs_period_us").write_text(str(_PERIOD_US))
            (self.path / "cpu.cfs_quota_us").write_text(str(quota_us))
        else:
            (self.path / "cpu.max").write_text(f"{quota_us} {_PERIOD_US}")


def measure(model: Path, seconds: float, at_s: float, what: str) -> dict[str, Any]:
    """Put a model under load; ``what`` happens at a second: ``quota``, ``another job`` or ``nothing``."""
    with tempfile.TemporaryDirectory() as place, Group(f"edgeproof-bench-{os.getpid()}").made() as group:
        words = ["sustain", "--model", str(model), "--threads", "1", "--seconds", str(seconds), "--folder", place]
        argv = [*python_argv(module="embedl_onnxruntime"), *words, "--idle-seconds", "1"]
        with subprocess.Popen(argv, stdout=subprocess.PIPE, preexec_fn=group.join) as child:  # noqa: PLW1509
            clock_s = start_of_load(Path(place), child)
            time.sleep(max(0.0, clock_s + at_s - time.time()))  # noqa: TID251 - the journal's clock
            happened_s = time.time() - clock_s  # noqa: TID251
            other = None
            if what == "quota":
                group.limit(QUOTA)
            elif what == "another job":
                other = subprocess.Popen(python_argv(code="while True: pass"))
            try:
                said = child.communicate(timeout=seconds * 20)[0]
            finally:
                if other is not None:
                    other.kill()
                    other.wait()
        document = json.loads(said)
    found = document["sustained"]
    onset, slowdown = found["onset"], found["slowdown"]
    return {
        "what": what, "happened_s": happened_s, "onset_s": document["onset_s"],
        "ratio": None if onset is None else onset["ratio"],
        "evidence": None if onset is None else onset["evidence"],
        "slowdown_s": None if slowdown is None else slowdown["at_s"],
        "fresh_ms": document["fresh_latency_ms"], "steady_ms": document["steady_latency_ms"],
        "verdict": document["verdict"],
    }  # fmt: skip


def start_of_load(folder: Path, child: subprocess.Popen[bytes]) -> float:
    """Return when the load begins, on the system's clock, as soon as the journal says it."""
    journal, deadline = folder / "journal.jsonl", time.monotonic() + 120
    while time.monotonic() < deadline and child.poll() is None:
        text = journal.read_text() if journal.exists() else ""
        if "\n" in text:
            return float(json.loads(text.partition("\n")[0])["clock_s"])
        time.sleep(0.02)
    raise TimeoutError("The load did not begin.")


def measure_onsets(model: Path, repeats: int, seconds: float) -> dict[str, Any]:
    """Measure throttled and other runs in turns."""
    generator = random.Random(SEED)  # noqa: S311 - no secret
    rows = []
    for number in range(repeats):
        for what in ("quota", "nothing" if number % 2 else "another job"):
            row = measure(model, seconds, generator.uniform(0.35, 0.6) * seconds, what)
            rows.append(row)
            print(f"{number + 1}/{repeats} {row}", file=sys.stderr, flush=True)
    return {"rows": rows, "quota": QUOTA, "seconds": seconds}


def recorded_board(root: Path) -> Path:
    """Write a board with more sensors than most have."""
    files = {
        **{f"devices/system/cpu/cpu{n}/cpufreq/scaling_cur_freq": "1800000" for n in range(8)},
        **{f"devices/system/cpu/cpu{n}/cpufreq/scaling_max_freq": "1800000" for n in range(8)},
        **{f"devices/system/cpu/cpu{n}/thermal_throttle/core_throttle_count": "3" for n in range(8)},
        **{f"class/thermal/thermal_zone{n}/temp": "52500" for n in range(10)},
        **{f"class/thermal/cooling_device{n}/type": "cpufreq-cpu0" for n in range(4)},
        **{f"class/thermal/cooling_device{n}/cur_state": "0" for n in range(4)},
        "class/powercap/intel-rapl:0/name": "package-0", "class/powercap/intel-rapl:0/energy_uj": "123456789",
        "class/powercap/intel-rapl:0:0/name": "dram", "class/powercap/intel-rapl:0:0/energy_uj": "23456789",
        **{f"class/hwmon/hwmon{n}/name": "ina226" for n in range(4)},
        **{f"class/hwmon/hwmon{n}/power1_input": "4200000" for n in range(4)},
    }  # fmt: skip
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text + "\n")
    return root


def measure_overhead(model: Path, turns: int, block_s: float) -> dict[str, Any]:
    """Time blocks of inferences with the sampler and without it, in turns that change sides.

    What the load's thread stood in the queue for a processor is left out: on a busy machine that is other jobs'. What
    it waited for the sampler's thread, which holds Python's lock, is in it.
    """
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])
    (tensor,) = session.get_inputs()
    shape = [size if isinstance(size, int) else 1 for size in tensor.shape]
    feed = {tensor.name: np.random.default_rng(0).standard_normal(shape).astype(np.float32)}
    sampled: list[list[float]] = []
    plain: list[list[float]] = []
    cost_us: list[float] = []
    unused: list[float] = []
    with tempfile.TemporaryDirectory() as place, queue_clock() as queue_ns:
        waited_ns = queue_ns or (lambda: 0)

        def block(add: Callable[[float], None]) -> list[float]:
            times: list[float] = []
            end = time.perf_counter() + block_s
            while time.perf_counter() < end:
                queued, start = waited_ns(), time.perf_counter_ns()
                session.run(None, feed)
                time_us = (time.perf_counter_ns() - start) / 1e3
                times.append(time_us - (waited_ns() - queued) / 1e3)
                add(time_us)
            return times

        board = recorded_board(Path(place) / "sys")
        sources = [*find_powercap(board).sources, *find_hwmon(board).sources]
        watch = Watch(sources, board)
        block(unused.append)
        for turn in range(turns):
            for is_sampled in (turn % 2 == 0, turn % 2 == 1):
                if not is_sampled:
                    plain.append(block(unused.append))
                    unused.clear()
                    continue
                with (Path(place) / "journal.jsonl").open("w") as file:
                    journal = Journal(file, {}, watch.channels)
                    recorder = Recorder(journal, watch, LoadPlan(), time.perf_counter())
                    recorder.start()
                    sampled.append(block(recorder.times_us.append))
                    recorder.finish()
            start = time.perf_counter_ns()
            watch.values()
            cost_us.append((time.perf_counter_ns() - start) / 1e3)
        channels = len(watch.channels)
        watch.close()
    medians = [[statistics.median(times) for times in side] for side in (sampled, plain)]
    means = [[statistics.fmean(times) for times in side] for side in (sampled, plain)]
    return {
        "block_s": block_s, "channels": channels, "reading_us": cost_us, "period_s": LoadPlan().period_s,
        "is_without_waiting": queue_ns is not None,
        "median_us": {"sampled": medians[0], "plain": medians[1]},
        "mean_us": {"sampled": means[0], "plain": means[1]},
    }  # fmt: skip


def fix_batch(path: Path) -> None:
    """Fix the open batch of a model at 1."""
    model = onnx.load(path)
    for value in model.graph.input:
        value.type.tensor_type.shape.dim[0].dim_value = 1
    onnx.save(model, path)


def figures(data: dict[str, Any]) -> list[Figure]:
    """Return what is quoted."""
    found: list[Figure] = []
    if "onset" in data:
        found += _of_onsets(data["onset"]["rows"])
    for name, part in data.get("overhead", {}).items():
        found += _of_overhead(name, part)
    return found


def _of_onsets(rows: Sequence[dict[str, Any]]) -> list[Figure]:
    quota = [row for row in rows if row["what"] == "quota"]
    others = [row for row in rows if row["what"] != "quota"]
    busy = [row for row in others if row["what"] == "another job"]
    off = [abs(row["onset_s"] - row["happened_s"]) for row in quota if row["onset_s"] is not None]
    hits = sum(each <= WITHIN_S for each in off)
    false = sum(row["onset_s"] is not None for row in others)
    what = "throttle onset at a known second"
    return [
        rate(f"{what}: found within {WITHIN_S:g} s", hits, len(quota)).at_least(100).in_short(),
        rate("no throttling: an onset claimed", false, len(others)).at_most(0).in_short(),
        rate("another job begins: an onset claimed", sum(r["onset_s"] is not None for r in busy), len(busy)).at_most(0),
        alone(f"{what}: off by", "s", off or [float("nan")]),
        declared(f"{what}: farthest off", "s", max(off, default=float("nan")), 1.0),
        alone(f"{what}: steady over fresh latency", "", [row["steady_ms"] / row["fresh_ms"] for row in quota]),
    ]


def _of_overhead(name: str, part: dict[str, Any]) -> list[Figure]:
    found = []
    for key, title in (("mean_us", "mean"), ("median_us", "median")):
        sampled, plain = part[key]["sampled"], part[key]["plain"]
        ratio = paired_ratio(sampled, plain)
        ms = statistics.median(sampled) / 1e3
        what, how = f"{name}: {title} latency with all sampling", f"99 % interval of {len(plain)} pairs of blocks"
        figure = Figure(what, "ms", ms, ratio.low or ratio.value, ratio.high or ratio.value, how,
                        "without", ms / ratio.value, ratio.value)  # fmt: skip
        limit = figure.required(f"at most {1 + MOST_OVERHEAD:g}", ratio.value <= 1 + MOST_OVERHEAD)
        found.append(limit.in_short() if title == "mean" else limit)
    found.append(alone(f"{name}: one reading of {part['channels']} channels", "us", part["reading_us"]))
    return found


def main() -> None:
    """Measure and print."""
    options = parser(__doc__)
    options.add_argument("--repeats", type=int, default=20, help="throttled runs, and as many others (default 20)")
    options.add_argument("--seconds", type=float, default=14.0, help="length of a run (default 14)")
    options.add_argument("--turns", type=int, default=60, help="blocks with and without sampling (default 60)")
    options.add_argument("--block-seconds", type=float, default=1.0, help="length of a block (default 1)")
    options.add_argument("--only", choices=("onset", "overhead"), help="one of the questions")
    arguments = options.parse_args()
    session = Session("sustain", options, arguments)
    with tempfile.TemporaryDirectory(prefix="bench-sustain-") as place:
        model = save(mobilenet_v2(), Path(place) / "mobilenet_v2.onnx")
        fix_batch(model)
        small = save(residual_net(size=64), Path(place) / "small.onnx")
        measures: dict[str, Callable[[], dict[str, Any]]] = {
            "overhead": lambda: {
                name: measure_overhead(path, arguments.turns, arguments.block_seconds)
                for name, path in (("mobilenet_v2", model), ("a small network", small))
            },
            "onset": lambda: measure_onsets(model, arguments.repeats, arguments.seconds),
        }
        data = {key: make() for key, make in measures.items() if arguments.only in (None, key)}
    session.finish(data, figures(data), packages=("onnxruntime",), facts={"model": "mobilenet_v2", "threads": 1})


if __name__ == "__main__":
    main()
