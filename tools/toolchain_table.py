"""Run every cell of the toolchain table once, and say of each whether it was real or a stand-in.

    python tools/toolchain_table.py [--board user@host] [--trtexec PATH] [--json]

Real: ONNX Runtime, OpenVINO, ExecuTorch, LiteRT, the TFLite converter in its environment, SSH to an sshd of our own,
TensorRT-RTX's builder. Stand-ins: trtexec in three versions, and the clouds behind their vendors' real clients. A
trtexec on this machine, or on the machine that ``--board`` names, makes those cells real. Times of stand-ins mean
nothing. Exit code 1 when a cell fails: an error, answers that are not ONNX Runtime's, or work where a refusal was due.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import sys
import tempfile
import time
from collections import Counter
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast
from unittest import mock

import numpy as np
from botocore.stub import Stubber

from embedl_hub.core import HubContext
from embedl_hub.core.compile import (
    ExecuTorchCompiler,
    ONNXRuntimeCompiler,
    OpenVINOCompiler,
    TensorRTCompiler,
    TFLiteCompiler,
)
from embedl_hub.core.device import (
    Device,
    DeviceSpec,
    EmbedlExecuTorchConfig,
    EmbedlLiteRTConfig,
    EmbedlONNXRuntimeConfig,
    EmbedlOpenVINOConfig,
    ExecuTorchConfig,
    LiteRTConfig,
    ONNXRuntimeConfig,
    OpenVINOConfig,
    QAIHubConfig,
    SSHCommandRunner,
    SSHConfig,
    TensorRTRTXConfig,
    TrtexecConfig,
)
from embedl_hub.core.invoke import (
    ExecuTorchInvoker,
    ONNXRuntimeInvoker,
    OpenVINOInvoker,
    TensorRTInvoker,
    TFLiteInvoker,
)
from embedl_hub.core.profile import (
    ExecuTorchProfiler,
    ONNXRuntimeProfiler,
    OpenVINOProfiler,
    TensorRTProfiler,
    TFLiteProfiler,
)
from embedl_hub.errors import HubError
from embedl_hub.machine.environment import CACHE_VARIABLE
from embedl_hub.toolchains.tflite.environment import ENVIRONMENT

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from support import aws, qai_hub, trtexec
from support.models import images, residual_net, save
from support.sshd import SSHServer
from support.tflite import SHARED_CACHE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

STEPS = ("compile", "profile", "invoke")
COMPONENTS: dict[str, tuple[Any, Any, Any]] = {
    "TFLite": (TFLiteCompiler, TFLiteProfiler, TFLiteInvoker),
    "ONNX Runtime": (ONNXRuntimeCompiler, ONNXRuntimeProfiler, ONNXRuntimeInvoker),
    "OpenVINO": (OpenVINOCompiler, OpenVINOProfiler, OpenVINOInvoker),
    "ExecuTorch": (ExecuTorchCompiler, ExecuTorchProfiler, ExecuTorchInvoker),
    "TensorRT": (TensorRTCompiler, TensorRTProfiler, TensorRTInvoker),
}
# How far answers may be from ONNX Runtime's, as a share of their range; a GPU computes with shorter floats by default.
LIMITS = {"TFLite": 1e-3, "ONNX Runtime": 1e-5, "OpenVINO": 1e-5, "ExecuTorch": 1e-5, "TensorRT": 1e-2}
CLOUD = "the cloud; its client is real"
QUICK: dict[str, Any] = {
    "iterations": 20, "min_seconds": 0.05, "max_warmup_seconds": 0.2, "layer_runs": 3, "threads": 1,
}  # fmt: skip
QUICK_TRTEXEC: dict[str, Any] = {"iterations": 20, "min_seconds": 0.2, "warmup_seconds": 0.05}


@dataclass(frozen=True)
class Cell:
    """One cell: a step of a toolchain through a provider.

    Attributes:
        kind: ``real`` or ``stand-in``.
        parts: What was real in it, or what stood in.
        result: ``ok``, ``refused`` where the provider refuses by design, or ``failed``.
        says: What came of it.
    """

    toolchain: str
    step: str
    provider: str
    kind: str
    parts: str
    result: str
    says: str
    seconds: float


@dataclass(frozen=True)
class Row:
    """A toolchain on a device: the cells of its steps.

    Attributes:
        steps: The steps that the table has there.
        refused: Those among them that are to be refused.
    """

    toolchain: str
    device: Device
    kind: str
    parts: str
    steps: tuple[str, ...] = STEPS
    refused: tuple[str, ...] = ()


class Table:
    """The rows, made and run in order. What a toolchain compiled first is kept for the rows that cannot compile."""

    def __init__(self, folder: Path, closing: contextlib.ExitStack, board: str | None, program: str | None) -> None:
        self._folder = folder
        self._closing = closing
        self._board = board
        self._program = program
        self._model = save(residual_net(), folder / "net.onnx")
        self._data = {"x": images()}
        self._compiled: dict[str, Any] = {}
        trtexec.install_gpu(folder / "gpu")
        self._runner = self._sshd()
        self._qualcomm = qai_hub.StandIn(folder).start()
        closing.callback(self._qualcomm.stop)
        os.environ["QAIHUB_CLIENT_INI"] = str(self._qualcomm.ini)

    def cells(self) -> Iterator[Cell]:
        """Yield the cells as they are run."""
        rows = (self._tflite, self._onnxruntime, self._openvino, self._executorch, self._tensorrt)
        for number, row in enumerate(row for each in rows for row in each()):
            self._fresh_cache(number)
            with HubContext("table", [row.device], home=self._folder / "home") as ctx:
                for step in row.steps:
                    yield self._cell(row, step, ctx)

    def _cell(self, row: Row, step: str, ctx: HubContext) -> Cell:
        device = row.device
        cell = partial(Cell, row.toolchain, step, f"{device.provider_type} ({device.name})", row.kind, row.parts)
        started = time.perf_counter()
        try:
            says = self._step(row.toolchain, step)(ctx)
        except HubError as error:
            result, says = "refused" if step in row.refused else "failed", str(error)
        except Exception as error:  # noqa: BLE001 - a cell that breaks must not hide the others
            result, says = "failed", f"{type(error).__name__}: {error}"
        else:
            result = "failed" if step in row.refused else "ok"
        return cell(result, says, time.perf_counter() - started)

    def _step(self, toolchain: str, step: str) -> Callable[[HubContext], str]:
        return {"compile": self._compile, "profile": self._profile, "invoke": self._invoke}[step](toolchain)

    def _compile(self, toolchain: str) -> Callable[[HubContext], str]:
        def run(ctx: HubContext) -> str:
            # What another row compiled must not hide that this one could not.
            self._compiled.pop(toolchain, None)
            model = COMPONENTS[toolchain][0]().run(ctx, self._model)
            self._compiled[toolchain] = model
            if toolchain == "TFLite":
                # The stand-in cannot convert, so it hands out this conversion of the same net.
                self._qualcomm.tflite = model.path.local().read_bytes()
            return f"{model.path.size_bytes / 1e3:.0f} kB"

        return run

    def _profile(self, toolchain: str) -> Callable[[HubContext], str]:
        def run(ctx: HubContext) -> str:
            profile = COMPONENTS[toolchain][1]().run(ctx, self._model_of(toolchain))
            return f"{profile.latency.value:.3f} ms, {len(profile.layers)} layers, {profile.verdict}"

        return run

    def _invoke(self, toolchain: str) -> Callable[[HubContext], str]:
        def run(ctx: HubContext) -> str:
            answer = COMPONENTS[toolchain][2]().run(ctx, self._model_of(toolchain), self._data).output["y"]
            wanted = self._reference()
            share = float(np.abs(answer - wanted).max() / np.ptp(wanted))
            says = f"{share:.1e} of the range from ONNX Runtime"
            if not share <= LIMITS[toolchain]:
                message = f"{says}, at most {LIMITS[toolchain]:.0e} is allowed"
                raise ValueError(message)
            return says

        return run

    def _model_of(self, toolchain: str) -> Any:  # noqa: ANN401 - of any toolchain
        if toolchain not in self._compiled:
            message = "there is no model, because its compile failed"
            raise LookupError(message)
        return self._compiled[toolchain]

    def _reference(self) -> np.ndarray:
        import onnxruntime  # noqa: PLC0415 - only for checking

        session = onnxruntime.InferenceSession(str(self._model), providers=["CPUExecutionProvider"])
        return cast("np.ndarray", session.run(["y"], self._data)[0])

    def _tflite(self) -> Iterator[Row]:
        here = Device("this machine", provider_type="local", provider_config=LiteRTConfig(**QUICK))
        yield Row("TFLite", here, "real", "converter, LiteRT")
        program = EmbedlLiteRTConfig(_beside("embedl-litert"), **QUICK)
        yield Row("TFLite", self._over_ssh(program, "embedl_litert"), "real", "converter, LiteRT, SSH")
        yield Row("TFLite", _phone(), "stand-in", CLOUD)
        self._stub_aws()
        yield Row("TFLite", aws.make_phone(self._folder), "stand-in", CLOUD, ("profile",))

    def _onnxruntime(self) -> Iterator[Row]:
        here = Device("this machine", provider_type="local", provider_config=ONNXRuntimeConfig(**QUICK))
        yield Row("ONNX Runtime", here, "real", "ONNX Runtime")
        program = EmbedlONNXRuntimeConfig(_beside("embedl-onnxruntime"), **QUICK)
        yield Row("ONNX Runtime", self._over_ssh(program, "embedl_onnxruntime"), "real", "ONNX Runtime, SSH")
        yield Row("ONNX Runtime", _phone(), "stand-in", CLOUD)

    def _openvino(self) -> Iterator[Row]:
        here = Device("this machine", provider_type="local", provider_config=OpenVINOConfig(**QUICK))
        yield Row("OpenVINO", here, "real", "OpenVINO")
        program = EmbedlOpenVINOConfig(_beside("embedl-openvino"), **QUICK)
        yield Row("OpenVINO", self._over_ssh(program, "embedl_openvino"), "real", "OpenVINO, SSH")

    def _executorch(self) -> Iterator[Row]:
        here = Device("this machine", provider_type="local", provider_config=ExecuTorchConfig(**QUICK))
        yield Row("ExecuTorch", here, "real", "ExecuTorch")
        program = EmbedlExecuTorchConfig(_beside("embedl-executorch"), **QUICK)
        yield Row("ExecuTorch", self._over_ssh(program, "embedl_executorch"), "real", "ExecuTorch, SSH")

    def _stub_aws(self) -> None:
        links, client = aws.Links(), aws.make_client()
        self._closing.callback(links.stop)
        stubs = self._closing.enter_context(Stubber(client))
        aws.whole_profile(stubs, links)
        self._closing.enter_context(mock.patch("embedl_hub.clouds.aws.service.make_client", return_value=client))

    def _tensorrt(self) -> Iterator[Row]:
        own = shutil.which(self._program or "trtexec")
        if own is not None:
            yield Row("TensorRT", _trtexec_here(own), "real", "trtexec")
        for version in trtexec.VERSIONS:
            stand_in = str(trtexec.install(self._folder / version, version))
            if own is None:
                yield Row("TensorRT", _trtexec_here(stand_in), "stand-in", f"trtexec {version}")
            if self._board is None:
                config = TrtexecConfig(stand_in, **QUICK_TRTEXEC)
                yield Row("TensorRT", self._over_ssh(config, "trtexec"), "stand-in", f"trtexec {version}; SSH is real")
        if self._board is not None:
            yield Row("TensorRT", self._real_board(self._board), "real", "trtexec, SSH")
        rtx = Device("SM89", provider_type="tensorrt_rtx", provider_config=TensorRTRTXConfig(("SM89",)))
        yield Row("TensorRT", rtx, "real", "TensorRT-RTX's builder", refused=("profile", "invoke"))

    def _over_ssh(self, config: Any, provider_type: str) -> Device:  # noqa: ANN401 - settings of any provider
        return Device(
            "sshd here",
            self._runner,
            provider_type=provider_type,
            provider_config=config,
            artifact_root=self._folder / "root",
            lease_dir=None,
        )

    def _real_board(self, board: str) -> Device:
        user, _, host = board.rpartition("@")
        runner = SSHCommandRunner(SSHConfig(host, username=user or None))
        self._closing.callback(runner.close)
        return Device(board, runner, provider_type="trtexec", provider_config=TrtexecConfig(self._program or "trtexec"))

    def _sshd(self) -> SSHCommandRunner:
        environment = {"PATH": f"{self._folder / 'gpu'}:/usr/bin:/bin"}
        server = SSHServer(self._folder / "sshd", environment=environment).start()
        self._closing.callback(server.stop)
        runner = SSHCommandRunner(server.config())
        self._closing.callback(runner.close)
        return runner

    def _fresh_cache(self, number: int) -> None:
        # Each cell is to be run, not taken from what an earlier one kept; the converter's environment is kept.
        cache = self._folder / f"cache{number}"
        cache.mkdir()
        (cache / "converters").symlink_to(SHARED_CACHE / "converters")
        os.environ.update({CACHE_VARIABLE: str(cache), "XDG_CACHE_HOME": str(cache)})


def _phone() -> Device:
    spec, config = DeviceSpec(device_name=qai_hub.DEVICE, os="14"), QAIHubConfig(poll_s=0.01)
    return Device("phone", spec=spec, provider_type="qai_hub", provider_config=config)


def _beside(name: str) -> str:
    return str(Path(sys.executable).with_name(name))


def _trtexec_here(path: str) -> Device:
    return Device("this machine", provider_type="local", provider_config=TrtexecConfig(path, **QUICK_TRTEXEC))


def _line(cell: Cell) -> str:
    says = " ".join(cell.says.split())
    words = f"{cell.toolchain:12} {cell.step:7} {cell.provider:30} {cell.kind:8} {cell.parts:33} {cell.result:7}"
    return f"{words} {says if cell.result == 'failed' else says[:60]}"


def main() -> None:
    """Run them all, print a row each, and exit with 1 when one failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--board", help="a machine with trtexec, as user@host")
    parser.add_argument("--trtexec", help="where trtexec is there, and here")
    parser.add_argument("--json", action="store_true", help="one JSON object per cell")
    arguments = parser.parse_args()
    os.environ[CACHE_VARIABLE] = str(SHARED_CACHE)
    ENVIRONMENT.need(print)
    counts: Counter[str] = Counter()
    with tempfile.TemporaryDirectory(prefix="edgeproof-table-") as name, contextlib.ExitStack() as closing:
        for cell in Table(Path(name), closing, arguments.board, arguments.trtexec).cells():
            counts.update((cell.kind, cell.result))
            print(json.dumps(asdict(cell)) if arguments.json else _line(cell), flush=True)
    if not arguments.json:
        print(", ".join(f"{counts[word]} {word}" for word in ("real", "stand-in", "ok", "refused", "failed")))
    sys.exit(1 if counts["failed"] else 0)


if __name__ == "__main__":
    main()
