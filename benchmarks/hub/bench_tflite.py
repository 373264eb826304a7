"""Can the TFLite toolchain's numbers be trusted, is its conversion right, and what does it add to the converter?

Four questions, each with its opponent, in turns:

- the profiler's median against ``litert-benchmark`` of the ai-edge-litert wheel, each in a process of its own;
- our call of the converter in its environment against onnx2tf's own command line in the same environment;
- the second compilation of the same model with the same options, from the cache;
- trained networks out of registry packages, float and INT8, against ONNX Runtime.

    python benchmarks/hub/bench_tflite.py [--rounds 7] [--seconds 2] [--only QUESTION] [--json FILE]
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

import numpy as np
import onnx

from embedl_hub.core import HubContext
from embedl_hub.core.compile import TFLiteCompiler
from embedl_hub.core.device import Device, LiteRTConfig
from embedl_hub.core.profile import TFLiteProfiler
from embedl_hub.machine.environment import CACHE_VARIABLE, cache_dir
from embedl_hub.models.onnx_file import fix_input_shape, inputs_of, read_model
from embedl_hub.toolchains.tflite.environment import ENVIRONMENT

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))
from figures import Figure, against, alone, bounded
from report import Session, parser
from support.models import mobilenet_v2, save
from support.real_models import TFLITE_MODELS, natural_samples

if TYPE_CHECKING:
    from collections.abc import Callable

    from embedl_hub.core.compile import TFLiteCompiledModel

THREADS = 1
SHAPE = (1, 3, 224, 224)


def litert_benchmark(model: Path, folder: Path, runs: int) -> float:
    """Return the median that the wheel's own tool finds, in ms."""
    result = folder / "litert.json"
    program = Path(sys.executable).with_name("litert-benchmark")
    argv = [
        program, "--model", model, "--num_runs", runs, "--warmup_runs", 15, "--num_threads", THREADS,
        "--result_json", result,
    ]  # fmt: skip
    subprocess.run([str(word) for word in argv], capture_output=True, check=True)
    return float(json.loads(result.read_text())["latency"]["median_ms"])


def measure_profiler(folder: Path, rounds: int, seconds: float) -> dict[str, Any]:
    """Compare the profiler's median with litert-benchmark's, float and INT8."""
    config = LiteRTConfig(threads=THREADS, min_seconds=seconds, max_seconds=seconds, iterations=1, layer_runs=0)
    device = Device("here", provider_type="local", provider_config=config)
    source = save(mobilenet_v2(), folder / "mobilenet.onnx")
    data = {"x": np.random.default_rng(2).normal(size=(8, *SHAPE[1:])).astype(np.float32)}
    result = {}
    with HubContext("bench", [device], home=folder / "home") as ctx:
        models: dict[str, TFLiteCompiledModel] = {
            "float": TFLiteCompiler().run(ctx, source, input_shape=SHAPE),
            "INT8": TFLiteCompiler().run(ctx, source, input_shape=SHAPE, calibration_data=data),
        }
        for name, model in models.items():
            ours, theirs = [], []
            runs = 100
            for number in range(rounds):
                for side in ("ours", "theirs")[:: 1 if number % 2 else -1]:
                    if side == "ours":
                        profile = TFLiteProfiler().run(ctx, model)
                        assert profile.latency_median is not None
                        assert profile.iterations is not None
                        ours.append(profile.latency_median.value)
                        runs = int(profile.iterations.value)
                    else:
                        theirs.append(litert_benchmark(model.path.local(), folder, runs))
            result[name] = {"ours_ms": ours, "litert_benchmark_ms": theirs}
    return result


def measure_conversion(folder: Path, rounds: int, _: float) -> dict[str, Any]:
    """Compare a warm compilation with onnx2tf's command line by hand, and with a second compilation."""
    environment = ENVIRONMENT.need()
    source = save(mobilenet_v2(), folder / "mobilenet.onnx")
    model = read_model(source)
    fix_input_shape(model, SHAPE)
    fixed = folder / "fixed.onnx"
    onnx.save(model, fixed)
    path = f"{environment.python.parent}{os.pathsep}{os.environ['PATH']}"
    by_hand = [str(environment.python), "-m", "onnx2tf", "-i", str(fixed), "-n", "-o"]
    ours, theirs, again = [], [], []
    # The caches go with this question; the next one must not look for them.
    with mock.patch.dict(os.environ), HubContext("bench", home=folder / "home") as ctx:
        for number in range(rounds):
            for side in ("ours", "theirs")[:: 1 if number % 2 else -1]:
                # Another cache each time: every compilation is a first one, in a warm environment.
                cache = folder / f"cache{number}"
                cache.mkdir(exist_ok=True)
                if side == "ours":
                    (cache / "converters").symlink_to(environment.python.parents[2])
                    os.environ[CACHE_VARIABLE] = str(cache)
                    ours.append(_seconds(lambda: TFLiteCompiler().run(ctx, source, input_shape=SHAPE)))
                    again.append(_seconds(lambda: TFLiteCompiler().run(ctx, source, input_shape=SHAPE)))
                else:
                    argv = [*by_hand, str(cache / "hand")]
                    theirs.append(_seconds(lambda argv=argv: _run(argv, path)))  # type: ignore[misc]
    return {"ours_s": ours, "onnx2tf_s": theirs, "second_s": again}


def _seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def _run(argv: list[str], path: str) -> None:
    subprocess.run(argv, capture_output=True, check=True, env={**os.environ, "PATH": path})


def measure_networks(folder: Path, _: int, __: float) -> dict[str, Any]:
    """Convert trained networks, float and INT8, and hold them against ONNX Runtime."""
    result = {}
    wheels = cache_dir() / "bench-models"
    with HubContext("bench", home=folder / "home") as ctx:
        for name, real in TFLITE_MODELS.items():
            source = real.fetch(wheels)
            model = read_model(source)
            if real.input_shape is not None:
                fix_input_shape(model, real.input_shape)
            data = {
                tensor.name: natural_samples(tensor.name, tensor.shape, tensor.dtype, 32)  # type: ignore[arg-type]
                for tensor in inputs_of(model)
            }
            store = ctx.client.store
            assert store is not None
            plain = TFLiteCompiler().run(ctx, source, input_shape=real.input_shape)
            error = store.run(str(plain.path.run_id)).metric("conversion_error")
            int8 = TFLiteCompiler().run(ctx, source, input_shape=real.input_shape, calibration_data=data)
            noise = store.run(str(int8.path.run_id)).metric("quantization_sqnr_db")
            assert error is not None
            assert noise is not None
            result[name] = {"share_of_range": error.value, "int8_sqnr_db": noise.value}
    return result


QUESTIONS = {"profiler": measure_profiler, "conversion": measure_conversion, "networks": measure_networks}


def figures(data: dict[str, Any]) -> list[Figure]:
    """Return what is quoted."""
    made = []
    for name, times in data.get("profiler", {}).items():
        what = f"TFLite profiler's median, MobileNetV2 shape, {name}"
        one = against(what, "ms", times["ours_ms"], "`litert-benchmark`", times["litert_benchmark_ms"])
        assert one.ratio is not None
        made.append(one.required("0.97 to 1.03", 0.97 <= one.ratio <= 1.03).in_short())
    if "conversion" in data:
        times = data["conversion"]
        more = [one - two for one, two in zip(times["ours_s"], times["onnx2tf_s"], strict=True)]
        what = "ONNX to TFLite, MobileNetV2 shape"
        made += [
            against(what, "s", times["ours_s"], "onnx2tf by hand", times["onnx2tf_s"]).in_short(),
            alone(f"{what}: seconds more than by hand", "s", more).at_most(2),
            alone(f"{what}: again, from the cache", "s", times["second_s"]).at_most(1).in_short(),
        ]
    for name, row in data.get("networks", {}).items():
        error = bounded(
            f"{name} as TFLite, float: off by, of its range", "", row["share_of_range"], 1e-5, "ONNX Runtime"
        )
        noise = bounded(f"{name} as TFLite, INT8: signal to noise", "dB", row["int8_sqnr_db"], 1.0, "the float model")
        made += [error.at_most(1e-3), noise.at_least(30).in_short()]
    return made


def main() -> None:
    """Ask the questions and print both sides."""
    options = parser(__doc__)
    options.add_argument("--rounds", type=int, default=7)
    options.add_argument("--seconds", type=float, default=2.0)
    options.add_argument("--only", choices=QUESTIONS)
    arguments = options.parse_args()
    session = Session("tflite", options, arguments)
    data: dict[str, Any] = {}
    for name, ask in QUESTIONS.items():
        if arguments.only in (None, name):
            with tempfile.TemporaryDirectory(prefix="bench-tflite-") as folder:
                data[name] = ask(Path(folder), arguments.rounds, arguments.seconds)
    session.finish(data, figures(data), packages=("ai-edge-litert", "onnxruntime", "onnx"))


if __name__ == "__main__":
    main()
