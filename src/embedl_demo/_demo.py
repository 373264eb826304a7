"""A network from PyTorch to a measured INT8 deployment, every step a run that can be found again."""

from __future__ import annotations

import importlib.util
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from embedl_hub.comparison import compare
from embedl_hub.core import HubContext
from embedl_hub.core.component import RunType
from embedl_hub.core.device import Device, LocalConfig, TensorRTRTXConfig
from embedl_hub.page import export_comparison
from embedl_hub.tracking import Store, equal

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import nn

    from embedl_demo._building import Built
    from embedl_demo._showing import Column
    from embedl_demo.digits import Digits
    from embedl_hub.comparison import Comparison
    from embedl_hub.tracking import ActiveRun, LoggedArtifact

PROJECT = "demo"
HERE, RTX = "this machine", "TensorRT-RTX"
RUN = (("openvino", "OpenVINO"),)
"""Runtimes whose column is shown where they are installed, by toolchain and dialect, which have one name."""
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

    def __init__(self, out: TextIO) -> None:
        self.out = out
        self._start = time.perf_counter()

    def say(self, text: str) -> None:
        """Print one line with the seconds since the start."""
        print(f"{time.perf_counter() - self._start:6.1f} s  {text}", flush=True, file=self.out)


@dataclass(frozen=True)
class DemoResult:
    """What the demo found."""

    run: str  # the run of the whole demo
    home: str  # the store that has it
    report: str  # a page with the table, which leads to the others
    passed: bool  # whether every file computes what was simulated
    failures: tuple[str, ...]  # the files that do not, and what is wrong with each
    table: dict[str, dict[str, str]]  # rows by title, cells by the way of running the network
    remarks: tuple[str, ...]


@dataclass(frozen=True)
class Files:
    """What deploy wrote: the network in float, and INT8 by runtime."""

    float_file: Path
    int8: dict[str, Built]


def is_here(package: str) -> bool:
    """Tell whether a runtime's package is installed."""
    return importlib.util.find_spec(package) is not None


@dataclass(frozen=True)
class Demo:
    """Where the demo is recorded and where its files go."""

    ctx: HubContext
    folder: Path
    effort: Effort
    clock: Clock

    def go(self, run: ActiveRun) -> DemoResult:
        """Go all the way and print the table."""
        from embedl_demo import _showing as showing  # noqa: PLC0415 - the first line is to appear before torch is imported
        from embedl_demo.digits import Digits  # noqa: PLC0415

        digits = Digits(self.effort.training, self.effort.tests)
        model, weights = self._train(digits)
        files = self._build(model, weights, digits)
        table = showing.Table(self._measure(model, digits, files), len(digits.test_images))
        comparison = self._compare(table.columns)
        ratio = next(row.ratios[1] for row in comparison.metrics if row.name == "latency_median")
        tensorrt = files.int8["tensorrt"]
        remarks = [
            showing.ratio_words(ratio),
            *comparison.cautions,
            showing.fused_lines(files.int8["onnxruntime"], "ONNX Runtime"),
            showing.fused_lines(tensorrt, "TensorRT"),
            *(
                f"{title}'s check says: {files.int8[name].contract.confirmed}"
                for name, title in RUN
                if name in files.int8
            ),
            *(f"{title} is not installed here; its column comes with: {line}" for title, line in self._missing()),
            self._about_tensorrt(tensorrt),
            HONEST,
        ]
        failed = showing.failures(*files.int8.values())
        page = showing.write_page(self.folder / "report.html", table, failed, remarks, self._pages(files))
        run.log_artifact(page, name="report")
        run.log_param("table", table.as_dict())
        for column in table.columns:
            run.log_metric(f"accuracy {column.title}", column.accuracy)
        run.log_param("proof", failed or "passed")
        out = self.clock.out
        print(file=out)
        showing.print_failures(failed, out)
        print(showing.text_table(table), "", *remarks, sep="\n", file=out)
        home = str(self.folder.parent)
        return DemoResult(run.id, home, str(page), not failed, tuple(failed), table.as_dict(), tuple(remarks))

    def _train(self, digits: Digits) -> tuple[nn.Module, LoggedArtifact]:
        import torch  # noqa: PLC0415

        from embedl_demo._building import keep  # noqa: PLC0415
        from embedl_demo.digits import DigitNet, answers, share_right, train  # noqa: PLC0415

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

    def _build(self, model: nn.Module, weights: LoggedArtifact, digits: Digits) -> Files:
        from embedl_demo._building import Builder  # noqa: PLC0415
        from embedl_deploy.dialect import dialect_for  # noqa: PLC0415
        from embedl_deploy.onnxruntime import ONNXRUNTIME  # noqa: PLC0415
        from embedl_deploy.tensorrt import TENSORRT  # noqa: PLC0415

        builder = Builder(self.ctx, model, weights, digits, self.folder)
        # Runtimes on a CPU share one calibration; TensorRT wants other scales.
        groups = {
            ONNXRUNTIME: {"onnxruntime": dialect_for("here").name, **{name: name for name, _ in RUN if is_here(name)}},
            TENSORRT: {"tensorrt": "tensorrt"},
        }
        int8, float_file = {}, None
        for backend, dialects in groups.items():
            self.clock.say(f"Transforming and quantizing for {backend.name}")
            network = builder.quantize(backend)
            float_file = float_file or builder.write_float(network)
            for name, dialect in dialects.items():
                self.clock.say(f"  exporting and checking the INT8 file for {name}")
                int8[name] = builder.write(network, name, dialect)
        assert float_file is not None
        return Files(float_file, int8)

    def _measure(self, model: nn.Module, digits: Digits, files: Files) -> tuple[Column, ...]:
        from embedl_demo._measuring import Bench  # noqa: PLC0415
        from embedl_demo._showing import Column  # noqa: PLC0415
        from embedl_demo.digits import answers, share_right  # noqa: PLC0415

        images, labels = digits.test_images, digits.test_labels
        expected = answers(model, images)
        columns = [Column("PyTorch", share_right(expected, labels))]
        bench = Bench(self.ctx, HERE, images.numpy())
        here = files.int8["onnxruntime"]
        simulated = answers(here.network.simulated, images)
        work = [("onnxruntime", "ONNX Runtime", files.float_file, here, expected, True)]
        for name, title in (("onnxruntime", "ONNX Runtime"), *RUN):
            if name in files.int8:
                built = files.int8[name]
                work.append((name, f"{title} INT8", built.file, built, simulated, False))
        for name, title, file, built, wanted, is_float in work:
            self.clock.say(f"Compiling {title}, profiling it, running it on {len(images):,} test digits")
            measured = bench.measure(name, file, title, wanted)
            columns.append(Column(title, share_right(measured.scores, labels), built, measured, is_float, "here"))
        tensorrt = files.int8["tensorrt"]
        share = share_right(answers(tensorrt.network.simulated, images), labels)
        columns.append(Column("TensorRT INT8", share, tensorrt, compiled=self._engine(tensorrt)))
        return tuple(columns)

    def _engine(self, built: Built) -> str:
        from embedl_demo._measuring import build_engine  # noqa: PLC0415

        if not self._has_builder:
            return "exported only"
        self.clock.say("Building an engine with TensorRT-RTX")
        build_engine(self.ctx, RTX, built.file)
        return "TensorRT-RTX, not run"

    @staticmethod
    def _missing() -> list[tuple[str, str]]:
        """Return the runtimes that could have been run here, and how."""
        return [(title, f"pip install 'edgeproof-hub[{name}]'") for name, title in RUN if not is_here(name)]

    def _about_tensorrt(self, built: Built) -> str:
        done = "exported, checked and built into an engine" if self._has_builder else "exported and checked"
        said = built.contract.refused or built.contract.confirmed
        return f"The TensorRT file was {done}; running it needs an NVIDIA GPU. Its check says: {said}"

    @property
    def _has_builder(self) -> bool:
        return RTX in self.ctx.devices

    def _compare(self, columns: Sequence[Column]) -> Comparison:
        store = self.ctx.client.store
        assert store is not None
        runs = [column.measured.profile_run for column in columns if column.measured is not None]
        export_comparison(store, runs, self.folder / "compare.html")
        return compare([store.run(run) for run in runs])

    def _pages(self, files: Files) -> list[tuple[Path, str]]:
        return [
            (self.folder / "compare.html", "what was measured side by side: latencies, layers, what differs"),
            (self.folder / "transform-onnxruntime.html", "what was rewritten for ONNX Runtime, with the graphs"),
            (self.folder / "transform-tensorrt.html", "what was rewritten for TensorRT"),
            *(
                (self.folder / f"verify-{name}.html", f"the INT8 file for {name} against PyTorch, boundary by boundary")
                for name in files.int8
            ),
        ]


def devices(effort: Effort) -> list[Device]:
    """Return this machine, and TensorRT-RTX's builder where it is installed."""
    settings = LocalConfig(threads=1, min_seconds=effort.min_seconds)
    found = [Device(HERE, provider_type="local", provider_config=settings)]
    if is_here("tensorrt_rtx"):
        found.append(Device(RTX, provider_type="tensorrt_rtx", provider_config=TensorRTRTXConfig()))
    return found


def run_demo(home: Path, effort: Effort, *, program: str = "embedl-hub", out: TextIO | None = None) -> DemoResult:
    """Go all the way in a store, and return what was found.

    Args:
        home: The folder of the store.
        effort: How much is trained, tested and measured.
        program: What starts the hub's command line, as the reader is told to type it.
        out: Where what a reader is told goes; standard output if not given.
    """
    folder = home / PROJECT
    folder.mkdir(parents=True, exist_ok=True)
    with Store(home) as store:
        before = len(store.runs(f"{equal('project', PROJECT)} and {equal('name', PROJECT)}"))
    clock = Clock(out or sys.stdout)
    if before:
        clock.say(f"Demo number {before + 1} here; the runs of the others stay, the pages are written anew.")
    with HubContext(PROJECT, devices(effort), home=home) as ctx, ctx.client.start_run(RunType.CUSTOM, PROJECT) as run:
        run.log_param("effort", vars(effort))
        found = Demo(ctx, folder, effort, clock).go(run)
    lines = (
        f"\nThe report: {found.report} (open it in a browser)",
        f"Every step on a page: {program} ui --home {home}",
        f"Every step as text: {program} run show {run.id} --home {home}",
        f"runs stored in {home}",
    )
    print(*lines, sep="\n", file=clock.out)
    clock.say("done" if found.passed else "done, and a file failed its proof: see above")
    return found
