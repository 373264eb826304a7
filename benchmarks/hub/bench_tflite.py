"""Can the TFLite toolchain's numbers be trusted, is its conversion right, and what does it add to the converter?

Four questions, each with its opponent, in turns:

- the profiler's median against ``litert-benchmark`` of the ai-edge-litert wheel, each in a process of its own;
- our call of the converter in its environment against onnx2tf's own command line in the same environment;
- the second compilation of the same model with the same options, from the cache;
- trained networks out of registry packages, float and INT8, against ONNX Runtime.

    python benchmarks/hub/bench_tflite.py [--rounds 7] [--seconds 2] [--only QUESTION] [--json FILE]
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

from embedl_hub.core import HubContext
from embedl_hub.core.compile import TFLiteCompiler
from embedl_hub.core.device import Device, LiteRTConfig
from embedl_hub.core.profile import TFLiteProfiler
from embedl_hub.tflite.environment import CACHE_VARIABLE, cache_dir, need_environment
from embedl_hub.toolchain.model import fix_input_shape, inputs_of, read_model

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))
from report import machine, print_table
from support.models import mobilenet_v2, save
from support.real_models import TFLITE_MODELS, natural_samples

if TYPE_CHECKING:
    from collections.abc import Callable

    from embedl_hub.core.compile import TFLiteCompiledModel

Row = tuple[str, str, str, str, str, str, str]
THREADS = 1
SHAPE = (1, 3, 224, 224)


def met(is_met: bool) -> str:
    """Return the last column."""
    return "yes" if is_met else "NO"


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


def measure_profiler(folder: Path, rounds: int, seconds: float) -> tuple[list[Row], dict[str, Any]]:
    """Compare the profiler's median with litert-benchmark's, float and INT8."""
    config = LiteRTConfig(threads=THREADS, min_seconds=seconds, max_seconds=seconds, iterations=1, layer_runs=0)
    device = Device("here", provider_type="local", provider_config=config)
    source = save(mobilenet_v2(), folder / "mobilenet.onnx")
    data = {"x": np.random.default_rng(2).normal(size=(8, *SHAPE[1:])).astype(np.float32)}
    rows, result = [], {}
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
            ratios = [one / two for one, two in zip(ours, theirs, strict=True)]
            ratio = statistics.median(ratios)
            rows.append(
                (f"profiler's median, MobileNetV2 shape, {name}", f"{statistics.median(ours):.2f} ms",
                 "litert-benchmark", f"{statistics.median(theirs):.2f} ms", f"{ratio:.3f}", "0.97 .. 1.03",
                 met(0.97 <= ratio <= 1.03))
            )  # fmt: skip
            result[name] = {"ours_ms": ours, "litert_benchmark_ms": theirs, "ratios": ratios}
    return rows, result


def measure_conversion(folder: Path, rounds: int, _: float) -> tuple[list[Row], dict[str, Any]]:
    """Compare a warm compilation with onnx2tf's command line by hand, and with a second compilation."""
    environment = need_environment()
    source = save(mobilenet_v2(), folder / "mobilenet.onnx")
    model = read_model(source)
    fix_input_shape(model, SHAPE)
    fixed = folder / "fixed.onnx"
    onnx.save(model, fixed)
    path = f"{environment.python.parent}{os.pathsep}{os.environ['PATH']}"
    by_hand = [str(environment.python), "-m", "onnx2tf", "-i", str(fixed), "-n", "-o"]
    ours, theirs, again = [], [], []
    with HubContext("bench", home=folder / "home") as ctx:
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
    over = statistics.median(one - two for one, two in zip(ours, theirs, strict=True))
    second = statistics.median(again)
    rows = [
        ("compile, check included, MobileNetV2 shape", f"{statistics.median(ours):.2f} s", "onnx2tf by hand",
         f"{statistics.median(theirs):.2f} s", f"{over:+.2f} s", "at most +2 s", met(over <= 2)),
        ("second compilation", f"{second:.2f} s", "-", "-", "-", "at most 1 s", met(second <= 1)),
    ]  # fmt: skip
    return rows, {"ours_s": ours, "onnx2tf_s": theirs, "second_s": again}


def _seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def _run(argv: list[str], path: str) -> None:
    subprocess.run(argv, capture_output=True, check=True, env={**os.environ, "PATH": path})


def measure_networks(folder: Path, _: int, __: float) -> tuple[list[Row], dict[str, Any]]:
    """Convert trained networks, float and INT8, and hold them against ONNX Runtime."""
    rows, result = [], {}
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
            rows.append(
                (f"{name}: float", f"{error.value:.1e} of its range", "ONNX Runtime", "0", "-", "at most 1e-3",
                 met(error.value <= 1e-3))
            )  # fmt: skip
            rows.append(
                (f"{name}: INT8", f"{noise.value:.1f} dB", "float", "-", "-", "at least 30 dB, or said",
                 met(noise.value >= 30))
            )  # fmt: skip
            result[name] = {"share_of_range": error.value, "int8_sqnr_db": noise.value}
    return rows, result


QUESTIONS = {"profiler": measure_profiler, "conversion": measure_conversion, "networks": measure_networks}


def main() -> None:
    """Ask the questions and print both sides."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--only", choices=QUESTIONS)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    rows: list[Row] = []
    results: dict[str, Any] = {"machine": {**machine(), "threads": THREADS}}
    for name, ask in QUESTIONS.items():
        if arguments.only in (None, name):
            with tempfile.TemporaryDirectory(prefix="bench-tflite-") as folder:
                more, results[name] = ask(Path(folder), arguments.rounds, arguments.seconds)
                rows += more
    print_table(("what", "ours", "opponent", "theirs", "ratio", "wanted", "met"), rows)
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
