"""Can the OpenVINO toolchain's numbers be trusted, and is INT8 of deploy's dialect as fast as NNCF's?

Two questions, each with its opponent:

- the profiler's median against OpenVINO's own ``benchmark_app`` (latency hint, one stream), in turns, each in a process
  of its own;
- networks with random weights in INT8, three of the twelve unless told: the file of the dialect ``openvino`` against
  what NNCF makes of the same float file with the same data, run in turns in one process, and both against the float
  model.

    python benchmarks/hub/bench_openvino.py [--rounds 9] [--seconds 2] [--only QUESTION] [--networks all] [--json FILE]
"""

from __future__ import annotations

import argparse
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
import environments
import onnx
import torch
from deploy.runtime_nets import NETWORKS, build, inputs
from figures import Figure, against, bounded
from report import Session, parser
from support.models import mobilenet_v2, save

from embedl_deploy import transform
from embedl_deploy.dialect import lower
from embedl_deploy.export import export_onnx
from embedl_deploy.onnxruntime import ONNXRUNTIME
from embedl_deploy.quantize import quantize
from embedl_hub.core.invoke import OpenVINOInvoker
from embedl_hub.core.profile import OpenVINOPairedProfiler
from embedl_hub.core.steps import keep_model
from embedl_hub.models.calibration import write_npz

if TYPE_CHECKING:
    from embedl_hub.core.compile import OpenVINOCompiledModel

THREADS = 1
RUNS = 60
SHAPE = (1, 3, 224, 224)
# As its own command does, without the report that importing OpenVINO sends to its makers.
BENCHMARK_APP = """
import sys
sys.modules["openvino_telemetry"] = None
from openvino.tools.benchmark.main import main
sys.exit(main())
"""


def benchmark_app(model: Path, folder: Path) -> float:
    """Return the median that OpenVINO's own tool finds, in ms."""
    settings = folder / "settings.json"
    settings.write_text(json.dumps({"CPU": {"INFERENCE_NUM_THREADS": THREADS, "INFERENCE_PRECISION_HINT": "f32"}}))
    argv = [
        sys.executable, "-c", BENCHMARK_APP, "-m", model, "-d", "CPU", "-hint", "latency", "-load_config", settings,
        "-niter", RUNS,
    ]  # fmt: skip
    done = subprocess.run([str(word) for word in argv], capture_output=True, text=True, check=True, cwd=folder)
    found = re.search(r"Median:\s+([\d.]+) ms", done.stdout)
    streams = re.search(r"NUM_STREAMS: (\d+)", done.stdout)
    assert found is not None, done.stdout[-2000:]
    assert streams is not None, done.stdout[-2000:]
    assert streams[1] == "1"
    return float(found[1])


def measure_profiler(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Compare the profiler's median with benchmark_app's over as many runs, float and INT8."""
    config = OpenVINOConfig(threads=THREADS, min_seconds=0.0, iterations=RUNS, layer_runs=0)
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
            for number in range(options.rounds):
                for side in ("ours", "theirs")[:: 1 if number % 2 else -1]:
                    if side == "ours":
                        profile = OpenVINOProfiler().run(ctx, model)
                        assert profile.latency_median is not None
                        ours.append(profile.latency_median.value)
                    else:
                        theirs.append(benchmark_app(xml, folder))
            result[name] = {"ours_ms": ours, "benchmark_app_ms": theirs}
    return result


def measure_nncf(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Compare INT8 files of ours and of NNCF's in time and in signal to noise against the float model."""
    python, version = environments.find(environments.NNCF_OPENVINO)
    result: dict[str, Any] = {"nncf": version}
    if python is None:
        return result
    seconds = options.seconds
    config = OpenVINOConfig(threads=THREADS, min_seconds=seconds, max_seconds=4 * seconds, layer_runs=0)
    device = Device("here", provider_type="local", provider_config=config)
    with HubContext("bench", [device], home=folder / "home") as ctx:
        for name in list(NETWORKS) if options.networks == "all" else options.networks.split(","):
            files = _int8_files(name, NETWORKS[name].kind, python, folder / name)
            models = [keep_model(ctx, OpenVINOProfiler, files["nncf"]), OpenVINOCompiler().run(ctx, files["ours"])]
            paired = OpenVINOPairedProfiler().run(ctx, models, samples=20 * options.rounds)  # type: ignore[arg-type]
            noise = [_decibels(ctx, name, model, files["titles"]) for model in models]
            times = [model.latency_median for model in paired.models]
            ratio = paired.models[1].ratio
            result[name] = {"nncf_ms": times[0], "ours_ms": times[1], "nncf_db": noise[0], "ours_db": noise[1],
                            "ratio": [ratio.value, ratio.low, ratio.high]}  # fmt: skip
    return result


def _int8_files(name: str, kind: str, python: Path, folder: Path) -> dict[str, Any]:
    folder.mkdir()
    model, example = build(name), inputs(name, 0)
    calibration = [inputs(name, seed) for seed in range(32)]
    fused = transform(model, example, ONNXRUNTIME).model
    batches = [each if len(each) > 1 else each[0] for each in calibration]
    simulated = quantize(fused, example, forward_loop=batches, backend=ONNXRUNTIME)
    source = export_onnx(fused, example, folder / "float.onnx")
    canonical = onnx.load(export_onnx(simulated, example, folder / "canonical.onnx"))
    samples = [tuple(value.numpy() for value in each) for each in calibration[:4]]
    onnx.save(lower(canonical, "openvino", samples=samples), folder / "ours.onnx")
    titles = [value.name for value in canonical.graph.input]
    arrays = {title: np.concatenate([each[at].numpy() for each in calibration]) for at, title in enumerate(titles)}
    write_npz(folder / "data.npz", arrays)
    worker = str(Path(__file__).with_name("nncf_worker.py"))
    words = [str(source), str(folder / "data.npz"), str(folder / "nncf.xml"), kind]
    environments.run("nncf", [str(python), worker, *words], 600)
    return {"nncf": folder / "nncf.xml", "ours": folder / "ours.onnx", "titles": titles}


def _decibels(ctx: HubContext, name: str, model: Any, titles: list[str]) -> float:  # noqa: ANN401 - a compiled model
    network = build(name)
    signal = noise = 0.0
    for seed in range(70, 74):
        data = inputs(name, seed)
        arrays = {title: value.numpy() for title, value in zip(titles, data, strict=True)}
        found = list(OpenVINOInvoker().run(ctx, model, arrays).output.values())
        with torch.no_grad():
            answer = network(*data)
        wanted = [each.numpy() for each in (answer if isinstance(answer, tuple | list) else (answer,))]
        # By shape: the two files may call their outputs by other names.
        for one in wanted:
            near = min((each for each in found if each.shape == one.shape), key=lambda each: np.sum((each - one) ** 2))
            signal, noise = signal + float(np.sum(one**2)), noise + float(np.sum((near - one) ** 2))
    return float(10 * np.log10(signal / noise))


QUESTIONS = {"profiler": measure_profiler, "nncf": measure_nncf}


def figures(data: dict[str, Any]) -> list[Figure]:
    """Return what is quoted."""
    made = []
    for name, times in data.get("profiler", {}).items():
        what = f"OpenVINO profiler's median, MobileNetV2 shape, {name}"
        one = against(what, "ms", times["ours_ms"], "`benchmark_app`", times["benchmark_app_ms"])
        assert one.ratio is not None
        made.append(one.required("0.97 to 1.03", 0.97 <= one.ratio <= 1.03).in_short())
    for name, row in data.get("nncf", {}).items():
        if name == "nncf":
            continue
        time = against(f"{name} in OpenVINO's INT8", "ms", [row["ours_ms"]], "NNCF", [row["nncf_ms"]])
        noise = bounded(f"{name} in OpenVINO's INT8: signal to noise", "dB", row["ours_db"], 1.0, "the float model")
        made += [time.required("at most 1.02", row["ratio"][1] <= 1.02), noise.at_least(row["nncf_db"] - 1.0)]
    return made


def main() -> None:
    """Ask the questions and print both sides."""
    options = parser(__doc__)
    options.add_argument("--rounds", type=int, default=9)
    options.add_argument("--seconds", type=float, default=2.0)
    options.add_argument("--only", choices=QUESTIONS)
    options.add_argument("--networks", default="mobilenet_v2,vit,enhancer", help="by name, or all (%(default)s)")
    arguments = options.parse_args()
    session = Session("openvino", options, arguments)
    data: dict[str, Any] = {}
    for name, ask in QUESTIONS.items():
        if arguments.only in (None, name):
            with tempfile.TemporaryDirectory(prefix="bench-openvino-") as folder:
                data[name] = ask(Path(folder), arguments)
    session.finish(data, figures(data), packages=("openvino", "onnxruntime", "onnx"))


if __name__ == "__main__":
    main()
