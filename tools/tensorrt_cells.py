"""Run the TensorRT cells of the toolchain table once, and say of each whether it was real or a stand-in.

    python tools/tensorrt_cells.py [--board user@host] [--trtexec PATH] [--json]

With ``--board`` the cells over SSH use that machine's trtexec; without it, the tests' stand-in on an sshd of our own. A
trtexec on this machine makes the local cells real. TensorRT-RTX is the real builder whenever it is installed. Times of
stand-ins mean nothing.
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
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from embedl_hub.core import HubContext
from embedl_hub.core.compile import TensorRTCompiler
from embedl_hub.core.device import (
    Device,
    SSHCommandRunner,
    SSHConfig,
    TensorRTRTXConfig,
    TrtexecConfig,
)
from embedl_hub.core.invoke import TensorRTInvoker
from embedl_hub.core.profile import TensorRTProfiler
from embedl_hub.errors import HubError

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from support import trtexec
from support.models import images, residual_net, save
from support.sshd import SSHServer

if TYPE_CHECKING:
    from collections.abc import Iterator

QUICK: dict[str, Any] = {"iterations": 20, "min_seconds": 0.2, "warmup_seconds": 0.05}


@dataclass(frozen=True)
class Cell:
    """One cell: a component through a provider.

    Attributes:
        kind: ``real``, ``stand-in``, or ``refused`` where the provider says so by design.
        says: What came of it.
    """

    component: str
    provider: str
    kind: str
    version: str
    says: str
    seconds: float


def cells(folder: Path, model: Path, board: str | None = None, program: str | None = None) -> Iterator[Cell]:
    """Yield the cells as they are run."""
    trtexec.install_gpu(folder / "gpu")
    with contextlib.ExitStack() as closing:
        for device, kind, version in _devices(folder, board, program, closing):
            yield from _run(device, kind, version, folder, model)


def _devices(
    folder: Path, board: str | None, program: str | None, closing: contextlib.ExitStack
) -> Iterator[tuple[Device, str, str]]:
    own = shutil.which(program or "trtexec")
    if own is not None:
        yield _local(own), "real", "its own"
    runner = _ssh(folder, closing) if board is None else None
    for version in trtexec.VERSIONS:
        stand_in = str(trtexec.install(folder / version, version))
        if own is None:
            yield _local(stand_in), "stand-in", version
        if runner is not None:
            config = TrtexecConfig(stand_in, **QUICK)
            root = folder / "root"
            device = Device("over SSH", runner, provider_type="trtexec", provider_config=config, artifact_root=root)
            yield replace(device, lease_dir=None), "stand-in", version
    if board is not None:
        user, _, host = board.rpartition("@")
        own_runner = SSHCommandRunner(SSHConfig(host, username=user or None))
        closing.callback(own_runner.close)
        config = TrtexecConfig(program or "trtexec")
        yield Device("over SSH", own_runner, provider_type="trtexec", provider_config=config), "real", "its own"
    yield Device("SM89", provider_type="tensorrt_rtx", provider_config=TensorRTRTXConfig(("SM89",))), "real", "RTX"


def _local(path: str) -> Device:
    return Device("this machine", provider_type="local", provider_config=TrtexecConfig(path, **QUICK))


def _ssh(folder: Path, closing: contextlib.ExitStack) -> SSHCommandRunner:
    server = SSHServer(folder / "sshd", environment={"PATH": f"{folder / 'gpu'}:/usr/bin:/bin"}).start()
    closing.callback(server.stop)
    runner = SSHCommandRunner(server.config())
    closing.callback(runner.close)
    return runner


def _run(device: Device, kind: str, version: str, folder: Path, model: Path) -> Iterator[Cell]:
    title = f"{device.provider_type} ({device.name})"
    data = {"x": images()}
    with HubContext("cells", [device], home=folder / "home") as ctx:
        started = time.perf_counter()
        compiled = TensorRTCompiler().run(ctx, model)
        size = compiled.path.size_bytes / 1e3
        yield Cell("TensorRT compile", title, kind, version, f"engine of {size:.0f} kB", time.perf_counter() - started)
        started = time.perf_counter()
        try:
            profile = TensorRTProfiler().run(ctx, compiled)
        except HubError as error:
            yield Cell("TensorRT profile", title, "refused", version, str(error)[:80], time.perf_counter() - started)
        else:
            says = f"{profile.latency.value:.3f} ms, {len(profile.layers)} layers, {profile.verdict}"
            yield Cell("TensorRT profile", title, kind, version, says, time.perf_counter() - started)
        started = time.perf_counter()
        try:
            output = TensorRTInvoker().run(ctx, compiled, data).output
        except HubError as error:
            yield Cell("TensorRT invoke", title, "refused", version, str(error)[:80], time.perf_counter() - started)
        else:
            drift = float(np.abs(output["y"] - _reference(model, data)).max())
            says = f"at most {drift:.1e} from ONNX Runtime"
            yield Cell("TensorRT invoke", title, kind, version, says, time.perf_counter() - started)


def _reference(model: Path, data: dict[str, np.ndarray]) -> np.ndarray:
    import onnxruntime  # noqa: PLC0415 - only for checking

    session = onnxruntime.InferenceSession(str(model), providers=["CPUExecutionProvider"])
    answer: np.ndarray = session.run(["y"], data)[0]
    return answer


def main() -> None:
    """Run them all and print a row each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--board", help="a machine with trtexec, as user@host")
    parser.add_argument("--trtexec", help="where trtexec is there, and here")
    parser.add_argument("--json", action="store_true", help="one JSON object per cell")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="edgeproof-cells-") as name:
        folder = Path(name)
        # Each cell is to be run, not taken from what an earlier call kept.
        os.environ["XDG_CACHE_HOME"] = str(folder / "cache")
        for cell in cells(folder, save(residual_net(), folder / "net.onnx"), arguments.board, arguments.trtexec):
            if arguments.json:
                print(json.dumps(asdict(cell)))
            else:
                print(f"{cell.kind:9} {cell.component:17} {cell.provider:24} {cell.version:8} {cell.says}")


if __name__ == "__main__":
    main()
