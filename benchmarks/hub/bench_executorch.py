"""Can the ExecuTorch toolchain's numbers be trusted, and what does INT8 of deploy's calibration give there?

Two questions, each with its opponent, in turns:

- the profiler's median against a loop of ``executorch.runtime``'s own ``Method.execute``, each in a process of its own;
- three of twelve networks unless told: float by the .pt2 and by ONNX against torch; INT8 of the dialect ``executorch``
  against the simulated model, and against XNNPACKQuantizer (PT2E) of the same network on as much data, in signal to
  noise and in time; and how much of what ``check`` predicts the runtime really ran.

    python benchmarks/hub/bench_executorch.py [--rounds 7] [--seconds 2] [--only QUESTION] [--networks all]
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from embedl_hub.core import HubContext
from embedl_hub.core.compile import ExecuTorchCompiler
from embedl_hub.core.device import Device, ExecuTorchConfig
from embedl_hub.core.profile import ExecuTorchProfiler

sys.path.insert(0, str(Path(__file__).parents[1]))
from figures import Figure, against, bounded
from report import Session, parser

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    Arrays = Sequence[np.ndarray]

PROFILED = ("mobilenet_v2", "vit")
_CALIBRATION = 32
_LOOP = """
import json, statistics, sys, time, warnings
warnings.simplefilter("ignore")
import torch
from executorch.runtime import Runtime
from executorch.extension.pybindings.portable_lib import _unsafe_reset_threadpool
path, seconds, *sizes = sys.argv[1:]
_unsafe_reset_threadpool(1)
method = Runtime.get().load_program(path).load_method("forward")
data = [torch.zeros(*map(int, sizes))]
for _ in range(15):
    method.execute(data)
times, start = [], time.perf_counter()
while time.perf_counter() - start < float(seconds):
    before = time.perf_counter_ns()
    method.execute(data)
    times.append((time.perf_counter_ns() - before) / 1e6)
print(json.dumps(statistics.median(times)))
"""


def measure_profiler(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Compare the profiler's median with that of the runtime's own loop."""
    import torch  # noqa: PLC0415
    from deploy import runtime_nets  # noqa: PLC0415 - with torch, which takes seconds

    config = ExecuTorchConfig(
        threads=1, min_seconds=options.seconds, max_seconds=options.seconds, iterations=1, layer_runs=0
    )
    device = Device("here", provider_type="local", provider_config=config)
    result = {}
    with HubContext("bench", [device], home=folder / "home") as ctx:
        for name in PROFILED:
            example = runtime_nets.inputs(name, 0)
            torch.export.save(torch.export.export(runtime_nets.build(name), example), folder / f"{name}.pt2")
            model = ExecuTorchCompiler().run(ctx, folder / f"{name}.pt2", device="here")
            sizes = [str(size) for size in example[0].shape]
            argv = [sys.executable, "-c", _LOOP, str(model.path.local()), str(options.seconds), *sizes]
            ours, theirs = [], []
            for number in range(options.rounds):
                for side in ("ours", "theirs")[:: 1 if number % 2 else -1]:
                    if side == "ours":
                        profile = ExecuTorchProfiler().run(ctx, model, device="here")
                        assert profile.latency_median is not None
                        ours.append(profile.latency_median.value)
                    else:
                        done = subprocess.run(argv, capture_output=True, text=True, check=True)
                        theirs.append(float(json.loads(done.stdout.splitlines()[-1])))
            result[name] = {"ours_ms": ours, "loop_ms": theirs}
    return result


class _Network:
    """A network with its files, made in this process: the compiler takes seconds to import."""

    def __init__(self, name: str, folder: Path) -> None:
        import torch  # noqa: PLC0415
        from deploy import runtime_nets  # noqa: PLC0415

        from embedl_executorch.session import Settings  # noqa: PLC0415

        self.name, self._folder, self._settings = name, folder, Settings(1)
        self.model, self.example = runtime_nets.build(name), runtime_nets.inputs(name, 0)
        self._data = [runtime_nets.inputs(name, 10 + seed, 8) for seed in range(_CALIBRATION // 8)]
        self._tests = [runtime_nets.inputs(name, seed) for seed in range(100, 104)]
        with torch.no_grad():
            self.wanted = self._answers_of(self.model)

    def _answers_of(self, model: torch.nn.Module) -> list[np.ndarray]:
        import torch  # noqa: PLC0415

        found = []
        for args in self._tests:
            made = model(*args)
            made = (made,) if isinstance(made, torch.Tensor) else made.values() if isinstance(made, dict) else made
            found += [each.numpy() for each in made]
        return found

    def compiled(self, source: Path) -> Path:
        """Return the program of a file."""
        from embedl_executorch.compiler.lower import compile_file  # noqa: PLC0415

        made = source.with_suffix(".pte")
        compile_file(argparse.Namespace(model=source, output=made, backend="xnnpack"), self._settings)
        return made

    def answers(self, program: Path) -> list[np.ndarray]:
        """Return what a program answers on the test data."""
        from embedl_executorch.session import Model  # noqa: PLC0415

        model = Model(program, self._settings)
        names = [tensor.name for tensor in model.inputs]
        feeds = [dict(zip(names, (arg.numpy() for arg in args), strict=True)) for args in self._tests]
        return [array for feed in feeds for array in model.run(feed).values()]

    def exported(self) -> Path:
        """Return the float network as .pt2."""
        import torch  # noqa: PLC0415

        path = self._folder / f"{self.name}.pt2"
        torch.export.save(torch.export.export(self.model, self.example), path)
        return path

    def deployed(self) -> tuple[Path, Path, list[np.ndarray]]:
        """Return deploy's float and INT8 files, and what the simulated model answers."""
        import torch  # noqa: PLC0415

        from embedl_deploy import transform  # noqa: PLC0415
        from embedl_deploy.export import export_onnx  # noqa: PLC0415
        from embedl_deploy.quantize import quantize  # noqa: PLC0415

        network = transform(self.model, self.example, target="onnxruntime-x86").model
        floats = export_onnx(network, self.example, self._folder / f"{self.name}.float.onnx")
        quantized = quantize(network, self.example, forward_loop=self._data, target="onnxruntime-x86")
        int8 = export_onnx(quantized, self.example, self._folder / f"{self.name}.int8.onnx", dialect="executorch")
        with torch.no_grad():
            return floats, int8, self._answers_of(quantized)

    def by_pt2e(self) -> Path:
        """Return the network as the vendor's own quantizer makes it."""
        import torch  # noqa: PLC0415
        from deploy import runtime_nets  # noqa: PLC0415
        from executorch.backends.xnnpack.quantizer import xnnpack_quantizer as vendor  # noqa: PLC0415
        from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e  # noqa: PLC0415

        config = vendor.get_symmetric_quantization_config(is_per_channel=True)
        program = torch.export.export(self.model, self.example).module()
        prepared = prepare_pt2e(program, vendor.XNNPACKQuantizer().set_global(config))
        with torch.no_grad():
            for seed in range(_CALIBRATION):
                prepared(*runtime_nets.inputs(self.name, 10 + seed))
        path = self._folder / f"{self.name}.pt2e.pt2"
        torch.export.save(torch.export.export(convert_pt2e(prepared), self.example), path)
        return path

    def times(self, programs: dict[str, Path], seconds: float) -> dict[str, float]:
        """Return the 20th percentile of each program's time in ms, taken in turns: others use this machine too."""
        from embedl_executorch.session import Model  # noqa: PLC0415

        models = {name: Model(path, self._settings) for name, path in programs.items()}
        runs = {
            name: model.runner(
                dict(zip([t.name for t in model.inputs], [a.numpy() for a in self.example], strict=True))
            )
            for name, model in models.items()
        }
        taken: dict[str, list[float]] = {name: [] for name in runs}
        start = time.perf_counter()
        while time.perf_counter() - start < seconds or len(taken["int8"]) < 20:
            for name, run in runs.items():
                run()
                before = time.perf_counter_ns()
                run()
                taken[name].append((time.perf_counter_ns() - before) / 1e6)
        return {name: float(np.percentile(times, 20)) for name, times in taken.items()}


def _share(found: Arrays, wanted: Arrays) -> float:
    return max(float(np.abs(one - two).max() / (two.max() - two.min())) for one, two in zip(found, wanted, strict=True))


def _decibels(found: Arrays, wanted: Arrays) -> float:
    one, two = (np.concatenate([np.ravel(each).astype(np.float64) for each in side]) for side in (found, wanted))
    return float(10 * np.log10(np.mean(two**2) / max(np.mean((one - two) ** 2), 1e-30)))


def measure_networks(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Hold twelve networks against torch, the simulated model and the vendor's quantizer."""
    from deploy import runtime_nets  # noqa: PLC0415

    from embedl_deploy.dialect import check  # noqa: PLC0415

    chosen = list(runtime_nets.NETWORKS) if options.networks == "all" else options.networks.split(",")
    result: dict[str, Any] = {}
    for name in chosen:
        one = _Network(name, folder)
        floats, int8, simulated = one.deployed()
        programs = {
            "float": one.compiled(floats),
            "int8": one.compiled(int8),
            "pt2e": one.compiled(one.by_pt2e()),
        }
        contract = check(int8, "executorch")
        known = [row.agrees for row in contract.rows if row.in_integers is not None]
        result[name] = {
            "pt2_error": _share(one.answers(one.compiled(one.exported())), one.wanted),
            "onnx_error": _share(one.answers(programs["float"]), one.wanted),
            "simulated_db": _decibels(simulated, one.wanted),
            "int8_db": _decibels(one.answers(programs["int8"]), one.wanted),
            "pt2e_db": _decibels(one.answers(programs["pt2e"]), one.wanted),
            "ms": one.times(programs, options.seconds),
            "predicted": [sum(known), len(known)],
            "not_predicted": [f"{row.operator} {row.node}: {row.found}" for row in contract.disagreements],
        }
        sys.stderr.write(f"{name}: {json.dumps(result[name])}\n")
    return result


QUESTIONS = {"profiler": measure_profiler, "networks": measure_networks}


def figures(data: dict[str, Any]) -> list[Figure]:
    """Return what is quoted."""
    made = []
    for name, times in data.get("profiler", {}).items():
        what = f"ExecuTorch profiler's median, {name}"
        one = against(what, "ms", times["ours_ms"], "a loop of Method.execute", times["loop_ms"])
        assert one.ratio is not None
        made.append(one.required("0.97 to 1.03", 0.97 <= one.ratio <= 1.03).in_short())
    for name, row in data.get("networks", {}).items():
        worst = max(row["pt2_error"], row["onnx_error"])
        made.append(
            bounded(f"{name} in ExecuTorch, float: off by, of its range", "", worst, 1e-5, "torch").at_most(1e-3)
        )
        lost = row["simulated_db"] - row["int8_db"]
        made.append(bounded(f"{name} in ExecuTorch, INT8: lost to the simulated model", "dB", lost, 0.5).at_most(1))
        ratio = row["ms"]["int8"] / row["ms"]["pt2e"]
        made.append(bounded(f"{name} in ExecuTorch, INT8: time to XNNPACKQuantizer's", "", ratio, 0.05).at_most(1.03))
    if rows := data.get("networks", {}).values():
        agree, of = (sum(row["predicted"][place] for row in rows) for place in (0, 1))
        made.append(
            bounded("predicted kernels that ExecuTorch ran", "%", 100 * agree / of, 0.5).at_least(99).in_short()
        )
    return made


def main() -> None:
    """Ask the questions and print both sides."""
    options = parser(__doc__)
    options.add_argument("--rounds", type=int, default=7)
    options.add_argument("--seconds", type=float, default=2.0)
    options.add_argument("--only", choices=QUESTIONS)
    options.add_argument("--networks", default="mobilenet_v2,vit,enhancer", help="by name, or all (%(default)s)")
    arguments = options.parse_args()
    warnings.simplefilter("ignore")
    session = Session("executorch", options, arguments)
    data: dict[str, Any] = {}
    for name, ask in QUESTIONS.items():
        if arguments.only in (None, name):
            with tempfile.TemporaryDirectory(prefix="bench-executorch-") as folder:
                data[name] = ask(Path(folder), arguments)
    session.finish(data, figures(data), packages=("executorch", "torch", "onnx"))


if __name__ == "__main__":
    main()
