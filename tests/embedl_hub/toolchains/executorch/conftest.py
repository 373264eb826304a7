"""The compiled model and the places of the ExecuTorch tests."""

from __future__ import annotations

import fcntl
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.executorch import quantized_net
from support.models import save

from embedl_hub.core import HubContext
from embedl_hub.core.compile import ExecuTorchCompiledModel, ExecuTorchCompiler
from embedl_hub.core.device import Device, EmbedlExecuTorchConfig, ExecuTorchConfig, SSHCommandRunner

QUICK: dict[str, Any] = {
    "iterations": 20,
    "min_seconds": 0.02,
    "max_warmup_seconds": 0.2,
    "layer_runs": 3,
    "threads": 1,
}
PROGRAM = str(Path(sys.executable).with_name("embedl-executorch"))


@pytest.fixture(scope="session")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> ExecuTorchCompiledModel:
    """The net with Q/DQ, really compiled: once for all workers, since the compiler takes seconds to import."""
    shared = tmp_path_factory.getbasetemp().parent / "executorch"
    shared.mkdir(exist_ok=True)
    with (shared / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        note = shared / "run"
        if not note.exists():
            path = save(quantized_net(), shared / "net.onnx")
            with HubContext("compiled", home=shared / "home") as ctx:
                ExecuTorchCompiler().run(ctx, path)
                assert ctx.client.store is not None
                note.write_text(ctx.client.store.find(limit=1).runs[0].id)
    with HubContext("compiled", home=shared / "home") as ctx:
        assert ctx.client.store is not None
        return ExecuTorchCompiledModel.from_run(ctx.client.store.run(note.read_text()))


@pytest.fixture
def here() -> Device:
    """This machine, measuring quickly."""
    return Device("here", provider_type="local", provider_config=ExecuTorchConfig(**QUICK))


@pytest.fixture
def make_board(tmp_path: Path) -> Callable[..., Device]:
    """Make a device of a runner: a board with the program installed unless said otherwise."""

    def make(runner: SSHCommandRunner, **changes: Any) -> Device:
        config = EmbedlExecuTorchConfig(**{"embedl_executorch_path": PROGRAM, **QUICK, **changes})
        return Device(
            "board",
            runner,
            provider_type="embedl_executorch",
            provider_config=config,
            artifact_root=tmp_path / "board",
            lease_dir=str(tmp_path / "lock"),
        )

    return make
