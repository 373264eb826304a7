"""Can the ONNX Runtime toolchain's numbers be trusted, is its INT8 fast, and what does it cost?

Four questions, each with its opponent, in turns within one run:

- the profiler's median against a plain timed loop over the same session options, each in a process of its own;
- the compiler's INT8 file against the float file, and against the best file onnxruntime.quantization makes by hand
  (pre-processed, uint8 x int8, per tensor and per channel), timed run by run in turns in one process;
- the round trips of a profile on a warm board, over a real sshd on loopback;
- a profile file of a million events read into a layer table, against json.load and grouping, gc off.

    python benchmarks/hub/bench_onnxruntime.py [--rounds 7] [--runs 60] [--events 1000000]
        [--only QUESTION] [--json FILE]
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

from embedl_hub.core import HubContext
from embedl_hub.core.compile import ONNXRuntimeCompiler
from embedl_hub.core.device import Device, EmbedlONNXRuntimeConfig, ONNXRuntimeConfig, SSHCommandRunner
from embedl_hub.core.device._ssh_connection import SSHConnection
from embedl_hub.core.profile import ONNXRuntimeProfiler

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))
from report import machine, print_table
from support.models import mobilenet_v2, residual_net, resnet50, save
from support.sshd import SSHServer

if TYPE_CHECKING:
    from collections.abc import Callable

Row = tuple[str, str, str, str, str, str, str]
THREADS = 1
NETS: dict[str, Callable[[], onnx.ModelProto]] = {"ResNet-50 shape": resnet50, "MobileNetV2 shape": mobilenet_v2}
SPEED_UPS = {"ResNet-50 shape": 3.0, "MobileNetV2 shape": 1.8}
SHAPE = (1, 3, 224, 224)

LOOP = """\
import json, sys, time
import numpy as np, onnxruntime
options = onnxruntime.SessionOptions()
options.intra_op_num_threads = int(sys.argv[2])
session = onnxruntime.InferenceSession(sys.argv[1], options, providers=["CPUExecutionProvider"])
feed = {value.name: np.random.RandomState(0).standard_normal(value.shape).astype("float32")
        for value in session.get_inputs()}
for _ in range(15):
    session.run(None, feed)
times, start = [], time.perf_counter()
while time.perf_counter() - start < float(sys.argv[3]):
    before = time.perf_counter_ns()
    session.run(None, feed)
    times.append((time.perf_counter_ns() - before) / 1e6)
print(json.dumps(times))
"""

# Peak memory by VmHWM: ru_maxrss of a child begins at what its parent had when it forked.
READ_OURS = """\
import json, sys, time
from pathlib import Path
from embedl_onnxruntime.trace import read_trace
start = time.perf_counter()
trace = read_trace(Path(sys.argv[1]))
took = time.perf_counter() - start
lines = open("/proc/self/status").read().splitlines()
peak_mb = next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024
table = sorted([layer.name, layer.calls, layer.total_us] for layer in trace.layers)
print(json.dumps([took, peak_mb, table]))
"""

# At its best: with the garbage collector on, json.load takes almost four times as long.
READ_JSON = """\
import gc, json, sys, time
gc.disable()
start = time.perf_counter()
sums = {}
with open(sys.argv[1]) as file:
    for event in json.load(file):
        if event["cat"] == "Node" and event["name"].endswith("_kernel_time"):
            row = sums.setdefault(event["name"][: -len("_kernel_time")], [0, 0.0])
            row[0] += 1
            row[1] += event["dur"]
took = time.perf_counter() - start
lines = open("/proc/self/status").read().splitlines()
peak_mb = next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024
table = sorted([name, *row] for name, row in sums.items())
print(json.dumps([took, peak_mb, table]))
"""


def python(code: str, *arguments: object) -> Any:  # noqa: ANN401 - what the code prints
    """Run code in a process of its own and return what it says."""
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)], capture_output=True, text=True, check=True
    )
    return json.loads(done.stdout)


def measure_profiler(folder: Path, rounds: int) -> tuple[list[Row], dict[str, Any]]:
    """Compare the profiler's median with a plain loop's, on the compiled float files."""
    seconds = 2.0
    config = ONNXRuntimeConfig(threads=THREADS, min_seconds=seconds, max_seconds=seconds, iterations=1, layer_runs=0)
    device = Device("here", provider_type="local", provider_config=config)
    rows, result = [], {}
    with HubContext("bench", [device], home=folder / "home") as ctx:
        for name in NETS:
            source = folder / f"{name.split()[0]}.onnx"
            compiled = ONNXRuntimeCompiler().run(ctx, source, input_shape=SHAPE)
            ours, plain = [], []
            for number in range(rounds):
                for side in ("ours", "plain")[:: 1 if number % 2 else -1]:
                    if side == "ours":
                        median = ONNXRuntimeProfiler().run(ctx, compiled).latency_median
                        assert median is not None
                        ours.append(median.value)
                    else:
                        plain.append(statistics.median(python(LOOP, compiled.path.local(), THREADS, seconds)))
            ratios = [one / two for one, two in zip(ours, plain, strict=True)]
            ratio = statistics.median(ratios)
            rows.append(
                (f"profiler's median, {name}", f"{statistics.median(ours):.2f} ms", "plain timed loop",
                 f"{statistics.median(plain):.2f} ms", f"{ratio:.3f}", "0.98 .. 1.02", met(0.98 <= ratio <= 1.02))
            )  # fmt: skip
            result[name] = {"ours_ms": ours, "plain_ms": plain, "ratios": ratios}
    return rows, result


def by_hand(source: Path, folder: Path, data: np.ndarray) -> dict[str, Path]:
    """Return what onnxruntime.quantization makes when one knows what to ask for."""
    from onnxruntime.quantization import CalibrationDataReader, QuantType, quantize_static  # noqa: PLC0415 - heavy
    from onnxruntime.quantization.shape_inference import quant_pre_process  # noqa: PLC0415
    from onnxruntime.tools.onnx_model_utils import make_input_shape_fixed  # noqa: PLC0415

    class Reader(CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            self._rows = iter(data)

        def get_next(self) -> dict[str, np.ndarray] | None:
            row = next(self._rows, None)
            return None if row is None else {"x": row[None]}

    ready = folder / "preprocessed.onnx"
    fixed = onnx.load(source)
    make_input_shape_fixed(fixed.graph, "x", SHAPE)
    quant_pre_process(fixed, str(ready), skip_symbolic_shape=True)
    made = {}
    for per_channel in (False, True):
        path = folder / f"hand-{per_channel}.onnx"
        quantize_static(
            str(ready), str(path), Reader(), per_channel=per_channel, activation_type=QuantType.QUInt8,
            weight_type=QuantType.QInt8,
        )  # fmt: skip
        made[f"by hand, per {'channel' if per_channel else 'tensor'}"] = path
    return made


def timed_in_turns(files: dict[str, Path], runs: int) -> dict[str, list[float]]:
    """Time files run by run in turns in one process, in ms."""
    feed = {"x": np.random.default_rng(3).normal(size=SHAPE).astype(np.float32)}
    sessions = {}
    for name, path in files.items():
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = THREADS
        options.log_severity_level = 3
        sessions[name] = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    times: dict[str, list[float]] = {name: [] for name in files}
    for number in range(runs + 5):
        names = list(files)[:: 1 if number % 2 else -1]
        for name in names:
            before = time.perf_counter_ns()
            sessions[name].run(None, feed)
            if number >= 5:
                times[name].append((time.perf_counter_ns() - before) / 1e6)
    return times


def measure_int8(folder: Path, runs: int) -> tuple[list[Row], dict[str, Any]]:
    """Compare the compiler's INT8 files with float and with those made by hand."""
    rows, result = [], {}
    data = np.random.default_rng(2).normal(size=(16, *SHAPE[1:])).astype(np.float32)
    with HubContext("bench", home=folder / "home") as ctx:
        for name in NETS:
            source = folder / f"{name.split()[0]}.onnx"
            fixed = ONNXRuntimeCompiler().run(ctx, source, input_shape=SHAPE)
            files = {"float": fixed.path.local()}
            for per_channel in (False, True):
                compiled = ONNXRuntimeCompiler(per_channel=per_channel).run(
                    ctx, source, input_shape=SHAPE, calibration_data={"x": data}
                )
                files[f"ours, per {'channel' if per_channel else 'tensor'}"] = compiled.path.local()
            work = folder / f"hand-{name.split()[0]}"
            work.mkdir()
            files |= by_hand(source, work, data)
            times = timed_in_turns(files, runs)
            medians = {key: statistics.median(values) for key, values in times.items()}
            ours = min(value for key, value in medians.items() if key.startswith("ours"))
            hand_name, hand = min(
                ((key, value) for key, value in medians.items() if key.startswith("by hand")), key=lambda item: item[1]
            )
            up = medians["float"] / ours
            rows.append(
                (f"INT8 against float, {name}", f"{ours:.2f} ms", "float", f"{medians['float']:.2f} ms", f"{up:.2f}x",
                 f">= {SPEED_UPS[name]}x", met(up >= SPEED_UPS[name]))
            )  # fmt: skip
            rows.append(
                (f"INT8 against the best by hand, {name}", f"{ours:.2f} ms", hand_name, f"{hand:.2f} ms",
                 f"{ours / hand:.3f}", "<= 1.03", met(ours / hand <= 1.03))
            )  # fmt: skip
            result[name] = times
    return rows, result


def measure_round_trips(folder: Path) -> tuple[list[Row], dict[str, Any]]:
    """Count the sessions of one profile on a warm board."""
    server = SSHServer(folder / "sshd").start()
    runner = SSHCommandRunner(server.config())
    program = str(Path(sys.executable).with_name("embedl-onnxruntime"))
    config = EmbedlONNXRuntimeConfig(program, min_seconds=0.1, threads=THREADS)
    device = Device(
        "board", runner, provider_type="embedl_onnxruntime", provider_config=config, artifact_root=folder / "board",
        lease_dir=str(folder / "lock"),
    )  # fmt: skip
    count = 0
    session = SSHConnection.session

    def counting(self: SSHConnection, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - passed on
        nonlocal count
        count += 1
        return session(self, *args, **kwargs)

    try:
        with HubContext("bench", [device], home=folder / "home") as ctx:
            compiled = ONNXRuntimeCompiler().run(ctx, save(residual_net(), folder / "small.onnx"))
            ONNXRuntimeProfiler().run(ctx, compiled)
            SSHConnection.session = counting  # type: ignore[method-assign]
            ONNXRuntimeProfiler().run(ctx, compiled)
            trips = count
    finally:
        SSHConnection.session = session  # type: ignore[method-assign]
        runner.close()
        server.stop()
    row = ("round trips of a warm remote profile", str(trips), "-", "-", "-", "<= 6", met(trips <= 6))
    return [row], {"round_trips": trips}


def write_trace(path: Path, source: Path, folder: Path, events: int) -> None:
    """Write a profile file of so many events: a real one's lines, again and again."""
    options = onnxruntime.SessionOptions()
    options.enable_profiling = True
    options.profile_file_prefix = str(folder / "real")
    session = onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])
    session.run(None, {"x": np.zeros(SHAPE, np.float32)})
    lines = Path(session.end_profiling()).read_text().splitlines()[1:-1]
    lines = [line.rstrip(",") for line in lines]
    with path.open("w") as file:
        file.write("[\n")
        for number in range(events):
            file.write(lines[number % len(lines)] + (",\n" if number < events - 1 else "\n"))
        file.write("]\n")


def measure_trace(folder: Path, events: int, rounds: int) -> tuple[list[Row], dict[str, Any]]:
    """Read a large profile file, ours and by json.load, each in a process of its own."""
    path = folder / "trace.json"
    write_trace(path, folder / "MobileNetV2.onnx", folder, events)
    sides: dict[str, list[Any]] = {READ_OURS: [], READ_JSON: []}
    for number in range(rounds):
        for code in list(sides)[:: 1 if number % 2 else -1]:
            sides[code].append(python(code, path))
    ours, theirs = sides.values()
    assert ours[0][2] == theirs[0][2], "the two tables must be the same"
    rows = []
    for index, what, unit, limit in ((0, "time", "s", 0.5), (1, "peak memory", "MB", 0.25)):
        one, two = (statistics.median(found[index] for found in side) for side in (ours, theirs))
        rows.append(
            (f"{events:,} events to a layer table: {what}", f"{one:.1f} {unit}", "json.load and grouping, gc off",
             f"{two:.1f} {unit}", f"{one / two:.2f}", f"<= {limit}", met(one / two <= limit))
        )  # fmt: skip
    result = {"bytes": path.stat().st_size, "ours": [one[:2] for one in ours], "json": [one[:2] for one in theirs]}
    path.unlink()
    return rows, result


def met(holds: bool) -> str:
    """Return the table's word."""
    return "yes" if holds else "NO"


def main() -> None:
    """Measure and report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7, help="rounds of the profiler (default 7)")
    parser.add_argument("--runs", type=int, default=60, help="timed runs of each INT8 file (default 60)")
    parser.add_argument("--events", type=int, default=1_000_000, help="events of the profile file (default 1000000)")
    parser.add_argument("--only", choices=("profiler", "int8", "round_trips", "trace"), help="one of the questions")
    parser.add_argument("--json", type=Path, help="write every single number there")
    arguments = parser.parse_args()
    facts = {**machine(), "onnxruntime": onnxruntime.__version__, "threads": THREADS}
    with tempfile.TemporaryDirectory(prefix="bench-onnxruntime-") as place:
        folder = Path(place)
        for name, make in NETS.items():
            save(make(), folder / f"{name.split()[0]}.onnx")
        measures: dict[str, Callable[[], tuple[list[Row], dict[str, Any]]]] = {
            "profiler": lambda: measure_profiler(folder, arguments.rounds),
            "int8": lambda: measure_int8(folder, arguments.runs),
            "round_trips": lambda: measure_round_trips(folder),
            "trace": lambda: measure_trace(folder, arguments.events, 3),
        }
        parts = {key: measure() for key, measure in measures.items() if arguments.only in (None, key)}
    print_table(
        ("what", "ours", "opponent", "its figure", "ratio", "required", "met"),
        [row for rows, _ in parts.values() for row in rows],
    )
    print(f"machine: {', '.join(f'{key} {value}' for key, value in facts.items())}; load now {os.getloadavg()[0]:.1f}")
    if arguments.json:
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        arguments.json.write_text(
            json.dumps({"machine": facts, **{key: result for key, (_, result) in parts.items()}}, indent=1)
        )


if __name__ == "__main__":
    main()
