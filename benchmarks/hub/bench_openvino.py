"""Can the OpenVINO toolchain's numbers be trusted, and are its answers right?

Two questions, each with its opponent:

- the profiler's median against OpenVINO's own ``benchmark_app`` (latency hint, one stream), in turns, each in a process
  of its own;
- twelve networks with random weights: float answers against ONNX Runtime's; INT8 files of the dialect ``openvino``
  against the simulated model, with the operator that costs most where it is more than 1 dB; predicted against real
  placement.

    python benchmarks/hub/bench_openvino.py [--rounds 9] [--seconds 2] [--only QUESTION] [--json FILE]
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from embedl_hub.core import HubContext
from embedl_hub.core.compile import OpenVINOCompiler
from embedl_hub.core.device import Device, OpenVINOConfig
from embedl_hub.core.profile import OpenVINOProfiler

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))
from figures import Figure, against
from report import Session, parser
from support.models import mobilenet_v2, save

if TYPE_CHECKING:
    from embedl_hub.core.compile import OpenVINOCompiledModel

THREADS = 1
SHAPE = (1, 3, 224, 224)
# As its own command does, without the report that importing OpenVINO sends to its makers.
BENCHMARK_APP = """
import sys
sys.modules["openvino_telemetry"] = None
from openvino.tools.benchmark.main import main
sys.exit(main())
"""


def benchmark_app(model: Path, folder: Path, seconds: float) -> float:
    """Return the median that OpenVINO's own tool finds, in ms."""
    settings = folder / "settings.json"
    settings.write_text(json.dumps({"CPU": {"INFERENCE_NUM_THREADS": THREADS, "INFERENCE_PRECISION_HINT": "f32"}}))
    argv = [
        sys.executable, "-c", BENCHMARK_APP, "-m", model, "-d", "CPU", "-hint", "latency", "-load_config", settings,
        "-t", max(1, round(seconds)),
    ]  # fmt: skip
    done = subprocess.run([str(word) for word in argv], capture_output=True, text=True, check=True, cwd=folder)
    found = re.search(r"Median:\s+([\d.]+) ms", done.stdout)
    streams = re.search(r"NUM_STREAMS: (\d+)", done.stdout)
    assert found is not None, done.stdout[-2000:]
    assert streams is not None, done.stdout[-2000:]
    assert streams[1] == "1"
    return float(found[1])


def measure_profiler(folder: Path, rounds: int, seconds: float) -> dict[str, Any]:
    """Compare the profiler's median with benchmark_app's, float and INT8."""
    config = OpenVINOConfig(threads=THREADS, min_seconds=seconds, max_seconds=seconds, iterations=1, layer_runs=0)
    device = Device("here", provider_type="local", provider_config=config)
    source = save(mobilenet_v2(), folder / "mobilenet.onnx")
    data = {"x": np.random.default_rng(2).normal(size=(8, *SHAPE[1:])).astype(np.float32)}
    result = {}
    with HubContext("bench", [device], home=folder / "home") as ctx:
        models: dict[str, OpenVINOCompiledModel] = {
            "float": OpenVINOCompiler().run(ctx, source, input_shape=SHAPE),
            "INT8": OpenVINOCompiler().run(ctx, source, input_shape=SHAPE, calibration_data=data),
        }
        for name, model in models.items():
            ours, theirs = [], []
            (xml,) = [path for path in model.path.local().iterdir() if path.suffix == ".xml"]
            for number in range(rounds):
                for side in ("ours", "theirs")[:: 1 if number % 2 else -1]:
                    if side == "ours":
                        profile = OpenVINOProfiler().run(ctx, model)
                        assert profile.latency_median is not None
                        ours.append(profile.latency_median.value)
                    else:
                        theirs.append(benchmark_app(xml, folder, seconds))
            result[name] = {"ours_ms": ours, "benchmark_app_ms": theirs}
    return result


QUESTIONS = {"profiler": measure_profiler}


def figures(data: dict[str, Any]) -> list[Figure]:
    """Return what is quoted."""
    made = []
    for name, times in data.get("profiler", {}).items():
        what = f"OpenVINO profiler's median, MobileNetV2 shape, {name}"
        one = against(what, "ms", times["ours_ms"], "`benchmark_app`", times["benchmark_app_ms"])
        assert one.ratio is not None
        made.append(one.required("0.97 to 1.03", 0.97 <= one.ratio <= 1.03).in_short())
    return made


def main() -> None:
    """Ask the questions and print both sides."""
    options = parser(__doc__)
    options.add_argument("--rounds", type=int, default=9)
    options.add_argument("--seconds", type=float, default=2.0)
    options.add_argument("--only", choices=QUESTIONS)
    arguments = options.parse_args()
    session = Session("openvino", options, arguments)
    data: dict[str, Any] = {}
    for name, ask in QUESTIONS.items():
        if arguments.only in (None, name):
            with tempfile.TemporaryDirectory(prefix="bench-openvino-") as folder:
                data[name] = ask(Path(folder), arguments.rounds, arguments.seconds)
    session.finish(data, figures(data), packages=("openvino", "onnxruntime", "onnx"))


if __name__ == "__main__":
    main()
