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

import json
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
from figures import Figure, against, declared
from report import Session, parser
from support.models import mobilenet_v2, residual_net, resnet50, save
from support.sshd import SSHServer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

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
from embedl_onnxruntime.profile import read_trace
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


def measure_profiler(folder: Path, rounds: int) -> dict[str, Any]:
    """Compare the profiler's median with a plain loop's, on the compiled float files."""
    seconds = 2.0
    config = ONNXRuntimeConfig(threads=THREADS, min_seconds=seconds, max_seconds=seconds, iterations=1, layer_runs=0)
    device = Device("here", provider_type="local", provider_config=config)
    result = {}
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
            result[name] = {"ours_ms": ours, "plain_ms": plain}
    return result


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


def measure_int8(folder: Path, runs: int) -> dict[str, Any]:
    """Compare the compiler's INT8 files with float and with those made by hand."""
    result = {}
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
            result[name] = times
    return result


def measure_round_trips(folder: Path) -> dict[str, Any]:
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
    return {"round_trips": trips}


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


def measure_trace(folder: Path, events: int, rounds: int) -> dict[str, Any]:
    """Read a large profile file, ours and by json.load, each in a process of its own."""
    path = folder / "trace.json"
    write_trace(path, folder / "MobileNetV2.onnx", folder, events)
    sides: dict[str, list[Any]] = {READ_OURS: [], READ_JSON: []}
    for number in range(rounds):
        for code in list(sides)[:: 1 if number % 2 else -1]:
            sides[code].append(python(code, path))
    ours, theirs = sides.values()
    assert ours[0][2] == theirs[0][2], "the two tables must be the same"
    result = {
        "events": events,
        "bytes": path.stat().st_size,
        "ours": [one[:2] for one in ours],
        "json": [one[:2] for one in theirs],
    }
    path.unlink()
    return result


def figures(data: dict[str, Any]) -> list[Figure]:
    """Return what is quoted."""
    made = []
    for name, times in data.get("profiler", {}).items():
        one = against(
            f"profiler's median, {name}, one thread", "ms", times["ours_ms"], "plain timed loop", times["plain_ms"]
        )
        assert one.ratio is not None
        made.append(one.required("0.98 to 1.02", 0.98 <= one.ratio <= 1.02).in_short())
    for name, times in data.get("int8", {}).items():
        ours, hand = (_quickest(times, who) for who in ("ours", "by hand"))
        made.append(
            against(f"INT8 by the compiler, {name}", "ms", times[ours], "float", times["float"])
            .at_most(1 / SPEED_UPS[name]).in_short()
        )  # fmt: skip
        made.append(
            against(f"INT8 by the compiler, {name}, against the best by hand", "ms", times[ours], hand, times[hand])
            .at_most(1.03).in_short()
        )  # fmt: skip
    if "round_trips" in data:
        trips = data["round_trips"]["round_trips"]
        made.append(declared("round trips of a profile on a warm board", "", trips, 0).at_most(6).in_short())
    if "trace" in data:
        made += _trace_figures(data["trace"])
    return made


def _quickest(times: dict[str, list[float]], who: str) -> str:
    """Return the quickest of the files that somebody made."""
    return min((name for name in times if name.startswith(who)), key=lambda name: statistics.median(times[name]))


def _trace_figures(trace: dict[str, Any]) -> Iterator[Figure]:
    """Return the time and the memory of reading a profile file."""
    what = f"a profile file of {trace['events']:,} events to a layer table"
    opponent = "`json.load` and grouping, garbage collector off"
    for index, title, unit, limit in ((0, what, "s", 0.5), (1, f"{what}: memory", "MB", 0.25)):
        sides = [[row[index] for row in trace[side]] for side in ("ours", "json")]
        yield against(title, unit, sides[0], opponent, sides[1]).at_most(limit).in_short()


def main() -> None:
    """Measure and report."""
    options = parser(__doc__)
    options.add_argument("--rounds", type=int, default=7, help="rounds of the profiler (default 7)")
    options.add_argument("--runs", type=int, default=60, help="timed runs of each INT8 file (default 60)")
    options.add_argument("--events", type=int, default=1_000_000, help="events of the profile file (default 1000000)")
    options.add_argument("--only", choices=("profiler", "int8", "round_trips", "trace"), help="one of the questions")
    arguments = options.parse_args()
    session = Session("onnxruntime", options, arguments)
    with tempfile.TemporaryDirectory(prefix="bench-onnxruntime-") as place:
        folder = Path(place)
        for name, make in NETS.items():
            save(make(), folder / f"{name.split()[0]}.onnx")
        measures: dict[str, Callable[[], dict[str, Any]]] = {
            "profiler": lambda: measure_profiler(folder, arguments.rounds),
            "int8": lambda: measure_int8(folder, arguments.runs),
            "round_trips": lambda: measure_round_trips(folder),
            "trace": lambda: measure_trace(folder, arguments.events, 3),
        }
        data = {key: measure() for key, measure in measures.items() if arguments.only in (None, key)}
    session.finish(data, figures(data), packages=("onnxruntime", "onnx", "numpy"))


if __name__ == "__main__":
    main()
