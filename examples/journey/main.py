"""The journey: a network from PyTorch to a measured INT8 deployment, every step a run that can be found again.

python examples/journey/main.py            what ./run does; a minute or two on two cores
python examples/journey/main.py --quick    two epochs, fewer digits, short measurements: figures mean less
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from embedl_deploy.errors import DeployError
from embedl_hub.comparison import compare
from embedl_hub.core import HubContext
from embedl_hub.core.component import RunType
from embedl_hub.core.device import Device, ONNXRuntimeConfig, TensorRTRTXConfig
from embedl_hub.errors import HubError
from embedl_hub.page import export_comparison
from embedl_hub.tracking import Store, equal

# What the examples share lies beside them.
sys.path.append(str(Path(__file__).resolve().parents[1] / "shared"))

if TYPE_CHECKING:
    from building import Built
    from digits import Digits
    from measuring import Measured
    from showing import Result
    from torch import nn

    from embedl_hub.comparison import Comparison
    from embedl_hub.tracking import ActiveRun, LoggedArtifact

PROJECT = "journey"
HERE, RTX = "this machine", "TensorRT-RTX"
UNPROVED = 3
"""The exit code when a file does not compute what was simulated."""
HONEST = (
    "MNIST proves nothing about a quantizer: such networks lose hardly anything under any INT8 scheme. "
    "For accuracy that tells methods apart see the CIFAR-10 table in docs/reference/figures.md."
)


@dataclass(frozen=True)
class Effort:
    """How much is trained, tested and measured."""

    epochs: int = 5
    training: int = 4000
    tests: int = 1000
    min_seconds: float = 2.0

    @classmethod
    def quick(cls) -> Effort:
        """Return the least that still goes all the way."""
        return cls(epochs=2, training=2000, tests=200, min_seconds=0.2)


class Clock:
    """Says what is going on, and since when."""

    def __init__(self) -> None:
        self._start = time.perf_counter()

    def say(self, text: str) -> None:
        """Print one line with the seconds since the start."""
        print(f"{time.perf_counter() - self._start:6.1f} s  {text}", flush=True)


@dataclass(frozen=True)
class Journey:
    """Where the journey is recorded and where its files go."""

    ctx: HubContext
    folder: Path
    effort: Effort
    clock: Clock

    def go(self, run: ActiveRun) -> bool:
        """Go all the way and print the table; tell whether every file passed its proof."""
        import showing  # noqa: PLC0415 - the first line is to appear before torch is imported
        from digits import Digits  # noqa: PLC0415

        digits = Digits(self.effort.training, self.effort.tests)
        model, weights = self._train(digits)
        here, tensorrt = self._build(model, weights, digits)
        result = self._measure(model, digits, here, tensorrt)
        rows = result.rows()
        comparison = self._compare(result)
        ratio = next(row.ratios[1] for row in comparison.metrics if row.name == "latency_median")
        remarks = [
            showing.ratio_words(ratio),
            *comparison.cautions,
            showing.fused_lines(here, "ONNX Runtime"),
            showing.fused_lines(tensorrt, "TensorRT"),
            self._about_tensorrt(tensorrt),
            HONEST,
        ]
        failed = showing.failures(here, tensorrt)
        page = showing.write_page(self.folder / "report.html", rows, failed, remarks, self._pages())
        run.log_artifact(page, name="report")
        run.log_param("table", {row.title: dict(zip(showing.TITLES, row.cells, strict=True)) for row in rows})
        for title, share in zip(showing.TITLES, result.accuracies, strict=True):
            run.log_metric(f"accuracy {title}", share)
        run.log_param("proof", failed or "passed")
        print("", *(showing.in_red(one) for one in failed), showing.text_table(rows), "", *remarks, sep="\n")
        return not failed

    def _train(self, digits: Digits) -> tuple[nn.Module, LoggedArtifact]:
        import torch  # noqa: PLC0415
        from building import keep  # noqa: PLC0415
        from digits import DigitNet, answers, train  # noqa: PLC0415
        from handwritten import share_right  # noqa: PLC0415

        # One thread: two are hardly faster at this size, and many times slower beside another busy program.
        torch.set_num_threads(1)
        torch.manual_seed(0)
        model = DigitNet()
        count = sum(weights.numel() for weights in model.parameters())
        self.clock.say(
            f"Training a network of {count:,} parameters on {len(digits.train_images):,} digits, "
            f"{self.effort.epochs} epochs"
        )
        with self.ctx.client.start_run(RunType.CUSTOM, "train") as run:
            run.log_batch({"parameters": count, "training_samples": len(digits.train_images), "seed": 0})
            for epoch, loss in enumerate(train(model, digits, self.effort.epochs), 1):
                share = share_right(answers(model, digits.test_images), digits.test_labels)
                run.log_batch(metrics=[("loss", loss, epoch), ("accuracy", share, epoch)])
                self.clock.say(f"  epoch {epoch}: loss {loss:.3f}, accuracy {share:.1f} %")
            return model, keep(self.ctx, model, self.folder / "weights.pt", "model")

    def _build(self, model: nn.Module, weights: LoggedArtifact, digits: Digits) -> tuple[Built, Built]:
        from building import build, targets  # noqa: PLC0415

        found = []
        for target in targets():
            self.clock.say(f"Transforming, quantizing, exporting and checking for {target.name}")
            found.append(build(self.ctx, model, weights, digits, target, self.folder))
        return found[0], found[1]

    def _measure(self, model: nn.Module, digits: Digits, here: Built, tensorrt: Built) -> Result:
        from building import export_float  # noqa: PLC0415
        from digits import answers  # noqa: PLC0415
        from handwritten import share_right  # noqa: PLC0415
        from measuring import measure  # noqa: PLC0415
        from showing import Result  # noqa: PLC0415

        images, labels = digits.test_images, digits.test_labels
        expected = [answers(one, images) for one in (model, here.simulated, tensorrt.simulated)]
        float_file = export_float(self.ctx, here, digits, self.folder / "float.onnx")
        measured: list[Measured] = []
        for title, file, wanted in (("float", float_file, expected[0]), ("INT8", here.file, expected[1])):
            self.clock.say(f"Compiling {title}, profiling it, running it on {len(images):,} test digits")
            measured.append(measure(self.ctx, HERE, file, title, images.numpy(), wanted))
        scores = (expected[0], measured[0].scores, measured[1].scores, expected[2])
        first, second, third, fourth = (share_right(each, labels) for each in scores)
        engine = self._engine(tensorrt)
        return Result((first, second, third, fourth), len(images), measured[0], measured[1], here, tensorrt, engine)

    def _engine(self, built: Built) -> str:
        from measuring import build_engine  # noqa: PLC0415

        if not self._has_builder:
            return "exported only"
        self.clock.say("Building an engine with TensorRT-RTX")
        build_engine(self.ctx, RTX, built.file)
        return "TensorRT-RTX, not run"

    def _about_tensorrt(self, built: Built) -> str:
        done = "exported, checked and built into an engine" if self._has_builder else "exported and checked"
        said = built.contract.refused or built.contract.confirmed
        return f"The TensorRT file was {done}; running it needs an NVIDIA GPU. Its check says: {said}"

    @property
    def _has_builder(self) -> bool:
        return RTX in self.ctx.devices

    def _compare(self, result: Result) -> Comparison:
        store = self.ctx.client.store
        assert store is not None
        runs = [result.float_model.profile_run, result.int8_model.profile_run]
        export_comparison(store, runs, self.folder / "compare.html")
        return compare([store.run(run) for run in runs])

    def _pages(self) -> list[tuple[Path, str]]:
        return [
            (self.folder / "compare.html", "float and INT8 side by side: latencies, layers, what differs"),
            (self.folder / "transform-onnxruntime.html", "what was rewritten for ONNX Runtime, with the graphs"),
            (self.folder / "transform-tensorrt.html", "what was rewritten for TensorRT"),
            (self.folder / "verify-onnxruntime.html", "the INT8 file against PyTorch, boundary by boundary"),
            (self.folder / "verify-tensorrt.html", "the TensorRT file against PyTorch"),
        ]


def devices(effort: Effort) -> list[Device]:
    """Return this machine, and TensorRT-RTX's builder where it is installed."""
    settings = ONNXRuntimeConfig(threads=1, min_seconds=effort.min_seconds)
    found = [Device(HERE, provider_type="local", provider_config=settings)]
    if importlib.util.find_spec("tensorrt_rtx") is not None:
        found.append(Device(RTX, provider_type="tensorrt_rtx", provider_config=TensorRTRTXConfig()))
    return found


def run_all(home: Path, effort: Effort) -> bool:
    """Make the journey in a store; tell whether every file passed its proof."""
    folder = home / PROJECT
    folder.mkdir(parents=True, exist_ok=True)
    with Store(home) as store:
        before = len(store.runs(f"{equal('project', PROJECT)} and {equal('name', PROJECT)}"))
    clock = Clock()
    if before:
        clock.say(f"Journey number {before + 1} here; the runs of the others stay, the pages are written anew.")
    with HubContext(PROJECT, devices(effort), home=home) as ctx, ctx.client.start_run(RunType.CUSTOM, PROJECT) as run:
        run.log_param("effort", vars(effort))
        proved = Journey(ctx, folder, effort, clock).go(run)
    print(f"\nThe report: {folder / 'report.html'} (open it in a browser)")
    print(f"Every step on a page: ./run ui --home {home}")
    print(f"Every step as text: ./run run show {run.id} --home {home}")
    print(f"runs stored in {home}")
    clock.say("done" if proved else "done, and a file failed its proof: see above")
    return proved


def main() -> None:
    """Go, and end with one clean message whatever comes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="the least that still goes all the way")
    parser.add_argument("--home", type=Path, help="the store's folder; EMBEDL_HUB_HOME, else .embedl here")
    arguments = parser.parse_args()
    home = Path(arguments.home or os.environ.get("EMBEDL_HUB_HOME") or ".embedl").absolute()
    try:
        proved = run_all(home, Effort.quick() if arguments.quick else Effort())
    except KeyboardInterrupt:
        print(f"\njourney: stopped; what it recorded so far is kept in {home}.", file=sys.stderr)
        sys.exit(130)
    except ModuleNotFoundError as error:
        sys.exit(f"journey: {error}; ./run installs what is needed.")
    except (HubError, DeployError) as error:
        sys.exit(f"journey: {error}")
    if not proved:
        sys.exit(UNPROVED)


if __name__ == "__main__":
    main()
